"""GPU or NIC, and whether enough was seen for a name: what pairs inside nodes, host copies and partners on the same leaf decide."""

from typing import TYPE_CHECKING

import msgspec

from preflight.judge.localise.culprits import near_and_far
from preflight.judge.localise.table import Table
from preflight.model.localisation import Culprit

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Bools = NDArray[Any]

    from preflight.judge.localise.whole import Judged

NEARLY_ALL = 0.75  # of a leaf's ends
MET_SLOW = 2
INSIDE_SHOTS = 2  # slow pairs inside the node that make it the GPU


def resolved(found: list[Culprit], judged: "list[Judged]") -> list[Culprit]:
    """GPUs and NICs told apart; single ends and nodes of which only one side was seen become questions."""
    both_sides = {culprit.ends for culprit in found if culprit.kind == "gpu"}
    kept: list[Culprit] = []
    for culprit in found:
        if culprit.kind == "nic":
            told = _gpu_or_nic(culprit, judged)
            if told.kind == "gpu" and told.ends in both_sides:
                kept = [other for other in kept if (other.kind, other.ends) != ("gpu", told.ends)]
            kept.append(_sided(told, judged))
        elif culprit.kind == "gpu" and any(o.kind in {"gpu", "nic"} and o.ends == culprit.ends for o in kept):
            continue
        elif culprit.kind == "node":
            kept.append(_sided(culprit, judged))
        else:
            kept.append(culprit)
    return kept


def _gpu_or_nic(culprit: Culprit, judged: "list[Judged]") -> Culprit:
    fast, slow = inside_shots(culprit.ends[0], judged)
    if fast:
        return culprit
    if slow >= INSIDE_SHOTS:
        return msgspec.structs.replace(culprit, kind="gpu")
    choices = tuple(msgspec.structs.replace(culprit, kind=kind) for kind in ("nic", "gpu"))
    return msgspec.structs.replace(culprit, kind=None, candidates=choices)


def inside_shots(end: int, judged: "list[Judged]") -> tuple[int, int]:
    """Fast and slow shots of an end with partners on its own node."""
    import numpy as np

    for each in judged:
        view = each.outcome.view
        if view.inside:
            mine = (view.table.a == end) | (view.table.b == end)
            return int(np.count_nonzero(mine & view.fast)), int(np.count_nonzero(mine & view.slow))
    return 0, 0


def _sided(culprit: Culprit, judged: "list[Judged]") -> Culprit:
    """A part of a node that was slow towards other leaves only, or on its own leaf only, though there was someone to try the other side with: the way between may be it."""
    sides = sides_of(culprit, judged)
    if sides is None or sides[0]:  # slow on its own leaf: no way between leaves explains that
        return culprit
    if culprit.candidates:
        return culprit
    return msgspec.structs.replace(culprit, kind=None, candidates=(culprit, *_other_way(culprit, judged)))


def sides_of(culprit: Culprit, judged: "list[Judged]") -> tuple[bool, bool] | None:
    """Whether slow shots were seen on the same leaf and elsewhere; elsewhere is True where there is nobody to try with: all is one leaf. None: leaves are not known."""
    import numpy as np

    near, far = False, False
    for each in judged:
        view = each.outcome.view
        t = view.table
        if view.inside:
            continue
        node = place_of(culprit, t)
        leaf = int(t.node_leaf[node])
        if leaf < 0:
            return None
        mine = (t.node_a == node) | (t.node_b == node)
        if culprit.ends:
            mine = (t.a == culprit.ends[0]) | (t.b == culprit.ends[0])
        seen_near, seen_far = near_and_far(view, mine & view.slow)
        measured = np.unique(np.concatenate([t.node_a, t.node_b]))
        leaves = t.node_leaf[measured]
        near |= seen_near
        far |= seen_far or int(np.unique(leaves).size) < 2
    return near, far


def place_of(culprit: Culprit, table: Table) -> int:
    """The node of a GPU, NIC or node, by number."""
    if culprit.ends:
        return int(table.end_node[culprit.ends[0]])
    return table.ends.nodes.index(culprit.nodes[0])


def _other_way(culprit: Culprit, judged: "list[Judged]") -> tuple[Culprit, ...]:
    """What else may hold back a part that was tried with other leaves only: its leaf's way out."""
    t = judged[0].outcome.view.table
    leaf = int(t.node_leaf[place_of(culprit, t)])
    if leaf < 0:
        return ()
    ends = culprit.ends
    return (msgspec.structs.replace(culprit, kind="uplink", ends=ends, nodes=(), leaf=t.leaves[leaf], share=None),)


def behind_others(known: list[Culprit], judged: "list[Judged]") -> list[Culprit]:
    """Nodes and NICs that are as slow as a leaf's way out that is named, and were never tried with a node of that leaf: where the map of leaves is wrong they are behind it, and healthy."""
    ways = [culprit for culprit in known if culprit.kind == "uplink"]
    edge = judged[0].outcome.view.scale.edge if judged else 1.0
    found = []
    for culprit in known:
        alike = [way for way in ways if culprit.kind in {"node", "nic"} and _equally_slow(culprit, way, edge)]
        hidden = [way for way in alike if not _tried_with(culprit, way, judged, known)]
        found.append(
            msgspec.structs.replace(culprit, kind=None, confidence="likely", candidates=(culprit, *hidden))
            if hidden
            else culprit
        )
    return found


def _equally_slow(one: Culprit, two: Culprit, edge: float) -> bool:
    left, right = 1 - (one.depth or 0.0), 1 - (two.depth or 0.0)
    return min(left, right) >= max(left, right) * edge


def _tried_with(culprit: Culprit, way: Culprit, judged: "list[Judged]", known: list[Culprit]) -> bool:
    """Whether it was slow with ends of that leaf more than once, which neither the way out of the leaf explains nor a partner that is named itself."""
    for each in judged:
        view = each.outcome.view
        t = view.table
        if view.inside or way.leaf is None:
            continue
        leaf, place = t.leaves.index(way.leaf), place_of(culprit, t)
        ours = (t.node_a == place, t.node_b == place)
        if culprit.ends:
            ours = (t.a == culprit.ends[0], t.b == culprit.ends[0])
        theirs = (t.leaf_a == leaf, t.leaf_b == leaf)
        ill = _named_ends([other for other in known if other is not culprit], t)
        met = ((ours[0] & theirs[1] & ~ill[t.b]) | (ours[1] & theirs[0] & ~ill[t.a])) & view.slow
        if int(met.sum()) >= MET_SLOW:
            return True
    return not judged


def _named_ends(known: list[Culprit], t: Table) -> "Bools":
    """The ends that are named, alone or with their node."""
    import numpy as np

    ill = np.zeros(len(t.end_node), np.bool_)
    for culprit in known:
        if culprit.kind in {"gpu", "nic", "link"}:
            ill[list(culprit.ends)] = True
        elif culprit.kind == "node":
            ill |= t.end_node == t.ends.nodes.index(culprit.nodes[0])
        elif culprit.kind == "slot":
            ill |= t.end_slot == culprit.slot
    return ill


def contradictions(known: list[Culprit], judged: "list[Judged]") -> tuple[list[Culprit], list[str]]:
    """Uplinks of which all is slow but whole nodes: the map puts these nodes on the wrong leaf, or nearly the whole uplink is ill. Nothing that rests on such a map is blamed; the notes say so."""
    found, notes = [], []
    for culprit in known:
        odd = _odd_nodes(culprit, judged) if culprit.kind == "uplink" and (culprit.share or 0) >= NEARLY_ALL else []
        if not odd:
            found.append(culprit)
            continue
        whole = msgspec.structs.replace(culprit, ends=(), share=None)
        found.append(msgspec.structs.replace(culprit, kind=None, confidence="possible", candidates=(whole, culprit)))
        names = ", ".join(odd[:8])
        notes.append(f"the map of leaves is contradicted: {names} is fast where all else on {culprit.leaf} is slow")
    return found, notes


def _odd_nodes(culprit: Culprit, judged: "list[Judged]") -> list[str]:
    """Nodes of the leaf none of whose ends are slow."""
    t = judged[0].outcome.view.table
    ill = {int(t.end_node[end]) for end in culprit.ends}
    return [name for name in culprit.nodes if t.ends.nodes.index(name) not in ill]
