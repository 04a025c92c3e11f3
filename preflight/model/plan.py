"""Who sits where and who talks to whom: the ranks, their placement, the groups of each axis, the estimate."""

from typing import Literal

from preflight.model.base import Noun
from preflight.model.job import Job

AXES = ("tp", "cp", "ep", "etp", "edp", "dp", "pp")  # reading order


class Rank(Noun, frozen=True, kw_only=True):
    """One process of the job, one GPU. `gpu_uuid` None: not known yet (predicted) or no GPU (CPU backend)."""

    rank: int
    node: str
    node_rank: int
    local_rank: int
    gpu_uuid: str | None = None


class Placement(Noun, frozen=True, kw_only=True):
    """Where every rank sits, in rank order. Predicted and measured placements are this one type.

    `method` says how it came about: "block" (consecutive ranks fill a node), ...
    """

    source: Literal["predicted", "measured"]
    method: str
    ranks: tuple[Rank, ...]

    def nodes_of(self, ranks: tuple[int, ...]) -> tuple[str, ...]:
        """The distinct nodes of these ranks, in order of first appearance."""
        return tuple(dict.fromkeys(self.ranks[rank].node for rank in ranks))


class Group(Noun, frozen=True, kw_only=True):
    """The ranks that take part in one collective on one axis."""

    axis: str
    index: int
    ranks: tuple[int, ...]

    @property
    def name(self) -> str:
        """The axis and the group's number: "tp0"."""
        return f"{self.axis}{self.index}"


class Estimate(Noun, frozen=True, kw_only=True):
    """The first estimate, per GPU; None where the plan file doesn't say enough.

    state_bytes_per_gpu: 16 bytes per parameter (bf16 weights and gradients, fp32 master weights and two Adam moments) / (tp x pp).
    bubble_overhead: pipeline bubble / ideal time = (p-1) / (m v). bubble_idle_share: bubble / wall time =
    (p-1) / (m v + p-1). tp_collectives_per_stage_forward: 2 x layers / pp, per micro-batch. message_bytes: axis ->
    message size (as nccl-tests count it) of that axis's collective, as far as the plan implies one.
    """

    state_bytes_per_gpu: int | None = None
    gpu_memory_bytes: int | None = None
    free_bytes_per_gpu: int | None = None
    micro_batches: int | None = None
    bubble_overhead: float | None = None
    bubble_idle_share: float | None = None
    tp_collectives_per_stage_forward: float | None = None
    message_bytes: dict[str, int] = {}


class Plan(Noun, frozen=True, kw_only=True):
    """One job laid out on nodes.

    `degrees`: axis -> degree, resolved (dp filled in, etp defaulted). `groups`: axis -> groups, each the ranks of one
    group in ascending order; axes of degree 1 are left out, since a group of one talks to nobody.
    """

    job: Job
    world_size: int
    degrees: dict[str, int]
    order: tuple[str, ...]
    groups: dict[str, tuple[tuple[int, ...], ...]]
    placement: Placement
    estimate: Estimate = Estimate()

    def on_axis(self, axis: str) -> tuple[Group, ...]:
        """The groups of one axis, in order; empty if the axis has degree 1."""
        return tuple(Group(axis=axis, index=i, ranks=ranks) for i, ranks in enumerate(self.groups.get(axis, ())))
