"""mpirun: by slot (nodes are filled one after the other), by node (one rank per node in turn), or a rankfile.

A rankfile names the host of each rank, "rank 3=gpu-01 slot=2"; its lines may come in any order, and the slot names CPU cores, not a GPU: the local rank is the rank's
place among those of its host. "+n2" means the third node of the allocation. By slot is the default as far as nodes go. Source: Open MPI's mpirun manual page, --map-by and
"Rankfiles".
"""

import re
from collections.abc import Sequence

from preflight.errors import ConfigError
from preflight.model import Job
from preflight.plan.launchers.seats import (
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

_LINE = re.compile(r"rank\s+([0-9]{1,9})\s*=\s*([^\s=]+)(?:\s+slots?\s*=\s*\S+)?", re.IGNORECASE)
_RELATIVE = re.compile(r"\+n([0-9]{1,9})", re.IGNORECASE)
_BY = {"by-slot": "slot", "slot": "slot", "by-node": "node", "node": "node"}


def seat(job: Job, names: Sequence[str], gpus_per_node: int) -> Seats:
    """Where mpirun puts the ranks. Raises ConfigError for another distribution, a wrong rankfile, and where it contradicts the nodes of the job."""
    path, text = job.launch.hostfile, job.launch.distribution
    by = None if text is None else _BY.get(text.strip().lower())
    if text is not None and by is None:
        remedy = 'write "by-slot" or "by-node", or give a rankfile as hostfile'
        raise ConfigError(
            job.source, f"{show(text)} is no distribution of mpirun", key="launch.distribution", remedy=remedy
        )
    if path is not None:
        placed = read_rankfile(path, names)
        lines, hosts = [line for line, _ in placed], [host for _, host in placed]
        nodes, node_ranks, local_ranks = seat_listed(job, names, gpus_per_node, hosts, lines)
        method = f"mpi rankfile: {file_name(path)}{idle_note(names, nodes)}"
        return Seats(method, nodes, node_ranks, local_ranks)
    counts = node_counts(job, names, gpus_per_node)
    dealt = deal(counts, 1 if by == "node" else max(counts))
    return Seats(f"mpi by {by or 'slot (its default)'}", tuple(names), *dealt)


def read_rankfile(path: str, names: Sequence[str] = ()) -> list[tuple[int, str]]:
    """(line, host) of each rank, by rank. `names`: the nodes that "+n0", "+n1", ... mean. Raises ConfigError, for a rank missing or twice with the first one named."""
    placed: dict[int, tuple[int, str]] = {}
    for line, text in read_entries(path):
        match = _LINE.fullmatch(text)
        if match is None:
            remedy = 'write it as in "rank 0=gpu-01 slot=0"'
            raise line_fault(path, line, f"{show(text)} is not a rank and its host", remedy)
        rank, host = int(match[1]), match[2]
        if rank in placed:
            problem = f"rank {rank} is already on line {placed[rank][0]}"
            raise line_fault(path, line, problem, "write each rank once")
        relative = _RELATIVE.fullmatch(host) if host.startswith("+") else None
        if relative and names:
            position = int(relative[1])
            if position >= len(names):
                problem = f"{host} is node {position} counted from 0, but there are {len(names)}"
                raise line_fault(path, line, problem, "name a node of the job")
            host = names[position]
        placed[rank] = (line, host)
    if not placed:
        raise ConfigError(path, "names no rank", remedy='write lines as in "rank 0=gpu-01 slot=0"')
    missing = next(rank for rank in range(len(placed) + 1) if rank not in placed)
    if missing < len(placed):
        highest = max(placed)
        remedy = f"write a line for each rank from 0 to {highest}"
        raise ConfigError(path, f"rank {missing} is missing; the highest is {highest}", remedy=remedy)
    return [placed[rank] for rank in range(len(placed))]
