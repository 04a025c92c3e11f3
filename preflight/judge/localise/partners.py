"""Ends that are known to be good, dealt out in turn as partners of suspects."""

from typing import TYPE_CHECKING

from preflight.judge.localise.table import Table

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Bools = NDArray[Any]


class Partners:
    """`good`: cleared ends. Partners have the same slot: routes between unlike slots have no reference until many were measured. Those that were dealt least often come first."""

    def __init__(self, table: Table, good: "Bools", good_far: "Bools") -> None:
        import numpy as np

        self.table, self.good, self.good_far = table, good, good_far
        self.dealt = np.zeros(len(table.end_node), dtype=np.int64)
        self.leaf = table.node_leaf[table.end_node]

    def near(self, end: int, number: int) -> list[int]:
        """On the same leaf; none where leaves are not known."""
        leaf = self.leaf[end]
        return self._deal(end, self.good & (self.leaf == leaf), number) if leaf >= 0 else []

    def far(self, end: int, number: int) -> list[int]:
        """On another leaf, or on any node where leaves are not known."""
        leaf = self.leaf[end]
        return self._deal(end, self.good_far & (self.leaf != leaf) if leaf >= 0 else self.good, number)

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
        chosen = turned[np.argsort(self.dealt[turned], kind="stable")][:number]
        self.dealt[chosen] += 1
        return [int(other) for other in chosen]
