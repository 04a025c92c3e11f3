"""Part of a leaf's way out: some of its ends are slow with every other leaf, and fast inside."""

from typing import TYPE_CHECKING, NamedTuple

from preflight.judge.localise.single import Best, clearing_limit, need
from preflight.judge.localise.view import View

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Bools = NDArray[Any]

FEWEST_ENDS, LEAST_SHARE = 3, 0.06  # fewer are single links that collide, not a part of an uplink
SEVERAL = 12  # slow shots of ends that have one or two each, all unrefuted: the leaf has a share of its own though no end shows it alone


class Share(NamedTuple):
    """`ends`: those that are slow; no NIC, since that is cleared inside the leaf, and not the whole way out. `measured`: ends of the leaf that were compared."""

    leaf: int
    ends: tuple[int, ...]
    measured: int
    shots: "Bools"


def find_share(view: View, open_shots: "Bools", best: Best, transients: float) -> Share | None:
    """The leaf with most such ends. None: there is none."""
    import numpy as np

    t = view.table
    number = len(t.ends.node)
    known = (t.leaf_a >= 0) & (t.leaf_b >= 0) & (t.slot_a == t.slot_b)
    across = known & (t.leaf_a != t.leaf_b)
    mine = across & open_shots
    if not mine.any():
        return None
    slow = np.bincount(t.a[mine], minlength=number) + np.bincount(t.b[mine], minlength=number)
    level = np.zeros(number)
    np.maximum.at(level, t.a[mine], view.ratio[mine])
    np.maximum.at(level, t.b[mine], view.ratio[mine])
    # its best way out is among the slow shots that are open, and it did clearly better inside the leaf
    inner = _best_inside(view, known & ~across)
    measured = best.across > 0
    limit = clearing_limit(view, level)
    least = max(3, need(int(np.count_nonzero(measured)), transients) - 1)
    suspects = (slow > 0) & (best.across < limit) & (inner >= limit)
    firm = suspects & (slow >= least) & (_partners(view, mine) >= 3)
    leaf = t.node_leaf[t.end_node]
    found = None
    for one in np.unique(leaf[suspects]).tolist():
        ours = suspects & (leaf == one)
        if not (firm & ours).any() and int(slow[ours].sum()) < SEVERAL:
            continue
        nodes = np.unique(t.end_node[ours]).size
        ends = int(np.count_nonzero(ours))
        slots = np.unique(t.end_slot[ours]).size
        one_slot = (
            slots == 1 and int(t.end_slot.max(initial=0)) > 0
        )  # then it would be that slot's way out, seen in part
        if (
            one_slot
            or ends < FEWEST_ENDS
            or nodes < 2
            or ends < LEAST_SHARE * np.count_nonzero(measured & (leaf == one))
        ):
            continue
        shots = mine & (ours[t.a] | ours[t.b])
        if _by_far_leaf(view, shots, open_shots, one):
            continue
        total = int(np.count_nonzero(measured & (leaf == one)))
        share = Share(one, tuple(np.flatnonzero(ours).tolist()), total, shots)
        if found is None or len(share.ends) > len(found.ends):
            found = share
    return found


def _by_far_leaf(view: View, shots: "Bools", open_shots: "Bools", leaf: int) -> bool:
    """Whether the leaf's other ends are slow with the same far leaves too: then it depends on the far leaf, as on a path, and not on which ends of this one."""
    import numpy as np

    t = view.table
    far = np.unique(np.where(t.leaf_a[shots] == leaf, t.leaf_b[shots], t.leaf_a[shots]))
    from_here = (t.leaf_a == leaf) & np.isin(t.leaf_b, far)
    to_here = (t.leaf_b == leaf) & np.isin(t.leaf_a, far)
    others = (from_here | to_here) & ~shots & (view.fast | open_shots)
    number = int(np.count_nonzero(others))
    return number >= 8 and 2 * int(np.count_nonzero(others & open_shots)) > number


def _best_inside(view: View, inner: "Bools") -> "Any":
    import numpy as np

    t = view.table
    best = np.zeros(len(t.ends.node))
    known = inner & (view.fast | view.slow)
    np.maximum.at(best, t.a[known], view.ratio[known])
    np.maximum.at(best, t.b[known], view.ratio[known])
    return best


def _partners(view: View, mask: "Bools") -> "Any":
    """How many different ends each met in shots of the mask."""
    import numpy as np

    t = view.table
    number = len(t.ends.node)
    pairs = np.unique(np.minimum(t.a[mask], t.b[mask]) * number + np.maximum(t.a[mask], t.b[mask]))
    return np.bincount(pairs // number, minlength=number) + np.bincount(pairs % number, minlength=number)
