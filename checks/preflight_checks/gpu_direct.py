"""HCAs can reach GPU memory without a copy through the host (GPUDirect RDMA).

Without it every byte between nodes goes through host memory: a public case fell from about 180 to 10 GB/s on every pair of nodes at once, after an image upgrade, so that no
comparison of nodes could find it. A module that is loaded is not a module that is registered. Where no HCA shares PCIe switches with a GPU, NCCL
doesn't use it unless NCCL_NET_GDR_LEVEL says so: a WARN. The driver of EFA cards reaches GPU memory by itself, without these modules.

Source: NVIDIA/nccl issue 1676 (NCCL up to 2.22.3 looks only for the older module's entry in /sys/kernel/mm/memory_peers, 2.23.4 and later also take nvidia_peermem itself);
issues 1537 and 1939 (loaded, not registered); ROCm/rccl pull request 1328 (no memory_peers from kernel 6.4 on); issue 1474 and NVIDIA's GPUDirect RDMA documentation (dmabuf needs the open kernel modules); issue 778 (NCCL 2.13 uses dmabuf, 2.11 did not).
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, GpuDirect, Node, Part, Verdict
from preflight.model.rails import rails

NAME = "gpu_direct"
EXPECTED = "dmabuf, or a peer-memory module that the RDMA stack knows"
PEERS = {"nv_mem", "nv_mem_nc"}  # what either module registers as
TAKES_PEERMEM = (2, 23, 4)
TAKES_DMABUF = (2, 13)


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each node with GPUs and HCAs. FAIL only where a plan spans nodes: within one node nothing needs it."""
    spans = evidence.plan is not None and len(set(evidence.plan.placement.nodes)) > 1
    for node in evidence.health or ():
        if not node.gpus or not node.hcas or all(hca.driver == "efa" for hca in node.hcas):
            continue
        verdict, observed, remedy = _state(node)
        if verdict is Verdict.FAIL and not (spans and _would_be_used(node)):
            verdict = Verdict.WARN
        yield Finding(
            check=NAME,
            subject=node.name,
            verdict=verdict,
            observed=observed,
            expected=EXPECTED,
            remedy=remedy,
            blames=Part(kind="environment", name=f"GPUDirect RDMA on {node.name}")
            if verdict in (Verdict.FAIL, Verdict.WARN)
            else None,
        )


def _would_be_used(node: Node) -> bool:
    """Whether an HCA is close enough to a GPU, or that is not known."""
    found = rails(node)
    return bool(found.own or found.unknown_gpus)


def _state(node: Node) -> tuple[Verdict, str, str]:
    """What follows from the modules, as if the job spanned nodes; with what was seen and what to do."""
    direct = node.gpu_direct
    if direct is None:
        return Verdict.UNKNOWN, "kernel modules can't be read here", "run `lsmod | grep peermem` on the node"
    nccl, off = _version(node.versions.get("nccl")), node.setting("NCCL_DMABUF_ENABLE")
    if direct.dmabuf and (nccl is None or nccl >= TAKES_DMABUF) and not (off and off.value == "0"):
        return Verdict.PASS, f"dmabuf (open kernel modules), {_spelled(node)}", ""
    registered = PEERS & set(direct.memory_peers or ())
    if registered:
        return Verdict.PASS, f"{', '.join(sorted(registered))} registered with the RDMA stack", ""
    if direct.peermem in (None, "none"):
        return _without_module(direct)
    return _unregistered(node, str(direct.peermem), nccl)


def _without_module(direct: GpuDirect) -> tuple[Verdict, str, str]:
    if direct.peermem is None:
        return Verdict.UNKNOWN, "whether a peer-memory module is loaded is unknown", "run `lsmod | grep peermem`"
    if direct.dmabuf is None:
        return Verdict.UNKNOWN, "no peer-memory module; whether dmabuf is there is unknown", "modprobe nvidia-peermem"
    return Verdict.FAIL, "no peer-memory module is loaded, and no dmabuf", "modprobe nvidia-peermem, at every boot"


def _unregistered(node: Node, module: str, nccl: tuple[int, ...] | None) -> tuple[Verdict, str, str]:
    """A module without its entry in sysfs: kernels from 6.4 on have no such folder, so that its absence alone proves nothing."""
    unseen = f"{module} is loaded, but has no entry in /sys/kernel/mm/memory_peers"
    if nccl is None:
        return Verdict.UNKNOWN, f"{unseen}; whether NCCL takes that depends on its version", _ASK_NCCL
    if nccl < TAKES_PEERMEM and module == "nvidia_peermem":
        why = f"{unseen}, where {_spelled(node)} looks (2.23.4 and later take the module itself)"
        return Verdict.FAIL, why, "use NCCL 2.23.4 or later, or an RDMA stack in which nvidia_peermem registers"
    return Verdict.WARN, f"{unseen}: loaded, perhaps not registered", _ASK_NCCL


def _spelled(node: Node) -> str:
    version = node.versions.get("nccl")
    return f"NCCL {version}" if version else "an NCCL whose version is unknown"


_ASK_NCCL = 'run a job with NCCL_DEBUG=INFO: "GPU Direct RDMA Disabled" says that it is off'


def _version(text: str | None) -> tuple[int, ...] | None:
    """The numbers of a version: 2.22.3 is (2, 22, 3), and so is 2.22.3-1+cuda12.4. None: no version."""
    if text is None:
        return None
    numbers = text.partition("-")[0].partition("+")[0].split(".")
    return (
        tuple(int(number) for number in numbers)
        if all(number.isascii() and number.isdecimal() and len(number) < 10 for number in numbers)
        else None
    )


CHECK = Check(
    name=NAME,
    claim="HCAs can reach GPU memory without a copy through the host (GPUDirect RDMA).",
    why="Without it traffic between nodes goes through host memory, at a tenth of the speed, on all nodes alike.",
    source="NVIDIA/nccl issues 1676, 1537, 1939, 1474; 778 (dmabuf from NCCL 2.13 on)",
    remedy="load nvidia-peermem at boot, or the open kernel modules (dmabuf) with a kernel of 5.12 or later",
    uses=("health",),
    judge=judge,
    need="advisory",
)
