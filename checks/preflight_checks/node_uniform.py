"""All nodes are alike: GPUs, driver, CUDA, NCCL, kernel, CPUs; and the GPUs of one node.

Collectives run at the pace of the slowest member, and mixed drivers make NCCL choose different transports on two ends. Said are the classes and who is in
them. A mixed partition is no fault, so that a difference is a WARN; whether a group of the job mixes classes is for `group_uniform` to say.
Source: the checks of cluster suites that compare model, memory, driver, VBIOS and inforom across an allocation (gcm, imbue cluster-health, cluster-health-scanner, cvs).
"""

from collections.abc import Hashable, Iterator

from preflight.model import Check, Evidence, Finding, Node
from preflight.model.uniform import GpuFact, NodeFact, compare_nodes, compare_within, of_nodes
from preflight.model.units import show_bytes

NAME = "node_uniform"

# Drivers reserve differently much of the same product's memory, below 1 %; the next smaller product has 15 % less or more.
LIMITS = {"memory_tolerance_ratio": 0.02}

NOT_OF_SOFTWARE = ("ofed", "mlnx_ofed")  # nic_uniform compares those


def _show_bytes(value: Hashable) -> str:
    return show_bytes(value) if isinstance(value, int | float) else str(value)


def _gpu_facts(tolerance_ratio: float, *, owed: bool) -> tuple[GpuFact, ...]:
    return (
        GpuFact("GPU product", "name", lambda gpu: gpu.name, owed=owed),
        GpuFact("GPU memory", "memory_bytes", lambda gpu: gpu.memory_bytes, owed, _show_bytes, tolerance_ratio),
        GpuFact("VBIOS version", "vbios_version", lambda gpu: gpu.vbios_version),
        GpuFact("inforom version", "inforom_version", lambda gpu: gpu.inforom_version),
        GpuFact("GSP firmware version", "gsp_version", lambda gpu: gpu.gsp_version),
    )


HOST_FACTS = (
    NodeFact("driver version", lambda node: node.driver_version, owed=True, of_gpu=True),
    NodeFact("CUDA version of the driver", lambda node: node.cuda_version, of_gpu=True),
    NodeFact("kernel", lambda node: node.kernel, owed=True),
    NodeFact("number of CPUs", lambda node: node.num_cpus, owed=True),
    NodeFact("CPU model", lambda node: node.cpu_model),
)


def _software(nodes: tuple[Node, ...]) -> list[NodeFact]:
    """One fact for each kind of software of which some node tells the version."""
    names = dict.fromkeys(name for node in nodes for name in node.versions if name not in NOT_OF_SOFTWARE)

    def fact(name: str) -> NodeFact:
        return NodeFact(f"{name} version", lambda node: node.versions.get(name))

    return [fact(name) for name in names]


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each fact one finding over all nodes; one for each node whose own GPUs differ. Topology texts are compared by what they tell."""
    assert evidence.inventory is not None
    nodes, healthy = evidence.inventory.nodes, evidence.health or ()
    tolerance = evidence.limits(NAME, LIMITS)["memory_tolerance_ratio"]
    number = NodeFact("number of GPUs", lambda node: None if node.gpus is None else len(node.gpus), owed=True)
    if not evidence.settings.cpu_declared:
        yield from compare_nodes(NAME, evidence, nodes, [number])
    facts = [of_nodes(fact) for fact in _gpu_facts(tolerance, owed=len(healthy) == len(nodes))]
    yield from compare_nodes(NAME, evidence, nodes, facts)
    yield from compare_nodes(NAME, evidence, healthy, [*HOST_FACTS, *_software(healthy)])
    yield from compare_within(NAME, evidence, nodes, _gpu_facts(tolerance, owed=False))


CHECK = Check(
    name=NAME,
    claim="All nodes have the same GPUs, driver, CUDA, NCCL, kernel and CPUs, and the GPUs of one node are alike.",
    why="Collectives run at the pace of the slowest member, and mixed drivers choose different transports on two ends.",
    source="What gcm, imbue's cluster-health and cluster-health-scanner compare across an allocation; memory tolerance: drivers reserve below 1 % differently.",
    remedy="Ask for nodes of one kind (in Slurm: a partition or --constraint), or bring the odd nodes to the software and firmware of the others.",
    uses=("inventory",),
    judge=judge,
    limits=LIMITS,
)
