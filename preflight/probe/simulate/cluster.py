"""A modelled cluster, and the faults that are planted in it. Nouns only: nothing here computes.

Rates are what a transfer reaches in one direction, bytes per second, not line rates. The defaults are those of eight Hopper GPUs with a 400 Gb/s NIC each: 48e9 over
a NIC (NVIDIA/nccl-tests issues 267, 290, 319: 46 to 49), 370e9 over NVLink (18 links of 20.6e9 in NCCL's model; H100 copies reach 375 to 380), 55e9 between host and GPU over
PCIe Gen5 (nvbandwidth's published H200 log), a matrix product of 7e14 operations per second (70 % of the data sheet's 989e12 for dense bf16).
"""

from typing import Literal

from preflight.model import Direction, Noun

FaultKind = Literal[
    "gpu",
    "nic",
    "slot",
    "node",
    "link",
    "leaf",
    "uplink",
    "path",
    "class",
    "environment",
    "busy",
    "transient",
    "hang",
    "crash",
    "agent_lost",
]
FAULT_KINDS: tuple[FaultKind, ...] = FaultKind.__args__  # type: ignore[attr-defined]


class Fault(Noun, frozen=True, kw_only=True):
    """Something wrong that is planted: the truth that a localiser should find. Fields that are also a Culprit's mean the same there.

    What the kinds do, to a `depth` of 0.3 for 30 % less:

    - "gpu" (`ends`): all that these GPUs send and receive, inside their node too, and what they do alone.
    - "nic" (`ends`): what they send and receive over the network.
    - "node" (`nodes`): what all NICs of these nodes send and receive.
    - "slot" (`slot`; `nodes`: on these only, empty: everywhere): what that GPU position sends and receives over the network.
    - "link" (`ends`: two): what goes between these two, "sending" from the first to the second.
    - "leaf" (`leaf`): what goes between nodes of that leaf. "uplink" (`leaf`; `slot`: of that slot only): what leaves or enters it; with `share` that of so many of
      its GPUs, always the same ones.
    - "path" (`nodes`, `other_nodes`): what goes between the two sets, "sending" from the first to the second.
    - "class" (`nodes`, `fact`): what these nodes send and receive over the network; with `other_nodes` only what goes between the two sets.
    - "environment": everything between nodes.
    - "busy" (`nodes`): the hosts have other work: every second probe that one of them takes part in, by chance, is slower by up to `depth`.
    - "transient" (`ends` or `nodes`): as "gpu" or "node", in the rounds from `first_round` to `last_round` only.
    - "hang", "crash" (`ends`): these ranks answer nothing, or end, from `first_round` on. "agent_lost" (`nodes`): as "hang" of the node's agent.

    `failed`: probes over the part fail in place of being slow. `ops`: shows in these operations only (empty: in all that cross the part). `last_round` None: for ever.
    """

    kind: FaultKind
    ends: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    other_nodes: tuple[str, ...] = ()
    leaf: str | None = None
    slot: int | None = None
    fact: str | None = None
    direction: Direction = "both"
    share: float | None = None
    depth: float = 0.0
    failed: bool = False
    ops: tuple[str, ...] = ()
    first_round: int = 0
    last_round: int | None = None


class Cluster(Noun, frozen=True, kw_only=True):
    """Nodes with their ways to one another, noise, and faults.

    `nodes`: names in node-rank order, which decides the ends: node i has the ends i x gpus_per_node and following. `leaves`: the true leaf of each node.
    `told_leaves`: what the map says, where it is wrong; None: the truth; `leaves_told` False: there is no map. `rails`: rail-optimised, each slot of a leaf's nodes has a leaf
    switch of its own, so that unlike slots meet only above; else all NICs of a node end in one leaf switch. `domains`: the NVLink domain of each node, None: each node is its own.
    `gpus_per_nic`: so many neighbouring slots share one NIC. `oversubscription`: what the NICs below a leaf can send / what it can send up. `other_leaf_loss`, `unlike_slot_loss`:
    what a healthy route across leaves, or between unlike slots of different nodes, reaches less (0.06 for 6 %; healthy clusters differ by 5 to 12 % between route classes).

    `nvls_share`: what an all_reduce of five or more GPUs that NVSwitches reduce (NVLS) reaches, message size / time as a share of the NVLink rate; 0: they don't.

    `noise`: CV of one probe, log-normal. `transient_rate`: share of probes that are slowed once, by 10 % to `transient_depth`. `tail_rate`: share of probes with a dip, whose mean is
    `tail_depth` (8 x B200 show dips of 10 % in 1 % of iterations). `collision_rate`: share of the ways across leaves that always collide with another flow on a link
    between switches (ECMP), and then reach `collision_depth` less: for a pair of ends and a direction always the same.
    `classes`: software facts as in Ends. `product`: NVML's name of the GPUs, for the inventory.
    """

    nodes: tuple[str, ...]
    leaves: tuple[str, ...]
    told_leaves: tuple[str | None, ...] | None = None
    leaves_told: bool = True
    gpus_per_node: int = 8
    gpus_per_nic: int = 1
    rails: bool = True
    domains: tuple[str, ...] | None = None
    nic_bytes_per_s: float = 48e9
    nvlink_bytes_per_s: float = 370e9
    nvls_share: float = 0.0
    oversubscription: float = 1.0
    other_leaf_loss: float = 0.0
    unlike_slot_loss: float = 0.0
    host_to_device_bytes_per_s: float = 55e9
    device_to_host_bytes_per_s: float = 55e9
    matmul_flops_per_s: float = 7e14
    noise: float = 0.01
    transient_rate: float = 0.0
    transient_depth: float = 0.5
    tail_rate: float = 0.0
    tail_depth: float = 0.1
    collision_rate: float = 0.0
    collision_depth: float = 0.5
    classes: dict[str, tuple[str | None, ...]] = {}
    product: str = "NVIDIA H100 80GB HBM3"
    faults: tuple[Fault, ...] = ()

    @property
    def num_ends(self) -> int:
        """One for each GPU."""
        return len(self.nodes) * self.gpus_per_node


def plain_cluster(leaf_sizes: tuple[int, ...], *, prefix: str = "n", **more: object) -> Cluster:
    """A cluster of leaves with so many nodes each, numbered through: n000, n001, ... on leaf0, leaf1, ... `more`: other fields of Cluster."""
    number = sum(leaf_sizes)
    width = len(str(max(0, number - 1)))
    leaf_width = len(str(max(0, len(leaf_sizes) - 1)))
    nodes = tuple(f"{prefix}{i:0{width}}" for i in range(number))
    leaves = tuple(f"leaf{i:0{leaf_width}}" for i, size in enumerate(leaf_sizes) for _ in range(size))
    return Cluster(nodes=nodes, leaves=leaves, **more)  # type: ignore[arg-type]
