"""A plain table of nodes, for sites that have no other file: a header, then a line for each node or hostlist, by commas or white space.

    node        leaf   spine  rack  domain
    n[01-04]    leaf1  s1     r1    -
    n05         leaf2  s1     r2    -

Only `node` must be there. "-" or nothing: not known. "#" begins a comment.
"""

import csv
from collections.abc import Iterator

from preflight.discover.topology_files.tree import Names
from preflight.errors import ConfigError
from preflight.model import Topology

# a column's name, in any case -> what it is
_COLUMNS = {
    **dict.fromkeys(("node", "nodes", "host", "hostname", "nodename"), "node"),
    **dict.fromkeys(("leaf", "switch", "tor"), "leaf"),
    "spine": "spine",
    "core": "core",
    "rack": "rack",
    **dict.fromkeys(("domain", "nvlink_domain", "nvlink", "clique"), "domain"),
    "block": "block",
}
_REMEDY = "begin with a header such as: node leaf rack domain"


def read_table(text: str, source: str) -> Topology:
    """The topology of a table. Raises ConfigError with the line."""
    rows = _rows(text)
    where, header = next(rows)
    columns = [_COLUMNS.get(name.lower(), "") for name in header]
    if "node" not in columns or "" in columns or len(set(columns)) < len(columns):
        shown = " ".join(header)[:80]
        known = "node, leaf, spine, core, rack, domain, block"
        raise ConfigError(source, f"{where}: {shown!r} is no header; columns: {known}, each once", remedy=_REMEDY)
    facts: dict[str, dict[str, str]] = {}
    names = Names(source)
    for where, cells in rows:
        if len(cells) != len(columns):
            raise ConfigError(source, f"{where}: {len(cells)} cells under {len(columns)} columns ({', '.join(header)})")
        row = dict(zip(columns, cells, strict=True))
        told = {column: cell for column, cell in row.items() if column != "node" and cell not in {"", "-"}}
        for node in names(row["node"], where):
            if node in facts:
                raise ConfigError(source, f"{where}: node {node} is there already")
            facts[node] = told
    if not facts:
        raise ConfigError(source, "has a header and no node")
    return Topology(
        switches=_paths(facts) or None,
        node_domains=_column(facts, "domain") or None,
        racks=_column(facts, "rack") or None,
        blocks=_column(facts, "block") or None,
        source=source,
    )


def _rows(text: str) -> Iterator[tuple[str, list[str]]]:
    """("line 3", cells) of each line that says something; by commas if the first such line has one outside brackets."""
    commas: bool | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        commas = "," in content if commas is None else commas
        cells = [cell.strip() for cell in next(csv.reader([content]))] if commas else content.split()
        yield f"line {number}", cells


def _column(facts: dict[str, dict[str, str]], column: str) -> dict[str, str]:
    return {node: told[column] for node, told in facts.items() if column in told}


def _paths(facts: dict[str, dict[str, str]]) -> dict[str, tuple[str, ...]]:
    """Node -> the switches above it, closest first, up to the first that is not known. Without a leaf there is none."""
    paths = {}
    for node, told in facts.items():
        path = []
        for tier in ("leaf", "spine", "core"):
            if tier not in told:
                break
            path.append(told[tier])
        if path:
            paths[node] = tuple(path)
    return paths
