"""Which probes would tell the remaining explanations apart, the most telling first."""

from typing import TYPE_CHECKING

from preflight.judge.localise.directions import OneWay, counted
from preflight.judge.localise.members import members
from preflight.judge.localise.partners import Partners
from preflight.judge.localise.resolve import INSIDE_SHOTS, inside_shots, sides_of
from preflight.judge.localise.single import clearing_limit
from preflight.judge.localise.table import ONE_WAY, base_op
from preflight.model.localisation import Ask, Culprit

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from preflight.judge.localise.whole import Grounds, Judged

    Bools = NDArray[Any]

MOST_PAIRS = 1000  # slow pairs repeated at once: 1 % of 50,000 shots, twice over
MOST_ASKS = 6000
MOST_STRANGERS = 16  # ends of one question
CONTROLS = 8  # probes of known good ends, so that a new operation has a reference
REPEATS = 2
TO_KNOW_NOISE = 12


def asks_of(culprits: list[Culprit], judged: "list[Judged]", sends: OneWay, grounds: "Grounds") -> tuple[Ask, ...]:
    """In the order of their priority. Empty: nothing is open."""
    between = [each for each in judged if not each.outcome.view.inside]
    if not between:
        return ()
    main = max(between, key=lambda each: each.outcome.view.size)
    asking = Asking(main, judged, sends)
    asking.repeats()
    asking.other_pairs()
    for culprit in culprits:
        asking.about(culprit)
    asking.doubtful_units()
    asking.controls()
    if grounds.noise is None or not grounds.noise.repeats:
        asking.noise()
    return tuple(sorted(asking.asks, key=lambda ask: ask.priority)[:MOST_ASKS])


class Asking:
    """Collects asks about one operation. Partners are dealt in turn, so that asks can run at the same time."""

    def __init__(self, main: "Judged", judged: "list[Judged]", sends: OneWay) -> None:
        self.main, self.judged, self.sends = main, judged, sends
        self.view = main.outcome.view
        self.table = self.view.table
        self.op = main.op
        self.directed = base_op(main.op) == "send_recv" and not self.table.ends.whole_nodes
        self.partners = Partners(self.table, main.outcome.best)
        self.asks: list[Ask] = []
        self.one_way_asked = False

    def add(self, a: int, b: int, reason: str, *, priority: int = 0, op: str | None = None) -> None:
        """One more."""
        self.asks.append(Ask(a=int(a), b=int(b), op=op or self.op, priority=priority, reason=reason))

    def limit(self, culprit: Culprit) -> float:
        """What clears a partner for this one."""
        return float(clearing_limit(self.view, 1 - (culprit.depth or 0.0)))

    def repeats(self) -> None:
        """Slow pairs that were measured too seldom, those seen most often first."""
        pairs = sorted(self.main.rest.undecided, key=lambda pair: -pair.again)
        for pair in pairs[:MOST_PAIRS]:
            for _ in range(min(REPEATS, self.main.rest.needed - pair.again)):
                self.add(pair.a, pair.b, "slow: again, to tell a fault from something passing")

    def other_pairs(self) -> None:
        """Of two leaves between which a slow pair was the only one: another one."""
        for pair in self.main.rest.untried[:MOST_PAIRS]:
            there = self.partners.leaf == self.partners.leaf[pair.b]
            for end in self.partners.near(pair.a, 1, self.view.scale.edge):
                for other in self.partners.among(end, there & (self.partners.best.end >= self.view.scale.edge), 1):
                    self.add(end, other, "another pair of the same two leaves", priority=0)

    def about(self, culprit: Culprit) -> None:
        """What a culprit, or a question, still needs."""
        candidates = culprit.candidates or (culprit,)
        for one in candidates:
            if one.kind in {"gpu", "nic"} and one is candidates[0]:
                self.end(one)
            elif one.kind == "node" and one is candidates[0]:
                self.node(one)
        for one in candidates[1:]:
            if one.kind == "uplink" and candidates[0].kind in {"node", "nic"} and one.leaf is not None:
                self.behind(candidates[0], one.leaf)
        if culprit.kind is None and culprit.confidence == "possible":
            self.strangers(culprit)
        elif culprit.kind in {"uplink", "path", "link"}:
            self.ways(culprit)

    def end(self, culprit: Culprit) -> None:
        """Its own node, both sides, each direction."""
        end = culprit.ends[0]
        fast, slow = inside_shots(end, self.judged)
        if not fast and slow < INSIDE_SHOTS and not self.table.ends.whole_nodes:
            self.inside_node(end)
        self.both_sides(culprit, [end])
        self.ways(culprit)

    def node(self, culprit: Culprit) -> None:
        """Both sides, each direction, over two of its ends."""
        import numpy as np

        node = self.table.ends.nodes.index(culprit.nodes[0])
        ends = np.flatnonzero(self.table.end_node == node)[:2].tolist()
        self.both_sides(culprit, ends)
        self.ways(culprit)

    def behind(self, culprit: Culprit, leaf: str) -> None:
        """With ends of a leaf whose way out is as slow: fast with them, it is behind that way."""
        import numpy as np

        t = self.table
        ends = culprit.ends or np.flatnonzero(t.end_node == t.ends.nodes.index(culprit.nodes[0]))[:2].tolist()
        there = t.node_leaf[t.end_node] == t.leaves.index(leaf)
        for end in ends:
            for other in self.partners.among(end, there, 2):
                self.add(end, other, "as slow as the way out of that leaf: is it behind it", priority=0)

    def inside_node(self, end: int) -> None:
        """With three others of its node, and two of these with one another for comparison."""
        import numpy as np

        t = self.table
        mine = np.flatnonzero((t.end_node == t.end_node[end]) & (np.arange(len(t.end_node)) != end)).tolist()
        good = [other for other in mine if self.main.outcome.good.end[other]] or mine
        start = end % len(good) if good else 0
        chosen = (good[start:] + good[:start])[:4]
        for other in chosen[:3]:
            self.add(end, other, "inside the node: the GPU, or its NIC", priority=1)
        if len(chosen) > 1:
            self.add(chosen[-1], chosen[0], "inside the node, for comparison", priority=1)

    def both_sides(self, culprit: Culprit, ends: list[int]) -> None:
        """Partners on the same leaf and elsewhere, where it was not tried with both, or with too few."""
        sides = sides_of(culprit, self.judged)
        if (sides is None or all(sides)) and culprit.confidence == "certain":
            return
        for end in ends:
            near = self.partners.near(end, 2 if sides is None or not sides[0] else 1, self.limit(culprit))
            far = self.partners.far(end, 2, self.limit(culprit))
            for other in near + far:
                self.add(end, other, "slow with all so far: with a partner that is known to be good", priority=1)

    def ways(self, culprit: Culprit) -> None:
        """One way each, unless that was done."""
        if not self.directed:
            return
        import numpy as np

        mine, beyond = members(self.table, culprit)
        if min(counted(self.sends, mine, beyond)) >= 2:
            return
        known = self.main.outcome.best.cleared(self.limit(culprit))
        good = known.across if culprit.kind in {"uplink", "path"} and self.table.leaves else known.end
        beyond = self.as_good_as(culprit, beyond)
        ours = np.flatnonzero(mine)
        chosen = ours if ours.size <= 4 else ours[np.linspace(0, ours.size - 1, 4).astype(int)]
        self.one_way_asked = True
        for end in chosen.tolist():
            for other in self.way_partners(culprit, end, beyond if culprit.kind == "link" else beyond & good):
                self.add(end, other, "one way: sending", priority=2, op=ONE_WAY)
                self.add(other, end, "one way: receiving", priority=2, op=ONE_WAY)

    def as_good_as(self, culprit: Culprit, beyond: "Bools") -> "Bools":
        """Of the ends beyond a leaf's way out those on leaves with which it was no slower than it is by itself: a path to the others would hide which way it is slow."""
        import numpy as np

        t = self.table
        if culprit.kind != "uplink" or culprit.leaf is None:
            return beyond
        leaf = t.leaves.index(culprit.leaf)
        ratio = np.nan_to_num(self.view.ratio)
        best = np.zeros(len(t.leaves) + 1)
        for here, there in ((t.leaf_a, t.leaf_b), (t.leaf_b, t.leaf_a)):
            mine = here == leaf
            np.maximum.at(best, there[mine], ratio[mine])
        fine = beyond & (best[self.partners.leaf] >= (1 - (culprit.depth or 0.0)) * self.view.scale.edge)
        return fine if fine.any() else beyond

    def way_partners(self, culprit: Culprit, end: int, beyond: "Bools") -> list[int]:
        """For one way each: of a NIC or node on its own leaf first, so that no uplink comes in."""
        if culprit.kind in {"gpu", "nic", "node"} and self.table.leaves:
            near = self.partners.near(end, 2, self.limit(culprit))
            return near + self.partners.far(end, 2 - len(near), self.limit(culprit))
        return self.partners.among(end, beyond, 2)

    def strangers(self, culprit: Culprit) -> None:
        """Each end that met nobody good, with two that are known to be good."""
        import numpy as np

        ends = dict.fromkeys(end for one in culprit.candidates if one.kind in {"gpu", "nic"} for end in one.ends)
        for one in culprit.candidates:
            if one.kind == "node":
                place = self.table.ends.nodes.index(one.nodes[0])
                ends.update(dict.fromkeys(np.flatnonzero(self.table.end_node == place).tolist()))
        limit = self.limit(culprit)
        for one in culprit.candidates[:MOST_STRANGERS]:
            if one.kind == "uplink" and len(one.ends) == 1:
                for other in self.partners.far(one.ends[0], 2, limit):
                    self.add(
                        one.ends[0],
                        other,
                        "slow across leaves so far: with a partner that is known to be good there",
                        priority=0,
                    )
            elif one.kind == "link" and len(culprit.candidates) <= 3:
                self.add(one.ends[0], one.ends[1], "slow: again, to tell a fault from something passing")
        for end in list(ends)[:MOST_STRANGERS]:
            near = self.partners.near(end, 3, limit)  # a way out that is slow hides what partners elsewhere would tell
            for other in near + self.partners.far(end, 1 if near else 2, limit):
                self.add(end, other, "met nobody who is known to be good", priority=0)
            if not self.table.ends.whole_nodes and not any(inside_shots(end, self.judged)):
                self.inside_node(end)

    def doubtful_units(self) -> None:
        """Of a path: units that were not compared with both sets."""
        import numpy as np

        t = self.table
        for explained in self.main.outcome.explained:
            path = explained.path
            if path is None:
                continue
            of = t.node_leaf[t.end_node] if explained.unit == "leaf" else t.end_node
            good = self.main.outcome.good.end
            for unit in sorted(path.doubtful)[:400]:
                ours = np.flatnonzero((of == unit) & good)
                ours = ours if ours.size else np.flatnonzero(of == unit)
                for side in (path.one, path.other):
                    beyond = np.isin(of, list(side)) & good
                    for end in ours[np.linspace(0, ours.size - 1, min(3, ours.size)).astype(int)].tolist():
                        for other in self.partners.among(end, beyond, 1):
                            self.add(end, other, "which of the sets it belongs to", priority=1)

    def controls(self) -> None:
        """Known good pairs one way, on the routes that are asked for."""
        import numpy as np

        if not self.one_way_asked:
            return
        t = self.table
        for route in np.unique(t.route[self.view.fast]).tolist():
            rows = np.flatnonzero(self.view.fast & (t.route == route))
            for row in rows[np.linspace(0, rows.size - 1, min(CONTROLS, rows.size)).astype(int)].tolist():
                self.add(int(t.a[row]), int(t.b[row]), "one way, for comparison", priority=1, op=ONE_WAY)

    def noise(self) -> None:
        """Fast pairs again."""
        import numpy as np

        rows = np.flatnonzero(self.view.fast)
        for row in rows[np.linspace(0, rows.size - 1, min(TO_KNOW_NOISE, rows.size)).astype(int)].tolist():
            self.add(int(self.table.a[row]), int(self.table.b[row]), "again, to know the noise", priority=3)
