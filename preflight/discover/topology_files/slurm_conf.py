"""Slurm's topology.conf: a tree of switches, blocks of nodes, or rings (man 5 topology.conf; topograph writes the same).

A line is a list of Key=Value pairs, keys in any case; "#" begins a comment; a backslash at its end goes on with the next line.
A tree gives the switches above each node, a block the set of nodes that Slurm keeps together. Rings tell nothing that we use.
"""

from collections.abc import Iterator

from preflight.discover.topology_files.tree import Names, Switch, members, paths_above
from preflight.errors import ConfigError
from preflight.model import Topology

# the key that begins a line -> the keys that may follow
_KEYS = {
    "switchname": {"switches", "nodes", "linkspeed"},
    "blockname": {"nodes", "blocksizes"},
    "blocksizes": set(),
    "ringname": {"nodes"},
}
_SPELLED = "SwitchName, BlockName, BlockSizes or RingName"


def read_slurm_conf(text: str, source: str) -> Topology:
    """The topology of a topology.conf. Raises ConfigError with the line."""
    switches, blocks, rings = [], [], 0
    names = Names(source)
    for where, values in _lines(text, source):
        nodes = names(values["nodes"], where) if "nodes" in values else ()
        if "switchname" in values:
            children = names(values["switches"], where) if "switches" in values else ()
            if not nodes and not children:
                raise ConfigError(
                    source, f"{where}: switch {values['switchname']} has neither Nodes nor Switches below it"
                )
            switches.append(Switch(values["switchname"], children, nodes, where))
        elif "blockname" in values:
            blocks.append((values["blockname"], nodes, where))
        rings += "ringname" in values
    if sum(map(bool, (switches, blocks, rings))) > 1:
        raise ConfigError(source, "mixes SwitchName, BlockName and RingName; Slurm takes one kind in a topology.conf")
    return Topology(
        switches=paths_above(switches, source) if switches else None,
        blocks=members(blocks, source, "block") if blocks else None,
        source=source,
    )


def _lines(text: str, source: str) -> Iterator[tuple[str, dict[str, str]]]:
    """("line 3", lower-case key -> value) of each line that says something."""
    began, pending = 0, ""
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        content = line.partition("#")[0].rstrip()
        began = number if not pending else began
        pending += content.removesuffix("\\") + " "
        if content.endswith("\\") and number < len(lines):
            continue
        if pending.strip():
            where = f"line {began}"
            yield where, _pairs(pending, source, where)
        pending = ""


def _pairs(line: str, source: str, where: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for word in line.split():
        key, equals, value = word.partition("=")
        key = key.lower()
        if key == "include":
            raise ConfigError(source, f"{where}: include is not followed", remedy="give the file that is included")
        if not equals or not value:
            raise ConfigError(source, f"{where}: {word[:80]!r} is not Key=Value, as in SwitchName=s0 Nodes=n[1-8]")
        if key in values:
            raise ConfigError(source, f"{where}: {word.partition('=')[0]} is given twice")
        if not values and key not in _KEYS:
            raise ConfigError(source, f"{where}: begins with {word[:80]!r}; known: {_SPELLED}")
        allowed = _KEYS[next(iter(values), key)]
        if values and key not in allowed:
            raise ConfigError(source, f"{where}: unknown key in {word[:80]!r}; known: {', '.join(sorted(allowed))}")
        values[key] = value
    return values
