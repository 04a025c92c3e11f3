"""Shots as columns: who took part, over which route, how fast."""

from typing import TYPE_CHECKING, NamedTuple

from preflight.model.localisation import LONE, Ends, Shots

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Ints = NDArray[Any]
    Floats = NDArray[Any]
    Bools = NDArray[Any]

ONE_WAY = "send"
ALONE = ("host_to_device", "device_to_host", "matmul")
INSIDE = "inside nodes"
NO_EVIDENCE = frozenset(
    {"not_run", "no_answer"}
)  # of a probe that never ran, or a rank that is gone: nothing about the way between


class Table(NamedTuple):
    """One entry per shot. `leaf_a`, `leaf_b`: -1 where nobody told. `rate` NaN: it failed. `route`: index into `routes`; `op`: into `ops`."""

    ends: Ends
    position: "Ints"  # in the shots
    a: "Ints"
    b: "Ints"
    node_a: "Ints"
    node_b: "Ints"
    slot_a: "Ints"
    slot_b: "Ints"
    leaf_a: "Ints"
    leaf_b: "Ints"
    op: "Ints"
    route: "Ints"
    rate: "Floats"
    round: "Ints"
    end_node: "Ints"
    end_slot: "Ints"
    node_leaf: "Ints"
    ops: tuple[str, ...]
    routes: tuple[str, ...]
    leaves: tuple[str, ...]

    def part(self, mask: "Bools") -> "Table":
        """The shots of the mask."""
        columns = {
            name: getattr(self, name)[mask]
            for name in ("position", "a", "b", "node_a", "node_b", "slot_a", "slot_b", "leaf_a", "leaf_b")
        }
        more = {name: getattr(self, name)[mask] for name in ("op", "route", "rate", "round")}
        return self._replace(**columns, **more)

    @property
    def one_way(self) -> "Bools":
        """Which shots went from a to b only."""
        import numpy as np

        found: Bools = np.isin(self.op, [i for i, op in enumerate(self.ops) if base_op(op) == ONE_WAY])
        return found

    @property
    def lone(self) -> "Bools":
        """Which shots had all ways between switches to themselves: compared with none that shared them."""
        import numpy as np

        found: Bools = np.isin(self.op, [i for i, op in enumerate(self.ops) if op.endswith(f" {LONE}")])
        return found

    @property
    def alone(self) -> "Bools":
        """Which shots had no partner."""
        found: Bools = self.a == self.b
        return found

    @property
    def inside(self) -> "Bools":
        """Which shots stayed inside a node."""
        found: Bools = (self.node_a == self.node_b) & (self.a != self.b)
        return found


def base_op(op: str) -> str:
    """The operation without what follows it: "send_recv over 12 NVLinks" is send_recv."""
    return op.split(" ", 1)[0]


def table_of(ends: Ends, shots: Shots) -> Table:
    """The shots that say something: those of a rank that was not there are left out."""
    import numpy as np

    kept = [i for i, failure in enumerate(shots.failure) if failure not in NO_EVIDENCE]
    index = np.array(kept, dtype=np.int64)
    a = np.array(shots.a, dtype=np.int64)[index] if kept else index
    b = np.array(shots.b, dtype=np.int64)[index] if kept else index
    rates = [shots.bytes_per_s[i] if not shots.failure[i] else None for i in kept]
    rate = np.array([value if value and value > 0 else np.nan for value in rates], dtype=float)
    node, slot = np.array(ends.node, dtype=np.int64), np.array(ends.slot, dtype=np.int64)
    leaves = tuple(sorted({leaf for leaf in ends.leaves or () if leaf is not None}))
    number = {leaf: i for i, leaf in enumerate(leaves)}
    told = ends.leaves or (None,) * len(ends.nodes)
    node_leaf = np.array([-1 if leaf is None else number[leaf] for leaf in told], dtype=np.int64)
    ops = tuple(dict.fromkeys(shots.op))
    op_number = {op: i for i, op in enumerate(ops)}
    op = np.array([op_number[shots.op[i]] for i in kept], dtype=np.int64)
    table = Table(
        ends=ends,
        position=index,
        a=a,
        b=b,
        node_a=node[a],
        node_b=node[b],
        slot_a=slot[a],
        slot_b=slot[b],
        leaf_a=node_leaf[node[a]],
        leaf_b=node_leaf[node[b]],
        op=op,
        route=np.zeros(len(kept), dtype=np.int64),
        rate=rate,
        round=np.array([shots.round[i] for i in kept], dtype=np.int64),
        end_node=node,
        end_slot=slot,
        node_leaf=node_leaf,
        ops=ops,
        routes=ROUTES,
        leaves=leaves,
    )
    return table._replace(route=_routes(table))


ROUTES = (
    INSIDE,
    "same leaf, like slots",
    "other leaf, like slots",
    "leaves not known, like slots",
    "unlike slots",
    "same leaf",
    "other leaf",
    "between nodes",
    "one GPU alone",
)
SAME_LEAF, OTHER_LEAF = (1, 5), (2, 6)


def _routes(table: Table) -> "Ints":
    import numpy as np

    known = (table.leaf_a >= 0) & (table.leaf_b >= 0)
    same = table.leaf_a == table.leaf_b
    if table.ends.whole_nodes:
        route = np.where(known, np.where(same, 5, 6), 7)
    else:
        like = np.where(known, np.where(same, 1, 2), 3)
        route = np.where(table.slot_a == table.slot_b, like, 4)
    route = np.where(table.node_a == table.node_b, 0, route)
    return np.asarray(np.where(table.a == table.b, 8, route))
