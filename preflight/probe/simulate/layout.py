"""The parts of a cluster as numbers, and the way of each flow over them: what the ends cross, and what a healthy route reaches."""

from typing import TYPE_CHECKING

from preflight.probe.simulate.cluster import Cluster
from preflight.probe.simulate.flows import Crossings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Layout:
    """Columns over the ends, and where each kind of resource begins in the list of all.

    Each end has an NVLink side and a network side, each NIC its wire, each leaf switch its uplinks; each of them out and in. `switch`: the leaf switch of an end's NIC.
    """

    def __init__(self, cluster: Cluster) -> None:
        import numpy as np

        per_node = cluster.gpus_per_node
        self.cluster = cluster
        self.num_ends = cluster.num_ends
        ends = np.arange(self.num_ends)
        self.node = ends // per_node
        self.slot = ends % per_node
        self.leaf_names = tuple(dict.fromkeys(cluster.leaves))
        numbers = {name: number for number, name in enumerate(self.leaf_names)}
        self.leaf = np.array([numbers[name] for name in cluster.leaves], np.int64)[self.node]
        domains = cluster.domains or cluster.nodes
        domain_numbers = {name: number for number, name in enumerate(dict.fromkeys(domains))}
        self.domain = np.array([domain_numbers[name] for name in domains], np.int64)[self.node]
        nics_per_node = -(-per_node // cluster.gpus_per_nic)
        rail = self.slot // cluster.gpus_per_nic
        self.nic = self.node * nics_per_node + rail
        self.num_nics = len(cluster.nodes) * nics_per_node
        self.switch = self.leaf * nics_per_node + rail if cluster.rails else self.leaf
        self.num_switches = len(self.leaf_names) * (nics_per_node if cluster.rails else 1)
        sizes = [self.num_ends] * 4 + [self.num_nics] * 2 + [self.num_switches] * 2
        first = [int(number) for number in np.cumsum([0, *sizes])]
        self.nvlink_out, self.nvlink_in, self.port_out, self.port_in = first[:4]
        self.nic_out, self.nic_in, self.up_out, self.up_in = first[4:8]
        self.num_resources = first[8]

    def capacity(self) -> "NDArray[np.float64]":
        """What every resource can carry in bytes per second where nothing is broken. shape: (resources,)"""
        import numpy as np

        cluster = self.cluster
        capacity = np.full(self.num_resources, cluster.nic_bytes_per_s, np.float64)
        capacity[: self.port_out] = cluster.nvlink_bytes_per_s
        nic_switch = np.zeros(self.num_nics, np.int64)
        nic_switch[self.nic] = self.switch
        below = np.bincount(nic_switch, minlength=self.num_switches) * cluster.nic_bytes_per_s
        capacity[self.up_out : self.up_in] = capacity[self.up_in :] = below / cluster.oversubscription
        return capacity

    def inside(self, source: "NDArray[np.int64]", target: "NDArray[np.int64]") -> "NDArray[np.bool_]":
        """Whether these flows go over NVLink."""
        same: NDArray[np.bool_] = self.domain[source] == self.domain[target]
        return same

    def above(self, source: "NDArray[np.int64]", target: "NDArray[np.int64]") -> "NDArray[np.bool_]":
        """Whether these flows go over a leaf switch's uplinks."""
        unlike: NDArray[np.bool_] = self.switch[source] != self.switch[target]
        return ~self.inside(source, target) & unlike

    def nominal(self, source: "NDArray[np.int64]", target: "NDArray[np.int64]") -> "NDArray[np.float64]":
        """What a flow reaches where nothing is broken and it is alone, in bytes per second. shape: (flows,)"""
        import numpy as np

        cluster = self.cluster
        across = np.where(self.leaf[source] != self.leaf[target], 1 - cluster.other_leaf_loss, 1.0)
        unlike = np.where(self.slot[source] != self.slot[target], 1 - cluster.unlike_slot_loss, 1.0)
        network = cluster.nic_bytes_per_s * across * unlike
        return np.where(self.inside(source, target), cluster.nvlink_bytes_per_s, network)

    def crossed(self, source: "NDArray[np.int64]", target: "NDArray[np.int64]") -> "NDArray[np.int64]":
        """The resources that each flow crosses, -1: none. shape: (flows, 6)"""
        import numpy as np

        inside, above = self.inside(source, target), self.above(source, target)
        return np.stack(
            [
                np.where(inside, self.nvlink_out, self.port_out) + source,
                np.where(inside, self.nvlink_in, self.port_in) + target,
                np.where(inside, -1, self.nic_out + self.nic[source]),
                np.where(inside, -1, self.nic_in + self.nic[target]),
                np.where(above, self.up_out + self.switch[source], -1),
                np.where(above, self.up_in + self.switch[target], -1),
            ],
            axis=1,
        )

    def crossings(self, source: "NDArray[np.int64]", target: "NDArray[np.int64]") -> Crossings:
        """The same as a list, each flow taking its own rate of all that it crosses."""
        import numpy as np

        resources = self.crossed(source, target)
        flow = np.repeat(np.arange(source.size), resources.shape[1])
        flat = resources.ravel()
        return Crossings(flow[flat >= 0], flat[flat >= 0], np.ones(int((flat >= 0).sum())))
