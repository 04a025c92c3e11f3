"""A process may lock enough memory for RDMA.

An HCA reads and writes memory that must not move, so every buffer that NCCL registers counts against the limit of locked memory. Defaults of 64 KiB to 8 MiB end a
job of several nodes at its first connection ("Cannot allocate memory"), and it is the job step's limit that counts, whatever the login shell's says. A job within one node
does without HCAs: a WARN; and so is it without a plan where no HCA is close to a GPU, as in servers whose Ethernet card could do RDMA and never does.

Source: NVIDIA's advice for its containers, `--ulimit memlock=-1`; Red Hat's RDMA tuning, limits.d/rdma.conf with "unlimited"; the minimum is 16 channels of NCCL's
default buffer of 4 MiB (NCCL_BUFFSIZE in NCCL's documentation): less can't hold the buffers of one peer.
"""

from collections.abc import Iterator

from preflight.model import UNLIMITED, Check, Evidence, Finding, Node, Part, Verdict
from preflight.model.rails import rails
from preflight.model.units import show_bytes

NAME = "memlock"
LIMITS = {"minimum_bytes": 64.0 * 2**20}
EXPECTED = "unlimited locked memory"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each node that has GPUs and HCAs."""
    minimum = evidence.limits(NAME, LIMITS)["minimum_bytes"]
    spans = len(set(evidence.plan.placement.nodes)) > 1 if evidence.plan is not None else None
    for node in evidence.health or ():
        if node.gpus == () or not node.hcas:
            continue
        limit = node.limits.memlock_bytes if node.limits else None
        if limit is None:
            yield Finding(
                check=NAME,
                subject=node.name,
                verdict=Verdict.UNKNOWN,
                observed="limit of locked memory unknown",
                expected=EXPECTED,
                remedy="run `ulimit -l` inside a job step",
            )
        else:
            needed = _has_rails(node) if spans is None else spans
            yield _judge_limit(node, limit, minimum, needed=needed)


def _has_rails(node: Node) -> bool:
    """Whether an HCA is close to a GPU, or that is not known."""
    found = rails(node)
    return bool(found.own or found.unknown_gpus)


def _judge_limit(node: Node, limit: int, minimum: float, *, needed: bool) -> Finding:
    if limit >= UNLIMITED:
        return Finding(check=NAME, subject=node.name, verdict=Verdict.PASS, observed="unlimited", expected=EXPECTED)
    assert node.limits is not None
    hard = node.limits.memlock_hard_bytes
    seen = f"{show_bytes(limit)} of locked memory for this process"
    if hard is not None:
        seen += f", which it may raise to {'any amount' if hard >= UNLIMITED else show_bytes(hard)}"
    exempt = node.limits.privileged
    if exempt:
        seen += "; it is root's, to whom the limit doesn't apply, but job steps may inherit it"
    enough = limit >= minimum or exempt or not needed
    return Finding(
        check=NAME,
        subject=node.name,
        verdict=Verdict.WARN if enough else Verdict.FAIL,
        observed=seen,
        expected=f"{EXPECTED}, at the least {show_bytes(int(minimum))}",
        remedy="set LimitMEMLOCK=infinity for slurmd (or the container runtime: --ulimit memlock=-1), and memlock unlimited in limits.d for logins",
        blames=Part(kind="environment", name=f"locked-memory limit on {node.name}"),
    )


CHECK = Check(
    name=NAME,
    claim="A process may lock enough memory for RDMA.",
    why="Buffers that an HCA uses are locked; a small limit ends a job at its first connection between nodes.",
    source="NVIDIA's container advice (--ulimit memlock=-1); 16 channels of NCCL's default buffer of 4 MiB as the minimum",
    remedy="LimitMEMLOCK=infinity for the daemon that starts job steps; --ulimit memlock=-1 for containers",
    uses=("health",),
    judge=judge,
    limits=LIMITS,
)
