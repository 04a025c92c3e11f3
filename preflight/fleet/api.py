"""What coordinator and agents say to each other: JSON bodies of POST requests under /v1.

A request is data only: it never carries a command, an interpreter, a path or an environment. Unknown fields are refused, sizes are bounded.
"""

from typing import Annotated

import msgspec

from preflight.model import Failure, Finding, GpuAround, Incident, Node, Probe, Samples, Strict, Transport, Verdict
from preflight.model.bandwidth import ALONE

MAX_REQUEST_BYTES = 4 * 2**20  # a round of one node: at most some dozens of probes of MAX_RANKS each
MAX_REPLY_BYTES = 64 * 2**20
MAX_WORKERS = 256
MAX_FINDINGS = 64  # of one node's verdict
MAX_PROBE_BYTES = 4 * 2**30  # the largest probe is 1 GiB; a worker holds some buffers of that size
MAX_LOOP_S = 60.0  # probes are timed for some tenths of a second
MAX_RANKS = 16_384  # of one probe, so that it fits into the packet that a worker gets
MAX_SPLIT = 1024  # shares of a skewed all_to_all, for the same reason
MAX_FLOPS = 2 * 16_384**3  # three matrices of 1 GiB in float32

Rank = Annotated[int, msgspec.Meta(ge=0, lt=2**20)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
Name = Annotated[str, msgspec.Meta(max_length=253, pattern=r"^[!-~]+\Z")]
JobId = Annotated[
    str, msgspec.Meta(pattern=r"^[0-9]{1,10}\Z")
]  # a number of Slurm's, also of an array's task or a part of a heterogeneous job


class DiscoverRequest(Strict, frozen=True, kw_only=True):
    """Say what this node has. `deadline_s` bounds the discovery itself."""

    deadline_s: Seconds


class DiscoverReply(Strict, frozen=True, kw_only=True):
    """The node as discovered; `address` is what peers reach its workers under."""

    node: Node
    address: str


class WorkerSpec(Strict, frozen=True, kw_only=True):
    """One rank to start; `gpu` None: on the CPU."""

    rank: Rank
    gpu: Annotated[str, msgspec.Meta(max_length=96, pattern=r"^[A-Za-z0-9_/.-]+\Z")] | None = None


class StartRequest(Strict, frozen=True, kw_only=True):
    """Start these workers, in place of all that run. `job`: the Slurm job that the run is for, None: for none; an agent that gives way to jobs doesn't give way to that one."""

    run_id: Name
    workers: Annotated[tuple[WorkerSpec, ...], msgspec.Meta(max_length=MAX_WORKERS)]
    deadline_s: Seconds
    job: JobId | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if a rank stands there twice."""
        _refuse_doubles([spec.rank for spec in self.workers])


class StartReply(Strict, frozen=True, kw_only=True):
    """The ranks that are ready, what went wrong with the others, and how long it took."""

    ready: tuple[int, ...]
    incidents: tuple[Incident, ...] = ()
    versions: dict[str, str] = {}
    zygote_s: float = 0.0
    workers_s: float = 0.0


class StoreRequest(Strict, frozen=True, kw_only=True):
    """Start the rendezvous server of one round."""

    run_id: Name
    deadline_s: Seconds


class StoreReply(Strict, frozen=True, kw_only=True):
    """Where it listens."""

    address: str
    port: int


class RoundRequest(Strict, frozen=True, kw_only=True):
    """Run these probes with this node's ranks. Workers that haven't answered after `deadline_s` are killed, and replaced if `replace`.

    `probes`: those that this node takes part in. `num_tasks`: ranks of the whole round, which start together. `store_address` "": the round needs no rendezvous.
    """

    run_id: Name
    prefix: Name
    backend: Annotated[str, msgspec.Meta(pattern=r"^(gloo|nccl)\Z")]
    probes: Annotated[tuple[Probe, ...], msgspec.Meta(max_length=MAX_WORKERS)]
    store_address: Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[0-9a-fA-F:.]*\Z")]
    store_port: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    num_tasks: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    timeout_s: Seconds
    deadline_s: Seconds
    replace: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError for a probe that can't be meant: one message must not take a node's memory, or its workers for ever."""
        for probe in self.probes:
            _refuse_excess(probe)
            if len(probe.ranks) > 1 and not (self.store_address and self.store_port):
                raise ValueError(f"probe {probe.subject!r}: its ranks need a rendezvous")
        _refuse_doubles([rank for probe in self.probes for rank in probe.ranks])


class RankOutcome(Strict, frozen=True, kw_only=True):
    """What one rank of this node saw of its probe. `told`: what its NCCL said, None: no NCCL ran; `around`: its GPU before and after, None: not read."""

    rank: int
    subject: str
    samples: Samples | None = None
    data_correct: bool | None = None
    members: tuple[int, ...] = ()
    transport: str | None = None
    told: Transport | None = None
    around: GpuAround | None = None
    failure: Failure | None = None


class RoundReply(Strict, frozen=True, kw_only=True):
    """One outcome for each rank of this node that takes part."""

    outcomes: tuple[RankOutcome, ...]
    incidents: tuple[Incident, ...] = ()


class EndRequest(Strict, frozen=True, kw_only=True):
    """Stop all workers of the run, or its rendezvous server only. `leave`: an agent that was started for one run shall end now, and need not wait for its lease to end; a resident one stays."""

    run_id: Name
    store_only: bool = False
    leave: bool = False


class EndReply(Strict, frozen=True, kw_only=True):
    """What could not be stopped."""

    incidents: tuple[Incident, ...] = ()


class VerdictRequest(Strict, frozen=True, kw_only=True):
    """Keep this verdict of your node for the prologs to come, in the place of an older one. FAIL only where the run pinned it on this very node. Where it is kept, and of which boot it is, the agent says."""

    run_id: Name
    verdict: Verdict
    findings: Annotated[tuple[Finding, ...], msgspec.Meta(max_length=MAX_FINDINGS)] = ()
    age_s: Annotated[float, msgspec.Meta(gt=0, le=30 * 86400)]
    drained: bool = False


class VerdictReply(Strict, frozen=True, kw_only=True):
    """It is kept."""


def _refuse_doubles(ranks: list[int]) -> None:
    if len(set(ranks)) < len(ranks):
        doubled = next(rank for position, rank in enumerate(ranks) if rank in ranks[:position])
        raise ValueError(f"rank {doubled} stands there more than once")


def _refuse_excess(probe: Probe) -> None:
    """Raises ValueError for a probe that no worker could, or should, run."""
    named, alone = f"probe {probe.subject!r}", probe.collective in ALONE
    least, most = (1, 1) if alone else (2, 2 if probe.collective == "send" else MAX_RANKS)
    if not least <= len(probe.ranks) <= most or not all(0 <= rank < 2**20 for rank in probe.ranks):
        raise ValueError(f"{named}: {probe.collective} takes {least} to {most} ranks from 0 to {2**20 - 1}")
    if sum(map(len, (probe.subject, probe.size_source, probe.axis or "", probe.size_name, probe.reason))) > 2000:
        raise ValueError("a probe's subject, size_source, axis, size_name and reason: at most 2000 letters in all")
    if not 0 <= min(probe.repeat, probe.attempt) <= max(probe.repeat, probe.attempt) < 2**20:
        raise ValueError(f"{named}: repeat and attempt must be 0 to {2**20 - 1}")
    if not 0 < probe.size_bytes <= MAX_PROBE_BYTES:
        raise ValueError(f"{named}: size_bytes must be 1 to {MAX_PROBE_BYTES}")
    if not 0 <= probe.loop_s <= MAX_LOOP_S:
        raise ValueError(f"{named}: loop_s must be 0 to {MAX_LOOP_S:g}")
    if not 0 <= probe.flops <= MAX_FLOPS or (probe.collective == "matmul") != (probe.flops > 0):
        raise ValueError(f"{named}: flops must be 1 to {MAX_FLOPS} for a matmul, and 0 else")
    if probe.split:
        fits = probe.collective == "all_to_all" and len(probe.split) == len(probe.ranks) <= MAX_SPLIT
        if not fits or not all(0 <= share <= 1 for share in probe.split) or abs(sum(probe.split) - 1) > 0.01:
            raise ValueError(
                f"{named}: a split is one share for each of at most {MAX_SPLIT} ranks of an all_to_all, 1 in all"
            )
