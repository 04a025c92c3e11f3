"""What no whole part explains: part of an uplink, single pairs, transients, and ends that met nobody who is known to be good."""

from typing import TYPE_CHECKING, NamedTuple

from preflight.judge.localise.engine import Outcome, is_deep
from preflight.judge.localise.single import LEAST_TRANSIENTS, need
from preflight.judge.localise.view import View

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Ints = NDArray[Any]
    Bools = NDArray[Any]

MANY_ON_RAIL = 3  # more slow pairs than this on one slot are never faults of single links
MANY_ON_NODE = 2
STEADY = 3.0  # a faulty link is slow by about the same each time: repeats differ by at most so many times the noise


class Share(NamedTuple):
    """Part of a leaf's way out: `ends` are slow with every other leaf and fast inside. `measured`: ends of the leaf that were compared."""

    leaf: int
    ends: tuple[int, ...]
    measured: int
    shots: "Bools"
    called: bool


class Pair(NamedTuple):
    """One pair with its shots. `again`: how often it was measured. `slow`: how often slow. `steady`: slow each time by about as much. `shots`: all of them."""

    a: int
    b: int
    again: int
    slow: int
    steady: bool
    deep: bool
    shots: "Bools"


class Rest(NamedTuple):
    """`links`: pairs that are faults of their own. `undecided`: slow each time, too seldom measured. `passing`: slow once, fast later. `crowded`: pairs too
    many on one rail or node for faults of links. `strangers`: slow pairs of which an end met nobody good.
    """

    shares: list[Share]
    links: list[Pair]
    undecided: list[Pair]
    passing: list[Pair]
    crowded: list[Pair]
    strangers: list[Pair]
    transients: float
    needed: int


def rest_of(outcome: Outcome) -> Rest:
    """What is left of the slow shots of a view, sorted."""
    view, left = outcome.view, outcome.rest.copy()
    shares = [] if view.inside else _shares(outcome, left)
    for share in shares:
        left &= ~share.shots
    pairs = _pairs(view, left)
    good = outcome.good.end
    strangers = [pair for pair in pairs if not (good[pair.a] and good[pair.b])]
    known = [pair for pair in pairs if good[pair.a] and good[pair.b]]
    passing = [pair for pair in known if pair.slow < pair.again]
    lasting = [pair for pair in known if pair.slow == pair.again]
    transients = _transients(view, passing, lasting)
    needed = need(_num_pairs(view), transients)
    decided = [pair for pair in lasting if pair.again >= needed]
    crowded = _crowded(view, lasting) if view.size else []
    links = [pair for pair in decided if pair not in crowded and pair.steady and pair.deep]
    undecided = [pair for pair in lasting if pair.again < needed and pair not in crowded and pair.deep]
    return Rest(shares, links, undecided, passing, crowded, strangers, transients, needed)


def _shares(outcome: Outcome, left: "Bools") -> list[Share]:
    """Ends of one leaf whose every shot to other leaves is slow and that are fast inside their leaf: no NIC, since that is cleared, and not the whole uplink."""
    import numpy as np

    view = outcome.view
    t = view.table
    known = (t.leaf_a >= 0) & (t.leaf_b >= 0) & (t.slot_a == t.slot_b)
    across, number = known & (t.leaf_a != t.leaf_b), len(t.ends.node)
    fast, slow, inner = (
        np.bincount(t.a[mask], minlength=number) + np.bincount(t.b[mask], minlength=number)
        for mask in (across & view.fast, across & left, known & ~across & view.fast)
    )
    measured = fast + slow > 0
    least = max(2, need(int(np.count_nonzero(measured)), outcome.transients) - 1)
    suspects = (fast == 0) & (slow >= least) & (inner > 0)
    # both ends of such a shot may be suspects only if each has other partners: those who have none are explained by the other
    shares = []
    leaf = t.node_leaf[t.end_node]
    for one in np.unique(leaf[suspects]).tolist():
        mine = suspects & (leaf == one)
        shots = across & left & (mine[t.a] | mine[t.b])
        ends = np.flatnonzero(mine).tolist()
        total = int(np.count_nonzero(measured & (leaf == one)))
        shares.append(Share(one, tuple(ends), total, shots, is_deep(view, view.ratio[shots])))
    return sorted(shares, key=lambda share: -len(share.ends))


def _pairs(view: View, left: "Bools") -> list[Pair]:
    import numpy as np

    t = view.table
    number = len(t.ends.node)
    key = np.minimum(t.a, t.b) * number + np.maximum(t.a, t.b)
    wanted = np.unique(key[left])
    known = np.flatnonzero((view.fast | view.slow) & np.isin(key, wanted))
    order = known[np.argsort(key[known], kind="stable")]
    found = []
    for group in np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if order.size else []:
        values, mine = view.ratio[group], np.zeros(view.size, np.bool_)
        mine[group] = True
        code = int(key[group[0]])
        logs = np.log(values)
        steady = values.size < 2 or float(np.std(logs, ddof=1)) <= STEADY * max(view.scale.noise, 0.003)
        slow = int(np.count_nonzero(view.slow[group]))
        pair = Pair(code // number, code % number, int(values.size), slow, steady, is_deep(view, values), mine)
        found.append(pair)
    return found


def _num_pairs(view: View) -> int:
    import numpy as np

    t = view.table
    number = len(t.ends.node)
    return int(np.unique(np.minimum(t.a, t.b) * number + np.maximum(t.a, t.b)).size)


def _transients(view: View, passing: list[Pair], lasting: list[Pair]) -> float:
    """The share of shots that were slow for once, estimated from the slow pairs that were measured again: how many of them were fast then."""
    again = len([pair for pair in passing if pair.again > 1])
    stayed = len([pair for pair in lasting if pair.again > 1])
    single = len(passing) + len([pair for pair in lasting if pair.again == 1])
    share = again / (again + stayed) if again + stayed else 1.0
    return min(0.3, max(LEAST_TRANSIENTS, single * share / max(1, view.size)))


def _crowded(view: View, lasting: list[Pair]) -> list[Pair]:
    """Lasting slow pairs that are too many on one rail, or at one node, to be faults of single links."""
    from collections import Counter

    t = view.table
    firm = [pair for pair in lasting if pair.again > 1]
    node, slot = t.end_node, t.end_slot
    rails = Counter(int(slot[pair.a]) for pair in firm)
    nodes = Counter(place for pair in firm for place in {int(node[pair.a]), int(node[pair.b])})
    whole = len(firm) > MANY_ON_RAIL * max(1, int(slot.max(initial=0)) + 1)
    return [
        pair
        for pair in lasting
        if whole
        or rails[int(slot[pair.a])] > MANY_ON_RAIL
        or max(nodes[int(node[pair.a])], nodes[int(node[pair.b])]) > MANY_ON_NODE
    ]
