"""What a job will need and how long its step will take, as nouns. Every figure is per GPU and per training step unless it says otherwise."""

from typing import Literal

from preflight.model.base import Noun

MemoryPart = Literal["parameters", "gradients", "optimizer", "activations", "buffers", "reserve"]


class MemoryLine(Noun, frozen=True, kw_only=True):
    """One of the six lines. `formula`: how the figure came about, with the numbers put in."""

    part: MemoryPart
    size_bytes: int
    formula: str


class Memory(Noun, frozen=True, kw_only=True):
    """Memory of the most loaded GPU. `stage`: the pipeline stage it belongs to, from 0.

    `error_share`: half-width of the band around the total, as a share of it, from rows measured elsewhere. `not_modelled`: terms left out.
    """

    stage: int
    lines: tuple[MemoryLine, ...]
    error_share: float
    error_source: str
    not_modelled: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Sum of the six lines."""
        return sum(line.size_bytes for line in self.lines)

    @property
    def state_bytes(self) -> int:
        """Parameters, gradients and optimizer: what does not depend on the batch."""
        return sum(line.size_bytes for line in self.lines if line.part in {"parameters", "gradients", "optimizer"})


class MemoryGap(Noun, frozen=True, kw_only=True):
    """One line of the estimate beside what a run reported; `part` "total": all six together.

    `measured_bytes` and `gap_bytes` (measured - estimated) None: the run did not report that line. `explains`: this is the line that would explain the
    gap; `text` says how.
    """

    part: MemoryPart | Literal["total"]
    estimated_bytes: int
    measured_bytes: int | None = None
    gap_bytes: int | None = None
    explains: bool = False
    text: str = ""


class Traffic(Noun, frozen=True, kw_only=True):
    """One row of the communication ledger: what one rank sends along one axis for one purpose in one step.

    `axis` names the groups that carry it (Plan.groups). `calls` per step; `message_bytes` of one call as nccl-tests counts it; `wire_bytes`
    sent by one rank in all calls together (ring algorithms). `exposed`: on the critical path unless overlapped by the framework;
    False: hidden behind compute as far as it fits; `hides_behind` says which: one of the two matrix products of each backward step, the attention, all
    compute of the step, or the first forward or last backward pass of a micro-batch. `copies`: each token's, where the dispatcher sends
    just one of them to each NVLink domain and copies it there; 0: all are sent. `inside_s`, `outside_s`: seconds of all calls together if every group lies inside one
    NVLink domain, and if it leaves it, at the hardware's rates; None: a rate is not known.
    """

    axis: str
    purpose: str
    collective: str
    calls: float
    message_bytes: int
    wire_bytes: int
    exposed: bool
    hides_behind: Literal[
        "", "weight_gradients", "input_gradients", "attention", "micro_batches", "first_forward", "last_backward"
    ] = ""
    formula: str = ""
    copies: int = 0
    inside_s: float | None = None
    outside_s: float | None = None


class StepTime(Noun, frozen=True, kw_only=True):
    """Seconds of one training step, and where they go.

    `terms`: name -> seconds on the critical path; their sum is `total_s`: "compute", "recompute", "bubble", "optimizer", and "<axis>" for the exposed
    communication of each axis. `model_flops` of the whole job and step, without recomputation, by `convention`; `mfu` = model_flops / (total_s x GPUs x
    peak). `assumptions`: what was taken for granted, in words.
    """

    total_s: float
    low_s: float
    high_s: float
    range_source: str
    terms: dict[str, float]
    model_flops: float
    hardware_flops: float
    peak_flops_per_gpu: float
    mfu: float
    hfu: float
    convention: str
    assumptions: tuple[str, ...] = ()


class Checkpoint(Noun, frozen=True, kw_only=True):
    """What saving the job costs. None: the plan file does not give the write rate or the failure rate.

    `interval_s`: the time between checkpoints that loses least (Young/Daly).
    """

    bytes_per_rank: int
    total_bytes: int
    write_s: float | None = None
    interval_s: float | None = None
    formula: str = ""


class Estimate(Noun, frozen=True, kw_only=True):
    """The estimate, per GPU; None where the plan file doesn't say enough.

    state_bytes_per_gpu: weights, gradients and optimizer; state_formula: how that came about, sharding counted; None: by the rule of thumb alone, 16 bytes per parameter (bf16
    weights and gradients, fp32 master weights and two Adam moments) / (tp x pp), which knows of no sharding. `memory`: all six lines, where the shape is known. bubble_overhead: pipeline bubble / ideal time, (p-1) / (m v) for 1F1B. bubble_idle_share: bubble / wall time =
    (p-1) / (m v + p-1) for it. tp_collectives_per_stage_forward: 2 x layers / pp, per micro-batch. message_bytes: axis ->
    message size (as nccl-tests count it) of that axis's collective, as far as the plan implies one; message_sources: axis -> how that came about.
    """

    state_bytes_per_gpu: int | None = None
    state_formula: str | None = None
    gpu_memory_bytes: int | None = None
    free_bytes_per_gpu: int | None = None
    micro_batches: int | None = None
    bubble_overhead: float | None = None
    bubble_idle_share: float | None = None
    tp_collectives_per_stage_forward: float | None = None
    message_bytes: dict[str, int] = {}
    message_sources: dict[str, str] = {}
    memory: Memory | None = None
    ledger: tuple[Traffic, ...] = ()
    step_time: StepTime | None = None
    checkpoint: Checkpoint | None = None
