"""What NCCL says of itself (NCCL_DEBUG=INFO), read from a file in memory, and parsed: ways between ranks, network, GPUDirect, channels, settings in force.

The forms of the lines are those in public issues: NVIDIA/nccl 1189 ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "[send] via NET/IB/2/GDRDMA", "8 coll channels, 0 collnet channels, 0 nvls
channels, ..."), nccl-tests 152 (the older "Channel 00 : 0[7000] -> 8[7000] [receive] via NET/IB/0"), nccl 1537 ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "Using network IB"),
nccl 1680 and 2057 ("NCCL_MIN_CTAS set by environment to 16.", "NCCL version 2.25.1+cuda12.8", "NET/IB : No device found."). NCCL says "by environment" of what a configuration file
sets too. A line that fits nothing says nothing; whatever stands there, parsing ends and raises nothing.
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from preflight.model import Route, Transport
from preflight.model.measurement import RouteKind

SUBSYSTEMS = "INIT,GRAPH,ENV,NET"
MAX_TEXT_BYTES = 2**20  # of one probe; a communicator of eight GPUs writes some 30 kB
MAX_LINES = 20_000  # in MAX_TEXT_BYTES of real lines there are half as many; a million empty ones take seconds, which a round doesn't have
MAX_LINE, MAX_VALUE, MAX_NOTE = 2000, 100, 160  # letters
MAX_ROUTES, MAX_SETTINGS, MAX_NOTES, MAX_HCAS = 32, 64, 8, 16

_CHANNEL = re.compile(
    r"Channel \d{1,4}(?:/\d{1,4})? : (\d{1,6})\[[0-9a-fA-F]{1,16}\] -> (\d{1,6})\[[0-9a-fA-F]{1,16}\](?: \[(?:send|receive)\])? via (\S{1,60}(?: pointer)?)"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL")  # as with the settings of a node (discover/settings.py)
_CHANNELS = re.compile(
    r"\b(\d{1,4}) coll channels(?:, \d{1,4} collnet channels)?(?:, (\d{1,4}) nvls channels)?(?:, \d{1,4} p2p channels)?"
)
_NETWORK = re.compile(r"Using network (\S[^\n]{0,60})")
_VERSION = re.compile(r"NCCL version (\d[\w.+-]{0,40})")
_SETTING = re.compile(r"\b(NCCL_[A-Z0-9_]{1,60}) set (?:by environment )?to ([^\n]{0,400})")
_NO_GDR = re.compile(r"GPU Direct RDMA Disabled for HCA \d{1,4} '([^'\n]{1,64})'")
_ALGORITHM = re.compile(r": \d{1,20} Bytes -> Algo (\w{1,20}) proto (\w{1,20})")
_TELLING = re.compile(
    r"No device found|Failed to open libibverbs|Could not find: libnccl|No plugin found|No interface found|Disabled for GPU|P2P is disabled|Failed to initialize NET|multicast support is not"
)


@dataclass
class Said:
    """What one process's NCCL has said so far. Settings, network, version and GPUDirect are told once, ways and channels for each communicator."""

    settings: dict[str, str] = field(default_factory=dict)
    gdr_disabled: dict[str, None] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    network: str | None = None
    version: str | None = None
    ways: dict[tuple[int, int, str], int] = field(default_factory=dict)
    channels: int | None = None
    nvls_channels: int | None = None
    algorithm: str | None = None
    protocol: str | None = None

    def take(self, text: str) -> None:
        """Read what was written during one probe: what belongs to a communicator is forgotten first."""
        self.ways, self.channels, self.nvls_channels, self.algorithm, self.protocol = {}, None, None, None, None
        for line in text.splitlines()[:MAX_LINES]:
            self._line(line[:MAX_LINE])

    def _line(self, line: str) -> None:
        """A line belongs to the first form that it has."""
        for form, take in self._forms:
            match = form.search(line)
            if match is not None:
                take(self, match)
                return

    def _way(self, match: re.Match[str]) -> None:
        way = (int(match[1]), int(match[2]), match[3])
        if way in self.ways or len(self.ways) < MAX_ROUTES:
            self.ways[way] = self.ways.get(way, 0) + 1

    def _setting(self, match: re.Match[str]) -> None:
        if match[1] in self.settings or len(self.settings) < MAX_SETTINGS:
            self.settings[match[1]] = match[2].strip().removesuffix(".")[:MAX_VALUE]

    def _no_gdr(self, match: re.Match[str]) -> None:
        if len(self.gdr_disabled) < MAX_HCAS:
            self.gdr_disabled[match[1]] = None

    def _channels(self, match: re.Match[str]) -> None:
        self.channels, self.nvls_channels = int(match[1]), int(match[2]) if match[2] else None

    def _network(self, match: re.Match[str]) -> None:
        self.network = match[1].strip()

    def _version(self, match: re.Match[str]) -> None:
        self.version = match[1]

    def _algorithm(self, match: re.Match[str]) -> None:
        self.algorithm, self.protocol = match[1], match[2]

    def _note(self, match: re.Match[str]) -> None:
        if len(self.notes) < MAX_NOTES:
            line = match.string
            self.notes[(line.partition("NCCL ")[2] or line).strip()[:MAX_NOTE]] = None

    _forms: ClassVar[tuple[tuple[re.Pattern[str], Callable[["Said", re.Match[str]], None]], ...]] = (
        (_CHANNEL, _way),
        (_SETTING, _setting),
        (_NO_GDR, _no_gdr),
        (_CHANNELS, _channels),
        (_NETWORK, _network),
        (_VERSION, _version),
        (_ALGORITHM, _algorithm),
        (_TELLING, _note),
    )

    def transport(self, rank: int, members: Sequence[int], environ: Mapping[str, str]) -> Transport:
        """The noun. `members`: the ranks of the communicator in its order; `environ`: what the process's own environment sets."""
        ways = [
            Route(
                sender=members[sender],
                receiver=members[receiver],
                kind=kind_of(via),
                via=via,
                channels=count,
            )
            for (sender, receiver, via), count in self.ways.items()
            if sender < len(members) and receiver < len(members)
        ]
        network = [way for way in ways if way.kind == "NET" and not way.via.startswith("NET/Socket")]
        ours = {name: environ[name][:MAX_VALUE] for name in sorted(environ) if name.startswith("NCCL_")}
        settings = {name: _shown(name, value) for name, value in {**self.settings, **ours}.items()}
        shown = [name for name in settings if name not in _OUR_OWN][:MAX_SETTINGS]
        return Transport(
            rank=rank,
            routes=tuple(ways),
            network=self.network,
            gdr=all("GDRDMA" in way.via for way in network) if network else None,
            gdr_disabled=tuple(self.gdr_disabled),
            channels=self.channels,
            nvls_channels=self.nvls_channels,
            algorithm=self.algorithm,
            protocol=self.protocol,
            version=self.version,
            settings={name: settings[name] for name in shown},
            from_file=tuple(name for name in shown if name not in environ),
            notes=tuple(self.notes),
        )


def _shown(name: str, value: str) -> str:
    """A setting's value for the report, which is passed on: nothing that is called a secret."""
    return "(not shown)" if _SECRET.search(name) else value


def kind_of(via: str) -> RouteKind:
    """The kind of way that NCCL's words mean.

    >>> kind_of("NET/IB/0/GDRDMA")
    'NET'
    """
    first = via.partition("/")[0]
    known: dict[str, RouteKind] = {"P2P": "P2P", "SHM": "SHM", "NET": "NET"}
    return known.get(first, "other")


def in_short(transport: Transport) -> str:
    """The ways in a few words, the most usual first: "NCCL: NET/IB/0/GDRDMA, P2P/CUMEM"."""
    counts: dict[str, int] = {}
    for way in transport.routes:
        counts[way.via] = counts.get(way.via, 0) + way.channels
    named = sorted(counts, key=lambda via: (-counts[via], via))
    more = ", ..." if len(named) > 3 else ""
    return f"NCCL: {', '.join(named[:3])}{more}" if named else "NCCL"


class LogFile:
    """Where this process's NCCL writes: an anonymous file in memory, so that no disk has to have room. `path` is for NCCL_DEBUG_FILE.

    Where that can't be opened by name (a process that gave up root can't look into its own /proc/self/fd), a file in a private folder, of memory where there is /dev/shm, which
    is removed as soon as NCCL holds it open.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._position = 0
        self._descriptor = os.memfd_create("preflight-nccl", os.MFD_CLOEXEC)
        self.path = f"/proc/self/fd/{self._descriptor}"
        try:
            os.close(os.open(self.path, os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            os.close(self._descriptor)
            memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - a folder of our own in it, 0700
            self._folder = Path(tempfile.mkdtemp(prefix="preflight-", dir=memory))
            self.path = str(self._folder / "nccl")
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def new_text(self) -> str:
        """What was written since the last time, its first MAX_TEXT_BYTES; the memory is given back. Empty if nothing can be read."""
        try:
            size = os.fstat(self._descriptor).st_size
            data = os.pread(self._descriptor, min(MAX_TEXT_BYTES, max(0, size - self._position)), self._position)
            if size > self._position:
                self._unlink()  # NCCL has it open
            self._position = max(size, self._position)
            os.ftruncate(self._descriptor, 0)  # NCCL goes on where it was, behind a hole
        except OSError:
            return ""
        return data.decode("utf-8", "replace")

    def _unlink(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            with contextlib.suppress(OSError):
                Path(self.path).unlink()
                folder.rmdir()


_OUR_OWN = frozenset(
    {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_RAS_ENABLE"}
)  # set by ourselves, for the worker alone


def prepare(environ: dict[str, str] | os._Environ[str]) -> LogFile:
    """Make NCCL of this process write its log for us; before its first use. Raises OSError if there is no memory for a file."""
    log = LogFile()
    environ["NCCL_DEBUG"] = "INFO"
    environ["NCCL_DEBUG_SUBSYS"] = SUBSYSTEMS
    environ["NCCL_DEBUG_FILE"] = log.path
    environ.setdefault("NCCL_RAS_ENABLE", "0")  # its threads of several workers would fight for one port
    return log
