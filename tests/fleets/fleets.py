"""Random fleets with planted faults, by seed: the same seed and family give the same fleet.

64 to 2,048 nodes (log-uniform) of 8 GPUs with a NIC each, on at least four leaves of 4 to 32 nodes, evenly filled or not; noise CV 0.5 to 3 %; route classes 0 to 12 % apart, as healthy clusters
are; 1 % of the probes slowed once. 0 to 8 faults of every kind, at most one path between sets of nodes, each 10 x CV to 90 % deep. No two faults of one kind are on the same part, since
nobody could tell them apart.
"""

import random
from typing import NamedTuple

from preflight.probe.schedule import first_rounds
from preflight.probe.simulate import Cluster, Fabric, Fault, plain_cluster

SLOTS = 8
MIN_NODES, MAX_NODES = 64, 2048
MIN_LEAF, MAX_LEAF = 4, 32
DEEPEST = 0.9
KINDS = (
    "gpu",
    "nic",
    "nic one way",
    "node",
    "node one way",
    "slot",
    "link",
    "uplink",
    "uplink one way",
    "share of an uplink",
    "way out of a leaf",
    "path",
)
FAMILIES = {
    "faults": "0 to 8 faults of every kind",
    "shallow": "1 to 8 faults of every kind but 2 to 8 x CV deep",
    "healthy": "no fault",
    "busy": "no fault; hosts of 1 to 5 % of the nodes have other work",
    "collisions": "no fault; 5 % of the ways across leaves always collide",
    "tails": "0 to 8 faults; 2 to 10 % of the probes have a dip of 10 % on average",
    "wrong map": "0 to 8 faults; the map puts 2 % of the nodes on a wrong leaf",
}


class Fleet(NamedTuple):
    """A cluster, whose faults are the truth, and its seed for everything by chance."""

    cluster: Cluster
    seed: int
    family: str


def random_fleet(seed: int, family: str = "faults", *, max_nodes: int = MAX_NODES) -> Fleet:
    """The fleet number `seed` of a family. `max_nodes`: the largest, for quick tests."""
    chance = random.Random(f"{family} {seed}")
    plain = plain_cluster(
        leaf_sizes(chance, max_nodes),
        noise=chance.uniform(0.005, 0.03),
        transient_rate=0.01,
        other_leaf_loss=chance.choice((0, chance.uniform(0.05, 0.12))),
        unlike_slot_loss=chance.choice((0, chance.uniform(0.05, 0.12))),
        collision_rate=0.05 if family == "collisions" else 0,
        tail_rate=chance.uniform(0.02, 0.1) if family == "tails" else 0,
    )
    faults = [*planted(chance, plain, seed, family)]
    told = wrong_map(chance, plain) if family == "wrong map" else None
    return Fleet(changed(plain, faults=tuple(faults), told_leaves=told), seed, family)


def changed(cluster: Cluster, **fields) -> Cluster:
    import msgspec

    return msgspec.structs.replace(cluster, **fields)


def leaf_sizes(chance: random.Random, max_nodes: int) -> tuple[int, ...]:
    """How many nodes each leaf has: the same number, or between half of it and all."""
    nodes = round(MIN_NODES * (max_nodes / MIN_NODES) ** chance.random())
    largest = chance.randint(MIN_LEAF, min(MAX_LEAF, nodes // 4))
    smallest = chance.choice((largest, max(MIN_LEAF, largest // 2)))
    sizes: list[int] = []
    while sum(sizes) < nodes or len(sizes) < 4:
        sizes.append(chance.randint(smallest, largest))
    return tuple(sizes)


def wrong_map(chance: random.Random, cluster: Cluster) -> tuple[str, ...]:
    """The map with 2 % of the nodes, at least one, on another leaf."""
    told, names = list(cluster.leaves), sorted(set(cluster.leaves))
    for node in chance.sample(range(len(told)), max(1, round(0.02 * len(told)))):
        told[node] = chance.choice([name for name in names if name != told[node]])
    return tuple(told)


def planted(chance: random.Random, cluster: Cluster, seed: int, family: str) -> list[Fault]:
    if family in {"healthy", "collisions"}:
        return []
    if family == "busy":
        return [Fault(kind="busy", nodes=some_nodes(chance, cluster, 0.01, 0.05), depth=chance.uniform(0.1, 0.5))]
    faults: list[Fault] = []
    fewest = 1 if family == "shallow" else 0
    for _ in range(chance.randint(fewest, 8)):
        kinds = [kind for kind in KINDS if kind != "path" or not any(fault.kind == "path" for fault in faults)]
        depths = (2 * cluster.noise, 8 * cluster.noise) if family == "shallow" else (10 * cluster.noise, DEEPEST)
        fault = one_fault(chance, chance.choice(kinds), cluster, seed, chance.uniform(*depths))
        if part_of(fault) not in map(part_of, faults):
            faults.append(fault)
    return faults


def some_nodes(chance: random.Random, cluster: Cluster, least: float, most: float) -> tuple[str, ...]:
    count = max(1, round(chance.uniform(least, most) * len(cluster.nodes)))
    return tuple(chance.sample(cluster.nodes, count))


def part_of(fault: Fault) -> tuple:
    """The part that is ill: two faults of the same one would be one."""
    if fault.kind in {"gpu", "nic"}:
        return ("end", *fault.ends)
    if fault.kind == "link":
        return ("link", *sorted(fault.ends))
    return {"node": ("node", fault.nodes), "slot": ("slot", fault.slot), "path": ("path",)}.get(
        fault.kind, ("uplink", fault.leaf)
    )


def one_fault(chance: random.Random, name: str, cluster: Cluster, seed: int, depth: float) -> Fault:
    """A fault of one of KINDS somewhere in a cluster."""
    if name == "path":
        return a_path(chance, cluster, depth)
    kind = name.removesuffix(" one way")
    end = chance.randrange(cluster.num_ends)
    leaf = chance.choice(sorted(set(cluster.leaves)))
    kind, where = {
        "slot": ("slot", {"slot": chance.randrange(SLOTS)}),
        "node": ("node", {"nodes": (cluster.nodes[end // SLOTS],)}),
        "link": ("link", {"ends": a_pair(chance, cluster, seed) if kind == "link" else ()}),
        "uplink": ("uplink", {"leaf": leaf}),
        "share of an uplink": ("uplink", {"leaf": leaf, "share": chance.uniform(0.15, 0.6)}),
        "way out of a leaf": ("uplink", {"leaf": leaf, "slot": chance.randrange(SLOTS)}),
    }.get(kind, (kind, {"ends": (end,)}))
    way = chance.choice(("sending", "receiving")) if "one way" in name else "both"
    return Fault(kind=kind, depth=depth, direction=way, **where)


def a_pair(chance: random.Random, cluster: Cluster, seed: int) -> tuple[int, int]:
    """One of the pairs that the first rounds measure: of all pairs of a large fleet they cross hardly any, and what isn't crossed tells nothing about who looks for it."""
    return chance.choice(chance.choice(first_rounds(Fabric(cluster, seed).ends, seed=seed)))


def a_path(chance: random.Random, cluster: Cluster, depth: float) -> Fault:
    """Between two sets of whole leaves, each at most half of all: a leaf against all others would be its uplink."""
    names = sorted(set(cluster.leaves))
    chance.shuffle(names)
    first, second = (chance.randint(1, len(names) // 2) for _ in range(2))
    ours, others = set(names[:first]), set(names[first : first + second])
    return Fault(
        kind="path",
        nodes=tuple(node for node, leaf in zip(cluster.nodes, cluster.leaves, strict=True) if leaf in ours),
        other_nodes=tuple(node for node, leaf in zip(cluster.nodes, cluster.leaves, strict=True) if leaf in others),
        depth=depth,
    )
