"""Which ends a part has, and which lie beyond it: for the probes that go over it."""

from typing import TYPE_CHECKING

from preflight.judge.localise.table import Table
from preflight.model.localisation import Culprit

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Bools = NDArray[Any]


def members(table: Table, culprit: Culprit) -> "tuple[Bools, Bools]":
    """The ends of the part, and those towards which it shows. shape: (ends,), (ends,)"""
    import numpy as np

    number = len(table.end_node)
    mine, beyond = np.zeros(number, np.bool_), np.ones(number, np.bool_)
    if culprit.kind == "link":
        mine[culprit.ends[0]] = True
        beyond[:] = False
        beyond[culprit.ends[1]] = True
        return mine, beyond
    if culprit.leaf is not None:
        leaf = table.node_leaf[table.end_node] == table.leaves.index(culprit.leaf)
        mine = leaf if culprit.slot is None else leaf & (table.end_slot == culprit.slot)
        if culprit.share is not None and culprit.ends:
            mine = np.zeros(number, np.bool_)
            mine[list(culprit.ends)] = True
        return mine, ~leaf if culprit.kind == "uplink" else ~mine
    if culprit.ends:
        mine[list(culprit.ends)] = True
        node = table.end_node[culprit.ends[0]]
        return mine, table.end_node != node
    if culprit.kind == "slot":
        mine = table.end_slot == culprit.slot
        return mine, ~mine
    mine = _on(table, culprit.nodes)
    return mine, _on(table, culprit.other_nodes) if culprit.other_nodes else ~mine


def _on(table: Table, nodes: tuple[str, ...]) -> "Bools":
    import numpy as np

    wanted = set(nodes)
    on = np.array([name in wanted for name in table.ends.nodes], dtype=np.bool_)
    found: Bools = on[table.end_node]
    return found
