"""Software whose nodes get nothing through to the others: seen in failures, not in rates."""

from typing import TYPE_CHECKING

import msgspec

from preflight.judge.localise.culprits import facts
from preflight.model.localisation import Culprit

if TYPE_CHECKING:
    from preflight.judge.localise.whole import Judged

FEWEST_NODES = 2
FEWEST_FAILURES = 6  # of the probes between the class and the others, all of which failed


def failed_classes(judged: "list[Judged]") -> list[Culprit]:
    """A value of a software fact whose nodes failed with every node that has another one, while those were fast among themselves. One node alone is that node: see the check reachable."""
    for each in judged:
        facts_of = each.outcome.view.table.ends.classes if not each.outcome.view.inside else {}
        for fact, values in facts_of.items():
            for value in sorted({value for value in values if value is not None}):
                block = _block(each, fact, value, values)
                if block is not None:
                    return [block]
    return []


def _block(each: "Judged", fact: str, value: str, values: tuple[str | None, ...]) -> Culprit | None:
    import numpy as np

    view = each.outcome.view
    t = view.table
    known = np.array([its is not None for its in values])
    mine = np.array([its == value for its in values])
    across = (mine[t.node_a] != mine[t.node_b]) & known[t.node_a] & known[t.node_b]
    others = view.fast & ~mine[t.node_a] & ~mine[t.node_b]
    failed = across & view.failed
    few = FEWEST_NODES <= int(np.count_nonzero(mine)) <= np.count_nonzero(known & ~mine)
    if not few or bool((across & ~view.failed).any()) or not others.any() or int(failed.sum()) < FEWEST_FAILURES:
        return None
    names, rest = (tuple(t.ends.nodes[i] for i in np.flatnonzero(side).tolist()) for side in (mine, known & ~mine))
    base = facts(each.words, failed)
    return msgspec.structs.replace(base, kind="class", nodes=names, other_nodes=rest, fact=f"{fact} {value}")
