"""Settings are alike on all nodes and on the GPUs of one node: ECC, persistence, MIG, power limit, application clocks, confidential computing, limits, NCCL.

A node with another power limit or clock is a straggler that no error counter shows, and NCCL settings that differ (algorithm, protocol, interface) can stop a
collective for good. Said are the values and who has them; a difference is a WARN, since which side is right is for the site to say. Settings that name a
node's own things (NCCL_HOSTID, files to write to) may differ.
Source: catalogue of cluster suites (equal power limit: NVIDIA Health Validation; persistence, MIG, ECC and confidential mode: cyclecloud-healthagent,
azurehpc-health-checks, imbue; locked clocks: gcm). /dev/shm is half of the memory, which two equal nodes have to within 1 %.
"""

from collections.abc import Hashable, Iterator, Sequence

from preflight.model import UNLIMITED, Check, Evidence, Finding, Gpu, Node, Setting, Verdict
from preflight.model.classes import classify
from preflight.model.hostlist import fold
from preflight.model.uniform import ALIKE, NO_MAJORITY, GpuFact, NodeFact, compare_nodes, compare_within, of_nodes
from preflight.model.units import show_bytes

NAME = "settings_uniform"
LIMITS = {"shm_tolerance_ratio": 0.02}

# these name something of the node or of the process itself
OWN = ("NCCL_HOSTID", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE", "CUDA_VISIBLE_DEVICES")


def _on_off(value: Hashable) -> str:
    return "enabled" if value is True else "disabled" if value is False else str(value)  # "on on node7" reads badly


def _watts(value: Hashable) -> str:
    return f"{value} W" if isinstance(value, int) else str(value)


def _bytes(value: Hashable) -> str:
    return "unlimited" if value == UNLIMITED else show_bytes(value) if isinstance(value, int | float) else str(value)


def _power_limit(gpu: Gpu) -> Hashable | None:
    limit = gpu.power.limit_w if gpu.power else None
    return None if limit is None else round(limit)


def _locked_clock(gpu: Gpu) -> Hashable | None:
    clock = gpu.clocks.application_sm_mhz if gpu.clocks else None
    return None if clock is None else f"{clock} MHz"


GPU_FACTS = (
    GpuFact("ECC mode", "ecc_enabled", lambda gpu: gpu.ecc_enabled, show=_on_off),
    GpuFact("persistence mode", "persistence", lambda gpu: gpu.persistence, show=_on_off),
    GpuFact("MIG mode", "mig_enabled", lambda gpu: gpu.mig_enabled, show=_on_off),
    GpuFact("power limit", "power.limit_w", _power_limit, show=_watts),
    GpuFact("application clock", "clocks.application_sm_mhz", _locked_clock),
)


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each setting one finding over all nodes that tell it; one for each node whose own GPUs differ."""
    nodes = evidence.health or ()
    tolerance = evidence.limits(NAME, LIMITS)["shm_tolerance_ratio"]
    host_facts = (
        NodeFact("confidential computing", lambda node: node.confidential_compute, of_gpu=True, show=_on_off),
        NodeFact("locked-memory limit", lambda node: node.limits.memlock_bytes if node.limits else None, show=_bytes),
        NodeFact(
            "size of /dev/shm",
            lambda node: node.limits.shm_bytes if node.limits else None,
            show=_bytes,
            tolerance_ratio=tolerance,
        ),
    )
    facts = [*(of_nodes(fact) for fact in GPU_FACTS), *host_facts]
    yield from compare_nodes(NAME, evidence, nodes, facts, settings=True)
    yield from compare_within(NAME, evidence, nodes, GPU_FACTS, settings=True)
    yield from _compare_settings([node for node in nodes if node.settings is not None])


def _compare_settings(nodes: Sequence[Node]) -> Iterator[Finding]:
    """NCCL's and CUDA's settings by name; one that a node doesn't set is a class of its own."""
    if len(nodes) < 2:
        return
    of_node = {node.name: {setting.name: setting for setting in node.settings or ()} for node in nodes}
    names = dict.fromkeys(name for settings in of_node.values() for name in settings if name not in OWN)
    alike = 0
    for name in names:
        found = {node: settings.get(name) for node, settings in of_node.items()}
        classes = classify(found.items(), lambda pair: _value(pair[1]), lambda pair: pair[0])
        if classes.uniform:
            alike += 1
            continue
        origins: dict[str, dict[str, list[str]]] = {}
        for node, setting in found.items():
            if setting is not None:
                origins.setdefault(_value(setting), {}).setdefault(setting.origin, []).append(node)
        yield Finding(
            check=NAME,
            subject=name,
            verdict=Verdict.WARN,
            observed=f"{classes.text()}{_origins(origins)}",
            expected=ALIKE if classes.unlike else NO_MAJORITY,
            remedy=f"set {name} in one place for all nodes, or nowhere",
        )
    if alike:
        yield Finding(
            check=NAME,
            subject="NCCL settings",
            verdict=Verdict.PASS,
            observed=f"{alike} setting{'s' * (alike > 1)} alike on {len(nodes)} nodes",
            expected=ALIKE,
        )


def _value(setting: Setting | None) -> str:
    return "not set" if setting is None else repr(setting.value)[:80]


def _origins(origins: dict[str, dict[str, list[str]]]) -> str:
    told = [f"{value} from {place} on {fold(nodes)}" for value, by in origins.items() for place, nodes in by.items()]
    return f" ({'; '.join(told[:4])}{'; ...' if told[4:] else ''})"


CHECK = Check(
    name=NAME,
    claim="ECC, persistence, MIG, power limit, clocks, confidential computing, limits and NCCL settings are alike on all nodes and GPUs.",
    why="A GPU with another power limit or clock is a straggler without any error, and NCCL settings that differ can stop a collective for good.",
    source="What cyclecloud-healthagent, azurehpc-health-checks, NVIDIA Health Validation, gcm and imbue compare across nodes.",
    remedy="Set it alike everywhere (nvidia-smi -pl, -pm, -e, -mig, -ac; limits of the service that starts jobs; /etc/nccl.conf), then restart what has to be.",
    uses=("health",),
    judge=judge,
    need="advisory",
    limits=LIMITS,
)
