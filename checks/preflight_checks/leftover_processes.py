"""Nobody else holds the job's GPUs.

A process left over from an earlier job keeps memory, so that the new job runs out of it, and compute, so that it is slow. Looked at are only the GPUs of this job, by its
mask or its plan; where nobody says which those are, all GPUs are, and a finding is a WARN, since another job may be at home there. So is a process of which only
the number can be seen: it may be this job's own; and one that only draws on a display. Processes of the job or session that looks, daemons of the system
(MPS, DCGM, persistence, a display) and processes below the limit don't count. Memory that is in use without a process that can be seen is a WARN.
Source of the limits: gcm tolerates 15 MiB; cyclecloud-healthagent wants 95 % of the memory allocatable.
"""

from collections.abc import Iterator, Sequence

from preflight.model import Check, Evidence, Finding, Gpu, GpuProcess, Node, Part, Verdict
from preflight.model.gpu_daemons import holds, is_daemon
from preflight.model.job_gpus import job_uuids
from preflight.model.per_gpu import Fault, gpu_part, judge_gpus
from preflight.model.units import MIB, show_bytes

NAME = "leftover_processes"
LIMITS = {"process_memory_mib": 15.0, "memory_used_ratio": 0.05}
EXPECTED = "no process of anybody else on the job's GPUs"

_MAX_SHOWN = 4


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for the processes on each of the job's GPUs, one PASS for those of a node that nobody holds."""
    limits = evidence.limits(NAME, LIMITS)
    job = {node.name: job_uuids(node, evidence.plan) for node in evidence.health or ()}
    others = {
        gpu.uuid
        for node in evidence.health or ()
        if (ours := job[node.name]) is not None
        for gpu in node.gpus or ()
        if gpu.uuid is not None and gpu.uuid not in ours
    }

    def of_gpu(node: Node, gpu: Gpu, processes: Sequence[GpuProcess]) -> Fault | None:
        return _judge_gpu(node, gpu, processes, limits, certain=job[node.name] is not None)

    yield from judge_gpus(
        NAME,
        evidence,
        "processes",
        of_gpu,
        good="nobody else's processes",
        expected=EXPECTED,
        note=_daemons,
        unless=lambda gpu: "not a GPU of this job" if gpu.uuid in others else None,
    )


def _judge_gpu(
    node: Node, gpu: Gpu, processes: Sequence[GpuProcess], limits: dict[str, float], *, certain: bool
) -> Fault | None:
    held = [p for p in processes if not (p.ours or is_daemon(p)) and holds(p, limits["process_memory_mib"] * MIB)]
    seen = any(process.name is not None for process in held)
    if held:
        shown = "; ".join(map(_text, held[:_MAX_SHOWN])) + (
            f"; {len(held) - _MAX_SHOWN} more" if held[_MAX_SHOWN:] else ""
        )
        return Fault(
            Verdict.FAIL if certain and any(map(_surely_takes, held)) else Verdict.WARN,
            f"held by {shown}"
            + ("" if certain else "; which GPUs are this job's is not known")
            + ("" if seen else "; whose it is can't be told from here"),
            EXPECTED,
            f"if no job of theirs runs on {node.name}: end {', '.join(str(process.pid) for process in held[:_MAX_SHOWN])} there, "
            "let the scheduler's epilog do so after each job, and reboot the node if a process can't be ended",
            part=Part(kind="environment", name=_part_name(node, held), confidence="likely" if seen else "possible"),
        )
    if processes or gpu.mig_enabled or gpu.own_numa_node is not None:
        return None  # a share of the memory is a MIG device's, or the host's own
    if not gpu.memory_used_bytes or not gpu.memory_bytes:
        return None
    if gpu.memory_used_bytes <= limits["memory_used_ratio"] * gpu.memory_bytes:
        return None
    return Fault(
        Verdict.WARN,
        f"{show_bytes(gpu.memory_used_bytes)} of {show_bytes(gpu.memory_bytes)} in use, and no process is seen: one of another container, or memory that was not given back",
        f"at most {limits['memory_used_ratio']:.0%} of the memory in use",
        f"look at `nvidia-smi` on the host of {node.name}; if no process is there either, reset the GPU",
        blames=False,
        part=gpu_part(node, gpu, "possible") if _sees_all(node) else None,
    )


def _sees_all(node: Node) -> bool:
    """Whether the driver lists everybody here: a container is shown its own processes only."""
    return node.platform is not None and node.platform.container == "none"


def _surely_takes(process: GpuProcess) -> bool:
    """Whether it is seen to be another's, and computes: windows on a display take little."""
    return process.name is not None and process.kind != "graphics"


def _text(process: GpuProcess) -> str:
    """As in "process 4711 (python3, user alice, 12.0 GB)"."""
    facts = [process.name or "name not visible from here"]
    facts += [f"user {process.user}"] if process.user else []
    facts += [show_bytes(process.memory_bytes)] if process.memory_bytes is not None else []
    return f"process {process.pid} ({', '.join(facts)})"


def _part_name(node: Node, held: Sequence[GpuProcess]) -> str:
    return f"process{'es' * (len(held) > 1)} {', '.join(str(p.pid) for p in held[:_MAX_SHOWN])} on {node.name}"


def _daemons(_gpu: Gpu, processes: Sequence[GpuProcess]) -> str | None:
    names = dict.fromkeys(process.name for process in processes if process.name is not None and is_daemon(process))
    told = [f"daemons: {', '.join(name for name in names if name)}"] if names else []
    own = [str(process.pid) for process in processes if process.ours and not is_daemon(process)]
    told += [f"this job's own: {', '.join(own[:_MAX_SHOWN])}{' ...' if own[_MAX_SHOWN:] else ''}"] if own else []
    return "; ".join(told) or None


CHECK = Check(
    name=NAME,
    claim="Nobody else holds the job's GPUs.",
    why="A process left over from an earlier job keeps memory and compute, so that the new job runs out of memory or is slow.",
    source="gcm's 15 MiB and cyclecloud-healthagent's 95 % of allocatable memory.",
    remedy="End the process, let the scheduler's epilog do so after each job, and reboot the node if it can't be ended.",
    uses=("health",),
    judge=judge,
    need="advisory",
    limits=LIMITS,
)
