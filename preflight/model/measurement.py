"""What to measure, and what was measured: raw durations, from which algbw and busbw are derived.

Only raw durations are stored. Bandwidth of a measurement = message size / median over iterations of the maximum over ranks.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

from preflight.model.bandwidth import Collective, busbw_factor
from preflight.model.base import Noun
from preflight.model.gpu import Clocks


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle. The standard library's needs 15 ms to import."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


Mode = Literal["alone", "together", "mixed"]
FailureKind = Literal["no_answer", "timed_out", "crashed", "error", "wrong_data", "not_run"]
RouteKind = Literal["P2P", "SHM", "NET", "other"]


class Probe(Noun, frozen=True, kw_only=True):
    """One thing to measure. `subject` names it: "pair 0-5", "gpu 3", or a group's name, "tp0".

    `mode`: pairs are disjoint within a round and count as "alone"; groups are timed alone, then all groups of the axis
    "together", then groups of several axes at once, "mixed", as a training step has them. `repeat` counts repetitions of the same probe within a run, from 0; `attempt`
    those that followed a failure, to find out whom to blame.
    `size_source` says where the message size comes from. `split`: of an all_to_all, the share of its buffer that each rank sends to each member, in the order of
    `ranks`; empty: equal shares. `size_name`: "planned" where a group is timed at the plan's own message size besides a large one; "lone" of a pair that was probed while no other was. `flops`: floating-point operations of one matmul. `reason`: why a follow-up was asked for, empty for what was planned.
    """

    subject: str
    axis: str | None  # None: a pair
    collective: Collective
    ranks: tuple[int, ...]
    size_bytes: int
    size_source: str
    mode: Mode = "alone"
    repeat: int = 0
    attempt: int = 0
    loop_s: float = 0.2
    split: tuple[float, ...] = ()
    flops: int = 0
    reason: str = ""
    size_name: str = ""

    @property
    def key(self) -> str:
        """Unique within a run."""
        again = f" again {self.attempt}" if self.attempt else ""
        skewed = " skewed" if self.split else ""
        size = f" {self.size_name}" if self.size_name else ""
        return f"{self.subject} {self.collective}{skewed}{size} {self.mode} {self.repeat}{again}"


class Failure(Noun, frozen=True, kw_only=True):
    """Why a probe gave no figure. `rank` is the rank that this evidence points at, None if it points at none in particular. `stage`: what was under way
    ("rendezvous", "first operation", ...), empty if nobody could tell.
    """

    kind: FailureKind
    text: str
    rank: int | None = None
    stage: str = ""


class Samples(Noun, frozen=True, kw_only=True):
    """What one rank timed. `durations_s`: seconds of one operation, one entry per timed window of `window` operations
    back to back. `first_call_s`: the first operation after joining (connections are made there), kept apart.
    """

    rank: int
    durations_s: tuple[float, ...]
    first_call_s: float | None = None
    join_s: float | None = None
    window: int = 1


class Route(Noun, frozen=True, kw_only=True):
    """How NCCL moves data from one rank to another, as it said itself. `via`: in its words ("P2P/CUMEM", "NET/IB/0/GDRDMA"); `channels`: over how many channels."""

    sender: int
    receiver: int
    kind: RouteKind
    via: str
    channels: int = 1


class Transport(Noun, frozen=True, kw_only=True):
    """What one rank's NCCL said of itself during a probe. None, empty: it said nothing of that.

    `routes`: between ranks of the plan, the first of many. `gdr`: whether all its ways over a network go straight to and from GPU memory; `gdr_disabled`: HCAs for which NCCL switched that off.
    `network`: "IB", "Socket", a plugin's name. `nvls_channels`: 0 on products without NVLink SHARP. `algorithm`, `protocol`: as NCCL names them; None as a rule: it tells them only in a
    part of its debug output that probes don't ask for. `settings`: NCCL_* variables in
    force, name -> value; `from_file`: names of those that don't stand in the worker's environment, so that a configuration file (/etc/nccl.conf, ~/.nccl.conf) sets them.
    `blocking`: the communicator's mode; `communicator`: "per probe" or "shared"; `connect`: "lazy" or "eager". `notes`: what else may explain the choice, in NCCL's words.
    """

    rank: int
    routes: tuple[Route, ...] = ()
    network: str | None = None
    gdr: bool | None = None
    gdr_disabled: tuple[str, ...] = ()
    channels: int | None = None
    nvls_channels: int | None = None
    algorithm: str | None = None
    protocol: str | None = None
    version: str | None = None
    communicator: str | None = None
    connect: str | None = None
    blocking: bool | None = None
    settings: dict[str, str] = {}
    from_file: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class GpuAround(Noun, frozen=True, kw_only=True):
    """A rank's GPU just before and just after its round: clocks, and why they were held down. None: not read."""

    rank: int
    before: Clocks | None = None
    after: Clocks | None = None


class Measurement(Noun, frozen=True, kw_only=True, dict=True):
    """The outcome of one probe. `samples` is empty if it failed. `data_correct` None: not verified.

    `transport`: what carried the data as far as is known ("gloo over lo", "NCCL: P2P/CUMEM"). `members` are the ranks that
    the communicator itself reported, in group order. `transports`: what each rank's NCCL said; empty: nothing, or no NCCL ran. `gpus`: clocks around the probe, for the ranks of which
    they were read.
    """

    probe: Probe
    samples: tuple[Samples, ...] = ()
    data_correct: bool | None = None
    members: tuple[int, ...] = ()
    transport: str | None = None
    failure: Failure | None = None
    simulated: bool = False
    transports: tuple[Transport, ...] = ()
    gpus: tuple[GpuAround, ...] = ()

    @property
    def slowest_s(self) -> tuple[float, ...]:
        """Per timed window, the maximum over ranks of one operation's duration, in seconds."""
        samples = self.samples
        if len(samples) == 1:
            return samples[0].durations_s
        return tuple(map(max, zip(*[s.durations_s for s in samples], strict=False)))

    @cached_property
    def duration_s(self) -> float | None:
        """Seconds of one operation as the job would see it: median over windows of the maximum over ranks."""
        slowest_s = self.slowest_s
        return median(slowest_s) if slowest_s else None

    @property
    def algbw_bytes_per_s(self) -> float | None:
        """Message size / duration; None if nothing was timed."""
        return self.probe.size_bytes / self.duration_s if self.duration_s else None

    @cached_property
    def busbw_bytes_per_s(self) -> float | None:
        """algbw x the collective's factor; None if nothing was timed."""
        algbw = self.algbw_bytes_per_s
        return None if algbw is None else algbw * busbw_factor(self.probe.collective, len(self.probe.ranks))
