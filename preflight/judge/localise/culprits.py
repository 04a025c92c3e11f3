"""From explanations to culprits: which kind of part, how sure, and in what words."""

from typing import TYPE_CHECKING, NamedTuple

from preflight.judge.localise.engine import Explained, Outcome
from preflight.judge.localise.rest import Pair, Rest
from preflight.judge.localise.shares import Share
from preflight.judge.localise.table import Table
from preflight.judge.localise.view import View
from preflight.model.finding import Confidence
from preflight.model.localisation import Culprit, Shots
from preflight.model.units import show_rate

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Bools = NDArray[Any]

ENOUGH = 3  # cleared partners that make a part certain, with one on the same leaf and one elsewhere
MOST_EVIDENCE = 12


class Words(NamedTuple):
    """What all culprits of a view are worded with. `references`: bytes per second by (op, route)."""

    view: View
    shots: Shots
    references: dict[tuple[int, int], float]
    op: str


def culprits_of(outcome: Outcome, rest: Rest, words: Words) -> list[Culprit]:
    """One for each explanation that is deep enough to be called."""
    found = [_culprit(outcome, explained, words) for explained in outcome.explained if explained.called]
    found += [_link(pair, words) for pair in rest.links]
    return found


def _culprit(outcome: Outcome, explained: Explained, words: Words) -> Culprit:
    view, t = outcome.view, outcome.view.table
    base = facts(words, own_shots(view, explained))
    part, level = explained.part, explained.level
    if level == "share":
        assert explained.share is not None
        return _share(explained.share, base, t)
    if level == "path":
        return _path(explained, base, t)
    if level.startswith("class "):
        return _class(level.removeprefix("class "), part, base, t)
    return _with(_single(view, level, part, base), confidence=confidence(view, explained))


def _single(view: View, level: str, part: int, base: Culprit) -> Culprit:
    t = view.table
    slots = int(t.end_slot.max(initial=0)) + 1
    if level == "slot":
        return _with(base, kind="slot", slot=part)
    if level == "node":
        return _with(base, kind="node", nodes=(t.ends.nodes[part],))
    if level == "end":
        return _with(base, kind="gpu" if view.inside else "nic", ends=(part,))
    by_slot = level in {"leaf slot", "way out"}
    leaf, slot = divmod(part, slots) if by_slot else (part, None)
    kind = "uplink" if level in {"uplink", "way out"} else "leaf"
    return _with(base, kind=kind, leaf=t.leaves[leaf], nodes=_of_leaf(t, leaf), slot=slot)


def _class(fact: str, part: int, base: Culprit, t: Table) -> Culprit:
    values = t.ends.classes[fact]
    value = [v for v in dict.fromkeys(values) if v is not None][part]
    nodes = tuple(name for name, its in zip(t.ends.nodes, values, strict=True) if its == value)
    return _with(base, kind="class", nodes=nodes, fact=f"{fact} {value}", confidence="likely")


def own_shots(view: View, explained: Explained) -> "Bools":
    """Of the shots of an explanation those that show how slow it is by itself; of a path all."""
    if explained.path is not None or not explained.median:
        return explained.shots
    import numpy as np

    known = np.where(np.isfinite(view.ratio), view.ratio, np.inf)
    own: Bools = explained.shots & (known >= explained.median * view.scale.edge)
    return own


def confidence(view: View, explained: Explained) -> Confidence:
    """Certain: three cleared partners, one on the same leaf and one elsewhere where the leaves are known."""
    t, shots = view.table, explained.shots
    if explained.partners < ENOUGH:
        return "likely"
    if view.inside or not t.leaves or explained.level in {"uplink", "way out", "inside leaf"}:
        return "certain"
    near, far = near_and_far(view, shots)
    return "certain" if near and far else "likely"


def near_and_far(view: View, shots: "Bools") -> tuple[bool, bool]:
    """Whether some of the shots stay on a leaf, and some go between leaves."""
    t = view.table
    same = (t.leaf_a == t.leaf_b) & (t.leaf_a >= 0)
    other = (t.leaf_a != t.leaf_b) & (t.leaf_a >= 0) & (t.leaf_b >= 0)
    return bool((shots & same).any()), bool((shots & other).any())


def _path(explained: Explained, base: Culprit, t: Table) -> Culprit:
    path = explained.path
    assert path is not None
    one, other = (_nodes_of(t, units, explained.unit) for units in (path.one, path.other))
    failed = base.observed_bytes_per_s is None
    fact = _matching_fact(t, one, other)
    kind = "class" if fact else "path"
    sure: Confidence = "likely" if path.doubtful else "certain"
    return _with(base, kind=kind, nodes=one, other_nodes=other, fact=fact, failed=failed, confidence=sure)


def _matching_fact(t: Table, one: tuple[str, ...], other: tuple[str, ...]) -> str | None:
    """The software fact whose values are exactly the two sets."""
    place = {name: i for i, name in enumerate(t.ends.nodes)}
    for fact, values in t.ends.classes.items():
        first, second = ({values[place[name]] for name in side} for side in (one, other))
        if len(first) == len(second) == 1 and first != second and None not in first | second:
            apart = [name for name, value in zip(t.ends.nodes, values, strict=True) if {value} in (first, second)]
            if len(apart) == len(one) + len(other):
                return f"{fact} {first.pop()} beside {second.pop()}"
    return None


def _nodes_of(t: Table, units: frozenset[int], unit: str) -> tuple[str, ...]:
    import numpy as np

    if unit == "node":
        return tuple(t.ends.nodes[i] for i in sorted(units))
    return tuple(t.ends.nodes[i] for i in np.flatnonzero(np.isin(t.node_leaf, list(units))).tolist())


def _of_leaf(t: Table, leaf: int) -> tuple[str, ...]:
    import numpy as np

    return tuple(t.ends.nodes[i] for i in np.flatnonzero(t.node_leaf == leaf).tolist())


def _share(share: Share, base: Culprit, t: Table) -> Culprit:
    part = len(share.ends) / max(1, share.measured)
    return _with(
        base,
        kind="uplink",
        leaf=t.leaves[share.leaf],
        nodes=_of_leaf(t, share.leaf),
        ends=share.ends,
        share=part,
        confidence="likely" if len(share.ends) < ENOUGH else "certain",
    )


def _link(pair: Pair, words: Words) -> Culprit:
    return _with(facts(words, pair.shots), kind="link", ends=(pair.a, pair.b), confidence="likely")


def facts(words: Words, shots: "Bools") -> Culprit:
    """A culprit with the figures of these shots and nothing else: observed (median), reference, depth, evidence (slowest first, failed last)."""
    import numpy as np

    t = words.view.table
    slow = np.flatnonzero(shots & words.view.slow)
    failed = np.flatnonzero(shots & words.view.failed)
    order = slow[np.argsort(words.view.ratio[slow], kind="stable")]
    keys = [words.shots.key[int(t.position[i])] for i in [*order, *failed][:MOST_EVIDENCE]]
    ops = (words.op,)
    if not slow.size:
        return Culprit(kind=None, ops=ops, failed=True, evidence=tuple(keys))
    ratio = float(np.median(words.view.ratio[slow]))
    rates = t.rate[slow]
    observed = float(np.median(rates))
    routes = np.unique(t.route[slow]).tolist()
    shown = ", ".join(
        f"{show_rate(words.references[int(t.op[slow[0]]), route])} {t.routes[route]}"
        for route in routes
        if (int(t.op[slow[0]]), route) in words.references
    )
    return Culprit(
        kind=None,
        ops=ops,
        observed_bytes_per_s=observed,
        reference_bytes_per_s=observed / ratio,
        depth=1 - ratio,
        reference=f"like peers in this run: {shown}",
        evidence=tuple(keys),
    )


def _with(base: Culprit, **changes: object) -> Culprit:
    import msgspec

    return msgspec.structs.replace(base, **changes)
