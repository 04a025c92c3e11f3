"""Slurm: srun starts one task per GPU, and its distribution says which task goes to which node.

block fills one node after the other, cyclic deals one task to each node in turn, plane=N deals N at a time, arbitrary reads a host per task from a file (SLURM_HOSTFILE, which
overrides any other method). Without a method: block when there are more tasks than nodes, else cyclic; since 26.05, with a topology plugin, in topology order. A
node that has its number of tasks is passed over. Fields after the first (":cyclic") bind tasks to CPUs inside a node, and Pack or NoPack decide the counts,
which launch.tasks_per_node tells. Source: man srun, --distribution; all of it but topology order tried with Slurm 22.05 (tests/plan/launchers).
"""

import re
from collections.abc import Sequence

from preflight.errors import ConfigError
from preflight.model import Job, Topology
from preflight.model.hostlist import natural_key, unfold
from preflight.plan.launchers.seats import (
    MAX_RANKS,
    Seats,
    deal,
    file_name,
    idle_note,
    line_fault,
    node_counts,
    read_entries,
    seat_listed,
)
from preflight.plan.values import show

TOPOLOGY_ORDER_SINCE = (
    26,
    5,
)  # Slurm 26.05's list of changes: steps follow topology order, CR_NO_DIST_TOPO_BLOCK disables it
_EXPECTED = "block, cyclic, plane=N or arbitrary, with ,Pack or ,NoPack after it if needed"


def seat(job: Job, names: Sequence[str], gpus_per_node: int, topology: Topology | None = None) -> Seats:
    """Where srun puts the ranks. `names` in the order of the job's node list. Raises ConfigError where Slurm would refuse, or the facts contradict each other."""
    note = _check_segment(job, names, topology) + _order_note(job, names)
    method, size = parse_distribution(job)
    if method == "arbitrary" or job.launch.hostfile is not None:
        return _seat_arbitrary(job, names, gpus_per_node, note)
    counts = node_counts(job, names, gpus_per_node)
    if method in {"block", "cyclic", "plane"}:
        size = {"block": max(counts), "cyclic": 1}.get(method, size)
        shown = f"plane={size}" if method == "plane" else method
        return Seats(f"slurm {shown}{note}", tuple(names), *deal(counts, size))
    order, doubt = _default_order(job, names, topology)
    counts, names = [counts[node] for node in order], [names[node] for node in order]
    if sum(counts) == len(names):
        shown = "cyclic (default: no more tasks than nodes)"
    else:
        shown = "block (default: more tasks than nodes)"
    if order != sorted(order):
        shown += ", nodes in topology order"
    return Seats(f"slurm {shown}{note}", tuple(names), *deal(counts, max(counts)), doubt)


def parse_distribution(job: Job) -> tuple[str, int]:
    """The method ("block", "cyclic", "plane", "arbitrary", "" for Slurm's default) and the plane's size, 0 for the others. Raises ConfigError."""
    text = job.launch.distribution
    if text is None:
        return "", 0
    method, *options = text.strip().lower().split(",")
    first = method.split(":")[0]
    plane = re.fullmatch(r"plane=([1-9][0-9]{0,8})", first)
    if first == "plane":
        remedy = "write plane=4, say; Slurm reads it from SLURM_DIST_PLANESIZE otherwise"
        raise ConfigError(job.source, f"{show(text)} has no plane size", key="launch.distribution", remedy=remedy)
    if not (plane or first in {"block", "cyclic", "arbitrary", "*", ""}) or not set(options) <= {"pack", "nopack"}:
        problem = f"{show(text)} is no distribution of Slurm"
        raise ConfigError(job.source, problem, key="launch.distribution", remedy=f"write {_EXPECTED}")
    if plane:
        return "plane", int(plane[1])
    return ("" if first == "*" else first), 0


def _seat_arbitrary(job: Job, names: Sequence[str], gpus_per_node: int, note: str) -> Seats:
    path = job.launch.hostfile
    if path is None:  # man srun tells of a fall back to block, but srun of 22.05 refuses
        remedy = "write hostfile under [launch]: the file that SLURM_HOSTFILE names, one host per rank"
        raise ConfigError(job.source, "is missing, and distribution is arbitrary", key="launch.hostfile", remedy=remedy)
    if job.launch.segment is not None:
        problem = f"{job.launch.segment}, but an arbitrary distribution doesn't go with topology features"
        raise ConfigError(job.source, problem, key="launch.segment", remedy="leave out one of segment and hostfile")
    listed = read_hostfile(path)
    lines, hosts = [line for line, _ in listed], [host for _, host in listed]
    nodes, node_ranks, local_ranks = seat_listed(job, names, gpus_per_node, hosts, lines)
    return Seats(f"slurm arbitrary: {file_name(path)}{idle_note(names, nodes)}{note}", nodes, node_ranks, local_ranks)


def read_hostfile(path: str) -> list[tuple[int, str]]:
    """(line, host) of each rank. A line may hold several hosts with commas, "n1*4" for four ranks on n1, and "n[1-4]". Raises ConfigError."""
    listed: list[tuple[int, str]] = []
    known: dict[str, list[str]] = {}  # a host has as many lines as ranks
    for line, text in read_entries(path):
        if text not in known:
            known[text] = [
                host for part in re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", text) for host in _hosts(path, line, part)
            ]
        listed += [(line, host) for host in known[text]]
        if len(listed) > MAX_RANKS:
            raise line_fault(path, line, f"is rank {MAX_RANKS} or more", "no job has so many ranks: correct the file")
    if not listed:
        raise ConfigError(path, "names no host", remedy="write one host per line, in the order of the ranks")
    return listed


def _hosts(path: str, line: int, part: str) -> list[str]:
    """The hosts of one item of a line: "n1", "n1*4" or "n[1-4]"."""
    host, star, times = part.partition("*")
    count = int(times) if re.fullmatch(r"[1-9][0-9]{0,5}", times) else 0
    try:
        hosts = unfold(host.strip())
    except ValueError:
        hosts = []
    if not hosts or (star and not count) or count * len(hosts) > MAX_RANKS:
        remedy = "write one host per line, in the order of the ranks"
        raise line_fault(path, line, f"{show(part)} is not a host, or host*ranks", remedy)
    return [name for name in hosts for _ in range(count or 1)]


def _default_order(job: Job, names: Sequence[str], topology: Topology | None) -> tuple[list[int], str | None]:
    """Positions of the nodes in the order in which Slurm's default takes them, and why that is not certain."""
    given, version = list(range(len(names))), parse_version(job)
    order = topology_order(names, topology)
    if version is None:
        if order is None or order == given:
            return given, None
        return (
            given,
            "since 26.05 Slurm would take the nodes in topology order: write slurm_version or distribution under [launch]",
        )
    if version < TOPOLOGY_ORDER_SINCE:
        return given, None
    if order is None:
        return given, (
            "since 26.05 Slurm takes the nodes in topology order if it has a topology plugin, and no file tells the topology of all of them: "
            'write topology or distribution = "block" under [launch]'
        )
    if order == given:
        return order, None
    return order, (
        "topology order is taken to be the order of the topology file; CR_NO_DIST_TOPO_BLOCK would keep the order of the node list: "
        'write distribution = "block" under [launch], and use it'
    )


def topology_order(names: Sequence[str], topology: Topology | None) -> list[int] | None:
    """Positions of the nodes with those of one switch (or of one block) together, switches as they come in the file; None: not known for all."""
    if topology is None:
        return None
    above = topology.switches or {name: (domain,) for name, domain in (topology.node_domains or {}).items()}
    if any(name not in above for name in names):
        return None
    first_seen: dict[str, int] = {}
    for switches in above.values():
        for switch in switches:
            first_seen.setdefault(switch, len(first_seen))
    return sorted(range(len(names)), key=lambda node: [first_seen[switch] for switch in reversed(above[names[node]])])


def parse_version(job: Job) -> tuple[int, int] | None:
    """(26, 5) for "26.05" or "26.05.1"; None: not said. Raises ConfigError."""
    text = job.launch.slurm_version
    if text is None:
        return None
    match = re.fullmatch(r"(?:slurm )?([0-9]{2})\.([0-9]{2})(?:[.\-].*)?", text.strip().lower())
    if match is None:
        remedy = 'write it as `srun --version` prints it: "26.05"'
        raise ConfigError(job.source, f"{show(text)} is no version of Slurm", key="launch.slurm_version", remedy=remedy)
    return int(match[1]), int(match[2])


def _order_note(job: Job, names: Sequence[str]) -> str:
    """What to add to the method where launch.hosts is in an order that Slurm's node list hardly has: `srun --nodelist=n10,n2` puts rank 0 on n2."""
    if job.launch.hosts is None or job.launch.hostfile is not None or list(names) == sorted(names, key=natural_key):
        return ""
    return " (hosts as given; Slurm lists the nodes of a job by name, unless its site says otherwise, in whatever order --nodelist has them)"


def _check_segment(job: Job, names: Sequence[str], topology: Topology | None) -> str:
    """What to add to the method about --segment. Raises ConfigError where Slurm would refuse it, or the nodes can't come from it.

    The number of nodes is a multiple of it; each segment lies in one block, so the nodes of each block are a multiple too. The order of nodes is not changed by it.
    """
    segment = job.launch.segment
    if segment is None:
        return ""
    key = "launch.segment"
    if len(names) % segment:
        remedy = f"use a divisor of {len(names)}, or {len(names) // segment * segment or segment} nodes"
        raise ConfigError(job.source, f"{segment} does not divide the {len(names)} nodes", key=key, remedy=remedy)
    blocks = topology.node_domains if topology is not None and topology.node_domains is not None else {}
    if any(name not in blocks for name in names):
        return f", segment {segment} (the blocks of the nodes are not known)"
    members: dict[str, int] = {}
    for name in names:
        members[blocks[name]] = members.get(blocks[name], 0) + 1
    for block, count in members.items():
        if count % segment:
            problem = f"{segment}, but {count} of the nodes are in block {show(block)}, and a segment lies in one block"
            raise ConfigError(job.source, problem, key=key, remedy="correct hosts, segment or the topology file")
    split = sum(len({blocks[name] for name in names[i : i + segment]}) > 1 for i in range(0, len(names), segment))
    note = f"; {split} of {len(names) // segment} runs of {segment} nodes lie in several blocks" if split else ""
    return f", segment {segment}: each block holds whole segments{note}"
