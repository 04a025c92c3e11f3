"""The DeepSpeed launcher: lines of a hostfile, "host slots=8"; the order of the lines is the order of the ranks.

A local rank is the global rank modulo the node's slots, so that on nodes with unequal slots local ranks are rotated: a node with 4 slots, then one
with 8: ranks 4 to 11 get local ranks 4, 5, 6, 7, 0, 1, 2, 3. Source: deepspeed/launcher/runner.py (hostfile, duplicates refused) and launch.py (local_rank).
"""

import re
from collections.abc import Sequence
from itertools import accumulate, chain, repeat

from preflight.errors import ConfigError
from preflight.model import Job
from preflight.plan.launchers.seats import (
    MAX_NODE_RANKS,
    Seats,
    file_name,
    idle_note,
    line_fault,
    node_counts,
    read_entries,
    refuse_crowd,
    unknown_host,
)
from preflight.plan.values import show

_LINE = re.compile(r"(\S+)\s+slots=([0-9]{1,9})(?:\s.*)?")


def seat(job: Job, names: Sequence[str], gpus_per_node: int) -> Seats:
    """Where the DeepSpeed launcher puts the ranks. Raises ConfigError for a wrong hostfile, and where it contradicts the nodes of the job."""
    path, doubt = job.launch.hostfile, None
    if path is None:
        hosts, counts = list(names), node_counts(job, names, gpus_per_node)
        method = "deepspeed: nodes in the order given"
        if len(names) > 1:
            doubt = "the order of the lines of DeepSpeed's hostfile decides, and none was given: write hostfile under [launch]"
    else:
        slots = read_hostfile(path)
        known = set(names)
        for host, (line, count) in slots.items():
            if host not in known:
                raise unknown_host(path, line, host, names)
            refuse_crowd(job, f"launch.hostfile: line {line}", host, count, gpus_per_node)
        hosts, counts = list(slots), [count for _, count in slots.values()]
        _refuse_other_counts(job, names, gpus_per_node, dict(zip(hosts, counts, strict=True)))
        method = f"deepspeed: the lines of {file_name(path)}{idle_note(names, hosts)}"
    starts = accumulate(counts, initial=0)
    local_ranks = chain.from_iterable(
        ((first + i) % count for i in range(count)) for first, count in zip(starts, counts, strict=False)
    )
    node_ranks = chain.from_iterable(repeat(node, count) for node, count in enumerate(counts))
    return Seats(method, tuple(hosts), tuple(node_ranks), tuple(local_ranks), doubt)


def read_hostfile(path: str) -> dict[str, tuple[int, int]]:
    """Host -> (line, slots), in the order of the lines. Raises ConfigError."""
    slots: dict[str, tuple[int, int]] = {}
    for line, text in read_entries(path):
        match = _LINE.fullmatch(text)
        if match is None or not 1 <= int(match[2]) <= MAX_NODE_RANKS:
            raise line_fault(path, line, f"{show(text)} is not a host and its slots", 'write it as in "gpu-01 slots=8"')
        if match[1] in slots:
            before = slots[match[1]][0]
            problem = f"{show(match[1])} is already on line {before}, and DeepSpeed refuses a host twice"
            raise line_fault(path, line, problem, "write each host once, with all of its slots")
        slots[match[1]] = (line, int(match[2]))
    if not slots:
        raise ConfigError(path, "names no host", remedy='write lines as in "gpu-01 slots=8"')
    return slots


def _refuse_other_counts(job: Job, names: Sequence[str], gpus_per_node: int, slots: dict[str, int]) -> None:
    """Raises ConfigError where launch.tasks_per_node contradicts the hostfile."""
    if job.launch.tasks_per_node is None:
        return
    for name, count in zip(names, node_counts(job, names, gpus_per_node), strict=True):
        if slots.get(name, 0) != count:
            problem = f"{count} on {name}, but the hostfile gives it {slots.get(name, 0)}"
            raise ConfigError(
                job.source, problem, key="launch.tasks_per_node", remedy="leave it out: the hostfile decides"
            )
