"""Random jobs as clusters run them, by seed: 2 to some dozens of nodes, often alone on their leaf, with planted faults, and what the controller prolog decides about them.

Noise CV 0.3 to 3 %, 1 to 8 GPUs a node, rails or not, one or two GPUs to a NIC, routes up to 12 % apart, 0 to 3 faults of any kind 10 to 90 % deep; the map of leaves is right, missing, partly known, wrong for an
eighth of the nodes, or puts all on one leaf.
"""

import random
from typing import NamedTuple

import msgspec

from preflight.config import Site
from preflight.fleet.run import run
from preflight.fleet.simulated import simulated_world
from preflight.probe.simulate import Cluster, Fault, plain_cluster
from preflight.registry import load_checks
from preflight.slurm.controller_decide import decide
from preflight.slurm.controller_plan import what_to_measure
from preflight.slurm.directive import Directive

CHECKS = load_checks()
USES = {check.name: check.uses for check in CHECKS}
MAPS = ("right", "right", "right", "missing", "partial", "wrong", "one leaf")
# name -> fields of the fault beside its depth, and the nodes that are sick by it; p: a Place
KINDS = {
    "gpu": lambda p: ({"kind": "gpu", "ends": (p.end,)}, p.one),
    "gpu one way": lambda p: ({"kind": "gpu", "ends": (p.end,), "direction": p.way}, p.one),
    "nic": lambda p: ({"kind": "nic", "ends": (p.end,)}, p.one),
    "nic one way": lambda p: ({"kind": "nic", "ends": (p.end,), "direction": p.way}, p.one),
    "nic failed": lambda p: ({"kind": "nic", "ends": (p.end,), "failed": True}, p.one),
    "node": lambda p: ({"kind": "node", "nodes": p.one}, p.one),
    "node one way": lambda p: ({"kind": "node", "nodes": p.one, "direction": p.way}, p.one),
    "node failed": lambda p: ({"kind": "node", "nodes": p.one, "failed": True}, p.one),
    "half of the nodes": lambda p: ({"kind": "node", "nodes": p.half}, p.half),
    "all nodes": lambda p: ({"kind": "node", "nodes": p.nodes}, ()),
    "slot": lambda p: ({"kind": "slot", "slot": p.slot}, ()),
    "slot of half": lambda p: ({"kind": "slot", "slot": p.slot, "nodes": p.half}, p.half),
    "link": lambda p: ({"kind": "link", "ends": (p.end, p.far_end)}, ()),
    "link failed": lambda p: ({"kind": "link", "ends": (p.end, p.far_end), "failed": True}, ()),
    "leaf": lambda p: ({"kind": "leaf", "leaf": p.leaf}, ()),
    "uplink": lambda p: ({"kind": "uplink", "leaf": p.leaf}, ()),
    "uplink one way": lambda p: ({"kind": "uplink", "leaf": p.leaf, "direction": p.way}, ()),
    "uplink failed": lambda p: ({"kind": "uplink", "leaf": p.leaf, "failed": True}, ()),
    "share of an uplink": lambda p: ({"kind": "uplink", "leaf": p.leaf, "share": 0.4}, ()),
    "slot of an uplink": lambda p: ({"kind": "uplink", "leaf": p.leaf, "slot": p.slot}, ()),
    # between one node and all others: it may as well be the node
    "path": lambda p: ({"kind": "path", "nodes": p.half, "other_nodes": p.rest}, p.alone),
    "path of two nodes": lambda p: ({"kind": "path", "nodes": p.half[:1], "other_nodes": p.rest[:1]}, p.alone),
    "class": lambda p: ({"kind": "class", "fact": "driver", "nodes": p.half}, p.half),
    "classes": lambda p: ({"kind": "class", "fact": "driver", "nodes": p.half, "other_nodes": p.rest}, p.alone),
    "environment": lambda _: ({"kind": "environment"}, ()),
    "busy": lambda p: ({"kind": "busy", "nodes": p.one}, p.one),
    "all busy": lambda p: ({"kind": "busy", "nodes": p.nodes}, ()),
    "passing": lambda p: (
        {"kind": "transient", "nodes": p.one, "first_round": p.start, "last_round": p.start + 2},
        p.one,
    ),
    "hang": lambda p: ({"kind": "hang", "ends": (p.end,), "first_round": p.start}, p.one),
    "crash": lambda p: ({"kind": "crash", "ends": (p.end,), "first_round": p.start}, p.one),
    "agent lost": lambda p: ({"kind": "agent_lost", "nodes": p.one, "first_round": p.start}, p.one),
}


class Place:
    """Where a fault may lie in a cluster."""

    def __init__(self, chance: random.Random, cluster: Cluster) -> None:
        self.nodes = tuple(cluster.nodes)
        self.end, self.slot = chance.randrange(cluster.num_ends), chance.randrange(cluster.gpus_per_node)
        home = self.end // cluster.gpus_per_node
        self.one = (self.nodes[home],)
        far = [end for end in range(cluster.num_ends) if end // cluster.gpus_per_node != home]
        self.far_end = chance.choice(far)
        self.leaf = chance.choice(sorted(set(cluster.leaves)))
        self.half = tuple(chance.sample(self.nodes, len(self.nodes) // 2))
        self.rest = tuple(node for node in self.nodes if node not in self.half)
        self.alone = (*self.half * (len(self.half) == 1), *self.rest * (len(self.rest) == 1))
        self.way = chance.choice(("sending", "receiving"))
        self.start = chance.choice((0, chance.randrange(30)))


class Judged(NamedTuple):
    """`wrongly`: nodes to be drained that no fault lies on."""

    seed: int
    kinds: tuple[str, ...]
    map: str
    sick: frozenset[str]
    drained: frozenset[str]

    @property
    def wrongly(self) -> frozenset[str]:
        return self.drained - self.sick


def leaf_sizes(chance: random.Random, most: int) -> tuple[int, ...]:
    """How many nodes of a job are on each leaf."""
    nodes = max(2, round(2 * (most / 2) ** chance.random()))
    style = chance.choice(("one leaf", "two leaves", "all alone", "fragments", "fragments", "fragments"))
    if style == "one leaf":
        return (nodes,)
    if style == "two leaves":
        first = chance.randint(1, nodes - 1)
        return (first, nodes - first)
    if style == "all alone":
        return (1,) * min(nodes, 16)
    sizes: list[int] = []
    while sum(sizes) < nodes:
        sizes.append(chance.choice((1, 1, 1, 2, 2, 3, 4, 8)))
    return tuple(sizes) if sum(sizes) > 1 else (1, 1)


def plain(chance: random.Random, most: int) -> Cluster:
    gpus = chance.choice((8, 8, 8, 4, 2, 1))
    return plain_cluster(
        leaf_sizes(chance, most),
        gpus_per_node=gpus,
        noise=chance.uniform(0.003, 0.03),
        transient_rate=chance.choice((0, 0.01, 0.03)),
        other_leaf_loss=chance.choice((0, chance.uniform(0.05, 0.12))),
        unlike_slot_loss=chance.choice((0, chance.uniform(0.05, 0.12))),
        collision_rate=chance.choice((0, 0, 0.05, 0.2)),
        tail_rate=chance.choice((0, 0, 0.05)),
        rails=chance.random() < 0.6,
        gpus_per_nic=chance.choice((1, 1, 1, 2)) if gpus > 1 else 1,
        oversubscription=chance.choice((1, 1, 1, 2)),
        nvls_share=chance.choice((0, 0.7)),
    )


def told_leaves(chance: random.Random, cluster: Cluster, of: str) -> dict[str, object]:
    """What a map of that kind changes of a cluster."""
    leaves = list(cluster.leaves)
    if of == "missing":
        return {"leaves_told": False}
    if of == "partial":
        return {"told_leaves": tuple(leaf if chance.random() < 0.6 else None for leaf in leaves)}
    if of == "one leaf":
        return {"told_leaves": ("leafX",) * len(leaves)}
    if of == "wrong":
        for node in chance.sample(range(len(leaves)), max(1, len(leaves) // 8)):
            leaves[node] = chance.choice(sorted(set(cluster.leaves)))
        return {"told_leaves": tuple(leaves)}
    return {}


def judged(seed: int, most: int) -> Judged:
    """What the controller prolog decides about the job number `seed`. `most`: its largest number of nodes."""
    chance = random.Random(f"small job {seed}")
    cluster = plain(chance, most)
    kinds = tuple(chance.choice(sorted(KINDS)) for _ in range(chance.choice((0, 1, 1, 1, 1, 2, 3))))
    faults, sick = [], set()
    for kind in kinds:
        fields, nodes = KINDS[kind](Place(chance, cluster))
        faults.append(Fault(depth=chance.choice((chance.uniform(0.1, 0.2), chance.uniform(0.15, 0.9))), **fields))
        sick |= set(nodes)
    of = chance.choice(MAPS)
    cluster = msgspec.structs.replace(cluster, faults=tuple(faults), **told_leaves(chance, cluster, of))
    world, agents = simulated_world(cluster, seed, "c.toml")
    nodes = tuple(agent.name for agent in agents)
    gpus = {node: tuple(range(cluster.gpus_per_node)) for node in nodes}
    directive = Directive() if chance.random() < 0.7 else Directive(degrees={"tp": cluster.gpus_per_node})
    wanted = what_to_measure(nodes, gpus, directive, Site(), (22, 5))
    budget_s = chance.choice((294, 294, 120, 60))
    report = run(wanted.job, CHECKS, progress=lambda *_: None, budget_s=budget_s, agents=agents, world=world)
    drained = decide(report, nodes, USES, nobody_guilty="hold").guilty
    return Judged(seed, kinds, of, frozenset(sick), frozenset(drained))
