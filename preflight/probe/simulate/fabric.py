"""A modelled fabric that answers probes: what each would measure, those of one round at the same time, with noise, transients and planted faults."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from preflight.model import Ends
from preflight.probe.simulate.chance import collides, factors_of
from preflight.probe.simulate.cluster import Cluster
from preflight.probe.simulate.damage import Damage, dead_ends, in_force
from preflight.probe.simulate.flows import fair_rates
from preflight.probe.simulate.layout import Layout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ALONE_OPS = ("host_to_device", "device_to_host", "matmul")


class Fabric:
    """One cluster. The same cluster, seed, operation, probes and round number give the same figures. `seed`: 0 or more."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.seed = seed
        self.layout = Layout(cluster)
        self.ends = _told_ends(cluster)
        self._capacity = self.layout.capacity()
        self._damages: dict[tuple[int, ...], Damage] = {}

    def pairs(self, op: str, pairs: Sequence[tuple[int, int]], number: int) -> list[float | None]:
        """What probes that run at the same time in round `number` measure, in bytes per second; None: the probe fails.

        `op`: "send_recv" both ways at once (the slower way counts), "send" from the first end to the second, "host_to_device", "device_to_host" and "matmul" (operations per
        second) where both are the same end. Raises ValueError for two ends that don't fit the operation, or that there aren't.
        """
        import numpy as np

        if not len(pairs):
            return []
        a, b = np.array(pairs, np.int64).reshape(-1, 2).T
        self._refuse(op, a, b)
        damage = self.damage(op, number)
        rates = self._alone(op, a, damage) if op in ALONE_OPS else self._between(op, a, b, damage)
        rates *= factors_of(self.cluster, a, b, seed=(self.seed, number, op), busy=damage.busy)
        dead = np.zeros(self.layout.num_ends, np.bool_)
        dead[list(dead_ends(self.layout, self.cluster.faults, number))] = True
        rates[dead[a] | dead[b]] = 0.0
        return [rate if rate > 0 else None for rate in rates.tolist()]

    def failure(self, ends: Sequence[int], number: int) -> tuple[str, int | None]:
        """For a probe that failed: the kind (Failure.kind), and the end that does not answer; None: both do, and nothing gets through."""
        dead = dead_ends(self.layout, self.cluster.faults, number)
        return next(((dead[end], end) for end in ends if end in dead), ("timed_out", None))

    def damage(self, op: str, number: int) -> Damage:
        """The faults that are in force for an operation in a round."""
        faults = self.cluster.faults
        active = tuple(index for index, fault in enumerate(faults) if in_force(fault, op, number))
        if active not in self._damages:
            self._damages[active] = Damage(self.layout, faults, active, self.seed)
        return self._damages[active]

    def capacity(self, damage: Damage) -> "NDArray[np.float64]":
        """What every resource can carry, faults of parts included. What fails carries nothing here and is told apart by the callers. shape: (resources,)"""
        import numpy as np

        layout = self.layout
        capacity: NDArray[np.float64] = self._capacity.copy()
        for first, factors in (
            (layout.nvlink_out, damage.whole_out),
            (layout.nvlink_in, damage.whole_in),
            (layout.port_out, np.minimum(damage.whole_out, damage.net_out)),
            (layout.port_in, np.minimum(damage.whole_in, damage.net_in)),
        ):
            capacity[first : first + layout.num_ends] *= factors
        for first, factors in ((layout.nic_out, damage.net_out), (layout.nic_in, damage.net_in)):
            wires = np.ones(layout.num_nics)
            np.minimum.at(wires, layout.nic, factors)
            capacity[first : first + layout.num_nics] *= wires
        return capacity

    def limits(self, source: "NDArray[np.int64]", target: "NDArray[np.int64]", damage: Damage) -> "NDArray[np.float64]":
        """What each flow could reach alone, in bytes per second; 0: it fails. shape: (flows,)"""
        import numpy as np

        inside = self.layout.inside(source, target)
        factor = np.minimum(damage.whole_out[source], damage.whole_in[target])
        net = np.minimum(damage.net_out[source], damage.net_in[target])
        for gate in damage.gates:
            hit = gate.holds(source, target) & (~inside if not gate.inside_too else True)
            factor = np.where(hit, np.minimum(factor, gate.factor), factor)
        factor = np.where(inside, factor, np.minimum(factor, net))
        if self.cluster.collision_rate:
            collided = collides(self.cluster, self.seed, source, target) & self.layout.above(source, target)
            factor = np.where(collided, factor * (1 - self.cluster.collision_depth), factor)
        return self.layout.nominal(source, target) * factor

    def _between(
        self, op: str, a: "NDArray[np.int64]", b: "NDArray[np.int64]", damage: Damage
    ) -> "NDArray[np.float64]":
        import numpy as np

        both = op != "send"
        source, target = (np.concatenate([a, b]), np.concatenate([b, a])) if both else (a, b)
        limit = self.limits(source, target, damage)
        rate = np.zeros(limit.size)
        going = limit > 0
        rate[going] = fair_rates(
            self.capacity(damage), self.layout.crossings(source[going], target[going]), limit[going]
        )
        return np.minimum(rate[: a.size], rate[a.size :]) if both else rate

    def _alone(self, op: str, ends: "NDArray[np.int64]", damage: Damage) -> "NDArray[np.float64]":
        import numpy as np

        cluster = self.cluster
        rates = {
            "host_to_device": cluster.host_to_device_bytes_per_s,
            "device_to_host": cluster.device_to_host_bytes_per_s,
            "matmul": cluster.matmul_flops_per_s,
        }
        into, out = damage.whole_in[ends], damage.whole_out[ends]
        factor = {"host_to_device": into, "device_to_host": out, "matmul": np.minimum(into, out)}[op]
        return rates[op] * factor

    def _refuse(self, op: str, a: "NDArray[np.int64]", b: "NDArray[np.int64]") -> None:
        alone = op in ALONE_OPS
        if not alone and op not in {"send_recv", "send"}:
            raise ValueError(f"no pair can do {op!r}: send_recv, send, {', '.join(ALONE_OPS)}")
        if min(a.min(), b.min()) < 0 or max(a.max(), b.max()) >= self.layout.num_ends:
            raise ValueError(f"the ends are 0 to {self.layout.num_ends - 1}")
        if ((a == b) != alone).any():
            raise ValueError(f"{op}: " + ("both ends must be the same" if alone else "the ends must be two"))


def _told_ends(cluster: Cluster) -> Ends:
    per_node = cluster.gpus_per_node
    numbers = range(cluster.num_ends)
    told: tuple[str | None, ...] = cluster.told_leaves or cluster.leaves
    return Ends(
        nodes=cluster.nodes,
        node=tuple(number // per_node for number in numbers),
        slot=tuple(number % per_node for number in numbers),
        leaves=told if cluster.leaves_told else None,
        classes=cluster.classes,
    )
