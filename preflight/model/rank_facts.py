"""Where one process of a job really is, as it says itself; and where two placements of the same job differ."""

from collections.abc import Sequence

from preflight.model.base import Noun
from preflight.model.gpu import Problem
from preflight.model.plan import Placement, Rank

RANK_SCHEMA = "preflight.rank/1"


class RankFacts(Noun, frozen=True, kw_only=True, tag_field="schema", tag=RANK_SCHEMA):
    """What one rank sees. None: could not be found out, or the launcher doesn't say.

    `rank` and `world_size` as its launcher numbers them, `numbered_by` names the variable that said so ("RANK", "SLURM_PROCID", ...). `host`: the
    kernel's host name; `node`: what the scheduler calls this node, where it tells. `boot_id`: the kernel's, the same for all containers of
    one machine. `visible_devices` is CUDA_VISIBLE_DEVICES as it is (None: not set), `device_order` CUDA_DEVICE_ORDER.
    `gpu_uuid`, `pci_bus_id`: of the one GPU this rank will use (model/devices.py); None without a GPU, or where it isn't determined; `problems` tell why.
    `domain`: the NVLink domain that the fabric gives it, "clusterUUID.clique"; None where NVLink ends at the node. `environment`: the launcher's
    variables that place this rank, as they are.
    """

    rank: int
    host: str
    world_size: int | None = None
    local_rank: int | None = None
    numbered_by: str | None = None
    node: str | None = None
    boot_id: str | None = None
    gpu_uuid: str | None = None
    pci_bus_id: str | None = None
    visible_devices: str | None = None
    device_order: str | None = None
    domain: str | None = None
    environment: dict[str, str] = {}
    problems: tuple[Problem, ...] = ()


class Difference(Noun, frozen=True, kw_only=True):
    """Where two placements of one job differ. `rank` is the first that does; `predicted` or `measured` is None if that side has no such rank.

    `num_differing`: how many ranks differ, of `num_ranks` that either side has. `text`: one line for a person.
    """

    rank: int
    predicted: Rank | None
    measured: Rank | None
    num_differing: int
    num_ranks: int

    @property
    def text(self) -> str:
        """The first differing rank with both places, and how many differ."""
        shown = f"rank {self.rank}: predicted {_place(self.predicted)}, found {_place(self.measured)}"
        return f"{shown} ({self.num_differing} of {self.num_ranks} ranks differ)"


def compare_placements(predicted: Placement, measured: Placement, *, ignore_names: bool = False) -> Difference | None:
    """The first rank that is elsewhere than predicted: on another node, or with another local rank. None if there is none.

    Node names are the same if they are equal, or if one is the other's part before the first dot ("n1" and "n1.cluster"). `ignore_names`: nodes are compared by
    the order in which ranks first reach them, for predictions that don't know the real names: ranks (0 1) (2 3) on "a", "b" are then where
    (0 1) (2 3) on "x", "y" are. GPUs are not compared: a prediction seldom knows them.
    """
    ours = _places(predicted, predicted, ignore_names=ignore_names)
    theirs = _places(measured, predicted, ignore_names=ignore_names)
    shorter, longer = sorted((len(ours), len(theirs)))
    differing = [] if ours[:shorter] == theirs[:shorter] else [i for i in range(shorter) if ours[i] != theirs[i]]
    if not differing and shorter == longer:
        return None
    rank = differing[0] if differing else shorter
    return Difference(
        rank=rank,
        predicted=_rank(predicted, rank),
        measured=_rank(measured, rank),
        num_differing=len(differing) + longer - shorter,
        num_ranks=longer,
    )


def _places(placement: Placement, names_of: Placement, *, ignore_names: bool) -> list[tuple[int | str, int]]:
    """(node, local rank) of each rank; the node as a number, or as `names_of` spells it."""
    nodes: Sequence[int | str] = [_spelled(name, names_of.nodes) for name in placement.nodes]
    if ignore_names:
        order = {node: number for number, node in enumerate(dict.fromkeys(placement.node_ranks))}
        nodes = [order.get(node, -1) for node in range(len(placement.nodes))]
    return [(nodes[node], local) for node, local in zip(placement.node_ranks, placement.local_ranks, strict=True)]


def _spelled(name: str, names: Sequence[str]) -> str:
    """The name as it stands in `names`, in full or without its domain, if there is exactly one such; else as it is."""
    if name in names:
        return name
    short = name.partition(".")[0]
    if short != name:
        return short if short in names else name
    same = [other for other in names if other.partition(".")[0] == name]
    return same[0] if len(same) == 1 else name


def _rank(placement: Placement, rank: int) -> Rank | None:
    if rank >= len(placement.node_ranks):
        return None
    node_rank, uuids = placement.node_ranks[rank], placement.gpu_uuids
    return Rank(
        rank=rank,
        node=placement.nodes[node_rank],
        node_rank=node_rank,
        local_rank=placement.local_ranks[rank],
        gpu_uuid=uuids[rank] if uuids else None,
    )


def _place(rank: Rank | None) -> str:
    return "no such rank" if rank is None else f"node {rank.node} local rank {rank.local_rank}"
