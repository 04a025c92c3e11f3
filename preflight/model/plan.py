"""Who sits where and who talks to whom: the ranks, their placement, the groups of each axis, the estimate."""

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Literal

from preflight.model.base import Noun
from preflight.model.estimate import Estimate
from preflight.model.job import Job

# reading order; an axis that is not here comes after these
AXES = ("tp", "cp", "ep", "etp", "edp", "dp", "dp_shard", "dp_replicate", "fsdp", "efsdp", "dp_cp", "pp", "embedding")

NODE_IS_DOMAIN = "taking each node as one domain"
# where the GPU's name says that NVLink joins nodes, and nobody says which: a group on two of them may be inside one domain
NODE_IN_DOUBT = "taking each node as one domain; this product's NVLink joins nodes, and nobody says which"


class Rank(Noun, frozen=True, kw_only=True):
    """One process of the job, one GPU. `gpu_uuid` None: not known yet (predicted) or no GPU (CPU backend)."""

    rank: int
    node: str
    node_rank: int
    local_rank: int
    gpu_uuid: str | None = None


class Placement(Noun, frozen=True, kw_only=True, dict=True):
    """Where every rank sits. Predicted and measured placements are this one type.

    Kept as columns, since a job may have 131,072 ranks: `nodes` lists node names in node-rank order; `node_ranks` and `local_ranks` (and
    `gpu_uuids`, None if none is known) have one entry per rank. `method` says how it came about: "block" (consecutive ranks fill a node), ...
    `doubt`: why a prediction is not certain (what the plan file doesn't say, and what would settle it); None: as certain as the launcher's rules.
    `domains`, `leaves`, `racks` have one entry per node of `nodes`: its NVLink domain, its leaf switch, its rack; the tuple is None if nobody told, and
    an entry is None if nobody told for that node. Without domains each node counts as one: `domain_source` says where they come from.
    """

    source: Literal["predicted", "measured"]
    method: str
    doubt: str | None = None
    nodes: tuple[str, ...]
    node_ranks: tuple[int, ...]
    local_ranks: tuple[int, ...]
    gpu_uuids: tuple[str | None, ...] | None = None
    domains: tuple[str | None, ...] | None = None
    domain_source: str = NODE_IS_DOMAIN
    leaves: tuple[str | None, ...] | None = None
    racks: tuple[str | None, ...] | None = None

    @cached_property
    def ranks(self) -> tuple[Rank, ...]:
        """One record per rank, in rank order; built when first asked for."""
        uuids = self.gpu_uuids or (None,) * len(self.node_ranks)
        return tuple(
            Rank(rank=rank, node=self.nodes[node_rank], node_rank=node_rank, local_rank=local_rank, gpu_uuid=uuid)
            for rank, (node_rank, local_rank, uuid) in enumerate(
                zip(self.node_ranks, self.local_ranks, uuids, strict=True)
            )
        )

    @cached_property
    def ranks_per_node(self) -> tuple[int, ...]:
        """How many ranks each node has, in the order of `nodes`."""
        each, rest = divmod(len(self.node_ranks), len(self.nodes))
        numbers = tuple(range(len(self.nodes)))
        # in the usual case first and last rank of every node tell it
        if rest == 0 and self.is_block and self.node_ranks[::each] == self.node_ranks[each - 1 :: each] == numbers:
            return (each,) * len(self.nodes)
        number = Counter(self.node_ranks)
        return tuple(number[index] for index in numbers)

    @cached_property
    def uuids_on_node(self) -> dict[str, tuple[str | None, ...]]:
        """Node name -> UUIDs of its ranks' GPUs, in rank order; empty if no rank's GPU is known."""
        found: dict[str, list[str | None]] = {}
        for place, uuid in zip(self.node_ranks, self.gpu_uuids or (), strict=False):
            found.setdefault(self.nodes[place], []).append(uuid)
        return {name: tuple(uuids) for name, uuids in found.items()}

    @cached_property
    def is_block(self) -> bool:
        """Consecutive ranks fill a node before the next one begins."""
        return list(self.node_ranks) == sorted(self.node_ranks)

    @classmethod
    def of(cls, ranks: Iterable[Rank], *, source: Literal["predicted", "measured"], method: str) -> "Placement":
        """The placement of these ranks, which are in rank order. Nodes are listed by node rank."""
        listed = tuple(ranks)
        names = {rank.node_rank: rank.node for rank in listed}
        order = {node_rank: index for index, node_rank in enumerate(sorted(names))}
        uuids = tuple(rank.gpu_uuid for rank in listed)
        return cls(
            source=source,
            method=method,
            nodes=tuple(names[node_rank] for node_rank in sorted(names)),
            node_ranks=tuple(order[rank.node_rank] for rank in listed),
            local_ranks=tuple(rank.local_rank for rank in listed),
            gpu_uuids=uuids if any(uuids) else None,
        )

    def nodes_of(self, ranks: Iterable[int]) -> tuple[str, ...]:
        """The distinct nodes of these ranks, in order of first appearance."""
        return tuple(self.nodes[index] for index in dict.fromkeys(self.node_ranks[rank] for rank in ranks))

    def domains_of(self, ranks: Iterable[int]) -> tuple[str | None, ...]:
        """The distinct NVLink domains of these ranks, in order of first appearance; None among them: not known for some node."""
        indexes = dict.fromkeys(self.node_ranks[rank] for rank in ranks)
        names = self.nodes if self.domains is None else self.domains
        return tuple(dict.fromkeys(names[index] for index in indexes))


class Group(Noun, frozen=True, kw_only=True):
    """The ranks that take part in one collective on one axis."""

    axis: str
    index: int
    ranks: tuple[int, ...]

    @property
    def name(self) -> str:
        """The axis and the group's number: "tp0"."""
        return f"{self.axis}{self.index}"


class Footprint(Noun, frozen=True, kw_only=True):
    """What the groups of one axis touch: one entry per group, in the order of Plan.groups.

    `nodes`, `domains` (NVLink), `leaves`: how many different ones; 0: not known for every member. `leaves` None: nobody told the leaves.
    `slots`: how many different local ranks. `chunk`: the fewest ranks of the group in one of its domains.
    `racks` as leaves. `leaves_in_order`, `racks_in_order`: how many it would be if the same nodes were listed leaf by leaf, rack by rack.
    """

    nodes: tuple[int, ...]
    domains: tuple[int, ...]
    slots: tuple[int, ...]
    chunk: tuple[int, ...]
    leaves: tuple[int, ...] | None = None
    racks: tuple[int, ...] | None = None
    leaves_in_order: tuple[int, ...] | None = None
    racks_in_order: tuple[int, ...] | None = None


class Plan(Noun, frozen=True, kw_only=True):
    """One job laid out on nodes.

    `degrees`: axis -> degree, resolved (dp filled in, etp defaulted). `groups`: axis -> groups, each the ranks of one
    group in ascending order, all groups of an axis of one size; axes of degree 1 are left out, since a group of one talks to nobody. `composites`: name -> groups that the framework
    creates along several axes at once and that carry next to nothing ("tp_pp": Megatron's model-parallel group), for those who look for them.
    `footprints`: axis -> what its groups touch. `fingerprint`: of everything that decides what is computed where (plan/fingerprint.py).
    `predicted`: where `placement` was measured, the placement that the launcher was expected to make; None: nothing was predicted beside it.
    """

    job: Job
    world_size: int
    degrees: dict[str, int]
    order: tuple[str, ...]
    groups: dict[str, tuple[tuple[int, ...], ...]]
    placement: Placement
    estimate: Estimate = Estimate()
    composites: dict[str, tuple[tuple[int, ...], ...]] = {}
    footprints: dict[str, Footprint] = {}
    fingerprint: str = ""
    predicted: Placement | None = None

    @property
    def timed_axes(self) -> tuple[str, ...]:
        """The axes to time: of those that have the same groups (fsdp and dp_shard without cp, say) the first, since they share one measurement."""
        first: dict[tuple[tuple[int, ...], ...], str] = {}
        for axis, groups in self.groups.items():
            first.setdefault(groups, axis)
        return tuple(first.values())

    def on_axis(self, axis: str) -> tuple[Group, ...]:
        """The groups of one axis, in order; empty if the axis has degree 1."""
        return tuple(Group(axis=axis, index=i, ranks=ranks) for i, ranks in enumerate(self.groups.get(axis, ())))

    def group(self, axis: str, index: int) -> Group:
        """One group of an axis."""
        return Group(axis=axis, index=index, ranks=self.groups[axis][index])
