"""What coordinator and agents say to each other: JSON bodies of POST requests under /v1.

A request is data only: it never carries a command, an interpreter, a path or an environment. Unknown fields are refused, sizes are bounded.
"""

from typing import Annotated

import msgspec

from preflight.model import Failure, Incident, Node, Probe, Samples, Strict

MAX_REQUEST_BYTES = 4 * 2**20  # a round of one node: at most some dozens of probes, of at most 131,072 ranks each
MAX_REPLY_BYTES = 64 * 2**20
MAX_WORKERS = 256

Rank = Annotated[int, msgspec.Meta(ge=0, lt=2**20)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


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
    gpu: Annotated[str, msgspec.Meta(max_length=96)] | None = None


class StartRequest(Strict, frozen=True, kw_only=True):
    """Start these workers, in place of all that run."""

    run_id: Name
    workers: Annotated[tuple[WorkerSpec, ...], msgspec.Meta(max_length=MAX_WORKERS)]
    deadline_s: Seconds


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
    """Run these probes with this node's ranks. Workers that haven't answered after `deadline_s` are killed and replaced."""

    run_id: Name
    prefix: Name
    backend: Annotated[str, msgspec.Meta(pattern="^(gloo|nccl)$")]
    probes: Annotated[tuple[Probe, ...], msgspec.Meta(max_length=MAX_WORKERS)]
    store_address: Annotated[str, msgspec.Meta(max_length=64)]
    store_port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    num_tasks: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    timeout_s: Seconds
    deadline_s: Seconds


class RankOutcome(Strict, frozen=True, kw_only=True):
    """What one rank of this node saw of its probe."""

    rank: int
    subject: str
    samples: Samples | None = None
    data_correct: bool | None = None
    members: tuple[int, ...] = ()
    transport: str | None = None
    failure: Failure | None = None


class RoundReply(Strict, frozen=True, kw_only=True):
    """One outcome for each rank of this node that takes part."""

    outcomes: tuple[RankOutcome, ...]
    incidents: tuple[Incident, ...] = ()


class EndRequest(Strict, frozen=True, kw_only=True):
    """Stop all workers of the run, or its rendezvous server only."""

    run_id: Name
    store_only: bool = False


class EndReply(Strict, frozen=True, kw_only=True):
    """What could not be stopped."""

    incidents: tuple[Incident, ...] = ()
