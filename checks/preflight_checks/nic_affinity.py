"""Every GPU has an HCA within reach: behind its own PCIe switches, or over NVLink at a GPU that has one; without NVLink, at least on its CPU socket.

Which HCA belongs to which GPU is derived from how close they are (model/rails.py), never from their numbers. Machines with an HCA for every second GPU are made so: the others send
through a neighbour over NVLink (https://github.com/NVIDIA/nccl/issues/1357). Where no HCA shares a PCIe switch with any GPU, all traffic passes the CPUs, and
GPUDirect RDMA is slow or off; a virtual machine that shows no switches tells nothing of it. HCAs that are nobody's serve storage or management.
"""

from collections.abc import Iterator, Sequence

from preflight.model import Ancestor, Check, Evidence, Finding, Gpu, Node, Verdict
from preflight.model.hostlist import fold_numbers
from preflight.model.layouts import islands, pair_numbers
from preflight.model.rails import ANCESTORS, OWN, Rails, fabric_devices, rails, relation_of

NAME = "nic_affinity"

EXPECTED = "an HCA behind the PCIe switches of each GPU, or of one that it reaches over NVLink; without NVLink, one on its CPU socket"
REMEDY = "use such nodes for jobs on one node, or let ranks of {gpus} carry little traffic between nodes; NCCL_IB_HCA can't bring an HCA closer"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each node: the map of rails as one PASS, or what is out of reach. Nothing for nodes without GPUs."""
    assert evidence.inventory is not None
    if evidence.settings.cpu_declared:
        return
    for node in evidence.inventory.nodes:
        if node.gpus:
            yield _judge_node(node, node.gpus)


def _judge_node(node: Node, gpus: Sequence[Gpu]) -> Finding:
    devices = fabric_devices(node.hcas, node.nics)
    if node.hcas is None and not devices:
        texts = [problem.text for problem in node.problems if problem.field in ("hcas", "nics")]
        return _finding(node, Verdict.UNKNOWN, f"HCAs unknown: {'; '.join(texts) or 'not in this snapshot'}")
    if not node.hcas and not any(gpu.nics for gpu in gpus):
        return _finding(node, Verdict.SKIP, "no HCA on this node")
    found = rails(node)
    best = {gpu.index: _best(node, gpu) for gpu in gpus}
    sets = islands([gpu.index for gpu in gpus], pair_numbers(gpus))
    by_way = tuple(
        index
        for island in sets
        if any(index in found.own for index in island)
        for index in island
        if index not in found.own
    )
    left = [index for gpu in gpus if (index := gpu.index) not in found.own and index not in by_way]
    joined = {index for island in sets if len(island) > 1 for index in island}
    far = [index for index in left if index in joined or best[index] not in (None, *OWN, "PHB", "NODE")]
    unknown = [index for index in left if index not in far and best[index] is None]
    text = f"{_map_text(found)}{_by_way_text(by_way)}{_nobodys_text(found)}"
    if far and not found.own and _hides_places(node, gpus):
        hidden = "this virtual machine shows no PCIe switches, so which HCA is whose is unknown"
        ask = "give NCCL the topology of the machine type (NCCL_TOPO_FILE), as its provider publishes it"
        return _finding(node, Verdict.UNKNOWN, hidden, remedy=ask)
    if far and not [index for index in far if index in found.unknown_gpus]:
        observed = f"{_far_text(far, found, best, joined)}{'; ' + text if found.own else _nobodys_text(found)}"
        return _finding(node, Verdict.WARN, observed, remedy=REMEDY.format(gpus=_gpus(far)))
    if far or unknown:
        return _finding(
            node,
            Verdict.UNKNOWN,
            f"distance of HCAs unknown for {_gpus([*far, *unknown])}{'; ' + text.removeprefix('; ') if text else ''}",
        )
    near = [index for index in left if index not in far]
    return _finding(node, Verdict.PASS, f"{text}{_same_socket_text(near)}".removeprefix("; "))


def _hides_places(node: Node, gpus: Sequence[Gpu]) -> bool:
    """Whether this is a virtual machine in which every GPU sits on a root complex of its own making."""
    virtual = node.platform is not None and node.platform.virtual_machine not in (None, "none")
    above = [gpu.pci_upstream for gpu in gpus]
    return virtual and all(bridges is not None and len(bridges) == 1 for bridges in above)


def _best(node: Node, gpu: Gpu) -> Ancestor | None:
    """How close the closest HCA is; None: unknown of every one."""
    told = [relation_of(node, gpu, device) for device in fabric_devices(node.hcas, node.nics)]
    return min((relation for relation in told if relation is not None), key=ANCESTORS.index, default=None)


def _map_text(found: Rails) -> str:
    """As in "rails: GPU 0: NIC2, GPU 1: NIC4"."""
    if not found.own:
        return ""
    return "rails: " + ", ".join(f"GPU {index}: {' '.join(names)}" for index, names in sorted(found.own.items()))


def _by_way_text(indices: Sequence[int]) -> str:
    if not indices:
        return ""
    return f"; {_gpus(indices)} {'reach' if len(indices) > 1 else 'reaches'} one over NVLink"


def _same_socket_text(indices: Sequence[int]) -> str:
    if not indices:
        return ""
    return f"; {_gpus(indices)} {'have' if len(indices) > 1 else 'has'} one on the CPU socket, behind the host bridge"


def _nobodys_text(found: Rails) -> str:
    nobodys = f"; nobody's: {', '.join(found.not_rails)}" if found.own and found.not_rails else ""
    return nobodys + (f"; unknown whose: {', '.join(found.unknown_hcas)}" if found.unknown_hcas else "")


def _far_text(far: Sequence[int], found: Rails, best: dict[int, Ancestor | None], joined: set[int]) -> str:
    other_socket = [index for index in far if best[index] == "SYS"]
    sockets = f"no HCA on the CPU socket of {_gpus(other_socket)}" if other_socket else ""
    if not found.own and set(far) <= joined:
        return f"no GPU has an HCA behind its own PCIe switches{'; ' + sockets if sockets else ''}"
    if sockets and not set(far) & joined:
        return f"{sockets}, and no NVLink to a GPU that has one"
    return f"{_gpus(far)} reach no HCA behind PCIe switches, neither their own nor over NVLink{'; ' + sockets if sockets else ''}"


def _gpus(indices: Sequence[int]) -> str:
    """As in "GPU 3", "GPUs 0, 1", "GPUs 0-3"."""
    shown = fold_numbers(sorted(indices)) if len(indices) > 2 else ", ".join(map(str, sorted(indices)))
    return f"GPU{'s' * (len(indices) != 1)} {shown.replace(',', ', ').replace(',  ', ', ')}"


def _finding(node: Node, verdict: Verdict, observed: str, *, remedy: str = "") -> Finding:
    expected = EXPECTED if verdict is not Verdict.SKIP else ""
    return Finding(check=NAME, subject=node.name, verdict=verdict, observed=observed, expected=expected, remedy=remedy)


CHECK = Check(
    name=NAME,
    claim="Every GPU has an HCA within reach: behind its own PCIe switches, over NVLink, or at least on its CPU socket.",
    why="Traffic that crosses CPU sockets on its way to the network is several times slower, for one GPU or for all that wait for it.",
    source="Distances: nvidia-smi's topology levels; layouts that are made so: NVIDIA/nccl issues 595, 1357 and 1591; rails: preflight/model/rails.py.",
    remedy="Keep ranks with traffic between nodes on GPUs with an HCA of their own, or use nodes with an HCA next to every GPU.",
    uses=("inventory",),
    judge=judge,
    need="advisory",
)
