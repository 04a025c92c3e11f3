"""The words of `nvidia-smi topo`'s tables: one line of a header or of a row, columns that run together taken apart.

A cell that can't be told for certain is None: a row that is too short or too long says nothing about the columns in doubt.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

MAX_PREFIX = 12  # words before a row: a log's time, level, host

# nvidia-smi topo -h; SOC and PSB are the words of old releases for SYS and for one board
_RELATION = r"NV\d{1,3}|NODE|PIX|PXB|PHB|SYS|SOC|PSB"
_STATUS = r"CNS|GNS|TNS|NS|OK|DR|U"
_VALUE = re.compile(rf"{_RELATION}|{_STATUS}|X")
_VALUES = re.compile(rf"(?:{_RELATION}|{_STATUS}|X)+")
_NO_VALUE = re.compile(r"N/A|ERR!?|\?|-")
_LABEL_AND_VALUES = re.compile(rf"((?:GPU|NIC)\d{{1,3}})((?:{_RELATION}|X)+)")
_VALUES_AND_LIST = re.compile(rf"((?:{_RELATION})*(?:NODE|PIX|PXB|PHB|SYS|SOC))(\d[\d,-]*)")
_LIST = re.compile(r"\d[\d,-]*|N/A")
_DEVICE = re.compile(r"[A-Za-z][A-Za-z_-]*\d[\w.-]{0,40}")
_GPU = re.compile(r"GPU\d{1,3}")
_TOGETHER = re.compile(r"(?<=\d)(?=(?:GPU|NIC)\d|mlx\d)")
_AFFINITY = re.compile(r"CPU\s{0,8}Affinity|NUMA\s{0,8}Affinity|GPU\s{0,8}NUMA\s{0,8}ID", re.IGNORECASE)
_PART_OF_AFFINITY = re.compile(r"CPU|NUMA|GPU|ID|Aff?i?n?i?t?|n?i?ty|y", re.IGNORECASE)  # cut by a wrapped line

CPU, NUMA, OWN_NUMA = "cpu", "numa", "own numa"  # the columns behind the devices
_COLUMNS = {"cpuaffinity": CPU, "numaaffinity": NUMA, "gpunumaid": OWN_NUMA}


class Row(NamedTuple):
    """One device's row: a cell for each device of the header, and the columns behind them by name. `fault`: why cells are missing."""

    cells: tuple[str | None, ...]
    behind: dict[str, str]
    fault: str | None = None


def is_gpu(label: str) -> bool:
    """Whether it is a name like GPU0."""
    return _GPU.fullmatch(label) is not None


def is_status(word: str) -> bool:
    """Whether it is a word of the tables of peer access."""
    return re.fullmatch(_STATUS, word) is not None


def header_devices(line: str) -> list[str] | None:
    """The devices that a header, or the rest of a wrapped one, names. None: it is no such line."""
    behind = _AFFINITY.search(line)
    words = _TOGETHER.sub(" ", line[: behind.start()] if behind else line).split()
    start = next((i for i, word in enumerate(words[:MAX_PREFIX]) if is_gpu(word)), 0)
    end = start
    while end < len(words) and _DEVICE.fullmatch(words[end]) and not _VALUE.fullmatch(words[end]):
        end += 1
    if not all(_PART_OF_AFFINITY.fullmatch(word) for word in words[end:]):
        return None
    return words[start:end] if behind or end - start > 1 else None


def header_columns(header: str) -> list[str]:
    """The columns behind the devices, by the text of the header."""
    return [_COLUMNS["".join(found.split()).lower()] for found in _AFFINITY.findall(header)]


def find_row(line: str, devices: Sequence[str]) -> tuple[str | None, list[str]]:
    """The label of the row that a line begins, and the words behind it; without one, all words (those that may go on with the row before)."""
    words = list(_words(line.split()))
    for i, word in enumerate(words[:MAX_PREFIX]):
        if word in devices or is_gpu(word):
            goes_on = words[i + 1 : i + 2]
            if goes_on and (_VALUE.fullmatch(goes_on[0]) or _NO_VALUE.fullmatch(goes_on[0])):
                return word, words[i + 1 :]
            break
    return None, words


def may_continue(words: Sequence[str]) -> bool:
    """Whether a line holds nothing but cells: the rest of a row that was wrapped."""
    return all(_VALUE.fullmatch(word) or _LIST.fullmatch(word) for word in words)


def parse_row(label: str, words: list[str], devices: Sequence[str], columns: Sequence[str]) -> Row:
    """The cells of a row. Where their number is not the header's, only those that are certain."""
    cells: list[str | None] = []
    for word in words[: len(devices)]:
        if not _VALUE.fullmatch(word) and not _NO_VALUE.fullmatch(word):
            break
        cells.append(word if _VALUE.fullmatch(word) else None)
    rest, number = words[len(cells) :], len(cells)
    gpus = next((i for i, device in enumerate(devices) if not is_gpu(device)), len(devices))
    fault = None
    if rest and _VALUE.fullmatch(rest[0]):
        fault, cells, rest = f"the row of {label} has more cells than the header", cells[:gpus], []
    elif number < len(devices) and rest and number != gpus:
        fault, cells, rest = f"the row of {label} has {number} cells, the header {len(devices)}", [], []
    if label in devices and (at := devices.index(label)) < len(cells) and cells[at] != "X":
        fault, cells, rest = f"the row of {label} doesn't fit the header", [], []
    return Row((*cells, *[None] * (len(devices) - len(cells))), _behind(rest, columns), fault)


def _behind(words: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """The values behind the cells, by column. A blank CPU list (a cgroup that leaves none) is told by the columns behind it, which print N/A."""
    if (
        list(columns) == [CPU, NUMA, OWN_NUMA]
        and len(words) == 2
        and words[0].isascii()
        and words[0].isdigit()
        and words[1] == "N/A"
    ):
        columns = columns[1:]
    return dict(zip(columns, words, strict=True)) if len(words) == len(columns) else {}


def _words(words: Iterable[str]) -> Iterator[str]:
    """The words of a row, those that run together taken apart."""
    for word in words:
        label, values, behind = "", word, ""
        if found := _LABEL_AND_VALUES.fullmatch(word):
            label, values = found.groups()
        elif found := _VALUES_AND_LIST.fullmatch(word):
            values, behind = found.groups()
        parts = _VALUE.findall(values) if _VALUES.fullmatch(values) else [values]
        yield from filter(None, (label, *parts, behind))
