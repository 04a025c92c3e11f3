"""Files that list hosts: DeepSpeed's hostfile ("node1 slots=8") and MPI's rankfile ("rank 0=node1 slot=0")."""

import re
from collections import Counter

from preflight.errors import ConfigError
from preflight.model.hostlist import fold, unfold
from preflight.plan.importers.facts import Facts

MAX_HOSTS = 2**20
MAX_TEXT = 200  # characters of a text in a plan file; a longer list of hosts stays in its own file

_SLOTS = re.compile(r"([A-Za-z0-9][\w.\-]{0,254})[ \t]+slots[ \t]*=[ \t]*(\d{1,6})[ \t]*(?:max[-_]slots=\d+)?[ \t]*")
_RANK = re.compile(
    r"rank[ \t]+(\d{1,9})[ \t]*=[ \t]*([A-Za-z0-9][\w.\-]{0,254})[ \t]+slots?[ \t]*=[ \t]*(\S{1,100})[ \t]*"
)


def _rows(text: str) -> list[tuple[int, str]]:
    """(line number, content) without comments and empty lines."""
    stripped = ((number, line.split("#", 1)[0].strip()) for number, line in enumerate(text.split("\n"), 1))
    return [(number, line) for number, line in stripped if line][:MAX_HOSTS]


def is_hostfile(text: str) -> bool:
    """Whether the first lines are all of a hostfile with slots."""
    rows = _rows(text[:100_000])[:20]
    return bool(rows) and all(_SLOTS.fullmatch(line) for _, line in rows)


def is_rankfile(text: str) -> bool:
    """Whether the first lines are all of a rankfile."""
    rows = _rows(text[:100_000])[:20]
    return bool(rows) and all(_RANK.fullmatch(line) for _, line in rows)


def read_hostfile(text: str, name: str, path: str) -> Facts:
    """Hosts in the order of their ranks, and their slots. Raises ConfigError for a line of another kind and for a host named twice."""
    facts, slots = Facts(), {}
    for number, line in _rows(text):
        match = _SLOTS.fullmatch(line)
        if match is None:
            raise ConfigError(
                f"{name}:{number}",
                f"{line[:80]!r} is not a host with its slots",
                remedy="write it as in: node1 slots=8",
            )
        if match[1] in slots:
            raise ConfigError(
                f"{name}:{number}",
                f"{match[1]!r} is named twice, which DeepSpeed refuses",
                remedy="name each host once",
            )
        slots[match[1]] = int(match[2])
    counts = sorted(set(slots.values()))
    facts.say("launch.launcher", "deepspeed", f"{name} is a hostfile", default=True)
    facts.say("launch.hostfile", path, f"{name} is a hostfile")
    facts.say("hardware.nodes", len(slots), f"{name} {len(slots)} hosts")
    say_hosts(list(slots), f"{name} {len(slots)} hosts", facts)
    if len(counts) == 1:
        facts.say("hardware.gpus_per_node", counts[0], f"{name} slots={counts[0]}")
    else:
        facts.note(f"{name}: hosts have {', '.join(map(str, counts))} slots: DeepSpeed then rotates local ranks")
    return facts


def read_rankfile(text: str, name: str, path: str) -> Facts:
    """MPI's rankfile: which host each rank sits on. Raises ConfigError for a line of another kind."""
    facts, hosts = Facts(), Counter[str]()
    for number, line in _rows(text):
        match = _RANK.fullmatch(line)
        if match is None:
            raise ConfigError(
                f"{name}:{number}",
                f"{line[:80]!r} is not a rank with its host",
                remedy="write it as in: rank 0=node1 slot=0",
            )
        hosts[match[2]] += 1
    facts.say("launch.launcher", "mpi", f"{name} is a rankfile", default=True)
    facts.say("launch.hostfile", path, f"{name} is a rankfile")
    facts.say("hardware.nodes", len(hosts), f"{name} {len(hosts)} hosts")
    if len(set(hosts.values())) == 1:
        facts.say("hardware.gpus_per_node", next(iter(hosts.values())), f"{name} ranks per host")
    return facts


def say_hosts(hosts: list[str], origin: str, facts: Facts) -> None:
    """launch.hosts, folded if that keeps their order; a list that is too long for a plan file stays out."""
    folded = fold(hosts)
    plain = ",".join(hosts)
    shown = folded if unfold(folded) == hosts else plain
    if len(shown) <= MAX_TEXT:
        facts.say("launch.hosts", shown, origin)
    else:
        facts.note(f"{origin}: too long a list for launch.hosts; --nodes and the hostfile tell their order")
