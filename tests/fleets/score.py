"""Hold what a localiser said of a simulated fleet against what was planted in it.

What became of each planted fault:

- "exact": a culprit names that part and nothing else: same kind, same ends, node, slot or leaf, same direction, with a share (between half and double of the planted one) where only a share is ill and without where all is. Of a path:
  no node that isn't in it, on either side, and each of its nodes that a telling probe of the first rounds crossed (the others nobody could know).
- "listed": not exact, but a culprit that says "not identifiable" has the exact fault among its candidates.
- "wrong": neither, and a culprit blames something that overlaps the part. "missed": nothing does.

Left out, and counted by reason. All of it is told from the planted truth and the first rounds of probes, never from what the localiser said or asked:

- "not crossed": no probe of the first rounds crossed it.
- "below the floor": its depth is under max(10 x CV, 10 % + 2 x CV). The floor is max(8 x CV, 10 %), and a fault is only called reliably 2 x CV above it.
- "hidden": no probe that crossed it would have been faster by that much without it, since other faults that are at least about as deep hold back the same probes.
- "no reference": of the probes over the same class of routes fewer than one in ten is free of faults, so nothing tells from the rates what is healthy.

What became of each culprit that blames something (kind is not None): "exact"; "guilty" if it isn't exact, but it names a GPU, NIC or node, all of which is ill by itself, with a wrong direction, or
a NIC of an ill node or slot in place of all; "symptom" if it names a pair that a planted fault of another kind really slows; "set" if it names an uplink, a path or another set that
isn't exact; else "innocent": it names a healthy GPU, NIC, node, slot or pair. A NIC that is named for its GPU is innocent, and so is a node that is named for one of its NICs.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from preflight.model.localisation import Culprit
from preflight.probe.simulate import Cluster, Fault
from preflight.probe.simulate.damage import Damage
from tests.fleets.examine import FIRST_ROUNDS, Examined
from tests.fleets.fleets import SLOTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

NETWORK_OPS = ("send_recv", "send")
MIN_HEALTHY_SHARE = 0.1
SINGLE_PARTS = ("gpu", "nic", "node", "slot", "link")


class Score(NamedTuple):
    """`faults`: (kind for people, what became of it). `blamed`: (kind of the culprit, what it is). `members`, `wrong_members`: of the members named in sets (nodes of paths, leaves and uplinks, ends of a share), all
    and those that are in no planted set of that kind. `unidentified`: culprits that say "not identifiable".
    """

    faults: tuple[tuple[str, str], ...]
    blamed: tuple[tuple[str, str], ...]
    members: int
    wrong_members: int
    unidentified: int


def score(examined: Examined) -> Score:
    truth = Truth(examined)
    blames = [culprit for culprit in examined.localisation.culprits if culprit.kind is not None]
    unknown = [culprit for culprit in examined.localisation.culprits if culprit.kind is None]
    members = [truth.members(culprit) for culprit in blames]
    return Score(
        tuple((kind_of(fault), truth.fate(fault, blames, unknown)) for fault in truth.faults),
        tuple((str(culprit.kind), truth.judge(culprit)) for culprit in blames),
        sum(named for named, _ in members),
        sum(wrong for _, wrong in members),
        len(unknown),
    )


def kind_of(fault: Fault) -> str:
    """The kind as the figures are given."""
    if fault.kind == "uplink" and fault.share is not None:
        return "share of an uplink"
    if fault.kind == "uplink" and fault.slot is not None:
        return "way out of a leaf"
    return fault.kind if fault.direction == "both" else f"{fault.kind} one way"


class Truth:
    """What was planted, and which shots it holds back."""

    def __init__(self, examined: Examined) -> None:
        self.fabric, shots = examined.fabric, examined.shots
        self.cluster: Cluster = self.fabric.cluster
        self.faults: Sequence[Fault] = [fault for fault in self.cluster.faults if fault.kind != "busy"]
        network = np.array([op in NETWORK_OPS for op in shots.op])
        self.a, self.b = np.array(shots.a)[network], np.array(shots.b)[network]
        self.one_way = np.array([op == "send" for op in shots.op])[network]
        self.first = np.array(shots.round)[network] < FIRST_ROUNDS
        # what each fault alone leaves of each shot. shape: (faults, shots)
        self.left = np.array([self._left(number) for number in range(len(self.faults))]).reshape(-1, self.a.size)
        layout = self.fabric.layout
        inside, other_leaf = layout.inside(self.a, self.b), layout.leaf[self.a] != layout.leaf[self.b]
        self.route = np.where(inside, 0, 1 + other_leaf + 2 * (layout.slot[self.a] != layout.slot[self.b]))
        self.needed = max(10 * self.cluster.noise, 0.1 + 2 * self.cluster.noise)

    def _left(self, number: int) -> "NDArray[np.float64]":
        """The worse way counts unless the shot goes one way only."""
        layout = self.fabric.layout
        damage = Damage(layout, self.cluster.faults, (number,), self.fabric.seed)
        healthy = self.fabric.limits(self.a, self.b, Damage(layout, (), (), self.fabric.seed))
        forth = self.fabric.limits(self.a, self.b, damage) / healthy
        back = self.fabric.limits(self.b, self.a, damage) / healthy
        return np.where(self.one_way, forth, np.minimum(forth, back))

    def telling(self, number: int) -> "NDArray[np.bool_]":
        """The shots of the first rounds that would be faster by what is needed without this fault. shape: (shots,)"""
        others = np.delete(self.left, number, axis=0)
        without = others.min(axis=0) if others.size else np.ones(self.a.size)
        return self.first & (self.left[number] <= without * (1 - self.needed))

    def fate(self, fault: Fault, blames: Sequence[Culprit], unknown: Sequence[Culprit]) -> str:
        excluded = self.excluded(fault)
        if excluded:
            return excluded
        if any(self.exact(culprit, fault) for culprit in blames):
            return "exact"
        if any(self.exact(candidate, fault) for culprit in unknown for candidate in culprit.candidates):
            return "listed"
        return "wrong" if any(self.overlaps(culprit, fault) for culprit in blames) else "missed"

    def excluded(self, fault: Fault) -> str | None:
        number = self.faults.index(fault)
        if not (self.left[number] < 1)[self.first].any():
            return "not crossed"
        if fault.depth < self.needed:
            return "below the floor"
        telling = self.telling(number)
        if not telling.any():
            return "hidden"
        free = self.left.min(axis=0) == 1
        routes = [self.first & (self.route == route) for route in np.unique(self.route[telling])]
        if all(free[of_route].mean() < MIN_HEALTHY_SHARE for of_route in routes):
            return "no reference"
        return None

    def exact(self, culprit: Culprit, fault: Fault) -> bool:
        if culprit.kind != fault.kind:
            return False
        if culprit.kind == "link":
            return same_link(culprit, fault)
        if culprit.kind == "path":
            return self.exact_path(culprit, fault)
        if culprit.direction != fault.direction:
            return False
        if culprit.kind == "uplink":
            extent = same_share(culprit, fault) or self.share_shows_as_whole(fault, culprit)
            return (culprit.leaf, culprit.slot) == (fault.leaf, fault.slot) and extent
        part = {"gpu": "ends", "nic": "ends", "node": "nodes", "slot": "slot"}[culprit.kind]
        return getattr(culprit, part) == getattr(fault, part)

    def share_shows_as_whole(self, fault: Fault, culprit: Culprit) -> bool:
        """Only some of a leaf's ways out are ill, but all that were measured are."""
        if fault.share is None or culprit.share is not None:
            return False
        layout = self.fabric.layout
        leaf = layout.leaf_names.index(fault.leaf)
        out = (layout.leaf[self.a] == leaf) != (layout.leaf[self.b] == leaf)
        return bool((self.left[self.faults.index(fault)][out] < 1).all())

    def exact_path(self, culprit: Culprit, fault: Fault) -> bool:
        ours, others = set(fault.nodes), set(fault.other_nodes)
        sides = (set(culprit.nodes), set(culprit.other_nodes))
        if culprit.direction != fault.direction:
            return False
        telling = self.telling(self.faults.index(fault))
        names, node = self.cluster.nodes, self.fabric.layout.node
        crossed = {names[number] for ends in (self.a, self.b) for number in np.unique(node[ends[telling]])}
        return any(
            mine <= ours and theirs <= others and crossed <= mine | theirs for mine, theirs in (sides, sides[::-1])
        )

    def nodes_of(self, part: Culprit | Fault) -> set[str]:
        """The nodes that a part is on or about."""
        nodes = {*part.nodes, *part.other_nodes, *(self.cluster.nodes[end // SLOTS] for end in part.ends)}
        if part.leaf is not None:
            nodes |= set(self.leaf_nodes(part.leaf))
        return nodes

    def leaf_nodes(self, leaf: str) -> list[str]:
        return [name for name, its in zip(self.cluster.nodes, self.cluster.leaves, strict=True) if its == leaf]

    def overlaps(self, culprit: Culprit, fault: Fault) -> bool:
        if fault.kind == "slot" or culprit.kind == "slot":
            return fault.slot == culprit.slot
        return bool(self.nodes_of(culprit) & self.nodes_of(fault))

    def judge(self, culprit: Culprit) -> str:
        """What a culprit that blames something is."""
        if any(self.exact(culprit, fault) for fault in self.faults):
            return "exact"
        if any(self.same_part(culprit, fault) for fault in self.faults):
            return "guilty"
        if culprit.kind == "link" and self.really_slow(culprit):
            return "symptom"
        return "innocent" if culprit.kind in SINGLE_PARTS else "set"

    def same_part(self, culprit: Culprit, fault: Fault) -> bool:
        """The culprit names the ill part, or a part of it, with another direction or extent."""
        if fault.kind == "node":
            return culprit.kind in {"node", "nic"} and self.nodes_of(culprit) == set(fault.nodes)
        if fault.kind == "slot" and culprit.kind == "nic":
            return all(end % SLOTS == fault.slot for end in culprit.ends)
        if culprit.kind != fault.kind or culprit.kind not in SINGLE_PARTS:
            return False
        return (set(culprit.ends), culprit.slot) == (set(fault.ends), fault.slot)

    def really_slow(self, culprit: Culprit) -> bool:
        """A planted fault slows what goes between these two ends, both ways taken together."""
        pair = {*culprit.ends}
        of_pair = np.isin(self.a, list(pair)) & np.isin(self.b, list(pair))
        return bool(self.left.size) and bool((self.left[:, of_pair] < 1).any())

    def members(self, culprit: Culprit) -> tuple[int, int]:
        """Of a culprit that is a set: how many nodes it names, and how many of them are in no planted set of its kind."""
        if culprit.kind in SINGLE_PARTS:
            return 0, 0
        faults = [fault for fault in self.faults if fault.kind == culprit.kind]
        right = {node for fault in faults for node in self.nodes_of(fault)}
        named = {*culprit.nodes, *culprit.other_nodes}
        if culprit.share is not None:  # the set is that of the ends behind the ill part
            named, right = set(culprit.ends), self.ends_behind(faults)
        return len(named), len(named - right)

    def ends_behind(self, uplinks: Sequence[Fault]) -> set[int]:
        """The ends whose probes these faults slow while those of others on their leaf may be well."""
        slowed: set[int] = set()
        for fault in uplinks:
            hit = self.left[self.faults.index(fault)] < 1
            for ends in (self.a, self.b):
                slowed |= {int(end) for end in ends[hit] if self.cluster.leaves[end // SLOTS] == fault.leaf}
        return slowed


def same_share(culprit: Culprit, fault: Fault) -> bool:
    """Neither has one, or the one named is between half and double of the one planted."""
    if culprit.share is None or fault.share is None:
        return culprit.share is fault.share
    return fault.share / 2 <= culprit.share <= fault.share * 2


def same_link(culprit: Culprit, fault: Fault) -> bool:
    """From either end, the direction turned round with them."""
    turned = {"both": "both", "sending": "receiving", "receiving": "sending"}[culprit.direction]
    return (culprit.ends, culprit.direction) == (fault.ends, fault.direction) or (
        (culprit.ends[::-1], turned) == (fault.ends, fault.direction)
    )
