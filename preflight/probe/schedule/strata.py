"""The tournament over all pairs of nodes, rail by rail, with every leaf's way up equally loaded (pure, on Ends alone).

Rounds inside leaves: the circle method in each leaf, all leaves at once. Rounds across leaves: the circle method over leaves, and for two leaves that meet, their
nodes matched under a rotation; consecutive rounds change the partner leaf, and leaves of like size meet first. With an odd number of leaves one would rest in each round: there leaves are
halved (if all have two nodes or more), and halves are placed on the circle so that the two of a leaf meet in its first round, which is left out.

What is guaranteed: every pair of nodes in exactly one round; each node at most once in a round; two leaves (or halves) that meet have as many pairs as the smaller one has nodes.
So with leaves of equal size m, every leaf's uplink carries exactly m pairs of nodes in each round across, if leaves or m are even in number; if both are odd, m or m - 1, and less in the last
few rounds. A leaf of another size carries what its partner allows. A round holds like slots of each pair of nodes, so that links carry the same times the slots.
"""

import random
from collections.abc import Iterator, Sequence

from preflight.model.localisation import Ends
from preflight.probe.schedule.circle import circle_round, crossing_round, num_circle_rounds

FIRST_ROUNDS = (
    5  # exact for any size at a noise of 2 % (reference simulations: best of five partners); one of them inside leaves
)

Pairs = list[tuple[int, int]]


class Tournament:
    """All pairs of nodes in an order that `seed` decides. `num_inside`, `num_across`: how many rounds there are of either kind.

    Where nobody told leaves, all rounds are across, over random partners; where all nodes are on one leaf, all are inside. Nodes whose leaf alone is unknown are
    taken as one leaf more: an order of probes claims nothing.
    """

    def __init__(self, ends: Ends, seed: int) -> None:
        chance = random.Random(seed)
        self._slots: dict[int, dict[int, int]] = {}
        for end, (node, slot) in enumerate(zip(ends.node, ends.slot, strict=True)):
            self._slots.setdefault(node, {})[slot] = end
        nodes = sorted(self._slots, key=lambda node: ends.nodes[node])
        chance.shuffle(nodes)
        strata = _strata(ends, nodes)
        chance.shuffle(strata)
        told = any(leaf is not None for leaf in ends.leaves or ())
        self._leaves = strata if told else []
        self.num_inside = max((num_circle_rounds(len(leaf)) for leaf in self._leaves), default=0)
        self._units, turns = _units(strata if told else [[node] for node in nodes])
        lengths = self._lengths(turns)
        rotations = range(max(lengths, default=0))
        self._across = [(turn, r) for r in rotations for turn, n in zip(turns, lengths, strict=True) if r < n]
        self.num_across = len(self._across)

    def inside(self, number: int) -> Pairs:
        """Pairs of ends of a round inside leaves; numbers beyond num_inside begin anew. A leaf smaller than the largest rests when its pairs are done."""
        turn = number % self.num_inside
        met: Pairs = []
        for leaf in self._leaves:
            if turn < num_circle_rounds(len(leaf)):
                met += [(leaf[a], leaf[b]) for a, b in circle_round(len(leaf), turn)]
        return self._rail_by_rail(met)

    def across(self, number: int) -> Pairs:
        """Pairs of ends of a round across leaves; numbers beyond num_across begin anew."""
        turn, rotation = self._across[number % self.num_across]
        met: Pairs = []
        for a, b in circle_round(len(self._units), turn):
            left, right = self._units[a], self._units[b]
            most = max(len(left), len(right))
            if rotation < most:
                start = (rotation + turn) % most  # so that not the same node rests at the start of every turn
                met += [(left[i], right[j]) for i, j in crossing_round(len(left), len(right), start)]
        return self._rail_by_rail(met)

    def _lengths(self, turns: range) -> list[int]:
        """Of each turn, the rotations until all units that meet in it are through."""
        sizes = [len(unit) for unit in self._units]
        if len(set(sizes)) == 1:
            return [sizes[0]] * len(turns)
        met = (circle_round(len(sizes), turn) for turn in turns)
        return [max((max(sizes[a], sizes[b]) for a, b in pairs if min(sizes[a], sizes[b])), default=0) for pairs in met]

    def _rail_by_rail(self, node_pairs: Sequence[tuple[int, int]]) -> Pairs:
        found: Pairs = []
        for a, b in node_pairs:
            others = self._slots[b]
            for slot, end in self._slots[a].items():
                if slot in others:
                    other = others[slot]
                    found.append((end, other) if end < other else (other, end))
        return found


def _strata(ends: Ends, nodes: Sequence[int]) -> list[list[int]]:
    """The nodes by leaf, leaves in order of name; those without one together."""
    leaves: dict[str, list[int]] = {}
    for node in nodes:
        leaf = ends.leaves[node] if ends.leaves is not None else None
        leaves.setdefault("" if leaf is None else f"leaf {leaf}", []).append(node)
    return [leaves[name] for name in sorted(leaves)]


def _units(leaves: list[list[int]]) -> tuple[list[list[int]], range]:
    """What meets on the circle (leaves, or their halves in places where siblings meet in turn 0), and the turns across leaves.

    Leaves are placed so that those of like size meet first: a small partner leaves many nodes without one.
    """
    if len(leaves) < 2:
        return [], range(0)
    by_size = sorted(leaves, key=len)
    if len(leaves) % 2 == 0 or len(by_size[0]) < 2:
        return _opposite(by_size), range(num_circle_rounds(len(leaves)))
    halves: list[list[int]] = []
    for place, leaf in enumerate(by_size):
        half = (len(leaf) + place % 2) // 2  # the larger half of an odd leaf on either side of the circle
        halves += [leaf[:half], leaf[half:]]
    return _opposite(halves), range(1, num_circle_rounds(len(halves)))


def _opposite(units: list[list[int]]) -> list[list[int]]:
    """In places on the circle where, in turn 0, the first meets the second, the third the fourth, ...; soon after, each meets those that stood near it.

    With an odd number the first rests in turn 0, the second meets the third, ...
    """
    last = num_circle_rounds(len(units))  # the place that doesn't move, if there is one
    placed: list[list[int]] = [[] for _ in units]
    moving = units[1:] if len(units) % 2 == 0 else units
    for number, unit in enumerate(moving):
        distance = (number + 1) // 2
        placed[distance if number % 2 else -distance % last] = unit
    if len(units) % 2 == 0:
        placed[last] = units[0]
    return placed


def pass_of(tournament: Tournament, inside: int, across: int, rounds: int = FIRST_ROUNDS) -> Iterator[tuple[bool, int]]:
    """Which rounds (inside?, number) a pass takes that comes after so many rounds of either kind: one inside leaves first, then across, and what is left inside. None twice."""
    num_across = min(tournament.num_across, max(0, rounds - (tournament.num_inside > 0)))
    num_inside = min(tournament.num_inside, rounds - num_across)
    if num_inside:
        yield True, inside
    for number in range(num_across):
        yield False, across + number
    for number in range(1, num_inside):
        yield True, inside + number


def first_rounds(ends: Ends, *, seed: int, rounds: int = FIRST_ROUNDS, position: int = 0) -> list[Pairs]:
    """The rounds that a run begins with, as pairs of ends: the first inside leaves, the others across. `position`: rounds done in earlier passes of so many rounds.

    Fewer, where the tournament has fewer. Ends of one round are disjoint; like slots only.
    """
    tournament = Tournament(ends, seed)
    inside = -(-position // rounds) if tournament.num_inside else 0
    if not tournament.num_across:
        inside = position
    chosen = pass_of(tournament, inside, position - inside, rounds)
    return [tournament.inside(number) if within else tournament.across(number) for within, number in chosen]
