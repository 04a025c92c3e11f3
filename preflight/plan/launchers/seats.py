"""What all launchers share: how many ranks each node gets, how ranks are dealt to nodes, and reading the files that launchers read."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from preflight.errors import ConfigError
from preflight.formats import read_bytes, readable
from preflight.model import Job
from preflight.plan.values import show

MAX_FILE_BYTES = 64 * 2**20  # a line of 60 bytes for each of 2**20 ranks
MAX_RANKS = 2**20  # as many as layout takes (MAX_WORLD_SIZE)
MAX_NODE_RANKS = 4096  # far above any node; a slip of the pen must not fill the memory

_RUN = re.compile(r"([1-9][0-9]*)(?:\(x([1-9][0-9]*)\))?")


class Seats(NamedTuple):
    """What a launcher does: `nodes` in node-rank order, each with a rank at least; one entry per rank in the other two. `doubt`: why this is not certain."""

    method: str
    nodes: tuple[str, ...]
    node_ranks: tuple[int, ...]
    local_ranks: tuple[int, ...]
    doubt: str | None = None


def parse_counts(text: str) -> list[int]:
    """Tasks of each node from Slurm's run-length code: "2(x3),1" -> [2, 2, 2, 1]. Raises ValueError."""
    counts: list[int] = []
    for part in text.replace(" ", "").split(","):
        match = _RUN.fullmatch(part)
        if match is None or len(part) > 20:
            raise ValueError(f"{show(part)} is not a number of ranks such as 8, or 8(x3) for three nodes with 8 each")
        count, times = int(match[1]), int(match[2] or 1)
        if count > MAX_NODE_RANKS or times + len(counts) > 2**20:
            raise ValueError(f"{show(part)} is beyond {MAX_NODE_RANKS} ranks per node or {2**20} nodes")
        counts += [count] * times
    return counts


def node_counts(job: Job, names: Sequence[str], gpus_per_node: int) -> list[int]:
    """Ranks of each node: `launch.tasks_per_node`, where one bare number counts for every node; else `gpus_per_node` each.

    Raises ConfigError where it names another number of nodes, or more ranks than a node has GPUs.
    """
    key, text = "launch.tasks_per_node", job.launch.tasks_per_node
    if text is None:
        return [gpus_per_node] * len(names)
    try:
        counts = parse_counts(text)
    except ValueError as error:
        raise ConfigError(job.source, str(error), key=key, remedy='write it as Slurm prints it: "2(x3),1"') from None
    if len(counts) == 1 and "(" not in text:
        counts *= len(names)
    if len(counts) != len(names):
        shown = f"{show(text)} is for {_several(len(counts), 'node')}, but there are {len(names)}"
        raise ConfigError(job.source, shown, key=key, remedy="name every node, in the order of launch.hosts")
    for name, count in zip(names, counts, strict=True):
        refuse_crowd(job, key, name, count, gpus_per_node)
    return counts


def refuse_crowd(job: Job, key: str, name: str, count: int, gpus_per_node: int) -> None:
    """Raises ConfigError if a node gets more ranks than it has GPUs."""
    if count > gpus_per_node:
        shown = f"{_several(count, 'rank')} on {name}, which has {_several(gpus_per_node, 'GPU')}"
        raise ConfigError(job.source, shown, key=key, remedy="give each rank a GPU of its own: fewer ranks there")


def deal(counts: Sequence[int], size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Node and local rank of each rank, when nodes take `size` ranks at a time in turn until each has its count.

    size 1 is cyclic, the largest count or more is block, what is between is Slurm's plane. Worked example, counts 2, 1 and size 1: rank 0 on
    node 0, 1 on node 1, 2 on node 0 again, as its local rank 1.
    """
    most, num_nodes = max(counts), len(counts)
    size = min(size, most)
    # the usual case, without numpy: its import costs more than all the rest
    if min(counts) == most and most % size == 0:
        nodes = tuple(range(num_nodes))  # each number made once: 131,072 new ones would take longer than all the rest
        turn = tuple(chain.from_iterable(zip(*[nodes] * size, strict=True)))
        locals_of_turns = (tuple(range(first, first + size)) * num_nodes for first in range(0, most, size))
        return turn * (most // size), tuple(chain.from_iterable(locals_of_turns))
    import numpy as np

    per_node = np.asarray(counts)
    node_ranks = np.repeat(np.arange(len(counts)), per_node)
    local_ranks = np.arange(len(node_ranks)) - np.repeat(np.cumsum(per_node) - per_node, per_node)
    order = np.argsort(local_ranks // size, kind="stable")
    return tuple(node_ranks[order].tolist()), tuple(local_ranks[order].tolist())


def read_entries(path: str | Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of each line of a launcher's file that says something: without comment (from # on) and white space around. Raises ConfigError."""
    try:
        text = read_bytes(path, MAX_FILE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(readable(str(path)), f"is not UTF-8 text (byte {error.start})") from error
    for number, line in enumerate(text.split("\n"), 1):
        said = line.partition("#")[0].strip()
        if said:
            yield number, said


def line_fault(path: str, line: int, problem: str, remedy: str) -> ConfigError:
    """The error of one line of a launcher's file."""
    return ConfigError(readable(path), problem, key=f"line {line}", remedy=remedy)


def unknown_host(path: str, line: int, host: str, names: Sequence[str]) -> ConfigError:
    """The error of a host that is no node of the job."""
    from preflight.model.hostlist import fold

    return line_fault(
        path, line, f"{show(host)} is no node of the job", f"use the names of its nodes: {_cut(fold(names))}"
    )


def seat_listed(
    job: Job, names: Sequence[str], gpus_per_node: int, hosts: Sequence[str], lines: Sequence[int]
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]:
    """Nodes (those with ranks, in the order of `names`), node and local rank of each rank, when rank i sits on hosts[i].

    Local ranks count up on each node in rank order. `lines`: where the file says so. Raises ConfigError for a host that is no node of the job and
    for a node that gets more ranks than it has GPUs.
    """
    path = job.launch.hostfile or job.source
    index: Mapping[str, int] = {name: position for position, name in enumerate(names)}
    counts = [0] * len(names)
    node_ranks, local_ranks = [], []
    for host, line in zip(hosts, lines, strict=True):
        node = index.get(host)
        if node is None:
            raise unknown_host(path, line, host, names)
        if counts[node] == gpus_per_node:
            problem = f"one rank too many on {show(host)}, which has {_several(gpus_per_node, 'GPU')}"
            raise line_fault(path, line, problem, "give each rank a GPU of its own: fewer ranks there")
        node_ranks.append(node)
        local_ranks.append(counts[node])
        counts[node] += 1
    used = [node for node, count in enumerate(counts) if count]
    if len(used) < len(names):
        place = {node: position for position, node in enumerate(used)}
        node_ranks = [place[node] for node in node_ranks]
    return tuple(names[node] for node in used), tuple(node_ranks), tuple(local_ranks)


def idle_note(names: Sequence[str], used: Sequence[str]) -> str:
    """What to add to the method where nodes of the job get no rank, empty if all do."""
    from preflight.model.hostlist import fold

    idle = set(names) - set(used)
    return f"; without ranks: {_cut(fold(idle))}" if idle else ""


def file_name(path: str) -> str:
    """The last part of a path, for the method's words."""
    return readable(Path(path).name)


def _cut(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
