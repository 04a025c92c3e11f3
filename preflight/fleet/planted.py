"""The faults that a cluster file plants: which keys each kind needs and may have."""

import re
from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from preflight.errors import ConfigError
from preflight.model import Direction
from preflight.model.bandwidth import Collective
from preflight.model.base import Record
from preflight.model.hostlist import fold, unfold
from preflight.plan.refusals import nearest
from preflight.plan.values import Reader, WrongValueError, decimal, flag, from_zero, one_of, show, text
from preflight.probe.simulate import FAULT_KINDS, Cluster, Fault

_MOST = 10**6


def _texts(value: object) -> tuple[str, ...]:
    """A text or a list of texts."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not listed or not all(isinstance(each, str) for each in listed):
        raise WrongValueError('a list of texts, such as ["n03:2"]')
    return tuple(text(each) for each in listed)


def _operations(value: object) -> tuple[str, ...]:
    """Words for operations that are probed: a fault in another would never show, and the rehearsal be good for nothing."""
    known = get_args(Collective)
    listed = _texts(value)
    if not set(listed) <= set(known):
        raise WrongValueError(f"a list of operations, of {', '.join(known)}")
    return listed


FAULT_KEYS: dict[str, Reader] = {
    "kind": one_of(*FAULT_KINDS),
    "gpus": _texts,
    "hosts": text,
    "other_hosts": text,
    "leaf": text,
    "slot": from_zero(63),
    "fact": text,
    "direction": one_of(*get_args(Direction)),
    "share": decimal(0.001, 1),
    "depth": decimal(0.001, 0.999),
    "failed": flag,
    "ops": _operations,
    "first_round": from_zero(_MOST),
    "last_round": from_zero(_MOST),
}


class _Kind(Record, frozen=True):
    """Of one kind of fault: the keys that say where it is, those of which one is needed, and whether it has a depth."""

    where: tuple[str, ...]
    needs: tuple[str, ...]
    has_depth: bool = True
    directed: bool = True


KINDS: dict[str, _Kind] = {
    "gpu": _Kind(("gpus",), ("gpus",)),
    "nic": _Kind(("gpus",), ("gpus",)),
    "slot": _Kind(("slot", "hosts"), ("slot",)),
    "node": _Kind(("hosts",), ("hosts",)),
    "link": _Kind(("gpus",), ("gpus",)),
    "leaf": _Kind(("leaf",), ("leaf",)),
    "uplink": _Kind(("leaf", "slot", "share"), ("leaf",)),
    "path": _Kind(("hosts", "other_hosts"), ("hosts", "other_hosts")),
    "class": _Kind(("fact", "other_hosts"), ("fact",)),
    "environment": _Kind((), ()),
    "busy": _Kind(("hosts",), ("hosts",), directed=False),
    "transient": _Kind(("gpus", "hosts"), (), directed=False),
    "hang": _Kind(("gpus",), ("gpus",), has_depth=False, directed=False),
    "crash": _Kind(("gpus",), ("gpus",), has_depth=False, directed=False),
    "agent_lost": _Kind(("hosts",), ("hosts",), has_depth=False, directed=False),
}


def read_faults(source: str, entries: Sequence[tuple[str, dict[str, Any]]], cluster: Cluster) -> Cluster:
    """The cluster with these faults planted. `entries`: each with its place for messages. Raises ConfigError."""
    faults = tuple(_fault(source, place, entry, cluster) for place, entry in entries)
    return msgspec.structs.replace(cluster, faults=faults)


def _fault(source: str, place: str, entry: dict[str, Any], cluster: Cluster) -> Fault:
    _refuse(source, place, entry)
    fields: dict[str, Any] = {key: entry[key] for key in entry if key in Fault.__struct_fields__}
    if "gpus" in entry:
        fields["ends"] = tuple(_end(source, f"{place}.gpus", each, cluster) for each in entry["gpus"])
        if entry["kind"] == "link" and len(set(fields["ends"])) != 2:
            raise ConfigError(
                source, "a link lies between two GPUs", key=f"{place}.gpus", remedy='as in ["n0:3", "n7:3"]'
            )
    if entry.get("leaf", cluster.leaves[0]) not in cluster.leaves:
        names = list(dict.fromkeys(cluster.leaves))
        problem = f"there is no leaf {show(entry['leaf'])}{nearest(entry['leaf'], names)}"
        raise ConfigError(source, problem, key=f"{place}.leaf", remedy=f"the cluster has {names[0]} to {names[-1]}")
    if entry["kind"] == "uplink" and len(set(cluster.leaves)) < 2:
        problem = "the cluster has one leaf, which has no uplink"
        raise ConfigError(source, problem, key=f"{place}.leaf", remedy="give the cluster leaves = 2, or more")
    if entry.get("slot", 0) >= cluster.gpus_per_node:
        problem = f"{entry['slot']}: nodes have the slots 0 to {cluster.gpus_per_node - 1}"
        raise ConfigError(source, problem, key=f"{place}.slot")
    for key, field in (("hosts", "nodes"), ("other_hosts", "other_nodes")):
        if key in entry:
            fields[field] = hosts_of(source, f"{place}.{key}", entry[key], cluster.nodes)
    both = set(fields.get("nodes", ())) & set(fields.get("other_nodes", ()))
    if both:
        raise ConfigError(
            source, f"{fold(sorted(both))} is in hosts too: a path lies between two sets", key=f"{place}.other_hosts"
        )
    if "fact" in entry:
        fields["nodes"] = _nodes_with(source, f"{place}.fact", entry["fact"], cluster)
    return Fault(**fields)


def _refuse(source: str, place: str, entry: dict[str, Any]) -> None:
    """What doesn't fit the kind."""
    if "kind" not in entry:
        raise ConfigError(source, "is missing", key=f"{place}.kind", remedy=f"one of {', '.join(KINDS)}")
    name = entry["kind"]
    kind = KINDS[name]
    allowed = {"kind", *kind.where, "first_round", "last_round"}
    allowed |= {"depth", "ops"} if kind.has_depth else set()
    allowed |= {"direction", "failed"} if kind.directed else set()
    for key in entry:
        if key not in allowed:
            listed = ", ".join(each for each in FAULT_KEYS if each in allowed)
            raise ConfigError(
                source, f"a fault of kind {name} has no such key", key=f"{place}.{key}", remedy=f"known: {listed}"
            )
    for key in kind.needs:
        if key not in entry:
            raise ConfigError(source, f"is missing: a fault of kind {name} needs it", key=f"{place}.{key}")
    if name == "transient" and ("gpus" in entry) == ("hosts" in entry):
        raise ConfigError(source, "a transient is of gpus or of hosts", key=place)
    if kind.has_depth and ("depth" in entry) == bool(entry.get("failed")):
        problem = "what fails has no depth" if "depth" in entry else "is missing: how much slower, 0.3 for 30 %"
        raise ConfigError(source, problem, key=f"{place}.depth")
    if entry.get("last_round", _MOST) < entry.get("first_round", 0):
        raise ConfigError(source, "comes before first_round", key=f"{place}.last_round")


def _end(source: str, key: str, name: str, cluster: Cluster) -> int:
    match = re.fullmatch(r"(.+):(\d{1,3})", name)
    if match is None or match[1] not in cluster.nodes or int(match[2]) >= cluster.gpus_per_node:
        last = f"{cluster.nodes[-1]}:{cluster.gpus_per_node - 1}"
        remedy = f"write node:slot, {cluster.nodes[0]}:0 to {last}"
        raise ConfigError(source, f"there is no GPU {show(name)}", key=key, remedy=remedy)
    return cluster.nodes.index(match[1]) * cluster.gpus_per_node + int(match[2])


def hosts_of(source: str, key: str, value: str, nodes: Sequence[str]) -> tuple[str, ...]:
    """The nodes that a host list names, all of which there are. Raises ConfigError."""
    try:
        hosts = tuple(unfold(value))
    except ValueError as error:
        raise ConfigError(source, str(error), key=key, remedy='write it as in "n[01-08]"') from error
    known = set(nodes)
    for host in hosts:
        if host not in known:
            remedy = f"the cluster has {nodes[0]} to {nodes[-1]}" if len(nodes) > 1 else f"the cluster has {nodes[0]}"
            raise ConfigError(source, f"there is no node {show(host)}", key=key, remedy=remedy)
    return hosts


def _nodes_with(source: str, key: str, value: str, cluster: Cluster) -> tuple[str, ...]:
    """The nodes of a class, named as findings name it: fact and value."""
    known = {f"{fact} {each}" for fact, values in cluster.classes.items() for each in values if each is not None}
    if value not in known:
        problem = f"no node has {show(value)}{nearest(value, sorted(known))}"
        raise ConfigError(
            source, problem, key=key, remedy='give [[classes]] with fact and value, and name both: "driver 570.86.15"'
        )
    return tuple(
        node
        for fact, values in cluster.classes.items()
        for node, each in zip(cluster.nodes, values, strict=True)
        if f"{fact} {each}" == value
    )
