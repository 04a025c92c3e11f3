"""From switches and their children to the path of switches above each node; and the small readers that all topology files share."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from preflight.errors import ConfigError
from preflight.model.hostlist import MAX_NODES, unfold

MAX_TIERS = 16  # switches above a node; fat trees have three or four
_PLAIN = re.compile(r"[\w.:-]+")  # a single name, as most lines of a table have


class Switch(NamedTuple):
    """One switch, the switches and the nodes right below it, and where the file says so: "line 3"."""

    name: str
    switches: tuple[str, ...]
    nodes: tuple[str, ...]
    where: str


class Names:
    """Reads the hostlists of one file, which may name MAX_NODES nodes and switches in all: a few lines can stand for more than a memory holds."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._left = MAX_NODES

    def __call__(self, text: object, where: str) -> tuple[str, ...]:
        """The names of a hostlist ("n[01-04],n7"), or of a list of hostlists. Raises ConfigError."""
        parts = text if isinstance(text, list) else [text]
        names: list[str] = []
        for part in parts:
            if not isinstance(part, str | int) or isinstance(part, bool):
                raise ConfigError(self.source, f"{where}: {str(part)[:80]!r} is not a list of names such as n[01-08]")
            try:
                name = str(part)
                names += [name] if _PLAIN.fullmatch(name) else unfold(name)
            except ValueError as error:
                raise ConfigError(self.source, f"{where}: {error}") from error
            self.count(len(names), where, final=False)
        self.count(len(names), where)
        return tuple(names)

    def count(self, number: int, where: str, *, final: bool = True) -> None:
        """Take `number` names from those that are allowed; `final` False: only see whether they are. Raises ConfigError."""
        if number > self._left:
            problem = f"{where}: with this the file names more than {MAX_NODES} nodes and switches"
            raise ConfigError(self.source, problem)
        self._left -= number if final else 0


def members(entries: Iterable[tuple[str, tuple[str, ...], str]], source: str, what: str) -> dict[str, str]:
    """Node -> the set (block, rack, domain) that it is in. `entries`: name of the set, its nodes, where. Raises ConfigError for a node in two."""
    found: dict[str, str] = {}
    for name, nodes, where in entries:
        for node in nodes:
            if found.setdefault(node, name) != name:
                raise ConfigError(source, f"{where}: node {node} is in {what} {found[node]} and in {what} {name}")
    return found


def paths_above(switches: Iterable[Switch], source: str) -> dict[str, tuple[str, ...]]:
    """Node -> the switches above it, closest first. Raises ConfigError: a switch twice, an unknown child, two parents, a circle."""
    known: dict[str, Switch] = {}
    for switch in switches:
        if switch.name in known:
            raise ConfigError(
                source, f"{switch.where}: switch {switch.name} is defined again, first on {known[switch.name].where}"
            )
        known[switch.name] = switch
    parents: dict[str, str] = {}
    for switch in known.values():
        for child in switch.switches:
            if child not in known:
                raise ConfigError(
                    source, f"{switch.where}: switch {switch.name} has the child {child}, which is not defined"
                )
            if parents.setdefault(child, switch.name) != switch.name:
                raise ConfigError(source, f"{switch.where}: switch {child} is below {parents[child]} and {switch.name}")
    leaf_of = members(((switch.name, switch.nodes, switch.where) for switch in known.values()), source, "switch")
    paths = {name: _path(name, parents, source) for name in dict.fromkeys(leaf_of.values())}
    return {node: paths[leaf] for node, leaf in leaf_of.items()}


def _path(leaf: str, parents: dict[str, str], source: str) -> tuple[str, ...]:
    path = [leaf]
    while path[-1] in parents:
        above = parents[path[-1]]
        if above in path:
            raise ConfigError(source, f"switch {above} is above itself")
        path.append(above)
        if len(path) > MAX_TIERS:
            raise ConfigError(source, f"switch {leaf} has more than {MAX_TIERS} switches above it")
    return tuple(path)
