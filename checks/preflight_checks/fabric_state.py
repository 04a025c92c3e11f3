"""Every GPU is registered in its NVLink fabric, and without a fault.

State "completed" says only that registration ended; the status says how (https://github.com/Azure/azhpc-images/pull/506: completed, "insufficient resources", and the
nodes went back into production again and again). A zero cluster UUID and clique are a fault only on products whose NVLink joins nodes; on one switched board they
are normal (https://github.com/NVIDIA/nccl/issues/1672). While registration is under way no GPU of the board can be used: it may be about to end, wait for a partition that an
administrator activates (https://github.com/NVIDIA/gpu-driver-container/issues/909), or never end because the fabric manager doesn't run: UNKNOWN, unless it is seen not to run.
One GPU unlike the others of its node is at fault, whatever its state is called. A recovery that is under way may end by itself: UNKNOWN.
"""

from collections import Counter
from collections.abc import Iterator

from preflight.model import Check, Evidence, Fabric, Finding, Gpu, Node, Part, Plan, Verdict
from preflight.model.gpu_users import users_of
from preflight.model.per_gpu import Fault, gpu_name, gpu_part, judge_gpus

NAME = "fabric_state"

AXES = ("tp", "cp", "ep")  # those whose groups rely on one NVLink domain

RESET = "restart the fabric manager (on a rack also nvidia-imex) and reset the GPU or reboot the node; if it comes back, have GPU and NVSwitch tray looked at"
RECOVERING = {"route recovery", "access timeout recovery"}  # nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*: "in progress"
WHOLE = "registration completed with success"

Identity = tuple[str | None, int | None]  # cluster UUID, clique


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each GPU what is wrong, one PASS for a node; then GPUs and planned groups that are not in one clique. Nothing for nodes without GPUs."""

    def judge_one(node: Node, gpu: Gpu, fabric: Fabric) -> Fault | None:
        fault = _judge_gpu(evidence, node, gpu, fabric)
        if fault is None or fault.verdict is not Verdict.FAIL:
            return fault
        users = users_of(evidence.plan, node, [gpu])
        return fault.replace(verdict=users.lowered(fault.verdict), observed=fault.observed + users.text())

    def without(gpu: Gpu) -> str | None:
        profile = evidence.profile_of(gpu)
        shows_none = gpu.fabric is None and profile is not None and profile.fabric in ("none", "manager")
        return "the driver shows no fabric registration of this product" if shows_none else None

    yield from judge_gpus(NAME, evidence, "fabric", judge_one, good=WHOLE, expected=WHOLE, note=_note, unless=without)
    if evidence.settings.cpu_declared:
        return
    for node in evidence.health or ():
        yield from _without_fabric(evidence, node)
    plan = evidence.plan
    if plan is not None and plan.placement.gpu_uuids is not None:
        yield from _split_groups(evidence, plan, plan.placement.gpu_uuids)
        return
    for node in evidence.health or ():
        yield from _unlike_cliques(evidence, node)


def _note(_gpu: Gpu, fabric: Fabric) -> str | None:
    return f"clique {fabric.clique_id} of {fabric.cluster_uuid}" if fabric.cluster_uuid else None


def _judge_gpu(evidence: Evidence, node: Node, gpu: Gpu, fabric: Fabric) -> Fault | None:
    profile = evidence.profile_of(gpu)
    kind = profile.fabric if profile else None
    if fabric.state != "completed":
        return _not_completed(node, gpu, fabric, kind)
    if fabric.status is None:
        return Fault(Verdict.UNKNOWN, "state completed, but the status is unknown", WHOLE)
    wrong = []
    if fabric.status != 0:
        wrong.append(f"status {fabric.status_text or fabric.status}, not success")
    if kind == "rack":
        wrong += ["cluster UUID all zero"] if fabric.cluster_uuid is None else []
        wrong += [f"clique {fabric.clique_id or 0}"] if not fabric.clique_id and wrong else []
    if wrong:
        return Fault(Verdict.FAIL, f"state completed, {', '.join(wrong)}", _expected(kind), RESET)
    health = _health(fabric)
    if health is None and kind == "rack" and not fabric.clique_id:
        look = "ask the fabric's manager whether the GPU is in a partition"
        return Fault(Verdict.WARN, "clique 0, which may be a partition or none", _expected(kind), look, blames=False)
    return health


def _expected(kind: str | None) -> str:
    rack = ", with cluster UUID and clique set, since NVLink joins nodes here"
    return f"state completed, status success{rack if kind == 'rack' else ''}"


def _not_completed(node: Node, gpu: Gpu, fabric: Fabric, kind: str | None) -> Fault:
    """Alone in its state: at fault. With all others: under way, not begun, or not there."""
    others = [other.fabric for other in node.open_gpus if other.index != gpu.index and other.name == gpu.name]
    done = sum(other is not None and other.state == "completed" and other.status == 0 for other in others)
    if done and 2 * done > len(others):
        observed = f"state {fabric.state}, while {done} other GPUs of the node completed with success"
        return Fault(Verdict.FAIL, observed, _expected(kind), RESET)
    if fabric.state == "not supported":
        if kind == "rack":
            observed = "state not supported, on a product whose NVLink joins nodes"
            return Fault(Verdict.UNKNOWN, observed, _expected(kind), blames=False)
        return Fault(
            Verdict.SKIP, "no fabric to register in (a board without NVSwitch, or a virtual machine without it)"
        )
    stopped = _stopped(node)
    if stopped and kind == "node":
        observed = f"state {fabric.state}, and {' and '.join(stopped)} {'do' if len(stopped) > 1 else 'does'}n't run"
        part = Part(kind="environment", name=f"{' and '.join(stopped)} of {node.name}")
        remedy = f"start {' and '.join(stopped)} on {node.name}; no CUDA program can start before"
        return Fault(Verdict.FAIL, observed, _expected(kind), remedy, part=part)
    observed = f"registration {fabric.state}: it may end by itself, wait for a partition to be activated, or lack a running fabric manager"
    return Fault(Verdict.UNKNOWN, observed, _expected(kind), blames=False)


def _stopped(node: Node) -> list[str]:
    """The daemons that the board needs and that don't run: seen from a system that would run them itself. NVLink 5 needs two."""
    platform = node.platform
    if platform is not None and {platform.virtual_machine, platform.container} - {None, "none"}:
        return []
    is_fifth = any(link.version == "5.0" for gpu in node.open_gpus for link in gpu.links or ())
    needed = ("nv-fabricmanager", "nvlsm") if is_fifth else ("nv-fabricmanager",)
    return [each.name for each in node.services or () if each.running is False and each.name in needed]


def _health(fabric: Fabric) -> Fault | None:
    faults = [name for name, is_fault in fabric.health.items() if is_fault]
    if fabric.misconfiguration:
        faults.append(f"misconfiguration: {fabric.misconfiguration}")
    if fabric.health_summary == "unhealthy" and not faults:
        faults.append("summary unhealthy")
    if faults and not set(faults) - RECOVERING:
        observed = f"registered, but {' and '.join(faults)} is under way"
        return Fault(Verdict.UNKNOWN, observed, "a health mask without faults", blames=False)
    if faults:
        return Fault(
            Verdict.FAIL,
            f"registered, but fabric health says: {', '.join(faults)}",
            "a health mask without faults",
            RESET,
        )
    if fabric.health_summary == "limited capacity":
        return Fault(Verdict.WARN, "registered, but the fabric has limited capacity", "fabric health: healthy")
    return None


def _unlike_cliques(evidence: Evidence, node: Node) -> Iterator[Finding]:
    """GPUs of one node are in one clique: what its groups rely on, with a plan or without."""
    identities = {gpu.index: _identity(gpu) for gpu in node.open_gpus if _sound(evidence, gpu)}
    counts = Counter(identities.values())
    if len(counts) < 2:
        return
    (main, most), *_ = counts.most_common()
    if 2 * most <= len(identities):
        observed = "; ".join(f"{_show(identity)} on {number} GPUs" for identity, number in counts.items())
        yield Finding(
            check=NAME,
            subject=node.name,
            verdict=Verdict.UNKNOWN,
            observed=f"{observed}: which are wrong is not identifiable",
            expected="one cluster UUID and clique for all GPUs of a node",
            remedy="compare with the other nodes of the rack, and with the partitions that are meant",
        )
        return
    for gpu in node.open_gpus:
        if identities.get(gpu.index, main) != main:
            users = users_of(evidence.plan, node, [gpu])
            yield Finding(
                check=NAME,
                subject=gpu_name(node, gpu),
                verdict=users.lowered(Verdict.FAIL),
                observed=f"{_show(_identity(gpu))}{users.text()}",
                expected=f"{_show(main)}, as {most} GPUs of the node",
                remedy=f"look at the fabric's partitions; {RESET}",
                blames=gpu_part(node, gpu, "likely"),
            )


def _split_groups(evidence: Evidence, plan: Plan, uuids: tuple[str | None, ...]) -> Iterator[Finding]:
    """Planned groups that the plan takes for one domain, while their GPUs are in several cliques."""
    placement = plan.placement
    found = {gpu.uuid: (node, gpu) for node in evidence.health or () for gpu in node.open_gpus if _sound(evidence, gpu)}
    for axis in AXES:
        for group in plan.on_axis(axis):
            one_node = len(placement.nodes_of(group.ranks)) == 1
            if not one_node and (placement.domains is None or len(placement.domains_of(group.ranks)) > 1):
                continue
            members = [found[uuid] for rank in group.ranks if (uuid := uuids[rank]) in found]
            counts = Counter(_identity(gpu) for _, gpu in members)
            if len(counts) < 2:
                continue
            (main, most), *_ = counts.most_common()
            odd = [(node, gpu) for node, gpu in members if _identity(gpu) != main]
            alone = odd[0] if len(odd) == 1 < most else None
            yield Finding(
                check=NAME,
                subject=group.name,
                verdict=Verdict.FAIL,
                observed="; ".join(f"{_show(identity)} on {number} GPUs" for identity, number in counts.items()),
                expected="one cluster UUID and clique for the whole group, which the plan takes for one NVLink domain",
                remedy="place the group inside one clique, or have the fabric's partitions corrected (unlike the most: "
                f"{', '.join(f'{node.name} GPU {gpu.index}' for node, gpu in odd[:8])})",
                blames=gpu_part(*alone, "likely") if alone else None,
            )


def _without_fabric(evidence: Evidence, node: Node) -> Iterator[Finding]:
    """A GPU that has no fabric information at all, while most of the same product on its node are registered: the difference is the sign."""
    for gpu in node.open_gpus:
        others = [other for other in node.open_gpus if other.index != gpu.index and other.name == gpu.name]
        done = sum(map(_registered, others))
        if gpu.fabric is None and "fabric" in gpu.unsupported and 2 * done > len(others):
            users = users_of(evidence.plan, node, [gpu])
            yield Finding(
                check=NAME,
                subject=gpu_name(node, gpu),
                verdict=users.lowered(Verdict.FAIL),
                observed=f"the driver knows no fabric for it, while {done} other GPUs of the node are registered{users.text()}",
                expected=WHOLE,
                remedy=RESET,
                blames=gpu_part(node, gpu),
            )


def _registered(gpu: Gpu) -> bool:
    return gpu.fabric is not None and gpu.fabric.state == "completed" and gpu.fabric.status == 0


def _sound(evidence: Evidence, gpu: Gpu) -> bool:
    """Registered, and with a clique where the product has cliques: so that one fault is one finding."""
    profile = evidence.profile_of(gpu)
    return _registered(gpu) and (profile is None or profile.fabric != "rack" or all(_identity(gpu)))


def _identity(gpu: Gpu) -> Identity:
    return (gpu.fabric.cluster_uuid, gpu.fabric.clique_id or 0) if gpu.fabric else (None, None)


def _show(identity: Identity) -> str:
    uuid, clique = identity
    return f"clique {clique} of cluster {uuid or '0 (none)'}"


CHECK = Check(
    name=NAME,
    claim="Every GPU is registered in its NVLink fabric with success, without faults, and in one clique with those that it works with.",
    why="A GPU outside the fabric reaches no peer over NVLink although its links are active, and nothing says so before the job's first collective.",
    source="Azure/azhpc-images pull request 506; NVIDIA/nccl issue 1672; NVIDIA/gpu-driver-container issue 909; health mask: nvml.h.",
    remedy="Start the fabric manager, activate the partition, or reset the GPU that is named; on a rack, look at its NVSwitch trays and at nvidia-imex.",
    uses=("health",),
    judge=judge,
)
