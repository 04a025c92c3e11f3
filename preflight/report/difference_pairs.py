"""Which parts the changed pairs of two runs have in common: all, a node, the way between two leaves, a GPU, two nodes; else the pair itself (pure).

Not a localiser: it blames nothing, it only says shortly what got slower or faster. What a larger part explains is not said again of its pairs.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence

from preflight.model import Report
from preflight.model.base import Record
from preflight.model.baseline import Place
from preflight.model.hostlist import natural_key
from preflight.model.measurement import median
from preflight.model.noise import LEAST_TRANSIENTS, MOST_CHANCE_ALARMS, expected_chance_alarms, transient_share
from preflight.report.difference import Level, RateChange

MIN_PARTNERS = 3  # nodes or GPUs, before a part is called by the partner it changed least with
MOST_REPEATS = 9  # ours: nothing is measured more often
MIN_NODES = 4  # of which all pairs must change alike before everything did


class Common(Record, frozen=True):
    """One place in both runs: its figures before and after, each at least one."""

    places: tuple[Place, ...]
    name: str
    old: tuple[float, ...]
    new: tuple[float, ...]

    @property
    def before(self) -> float:
        """The median of the first run."""
        return median(self.old)

    @property
    def after(self) -> float:
        """The median of the second run."""
        return median(self.new)

    @property
    def ratio(self) -> float:
        """After / before."""
        return self.after / self.before

    def is_slower(self, rule: "Rule", common: float = 1.0) -> bool:
        """Every repeat of the second run, and enough of them, below what the first run typically gave; `common`: how far the part changed that it is of."""
        return len(self.new) >= rule.repeats_after and max(self.new) < (1 - rule.least) * self.before * common

    def is_faster(self, rule: "Rule", common: float = 1.0) -> bool:
        """The same the other way round."""
        return len(self.old) >= rule.repeats_before and max(self.old) * common < (1 - rule.least) * self.after

    def looks_slower(self, least: float, common: float = 1.0) -> bool:
        """Below it, however often it was measured."""
        return self.ratio < (1 - least) * common


class Rule(Record, frozen=True):
    """When a change is called: from which relative change on, and how often a single place must show it each time, so that chance alone makes next to none of them do so."""

    least: float
    repeats_before: int
    repeats_after: int


def rule_of(places: Sequence[Common], least: float) -> Rule:
    """The rule for these places: the repeats follow from how many places there are, and from the share of probes that were held up in each run."""
    return Rule(least, *(_repeats([getattr(place, run) for place in places], least) for run in ("old", "new")))


def _repeats(series: Sequence[Sequence[float]], least: float) -> int:
    share = max(LEAST_TRANSIENTS, transient_share(series, least) or 0.0)
    repeats = 2
    while repeats < MOST_REPEATS and expected_chance_alarms(len(series), repeats, share) > MOST_CHANCE_ALARMS:
        repeats += 1
    return repeats


def pair_changes(kind: str, pairs: Sequence[Common], rule: Rule, after: Report) -> tuple[list[RateChange], int]:
    """The changes of pairs of one route, and how many more look slower but were measured once."""
    found: list[RateChange] = []
    least = rule.least
    common = _everything(pairs, least)
    if common is not None:
        found.append(_change("everything", f"all {len(pairs)} pairs", kind, pairs))
    level = dict.fromkeys((pair.places for pair in pairs), common or 1.0)  # how far the part of each pair changed
    left = list(pairs)
    for name, parts in _parts(kind, after):
        explained: set[tuple[Place, ...]] = set()
        grouped = _grouped(left, parts)
        for subject, (ratio, apart) in _parts_alike(grouped, least, common or 1.0).items():
            of = [pair for some in _without(grouped[subject], apart).values() for pair in some]
            found.append(_change(name, subject, kind, of))
            level.update((pair.places, ratio) for pair in of)
            explained |= {pair.places for pair in of if abs(pair.ratio / ratio - 1) < least}
            explained |= {pair.places for pair in grouped[subject].get(apart, ())}
        left = [pair for pair in left if pair.places not in explained]
    called = [p for p in left if p.is_slower(rule, level[p.places]) or p.is_faster(rule, level[p.places])]
    found += [_change("pair", _pair_text(pair), kind, [pair]) for pair in called]
    names = {pair.places for pair in called}
    return found, sum(p.looks_slower(least, level[p.places]) for p in left if p.places not in names)


def _everything(pairs: Sequence[Common], least: float) -> float | None:
    """By how much everything changed; None: not everything did. Of fewer than MIN_NODES nodes the parts are named."""
    nodes = {node for pair in pairs for node, _ in pair.places}
    ratios = sorted(pair.ratio for pair in pairs)
    if len(nodes) < MIN_NODES or len(ratios) < MIN_PARTNERS:
        return None
    tenth = len(ratios) // 10  # held up by chance, or changed otherwise
    if ratios[len(ratios) - 1 - tenth] < 1 - least or ratios[tenth] > 1 / (1 - least):
        return median(ratios)
    return None


Part = Callable[[Common], list[tuple[str, Hashable]]]  # a pair -> the parts that it is of, each with the partner


def _parts(kind: str, after: Report) -> list[tuple[Level, Part]]:
    """From the largest part to the smallest."""
    inside = kind == "pairs inside nodes"

    def node(pair: Common) -> list[tuple[str, Hashable]]:
        (a, _), (b, _) = pair.places
        return [(a, pair.places)] if inside else [(a, b), (b, a)]

    def gpu(pair: Common) -> list[tuple[str, Hashable]]:
        one, other = pair.places
        return [(f"{one[0]} GPU {one[1]}", other), (f"{other[0]} GPU {other[1]}", one)]

    def two_nodes(pair: Common) -> list[tuple[str, Hashable]]:
        return [(" - ".join(sorted((place[0] for place in pair.places), key=natural_key)), pair.places)]

    leaf_by_node = _leaves(after)

    def two_leaves(pair: Common) -> list[tuple[str, Hashable]]:
        nodes = [place[0] for place in pair.places]
        leaves = [leaf for name in nodes if (leaf := leaf_by_node.get(name)) is not None]
        return [(" - ".join(sorted(leaves, key=natural_key)), tuple(nodes))] if len(set(leaves)) == 2 else []

    if inside:
        return [("node", node), ("GPU", gpu)]
    return [("node", node), ("leaf pair", two_leaves), ("GPU", gpu), ("node pair", two_nodes)]


def _leaves(report: Report) -> dict[str, str]:
    plan, topology = report.evidence.plan, report.evidence.topology
    nodes = plan.placement.nodes if plan else ()
    placed = plan.placement.leaves if plan and plan.placement.leaves else (None,) * len(nodes)
    told = {
        node: (topology.leaf_of(node) if topology else None) or leaf for node, leaf in zip(nodes, placed, strict=False)
    }
    return {node: leaf for node, leaf in told.items() if leaf is not None}


def _grouped(pairs: Sequence[Common], part: Part) -> dict[str, "Members"]:
    """Part -> partner -> pairs; the parts as people count."""
    found: dict[str, Members] = {}
    for pair in pairs:
        for name, partner in part(pair):
            found.setdefault(name, {}).setdefault(partner, []).append(pair)
    return dict(sorted(found.items(), key=lambda item: natural_key(item[0])))


Members = dict[Hashable, list[Common]]  # partner -> pairs


def _alike(members: Members, least: float, common: float) -> float | None:
    """The median change of a part that changed with every partner beyond `least`, but for a tenth of many; None: not with all, or there are too few partners to say so.

    With a partner the better half of the pairs must have changed, so that one slow GPU is not its node. A pair that was held up in one of the runs must not hide the rest.
    """
    if len(members) < MIN_PARTNERS:
        return None
    ratios = [sorted(pair.ratio / common for pair in pairs) for pairs in members.values()]
    high = sorted(each[len(each) // 2] for each in ratios)
    low = sorted(each[(len(each) - 1) // 2] for each in ratios)
    tenth = len(members) // 10
    if high[-1 - tenth] < 1 - least or low[tenth] > 1 / (1 - least):
        return median([ratio for each in ratios for ratio in each]) * common
    return None


def _parts_alike(grouped: Mapping[str, Members], least: float, common: float) -> dict[str, tuple[float, Hashable]]:
    """Part -> its change, and the partner left out of it (None: none), of those that changed with every partner; also where the only one with which it did not changed the other way with all the rest."""
    found: dict[str, tuple[float, Hashable]] = {}
    for name, members in grouped.items():
        ratio = _alike(members, least, common)
        if ratio is not None:
            found[name] = ratio, None
            continue
        for other in members if len(members) > MIN_PARTNERS else ():
            theirs = _alike(_without(grouped.get(str(other), {}), name), least, common)
            ours = None if theirs is None else _alike(_without(members, other), least, common)
            if ours is not None and theirs is not None and (ours < common) != (theirs < common):
                found[name] = ours, other
    return found


def _without(members: Members, partner: Hashable) -> Members:
    return {other: pairs for other, pairs in members.items() if other != partner}


def _pair_text(pair: Common) -> str:
    return " - ".join(f"{node} GPU {slot}" for node, slot in pair.places)


def _change(level: Level, subject: str, kind: str, pairs: Sequence[Common]) -> RateChange:
    return RateChange(
        level=level,
        subject=subject,
        what=kind,
        before=median([pair.before for pair in pairs]),
        after=median([pair.after for pair in pairs]),
        ratio=median([pair.ratio for pair in pairs]),
        number=len(pairs),
    )
