"""The tables of `nvidia-smi topo`, found in a text that a person pasted: log lines before them, quoting, fences, escape sequences, wrapped lines and columns that run
together are all seen in bug reports (https://github.com/vllm-project/vllm/issues/31594 and 13855, https://github.com/NVIDIA/nccl-tests/issues/29 and 78).
"""

import re
from typing import NamedTuple

from preflight.discover.snapshots.cells import (
    Row,
    find_row,
    header_columns,
    header_devices,
    is_gpu,
    is_status,
    may_continue,
    parse_row,
)

MAX_LINE = 8192  # characters; a row of 16 GPUs and 128 NICs has some 1200
MAX_GAP = 5  # lines between a command and its table, or without a row at a table's end
MAX_DEVICES, MAX_TABLES = 256, 64  # of one header, of one text

_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|(?:\^\[|\\(?:x1b|033|e))?\[\d{0,3}(?:;\d{1,3})*m")
_COMMAND = re.compile(r"\btopo\s+--?(matrix_pci|mp|matrix|m|p2p_status|p2p)\b(?:[=\s]+([rwnap]{1,5})\b)?")
_LEGEND = re.compile(r"\W*(NV#|SYS|SOC|PIX|PHB|OK)\s+=\s")
_NIC_LEGEND = re.compile(r"\W*(NIC\d{1,3})\s*:\s*([\w.-]{1,64})\W*$")
_TRUNCATED = re.compile(r"\d{1,5} NICs found, only displaying \d{1,5}")
_MAY_BEGIN = re.compile(r"GPU\d|topo")
_VIEWS = {"matrix": "m", "m": "m", "matrix_pci": "mp", "mp": "mp", "p2p": "p2p", "p2p_status": "p2p"}


class Table(NamedTuple):
    """One table. `devices`: those of the header -> column. `view`: "m", "mp" or "p2p", as the command before it says, None if none does; `p2p`: the letters of its kinds. `nvlink_in_legend`: its legend explains NV#.

    `names`: NIC0 -> mlx5_0. `truncated`: the line that says so. `twice`: labels that have a second row.
    """

    devices: dict[str, int]
    rows: dict[str, Row]
    view: str | None = None
    p2p: str = ""
    nvlink_in_legend: bool = False
    names: dict[str, str] = {}
    truncated: str | None = None
    twice: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs that header or rows name, in order."""
        return tuple(sorted({int(label[3:]) for label in (*self.devices, *self.rows) if is_gpu(label)}))

    @property
    def words(self) -> set[str]:
        """What the cells say of pairs."""
        return {cell for row in self.rows.values() for cell in row.cells if cell is not None and cell != "X"}

    @property
    def is_p2p(self) -> bool:
        """Whether it shows the status of peer access, not distances."""
        return all(map(is_status, self.words)) if self.words else self.view == "p2p"

    @property
    def has_nvlink(self) -> bool:
        """Whether some cell is NV#."""
        return any(word.startswith("NV") for word in self.words)

    def cell(self, row: str, column: str) -> str | None:
        """What the row of one device says of another; None: nothing, or unknown."""
        found = self.rows.get(row)
        return found.cells[self.devices[column]] if found and column in self.devices else None


def find_tables(text: str) -> list[Table]:
    """The tables of a text that have at least one row, in order; no more than MAX_TABLES."""
    reader = _Reader()
    for line in text.splitlines():
        if len(reader.tables) == MAX_TABLES:
            break
        reader.read(line)
    reader.finish()
    return reader.tables


class _Reader:
    """Goes over the lines once; `draft` is the table under way."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self.draft: _Draft | None = None
        self.view: str | None = None
        self.p2p = ""
        self.view_age = 0
        self.truncated: str | None = None  # told before its table

    def read(self, line: str) -> None:
        """Take one line in."""
        if len(line) > MAX_LINE or not line.strip():
            return
        self.view_age += 1
        if self.draft is None and (found := _TRUNCATED.search(line)):
            self.truncated = found[0]
        if self.draft is None and not _MAY_BEGIN.search(line):
            return
        line = "".join(char if char.isprintable() else " " for char in _ESCAPE.sub("", line))
        line = line.replace("|", " ").replace("`", " ").strip()
        if found := _COMMAND.search(line):
            self.finish()
            self.view, self.p2p, self.view_age = _VIEWS[found[1]], found[2] or "", 0
            return
        devices = header_devices(line)
        if devices is not None and self._takes_header(devices, line):
            return
        if self.draft is not None:
            self.draft.read(line)

    def _takes_header(self, devices: list[str], line: str) -> bool:
        draft = self.draft
        if (
            draft is not None
            and not draft.rows
            and not set(devices) & set(draft.devices)
            and len(draft.devices) < MAX_DEVICES
        ):
            draft.devices += devices  # a header that was wrapped
            draft.header += line
            return True
        if not any(map(is_gpu, devices)) or len(devices) > MAX_DEVICES:
            return False
        self.finish()
        fresh = self.view_age <= MAX_GAP
        self.draft = _Draft(devices, line, self.view if fresh else None, self.p2p if fresh else "")
        self.draft.truncated, self.truncated = self.truncated, None
        self.view, self.p2p = None, ""
        return True

    def finish(self) -> None:
        """No more lines for the table under way."""
        if self.draft is not None and self.draft.rows and len(self.tables) < MAX_TABLES:
            self.tables.append(self.draft.table())
        self.draft = None


class _Draft:
    """A table while its lines come in."""

    def __init__(self, devices: list[str], header: str, view: str | None, p2p: str) -> None:
        self.devices, self.header, self.view, self.p2p = devices, header, view, p2p
        self.rows: dict[str, list[str]] = {}
        self.twice: list[str] = []
        self.names: dict[str, str] = {}
        self.legend: set[str] = set()
        self.truncated: str | None = None
        self.last: str | None = None  # the row that a next line may go on with
        self.gap = 0

    def read(self, line: str) -> None:
        """Take in one line behind the header."""
        if found := _LEGEND.match(line):
            self.legend.add(found[1])
        elif found := _NIC_LEGEND.match(line):
            self.names.setdefault(found[1], found[2])
        elif found := _TRUNCATED.search(line):
            self.truncated = found[0]
        elif self.gap <= MAX_GAP and not self.legend:
            self._read_row(line)

    def _read_row(self, line: str) -> None:
        label, words = find_row(line, self.devices)
        if label is not None:
            self.last, self.gap = label, 0
            if label in self.rows:
                self.twice.append(label)
                self.last = None
            else:
                self.rows[label] = words
        elif self.last is not None and may_continue(words) and self._has_room(len(words)):
            self.rows[self.last] += words
        else:
            self.gap += 1
            self.last = None

    def _has_room(self, more: int) -> bool:
        return len(self.rows[self.last or ""]) + more <= len(self.devices) + len(header_columns(self.header))

    def table(self) -> Table:
        """What has come in."""
        devices = list(dict.fromkeys(self.devices))
        columns = header_columns(self.header)
        return Table(
            devices={device: column for column, device in enumerate(devices)},
            rows={label: parse_row(label, words, devices, columns) for label, words in self.rows.items()},
            view=self.view,
            p2p=self.p2p,
            nvlink_in_legend="NV#" in self.legend,
            names=self.names,
            truncated=self.truncated,
            twice=tuple(dict.fromkeys(self.twice)),
        )
