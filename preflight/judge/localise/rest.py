"""What no whole part explains: part of an uplink, single pairs, transients, and ends that met nobody who is known to be good."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from preflight.judge.localise.engine import Outcome, is_deep
from preflight.judge.localise.single import (
    CHANCE,
    FEW_PARTS,
    FLEET_CHANCE,
    LEAST_TRANSIENTS,
    clearing_limit,
    need,
    unrest_of,
)
from preflight.judge.localise.view import View

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Ints = NDArray[Any]
    Bools = NDArray[Any]

MANY_ON_RAIL = 3  # more slow pairs than this on one slot are never faults of single links
MANY_LINKS = 5  # as many broken links at once are a property of the fabric: flows that collide
MANY_ON_NODE = 2
MANY_ODD_ON_NODE = 6  # of those that were slow once, too: a host with other work slows half of the 40 probes of its 8 GPUs, transients one in a hundred
PAIRS_OF_NODE = 20  # pairs at a busy host that are measured again, each of which gets the chance to be slow each time
STEADY = 4.0  # a faulty link is slow by about the same each time: the typical repeat differs from the middle by at most so many times the noise


class Pair(NamedTuple):
    """One pair with its shots. `again`: how often it was measured. `slow`: how often slow. `steady`: slow each time by about as much. `deep`: certainly above the floor; `maybe_deep`: it may turn out to be. `shots`: all of them."""

    a: int
    b: int
    again: int
    slow: int
    steady: bool
    deep: bool
    maybe_deep: bool
    shots: "Bools"


class Rest(NamedTuple):
    """`links`: pairs that are faults of their own. `undecided`: slow each time, too seldom measured. `passing`: slow once, fast later. `crowded`: pairs too
    many on one rail or node for faults of links. `strangers`: slow pairs of which an end met nobody good. `untried`:
    pairs of two leaves of which no other pair was fast, so that the way between the leaves may be it.
    """

    links: list[Pair]
    undecided: list[Pair]
    passing: list[Pair]
    crowded: list[Pair]
    strangers: list[Pair]
    untried: list[Pair]
    transients: float
    needed: int


def rest_of(outcome: Outcome, beside: Sequence[Outcome] = ()) -> Rest:
    """What is left of the slow shots of a view, sorted. `beside`: what other views say of the same nodes."""
    view = outcome.view
    pairs = _pairs(view, outcome.rest)
    strangers = [pair for pair in pairs if not _both_known(outcome, pair)]
    known = [pair for pair in pairs if _both_known(outcome, pair)]
    passing = [pair for pair in known if pair.slow < pair.again]
    lasting = [pair for pair in known if pair.slow == pair.again]
    transients = _transients(view, passing, lasting)
    needed = need(_num_pairs(view), transients)
    decided = [pair for pair in lasting if pair.again >= max(needed, _needed_at(pair, (outcome, *beside)))]
    crowded = _crowded(view, lasting, passing)
    links = [pair for pair in decided if pair not in crowded and pair.steady and pair.deep]
    untried = [pair for pair in lasting if pair not in crowded and pair.deep and not _others_got_through(view, pair)]
    links = [pair for pair in links if pair not in untried]
    undecided = [pair for pair in lasting if pair.again < needed and pair not in crowded and pair.maybe_deep]
    undecided += [pair for pair in untried if pair not in undecided]
    return Rest(links, undecided, passing, crowded, strangers, untried, transients, needed)


def _needed_at(pair: Pair, outcomes: Sequence[Outcome]) -> int:
    """How often a pair must have been slow so that what happens to other shots of its two nodes doesn't explain it: on a busy host any pair may be slow each time, inside it too."""
    import numpy as np

    unrest = 0.0
    for number, outcome in enumerate(outcomes):
        view = outcome.view
        mine = np.zeros(view.size, np.bool_) if number else pair.shots
        nodes = {int(view.table.end_node[end]) for end in (pair.a, pair.b)}
        unrest = max(unrest, *(unrest_of(view, node, mine, outcome.rest) for node in nodes))
    chance = CHANCE if _num_pairs(outcomes[0].view) <= FEW_PARTS else FLEET_CHANCE
    return need(PAIRS_OF_NODE, min(unrest, 0.6), chance=chance)


def _others_got_through(view: View, pair: Pair) -> bool:
    """Whether another pair of the same two leaves was clearly faster; True on one leaf, and where leaves are not known."""
    import numpy as np

    t = view.table
    one, two = (int(t.node_leaf[t.end_node[end]]) for end in (pair.a, pair.b))
    if view.inside or one == two or min(one, two) < 0:
        return True
    between = ((t.leaf_a == one) & (t.leaf_b == two)) | ((t.leaf_a == two) & (t.leaf_b == one))
    limit = float(clearing_limit(view, np.median(view.ratio[pair.shots])))
    return bool((np.nan_to_num(view.ratio[between & ~pair.shots]) >= limit).any())


def _both_known(outcome: Outcome, pair: Pair) -> bool:
    """Whether both ends reached clearly more with others, across leaves if that is where the pair is."""
    import numpy as np

    view = outcome.view
    t = view.table
    crosses = t.node_leaf[t.end_node[pair.a]] != t.node_leaf[t.end_node[pair.b]]
    best = outcome.best.across if crosses else outcome.best.end
    limit = float(clearing_limit(view, np.median(view.ratio[pair.shots])))
    return bool(best[pair.a] >= limit and best[pair.b] >= limit)


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
        steady = float(np.median(np.abs(logs - np.median(logs)))) <= STEADY * max(view.scale.noise, 0.003) / 1.4826
        slow = int(np.count_nonzero(left[group]))  # what a part explains says nothing against the pair
        pair = Pair(
            code // number,
            code % number,
            int(values.size),
            slow,
            steady,
            is_deep(view, values),
            is_deep(view, values, sure=False),
            mine,
        )
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


def _crowded(view: View, lasting: list[Pair], passing: list[Pair]) -> list[Pair]:
    """Lasting slow pairs that are too many on one rail, or at one node, to be faults of single links."""
    from collections import Counter

    t = view.table
    firm = [pair for pair in lasting if pair.again > 1]
    node, slot = t.end_node, t.end_slot
    rails = Counter(int(slot[pair.a]) for pair in firm)
    nodes = Counter(place for pair in firm for place in {int(node[pair.a]), int(node[pair.b])})
    odd = Counter(place for pair in lasting + passing for place in {int(node[pair.a]), int(node[pair.b])})
    whole = len(firm) > MANY_LINKS or max(rails.values(), default=0) > MANY_ON_RAIL
    return [
        pair
        for pair in lasting
        if whole
        or max(nodes[int(node[pair.a])], nodes[int(node[pair.b])]) > MANY_ON_NODE
        or max(odd[int(node[pair.a])], odd[int(node[pair.b])]) > MANY_ODD_ON_NODE
    ]
