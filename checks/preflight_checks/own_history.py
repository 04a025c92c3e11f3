"""No node, and no pair, is slower than it used to be: each pair of this run beside its own figures of earlier ones (groups are the business of group_busbw).

Only like is compared: the same two places with the same GPUs, the same message size, backend and transport, in runs of about as many nodes. Pairs that fell are laid on the smallest thing that explains them: on what all have in
common where nearly all fell; on a node where most of its pairs fell, two at least, and those of other nodes did not; on the pair by itself where it fell in several runs. What fell in one run only is the
business of slow_part, which compares with the run's other pairs. A history never says FAIL: what else changed is not all known.
"""

from collections.abc import Iterator, Sequence

from preflight.model import Baseline, Check, Evidence, Finding, Part, Verdict
from preflight.model.base import Record
from preflight.model.baseline import is_of_pair
from preflight.model.changed_since import Fall, fall_of
from preflight.model.changes import LEAST_BEFORE
from preflight.model.evidence import BaselineEntry
from preflight.model.hostlist import fold
from preflight.model.measurement import median
from preflight.model.units import show_bytes, show_rate

NAME = "own_history"
LIMITS = {"drop": 0.10}  # the localiser's smallest depth
ALL = 0.75  # of the pairs, from which on it is what they have in common
LEAST_PAIRS = 4  # that are more than one node's
OF_A_NODE = 0.6  # of a node's pairs
MOST_PAIRS = 10  # that are told one by one


class Beside(Record, frozen=True):
    """A pair of this run beside its history. `fall` None: it is where it was."""

    entry: BaselineEntry
    nodes: tuple[str, ...]
    rate: float
    repeats: int
    fall: Fall | None


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for all, for each node, or for each pair that fell; and one for those that did not. Nothing without a history that is long enough."""
    assert evidence.plan is not None
    pairs = list(_pairs(evidence))
    if not pairs:
        return
    fallen = [pair for pair in pairs if pair.fall]
    if len(pairs) >= LEAST_PAIRS and len(fallen) >= ALL * len(pairs) and len({n for p in fallen for n in p.nodes}) > 1:
        yield _all(pairs, fallen)
        return
    left = fallen
    while left:
        names = _guilty(pairs, left)
        if not names:
            break
        yield _node(names, [pair for pair in left if names[0] in pair.nodes])
        left = [pair for pair in left if not set(names) & set(pair.nodes)]
    lasting = sorted((pair for pair in left if pair.fall and pair.fall.drop.lasting), key=_depth, reverse=True)
    for pair in lasting[:MOST_PAIRS]:
        yield _pair(pair)
    yield _rest(pairs, fallen, len(lasting) - MOST_PAIRS)


def _pairs(evidence: Evidence) -> Iterator[Beside]:
    """The pairs of this run with a history that is long enough. The best repeat counts: one that was held up is no drop."""
    assert evidence.plan is not None
    plan, baseline = evidence.plan, evidence.baseline or Baseline()
    floor = evidence.limits(NAME, LIMITS)["drop"]
    rates: dict[tuple[str, str, int], list[float]] = {}
    ranks: dict[str, tuple[int, ...]] = {}
    for measurement in evidence.measurements or ():
        probe, busbw = measurement.probe, measurement.busbw_bytes_per_s
        if is_of_pair(probe) and busbw and not measurement.failure:
            rates.setdefault((probe.subject, probe.collective, probe.size_bytes), []).append(busbw)
            ranks[probe.subject] = probe.ranks
    for entry in baseline.entries:
        repeats = rates.get((entry.subject, entry.collective, entry.size_bytes))
        if repeats and len(entry.busbw_bytes_per_s) >= LEAST_BEFORE:
            nodes = plan.placement.nodes_of(ranks[entry.subject])
            fall = fall_of(evidence, entry, max(repeats), nodes, floor=floor)
            yield Beside(entry, nodes, max(repeats), len(repeats), fall)


def _guilty(pairs: Sequence[Beside], left: Sequence[Beside]) -> tuple[str, ...]:
    """The node that explains the most of what is left: most of its pairs fell, two at least, each measured often enough. Several: they explain the same, so that it can't be told which. Empty: none."""
    of_node: dict[str, list[Beside]] = {}
    for pair in pairs:
        for node in pair.nodes:
            of_node.setdefault(node, []).append(pair)
    explained: dict[str, frozenset[str]] = {}
    for node, its in of_node.items():
        down = [pair for pair in its if pair in left and pair.fall and (pair.repeats > 1 or pair.fall.drop.lasting)]
        if len(down) >= 2 and len(down) >= OF_A_NODE * len(its):
            explained[node] = frozenset(pair.entry.subject for pair in down)
    if not explained:
        return ()
    most = max(map(len, explained.values()))
    first = next(names for names in explained.values() if len(names) == most)
    return tuple(sorted(node for node, names in explained.items() if names == first))


def _node(names: tuple[str, ...], its: Sequence[Beside]) -> Finding:
    alone = len(names) == 1
    return Finding(
        check=NAME,
        subject=names[0] if alone else f"pairs of {fold(names)}",
        verdict=Verdict.WARN,
        observed=f"{len(its)} of its pairs are slower than they were, {_how(its)}"
        if alone
        else f"{len(its)} pairs are slower than they were, which either node explains: {_how(its)}",
        expected=_expected(its),
        remedy="see what changed there at that time: driver, firmware, cables, cooling; then measure it again with other nodes",
        blames=Part(kind="node", name=names[0], confidence="possible") if alone else None,
        evidence=tuple(pair.entry.subject for pair in its[:8]),
    )


def _all(pairs: Sequence[Beside], fallen: Sequence[Beside]) -> Finding:
    return Finding(
        check=NAME,
        subject="all pairs",
        verdict=Verdict.WARN,
        observed=f"{len(fallen)} of {len(pairs)} pairs are slower than they were, so no node is to blame: {_how(fallen)}",
        expected=_expected(fallen),
        remedy="see what changed for all at that time: software, settings, the network between them, other load on it",
        blames=Part(kind="environment", name="what the nodes have in common", confidence="possible"),
        evidence=tuple(pair.entry.subject for pair in fallen[:8]),
    )


def _pair(pair: Beside) -> Finding:
    return Finding(
        check=NAME,
        subject=pair.entry.subject,
        verdict=Verdict.WARN,
        observed=f"between {fold(sorted(pair.nodes))}: {_how([pair])}"
        if len(pair.nodes) > 1
        else f"on {pair.nodes[0]}: {_how([pair])}",
        expected=_expected([pair]),
        remedy="see what slow_part says of its ends; if nothing, look at the link between them",
        blames=Part(kind="link", name=pair.entry.subject, confidence="possible"),
        evidence=(pair.entry.subject,),
    )


def _rest(pairs: Sequence[Beside], fallen: Sequence[Beside], more: int) -> Finding:
    well = len(pairs) - len(fallen)
    further = f"; {more} more pairs have been lower for several runs" if more > 0 else ""
    once = sum(not pair.fall.drop.lasting for pair in fallen if pair.fall)
    passing = f"; {once} are lower in this run or the last one only" if once else ""
    return Finding(
        check=NAME,
        subject="pairs",
        verdict=Verdict.WARN if more > 0 else Verdict.PASS,
        observed=f"{well} of {len(pairs)} pairs are where their own history has them{further}{passing}",
        expected=f"no drop beside {LEAST_BEFORE} or more earlier runs",
    )


def _how(some: Sequence[Beside]) -> str:
    worst = max(some, key=_depth)
    assert worst.fall is not None
    drop = worst.fall.drop
    many = f"{median([_depth(pair) for pair in some]):.0%} in the middle; " if len(some) > 1 else ""
    size = show_bytes(worst.entry.size_bytes)
    return f"{many}{worst.entry.subject} {show_rate(worst.rate)} at {size}, {_depth(worst):.0%} below the {show_rate(drop.before)} of {drop.runs_before} earlier runs, {worst.fall.text}"


def _expected(some: Sequence[Beside]) -> str:
    worst = max(some, key=_depth)
    return f"about {show_rate(worst.fall.drop.before)}, the median of its earlier runs" if worst.fall else ""


def _depth(pair: Beside) -> float:
    return 1 - pair.rate / pair.fall.drop.before if pair.fall else 0.0


CHECK = Check(
    name=NAME,
    claim="No node and no pair is slower than it was in earlier runs.",
    why="A link that fails as a rule declines first, and while it is still within what its peers reach, only its own history shows it.",
    source="the history of runs (preflight history); how a drop is told from noise: preflight/model/changes.py, with its false alarms counted in tests/soak/test_quiet_series.py",
    remedy="see what changed when it fell; measure the node with other partners",
    uses=("plan", "measurements"),
    judge=judge,
    need="advisory",
    limits=LIMITS,
)
