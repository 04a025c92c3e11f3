"""What the shots leave open: slow pairs of which more than one explanation remains."""

from typing import TYPE_CHECKING

import msgspec

from preflight.judge.localise.culprits import facts
from preflight.judge.localise.rest import Pair
from preflight.judge.localise.table import Table
from preflight.model.localisation import Culprit

if TYPE_CHECKING:
    from preflight.judge.localise.whole import Judged

MOST_CANDIDATES = 20
MOST_QUESTIONS = 10  # a person reads; the others are counted in a note


def open_questions(judged: "list[Judged]", known: list[Culprit]) -> list[Culprit]:
    """One for each set of slow pairs that hang together."""
    named = {end for culprit in known if culprit.kind in {"gpu", "nic", None} for end in culprit.ends}
    found = []
    for each in judged:
        open_pairs = [
            pair
            for pair in each.rest.strangers
            if pair.deep and not {pair.a, pair.b} & named and pair.slow == pair.again
        ]
        found += [_strangers(group, each) for group in _hanging_together(open_pairs)]
        for pair in [pair for pair in each.rest.undecided if pair.deep][:MOST_CANDIDATES]:
            base = facts(each.words, pair.shots)
            link = msgspec.structs.replace(base, kind="link", ends=(pair.a, pair.b), confidence="possible")
            found.append(msgspec.structs.replace(base, confidence="possible", candidates=(link,)))
    return found


def _hanging_together(pairs: list[Pair]) -> list[list[Pair]]:
    groups: list[tuple[set[int], list[Pair]]] = []
    for pair in pairs:
        mine = {pair.a, pair.b}
        touching = [group for group in groups if group[0] & mine]
        for group in touching:
            groups.remove(group)
            mine |= group[0]
        groups.append((mine, [p for group in touching for p in group[1]] + [pair]))
    return [group for _, group in groups]


def _strangers(group: list[Pair], each: "Judged") -> Culprit:
    """Ends that were slow with all they met, and met too few who are known to be good: any of them, or the links."""
    import numpy as np

    t = each.outcome.view.table
    shots = np.zeros(each.outcome.view.size, np.bool_)
    for pair in group:
        shots |= pair.shots
    base = facts(each.words, shots)
    good = each.outcome.good
    known = good.across if t.leaves and not each.outcome.view.inside else good.end
    ends = [end for end in dict.fromkeys(e for pair in group for e in (pair.a, pair.b)) if not known[end]]
    choices = [_end(base, t, end) if not good.end[end] else _way_out(base, t, end) for end in ends]
    choices += [msgspec.structs.replace(base, kind="link", ends=(p.a, p.b)) for p in group]
    return msgspec.structs.replace(base, confidence="possible", candidates=tuple(choices[:MOST_CANDIDATES]))


def _way_out(base: Culprit, t: Table, end: int) -> Culprit:
    """An end that is fast on its own leaf: its leaf's way out, as far as that end uses it."""
    leaf = t.leaves[int(t.node_leaf[t.end_node[end]])]
    return msgspec.structs.replace(base, kind="uplink", leaf=leaf, ends=(end,), share=None)


def _end(base: Culprit, t: Table, end: int) -> Culprit:
    node = t.end_node[end]
    if int((t.end_node == node).sum()) == 1:
        return msgspec.structs.replace(base, kind="node", nodes=(t.ends.nodes[int(node)],))
    return msgspec.structs.replace(base, kind="nic", ends=(end,))


def fewer(questions: list[Culprit]) -> tuple[list[Culprit], list[str]]:
    """The worst of the questions, and a note on the others."""
    ordered = sorted(questions, key=lambda question: -(question.depth or 0.0))
    left = len(ordered) - MOST_QUESTIONS
    note = [f"{left} more sets of slow pairs of which more than one explanation remains"] if left > 0 else []
    return ordered[:MOST_QUESTIONS], note
