"""What topograph writes beside topology.conf: its models (YAML: switches, nodes, capacity_blocks, blocks) and its graph (JSON: instances).

Source: topograph, docs/modeling.md and docs/engines/graph.md. `attributes.nvlink` and the accelerator labels name an NVLink domain. A capacity
block is a set of nodes that were reserved together; it need not be an NVLink domain, so it is kept as a block.
"""

from collections.abc import Iterator
from typing import Any

from preflight.discover.topology_files.tree import Names, Switch, members, paths_above
from preflight.errors import ConfigError
from preflight.model import Topology

# labels of a block that name its NVLink domain
_DOMAIN_LABELS = ("network.topology.nvidia.com/accelerator", "accelerated.topology.nvidia.com/level-0")
Sets = list[tuple[str, tuple[str, ...], str]]


def read_topograph(document: dict[str, Any], source: str) -> Topology:
    """The topology of a topograph model or graph that was read as plain values. Raises ConfigError with the entry."""
    if "instances" in document:
        return _read_graph(document["instances"], source)
    domains: Sets = []
    blocks: Sets = []
    below: dict[str, list[str]] = {}
    names = Names(source)
    for name, item in _named(document, "capacity_blocks", source):
        where = f"capacity block {name!r}"
        nodes = names(item["nodes"], where) if item.get("nodes") else ()
        blocks.append((name, nodes, where))
        _add_nvlink(domains, item, nodes, where)
    for name, item in _named(document, "nodes", source):
        if isinstance(item.get("capacity_block"), str):
            blocks.append((item["capacity_block"], (name,), f"node {name!r}"))
        _add_nvlink(domains, item, (name,), f"node {name!r}")
    for number, item in enumerate(_list(document, "blocks", source), start=1):
        where = f"block {number}"
        nodes = names(item.get("nodes", []), where)
        labels = item["labels"] if isinstance(item.get("labels"), dict) else {}
        named = next((str(labels[label]) for label in _DOMAIN_LABELS if labels.get(label)), None)
        if named:
            domains.append((named, nodes, where))
        if item.get("switch"):
            below.setdefault(str(item["switch"]), []).extend(nodes)
    switches = list(_switches(document, {name: nodes for name, nodes, _ in blocks}, below, names))
    return Topology(
        switches=paths_above(switches, source) if switches else None,
        node_domains=members(domains, source, "NVLink domain") or None,
        blocks=members(blocks, source, "capacity block") or None,
        source=source,
    )


def _switches(
    document: dict[str, Any], blocks: dict[str, tuple[str, ...]], below: dict[str, list[str]], names: Names
) -> Iterator[Switch]:
    """The switches of a model. `below`: nodes that a block puts under a switch, which need not be defined elsewhere."""
    for name, item in _named(document, "switches", names.source):
        where = f"switch {name!r}"
        children = names(item["switches"], where) if item.get("switches") else ()
        nodes = names(item["nodes"], where) if item.get("nodes") else ()
        held = item.get("capacity_blocks") or []
        for block in held if isinstance(held, list) else [held]:
            names.count(len(blocks.get(str(block), ())), where)
            nodes += blocks.get(str(block), ())
        defined = document.get("switches") or {}
        leaves = tuple(child for child in children if child in below and child not in _names(defined))
        yield Switch(name, children, nodes + tuple(below.get(name, ())), where)
        for leaf in leaves:
            yield Switch(leaf, (), tuple(below[leaf]), f"switch {leaf!r}")


def _names(section: object) -> set[str]:
    if isinstance(section, dict):
        return set(map(str, section))
    items = section if isinstance(section, list) else []
    return {str(item["name"]) for item in items if isinstance(item, dict) and "name" in item}


def _read_graph(instances: object, source: str) -> Topology:
    if not isinstance(instances, list):
        raise ConfigError(source, "instances: is not a list")
    switches: dict[str, tuple[str, ...]] = {}
    domains: dict[str, str] = {}
    for number, item in enumerate(instances, start=1):
        if not isinstance(item, dict) or not isinstance(item.get("id"), str):
            raise ConfigError(source, f"instance {number}: lacks the key 'id'")
        layers, attributes = item.get("network_layers") or [], item.get("attributes") or {}
        if not isinstance(layers, list) or not isinstance(attributes, dict):
            raise ConfigError(
                source, f"instance {number}: network_layers must be a list of switches, attributes a mapping"
            )
        if layers:
            switches[item["id"]] = tuple(map(str, layers))
        if attributes.get("nvlink"):
            domains[item["id"]] = str(attributes["nvlink"])
    return Topology(switches=switches or None, node_domains=domains or None, source=source)


def _add_nvlink(domains: Sets, item: dict[str, Any], nodes: tuple[str, ...], where: str) -> None:
    attributes = item.get("attributes")
    nvlink = attributes.get("nvlink") if isinstance(attributes, dict) else item.get("nvlink")
    if nvlink:
        domains.append((str(nvlink), nodes, where))


def _named(document: dict[str, Any], key: str, source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, item) of a section, which is a mapping by name or, in older models, a list of items with a name."""
    section = document.get(key) or {}
    if isinstance(section, list):
        for number, item in enumerate(section, start=1):
            if not isinstance(item, dict) or "name" not in item:
                raise ConfigError(source, f"{key}: item {number} lacks the key 'name'")
            yield str(item["name"]), item
        return
    if not isinstance(section, dict):
        raise ConfigError(source, f"{key}: is neither a mapping nor a list")
    for name, item in section.items():
        if item is not None and not isinstance(item, dict):
            raise ConfigError(source, f"{key}: {str(name)[:80]!r} is not a mapping")
        yield str(name), item or {}


def _list(document: dict[str, Any], key: str, source: str) -> list[dict[str, Any]]:
    section = document.get(key) or []
    if not isinstance(section, list) or not all(isinstance(item, dict) for item in section):
        raise ConfigError(source, f"{key}: is not a list of mappings")
    return section
