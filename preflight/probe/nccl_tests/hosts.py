"""Which hosts took part in a run that died before it listed its devices: its file is often called after them (node003_node008.log)."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath

import msgspec

from preflight.probe.nccl_tests.run import Run

FROM_NAME = "the name of its file"
_LIKE_A_HOST = re.compile(r"(?<![A-Za-z0-9])([A-Za-z][A-Za-z0-9.-]*?)(\d+)(?![A-Za-z0-9])")
_CHUNK = 500  # names in one pattern


def with_hosts(runs: Sequence[Run]) -> list[Run]:
    """The runs, those without hosts with the hosts that their file's name tells: ones that other runs listed and words that are like them but for the number (a node all of whose runs
    died is listed nowhere), else two words that are alike but for a number.
    """
    known = Counter(host for run in runs for host in run.hosts)
    spelled = {
        **{host.partition(".")[0]: host for host in sorted(known, reverse=True)},
        **{host: host for host in known},
    }
    patterns = list(_patterns(sorted(spelled, key=lambda host: (-len(host), host))))
    return [run if run.hosts else _named(run, spelled, patterns) for run in runs]


def _patterns(names: Sequence[str]) -> Iterator[re.Pattern[str]]:
    for start in range(0, len(names), _CHUNK):
        yield re.compile(
            rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, names[start : start + _CHUNK]))})(?![A-Za-z0-9])"
        )


def _named(run: Run, spelled: dict[str, str], patterns: Sequence[re.Pattern[str]]) -> Run:
    name = PurePath(run.source.rpartition(":")[0] if re.search(r":\d+$", run.source) else run.source).name
    stem = re.sub(r"\.(log|txt|out|err|json)+$", "", name)
    hosts = tuple(dict.fromkeys(spelled[found] for pattern in patterns for found in pattern.findall(stem)))
    hosts = (*hosts, *_unlisted(stem, hosts or spelled)) if spelled else _alike(stem)
    return msgspec.structs.replace(run, hosts=hosts, hosts_from=FROM_NAME) if hosts else run


def _unlisted(stem: str, listed: Iterable[str]) -> Iterator[str]:
    """Words of a name that differ from a listed host in their number alone, which has as many digits: gpu-06 in gpu-01_gpu-06, where gpu-01 is listed."""
    short = {host.partition(".")[0] for host in listed}
    shapes = {(found[1], len(found[2])) for host in short if (found := _LIKE_A_HOST.fullmatch(host))}
    for prefix, number in dict.fromkeys(_LIKE_A_HOST.findall(stem.replace("_", " "))):
        if (prefix, len(number)) in shapes and prefix + number not in short:
            yield prefix + number


def _alike(stem: str) -> tuple[str, ...]:
    """Two or more words of a name that differ in their number alone."""
    words: dict[str, list[str]] = {}
    for prefix, number in _LIKE_A_HOST.findall(stem.replace("_", " ")):
        words.setdefault(prefix, []).append(prefix + number)
    best = max(words.values(), key=len, default=[])
    return tuple(dict.fromkeys(best)) if len(best) > 1 else ()
