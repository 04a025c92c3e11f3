"""What planted faults do to parts and routes: factors of ends, gates between sets of ends, ends that are dead."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from preflight.probe.simulate.cluster import Fault
from preflight.probe.simulate.layout import Layout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NETWORK_KINDS = {"nic", "node", "slot"}
DEAD_KINDS = {"hang": "no_answer", "crash": "crashed", "agent_lost": "no_answer"}


class Gate(NamedTuple):
    """A fault between sets of ends: what goes over the network from `sources` to `targets` reaches `factor` of what it would. `failed`: it fails. shape: (ends,)"""

    sources: "NDArray[np.bool_]"
    targets: "NDArray[np.bool_]"
    factor: float
    failed: bool
    inside_too: bool = False

    def holds(self, source: "NDArray[np.int64]", target: "NDArray[np.int64]") -> "NDArray[np.bool_]":
        """Which flows it concerns, NVLink or not."""
        return self.sources[source] & self.targets[target]


class Damage:
    """The faults that are in force for one operation in one round: those of `faults` whose number is in `active`.

    `whole_out`, `whole_in`: what an end as a whole still does (1: all); `net_out`, `net_in`: what it does over the network beyond that; 0: fails. shape: (ends,)
    """

    def __init__(self, layout: Layout, faults: Sequence[Fault], active: Sequence[int], seed: int) -> None:
        import numpy as np

        self.layout = layout
        self.seed = seed
        self.whole_out, self.whole_in, self.net_out, self.net_in = (np.ones(layout.num_ends) for _ in range(4))
        self.gates: list[Gate] = []
        self.busy: list[tuple[NDArray[np.bool_], float]] = []
        self.node_numbers = {name: number for number, name in enumerate(layout.cluster.nodes)}
        for number in active:
            self._add(faults[number], number)

    def _add(self, fault: Fault, number: int) -> None:
        import numpy as np

        factor = 0.0 if fault.failed else 1.0 - fault.depth
        sending, receiving = fault.direction != "receiving", fault.direction != "sending"
        if fault.kind in DEAD_KINDS:
            return
        if fault.kind == "busy":
            self.busy.append((self._ends_of(fault), fault.depth))
        elif fault.kind in {"gpu", "transient"} | NETWORK_KINDS:
            whole = fault.kind in {"gpu", "transient"}
            hit = self._ends_of(fault)
            if fault.kind == "nic":  # all GPUs that share it
                hit = np.isin(self.layout.nic, self.layout.nic[hit])
            for wanted, factors in (
                (sending, self.whole_out if whole else self.net_out),
                (receiving, self.whole_in if whole else self.net_in),
            ):
                if wanted:
                    factors[hit] = np.minimum(factors[hit], factor)
        else:
            ours, others, inside_too = self._sets(fault, number)
            if sending:
                self.gates.append(Gate(ours, others, factor, fault.failed, inside_too))
            if receiving:
                self.gates.append(Gate(others, ours, factor, fault.failed, inside_too))

    def _on(self, nodes: Sequence[str]) -> "NDArray[np.bool_]":
        import numpy as np

        return np.isin(self.layout.node, [self.node_numbers[name] for name in nodes])

    def _ends_of(self, fault: Fault) -> "NDArray[np.bool_]":
        """The ends that a fault of ends, nodes or slots is about."""
        import numpy as np

        hit = np.zeros(self.layout.num_ends, np.bool_)
        hit[list(fault.ends)] = True
        if fault.kind == "slot":
            hit |= (self.layout.slot == fault.slot) & (self._on(fault.nodes) if fault.nodes else True)
        elif fault.nodes:
            hit |= self._on(fault.nodes)
        return hit

    def _sets(self, fault: Fault, number: int) -> "tuple[NDArray[np.bool_], NDArray[np.bool_], bool]":
        """The two sets of ends between which a fault lies, and whether NVLink counts too."""
        import numpy as np

        layout = self.layout
        everywhere = np.ones(layout.num_ends, np.bool_)
        if fault.kind == "link":
            first, second = (np.arange(layout.num_ends) == end for end in fault.ends)
            return first, second, True
        if fault.kind in {"leaf", "uplink"}:
            members = layout.leaf == layout.leaf_names.index(fault.leaf or "")
            if fault.kind == "leaf":
                return members, members, False
            ours = members & (layout.slot == fault.slot) if fault.slot is not None else members.copy()
            if fault.share is not None:
                ours &= self._some_of(ours, fault.share, number)
            return ours, ~members, False
        if fault.kind == "environment":
            return everywhere, everywhere, False
        return self._on(fault.nodes), self._on(fault.other_nodes) if fault.other_nodes else everywhere, False

    def _some_of(self, ends: "NDArray[np.bool_]", share: float, number: int) -> "NDArray[np.bool_]":
        """That share of them, at least one, always the same ones for a seed."""
        import numpy as np

        listed = np.flatnonzero(ends)
        chosen = np.random.default_rng([self.seed, number, 1]).permutation(listed)
        some = np.zeros(ends.size, np.bool_)
        some[chosen[: max(1, round(share * listed.size))]] = True
        return some


def in_force(fault: Fault, op: str, number: int) -> bool:
    """Whether a fault shows in an operation in a round."""
    on = fault.first_round <= number and (fault.last_round is None or number <= fault.last_round)
    return on and (not fault.ops or op in fault.ops)


def dead_ends(layout: Layout, faults: Sequence[Fault], number: int) -> dict[int, str]:
    """The ends that don't answer in a round, each with the kind of failure it gives (Failure.kind)."""
    dead: dict[int, str] = {}
    per_node = layout.cluster.gpus_per_node
    places = {name: place for place, name in enumerate(layout.cluster.nodes)}
    for fault in faults:
        if fault.kind in DEAD_KINDS and in_force(fault, "", number):
            ends = [*fault.ends, *(places[node] * per_node + slot for node in fault.nodes for slot in range(per_node))]
            dead.update(dict.fromkeys(ends, DEAD_KINDS[fault.kind]))
    return dead
