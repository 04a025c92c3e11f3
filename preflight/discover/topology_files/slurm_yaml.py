"""Slurm's topology.yaml: several named topologies, each a tree, a block, flat, a ring or a torus (man 5 topology.yaml).

They describe the same machine for different partitions, so all trees and all blocks are taken together; where two of them tell different things of one
node, the first with cluster_default counts, else the first.
"""

from collections.abc import Iterator
from typing import Any

from preflight.discover.topology_files.tree import Names, Switch, members, paths_above
from preflight.errors import ConfigError
from preflight.model import Topology

_KINDS = ("tree", "block", "flat", "ring", "torus3d")


def read_slurm_yaml(document: list[Any], source: str) -> Topology:
    """The topology of a topology.yaml that was read as plain values. Raises ConfigError with the entry."""
    switches: dict[str, tuple[str, ...]] = {}
    blocks: dict[str, str] = {}
    names = Names(source)
    entries = [_entry(item, number, source) for number, item in enumerate(document, start=1)]
    for where, item in sorted(entries, key=lambda entry: entry[1].get("cluster_default") is not True):
        kinds = [kind for kind in _KINDS if item.get(kind)]
        if len(kinds) != 1:
            raise ConfigError(source, f"{where}: must define exactly one of {', '.join(_KINDS)}")
        if kinds == ["tree"]:
            switches = {**paths_above(_switches(item["tree"], names, where), source), **switches}
        elif kinds == ["block"]:
            blocks = {**members(_blocks(item["block"], names, where), source, "block"), **blocks}
    return Topology(switches=switches or None, blocks=blocks or None, source=source)


def _entry(item: object, number: int, source: str) -> tuple[str, dict[str, Any]]:
    if not isinstance(item, dict) or "topology" not in item:
        raise ConfigError(source, f"entry {number}: is not a topology: it lacks the key 'topology'")
    return f"topology {str(item['topology'])[:80]!r}", item


def _switches(tree: object, names: Names, where: str) -> Iterator[Switch]:
    for place, item in _items(tree, "switches", "switch", names.source, where):
        children = names(item["children"], place) if "children" in item else ()
        nodes = names(item["nodes"], place) if "nodes" in item else ()
        yield Switch(str(item["switch"]), children, nodes, place)


def _blocks(block: object, names: Names, where: str) -> Iterator[tuple[str, tuple[str, ...], str]]:
    for place, item in _items(block, "blocks", "block", names.source, where):
        yield str(item["block"]), names(item["nodes"], place) if item.get("nodes") else (), place


def _items(section: object, key: str, name: str, source: str, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, item) of a list of named items."""
    items = section.get(key) if isinstance(section, dict) else None
    if not isinstance(items, list):
        raise ConfigError(source, f"{where}: lacks the list {key!r}")
    for number, item in enumerate(items, start=1):
        if not isinstance(item, dict) or not isinstance(item.get(name), str | int):
            raise ConfigError(source, f"{where}: item {number} of {key} lacks the key {name!r}")
        yield f"{where}, {name} {str(item[name])[:80]!r}", item
