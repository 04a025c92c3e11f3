"""Who in the planned job uses a GPU: a sick GPU is a reason to stop only for groups that have it (pure)."""

from collections.abc import Collection

from preflight.model.base import Record
from preflight.model.crossing import shortened, subject_of
from preflight.model.finding import Verdict
from preflight.model.gpu import Gpu
from preflight.model.inventory import Node
from preflight.model.plan import Plan


class Users(Record, frozen=True):
    """`known`: whether it is certain which ranks have the GPUs in question. `ranks` may be fewer than there are if it isn't. `groups`: as in "tp0", "dp[2-3]"."""

    known: bool
    ranks: tuple[int, ...]
    groups: tuple[str, ...]

    def lowered(self, verdict: Verdict) -> Verdict:
        """A FAIL of what this job surely doesn't use is a WARN for it."""
        return Verdict.WARN if verdict is Verdict.FAIL and self.known and not self.ranks else verdict

    def text(self) -> str:
        """What a sentence about the fault adds; empty if nothing is known."""
        if self.groups:
            return f"; used by {shortened(', '.join(self.groups))}"
        return "; no rank of the plan uses it" if self.known and not self.ranks else ""


NOBODY_KNOWS = Users(known=False, ranks=(), groups=())


def users_of(plan: Plan | None, node: Node, gpus: Collection[Gpu], *, together: bool = False) -> Users:
    """The ranks that have one of these GPUs, and their groups. `together`: only groups that have two or more of them, for a fault between GPUs."""
    if plan is None:
        return NOBODY_KNOWS
    ranks = ranks_on(plan, node)
    uuids = plan.placement.gpu_uuids
    wanted = {gpu.uuid for gpu in gpus}
    if None in wanted or uuids is None or any(uuids[rank] is None for rank in ranks):
        return NOBODY_KNOWS
    mine = {rank for rank in ranks if uuids[rank] in wanted}
    least = 2 if together else 1
    groups, members = [], set()
    for axis in plan.timed_axes:
        hit = [index for index, group in enumerate(plan.groups[axis]) if len(mine & set(group)) >= least]
        groups += [subject_of(axis, hit)] if hit else []
        members |= {rank for index in hit for rank in plan.groups[axis][index] if rank in mine}
    return Users(known=True, ranks=tuple(sorted(members if together else mine)), groups=tuple(groups))


def ranks_on(plan: Plan, node: Node) -> tuple[int, ...]:
    """The ranks that the plan puts on this node, ascending; none if it doesn't know the node."""
    placement = plan.placement
    if node.name not in placement.nodes:
        return ()
    index = placement.nodes.index(node.name)
    return tuple(rank for rank, node_rank in enumerate(placement.node_ranks) if node_rank == index)
