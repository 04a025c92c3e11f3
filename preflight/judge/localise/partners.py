"""Ends that are known to be good, dealt out in turn as partners of suspects."""

from typing import TYPE_CHECKING

from preflight.judge.localise.single import Best
from preflight.judge.localise.table import Table

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Bools = NDArray[Any]


class Partners:
    """Partners have the same slot: routes between unlike slots have no reference until many were measured. Those that were dealt least often come first, then
    those on leaves that were. `limit`: what a partner must have reached, as a share of the reference.
    """

    def __init__(self, table: Table, best: Best) -> None:
        import numpy as np

        self.table, self.best = table, best
        self.dealt = np.zeros(len(table.end_node), dtype=np.int64)
        self.dealt_leaf = np.zeros(len(table.leaves) + 1, dtype=np.int64)
        self.leaf = table.node_leaf[table.end_node]

    def near(self, end: int, number: int, limit: float) -> list[int]:
        """On the same leaf; none where leaves are not known."""
        leaf = self.leaf[end]
        return self._deal(end, (self.best.end >= limit) & (self.leaf == leaf), number) if leaf >= 0 else []

    def far(self, end: int, number: int, limit: float) -> list[int]:
        """On another leaf, and good towards other leaves; on any node where leaves are not known."""
        leaf = self.leaf[end]
        good = (self.best.across >= limit) & (self.leaf != leaf) if leaf >= 0 else self.best.end >= limit
        return self._deal(end, good, number)

    def among(self, end: int, ends: "Bools", number: int) -> list[int]:
        """Of these."""
        return self._deal(end, ends, number)

    def _deal(self, end: int, mask: "Bools", number: int) -> list[int]:
        import numpy as np

        t = self.table
        open_to = mask & (t.end_node != t.end_node[end])
        found = np.flatnonzero(open_to & (t.end_slot == t.end_slot[end]))
        # after the end itself in order, so that neighbours don't all get the first
        turned = np.concatenate([found[found > end], found[found <= end]])
        chosen = turned[np.lexsort((self.dealt_leaf[self.leaf[turned]], self.dealt[turned]))][:number]
        self.dealt[chosen] += 1
        self.dealt_leaf[self.leaf[chosen]] += 1
        return [int(other) for other in chosen]
