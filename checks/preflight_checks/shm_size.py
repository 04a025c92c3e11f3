"""/dev/shm has room for NCCL's segments.

Ranks of one node exchange data and addresses through shared memory. Containers get 64 MB of it unless asked otherwise, and a job then ends with "No space left
on device" or a bus error, often minutes into training, when the data loader's segments join in.

Source: NVIDIA's advice for its containers, `--shm-size=1g`; a segment of one NCCL channel was 9.6 MB in public reports (NVIDIA/nccl issue 342).
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Node, Part, Verdict
from preflight.model.units import show_bytes

NAME = "shm_size"
LIMITS = {"segment_bytes": 9.6e6, "advised_bytes": 1e9}


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each node with GPUs."""
    limits = evidence.limits(NAME, LIMITS)
    for node in evidence.health or ():
        if not node.gpus:
            continue
        needed = limits["segment_bytes"] * len(node.gpus)
        expected = f"{show_bytes(int(limits['advised_bytes']))} free, at the least {show_bytes(int(needed))}"
        free = node.limits.shm_free_bytes if node.limits else None
        if free is None:
            yield Finding(
                check=NAME,
                subject=node.name,
                verdict=Verdict.UNKNOWN,
                observed="room in /dev/shm unknown",
                expected=expected,
                remedy="run `df /dev/shm` where the job will run",
            )
        elif free >= limits["advised_bytes"]:
            observed = f"{show_bytes(free)} free in /dev/shm"
            yield Finding(check=NAME, subject=node.name, verdict=Verdict.PASS, observed=observed, expected=expected)
        else:
            yield _too_small(node, free, Verdict.WARN if free >= needed else Verdict.FAIL, expected)


def _too_small(node: Node, free: int, verdict: Verdict, expected: str) -> Finding:
    size = node.limits.shm_bytes if node.limits else None
    of = "" if size is None else f" of {show_bytes(size)}"
    in_container = node.platform is not None and node.platform.container not in (None, "none")
    how = "start the container with --shm-size=1g or --ipc=host" if in_container else "mount a larger tmpfs on /dev/shm"
    full = size is not None and size >= 1e9
    return Finding(
        check=NAME,
        subject=node.name,
        verdict=verdict,
        observed=f"{show_bytes(free)}{of} free in /dev/shm",
        expected=expected,
        remedy="delete what earlier jobs left in /dev/shm" if full else how,
        blames=Part(kind="environment", name=f"/dev/shm on {node.name}"),
    )


CHECK = Check(
    name=NAME,
    claim="/dev/shm has room for NCCL's segments.",
    why='Ranks of a node talk through shared memory; 64 MB, a container\'s default, ends jobs with "No space left on device".',
    source="NVIDIA's container advice (--shm-size=1g); 9.6 MB for each segment (NVIDIA/nccl issue 342)",
    remedy="--shm-size=1g or --ipc=host for containers; clear what earlier jobs left",
    uses=("health",),
    judge=judge,
    limits=LIMITS,
)
