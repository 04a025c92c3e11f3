"""Whole machines that are discovered as a live one is: the stand-in library behind NVML, a tree for everything else, and all checks of `preflight node` over the result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from preflight.cli.main import run_command_line
from preflight.cli.node import checks_of_nodes
from preflight.discover.node import discover_node
from preflight.discover.nvml import read_gpus
from preflight.discover.nvml_reading import NvmlReading
from preflight.judge.run import judge
from preflight.model import (
    UNLIMITED,
    Answer,
    ClockSync,
    Evidence,
    Finding,
    Inventory,
    Limits,
    Node,
    Report,
    Verdict,
    from_json,
)
from preflight.plan.profiles import profiles_of
from tests.config_spaces import config_space
from tests.fake_health import give, number
from tests.fakes import FakeGpu, FakeNvml
from tests.fakes import index_of as index_behind
from tests.machines import system
from tests.trees import Tree

INTERNAL, PIX, PXB, PHB, NODE, SYS = 0, 10, 20, 30, 40, 50  # nvml.h, nvmlGpuTopologyLevel_t
HEADER = 64  # bytes of a configuration space that an ordinary user reads
BOOTED = "Linux version 6.8.0-45-generic (build@example) (gcc 13.2.0)"


@dataclass(frozen=True)
class Box:
    """One machine. `sockets`: the NUMA node of each GPU. `switch`: a PCIe switch above each GPU, with a card beside it if `cards`; else GPUs hang on the CPUs' root
    ports. `shown`: the GPUs that this process sees, by place; None: all. `p2p`: what the driver says of access between each pair, by kind. `user`: not root.
    """

    gpus: Sequence[FakeGpu]
    sockets: Sequence[int]
    switch: bool = True
    cards: bool = True
    shown: Sequence[int] | None = None
    p2p: Mapping[int, int] = field(default_factory=dict)
    daemons: Sequence[str] = ("nv-fabricmanager", "nvidia-persistenced")
    virtual: bool = False
    container: bool = False
    user: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    log: Sequence[str] = ()
    acs: int = 0
    rate: str = "400 Gb/sec (4X NDR)"
    relation: Callable[[int, int], int] | None = None


class PairedNvml(FakeNvml):
    """The library of a box: places of GPUs, and minor numbers, are those of the box."""

    def __init__(self, box: Box, **others: Any) -> None:
        self.box = box
        self.places = list(range(len(box.gpus)) if box.shown is None else box.shown)
        gpus = [replaced(box.gpus[place], place) for place in self.places]
        super().__init__(gpus, p2p_nvlink=0, p2p=dict(box.p2p), **others)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name == "nvmlDeviceGetTopologyCommonAncestor":
            return lambda handle, other, out: give(out, self._level(index_behind(handle), index_behind(other)))
        if name == "nvmlDeviceGetMinorNumber":
            return lambda handle, out: give(out, self.places[index_behind(handle)])
        return super().__getattr__(name)

    def _level(self, a: int, b: int) -> int:
        a, b = self.places[number(a)], self.places[number(b)]
        if self.box.relation:
            return self.box.relation(a, b)
        return NODE if self.box.sockets[a] == self.box.sockets[b] else SYS


def bus_id(place: int) -> str:
    return f"0000:{0x40 + place:02x}:00.0"


def replaced(gpu: FakeGpu, place: int) -> FakeGpu:
    """The GPU at its place in the tree; links to other GPUs keep their far ends, which the makers of boxes give by `far`."""
    from dataclasses import replace as changed

    return changed(gpu, pci=f"0000{bus_id(place)}".upper())


def far(place: int) -> str:
    """The far end of a link to the GPU at that place, as NVML spells it."""
    return f"0000{bus_id(place)}".upper()


def plant(tree: Tree, box: Box) -> None:
    """The tree of that box."""
    size = HEADER if box.user else 4096
    for place, socket in enumerate(box.sockets):
        root = f"pci0000:{0x10 + place:02x}/0000:{0x10 + place:02x}:01.0"
        bridge = config_space(acs=0x001D, size=size)
        tree.pci(root, vendor="0x8086", class_code="0x060400", config=bridge)
        below = root
        if box.switch:
            up = f"{root}/0000:{0x20 + place:02x}:00.0"
            tree.pci(up, vendor="0x1000", class_code="0x060400", config=config_space(acs=0, size=size))
            below = f"{up}/0000:{0x20 + place:02x}:01.0"
            tree.pci(below, vendor="0x1000", class_code="0x060400", config=config_space(acs=box.acs, size=size))
            if box.cards:
                _card(tree, box, place, f"{up}/0000:{0x20 + place:02x}:02.0")
        elif box.cards:
            _card(tree, box, place, f"pci0000:{0x80 + place:02x}/0000:{0x80 + place:02x}:01.0")
        tree.gpu(f"{below}/{bus_id(place)}", numa=socket, config=config_space(size=size))
    for place in range(len(box.gpus)) if box.shown is None or not box.container else box.shown:
        tree.write(f"dev/nvidia{place}", "")
    _system(tree, box)


def _card(tree: Tree, box: Box, place: int, port: str) -> None:
    socket, size = box.sockets[place], HEADER if box.user else 4096
    tree.pci(port, vendor="0x1000", class_code="0x060400", config=config_space(acs=box.acs, size=size))
    config = config_space(max_read_request=4096, size=size)
    at = f"{port}/0000:{0x60 + place:02x}:00.0"
    card = tree.pci(at, numa=socket, driver="mlx5_core", speed="32.0 GT/s PCIe", width=16, config=config)
    counters = {"symbol_error": "0", "link_downed": "0", "port_rcv_errors": "0", "local_link_integrity_errors": "0"}
    tree.port(tree.hca(f"mlx5_{place}", card), rate=box.rate, counters=counters)
    tree.nic(f"ib{place}", device=card, hardware_type=32, mtu=4092, port=0)


def _system(tree: Tree, box: Box) -> None:
    system(tree)
    tree.write("proc/uptime", "90000.00 700000.00\n")
    tree.write("proc/stat", "btime 1700000000\n")
    if box.virtual:
        cpu = "processor\t: {}\nmodel name\t: Example CPU 9000\nflags\t\t: fpu hypervisor\n\n"
        tree.write("proc/cpuinfo", "".join(cpu.format(i) for i in range(4)))
        tree.write("sys/class/dmi/id/sys_vendor", "QEMU\n")
    if box.container:
        tree.write(".dockerenv", "")
    else:
        tree.write("proc/1/comm", "systemd\n")
        tree.folder("run/systemd/system")
        tree.write("proc/2/comm", "kthreadd\n")
        for pid, name in enumerate(box.daemons, 700):
            tree.write(f"proc/{pid}/comm", f"{name[:15]}\n")
            tree.write(f"proc/{pid}/stat", f"{pid} ({name[:15]}) S 1\n")
    if not (box.user or box.container):
        tree.write("var/log/kern.log", kern_log(*box.log))


def kern_log(*lines: str) -> str:
    """The kernel log of a machine since its boot. A line may begin with its seconds, "20|text"; others come a minute apart."""
    told = [(0.0, BOOTED), (1.0, "pci 0000:00:00.0: enabled")]
    for index, line in enumerate(lines, 1):
        seconds, bar, text = line.partition("|")
        told.append((float(seconds), text) if bar and seconds.isdecimal() else (60.0 * index, line))
    return "".join(f"[{at_s:12.6f}] {text}\n" for at_s, text in told)


def discovered(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, tree: Tree | None = None, **library: Any
) -> Node:
    """What `preflight node` finds on that box. Facts of this process, which no tree holds, are added: a clock in step, and limits."""
    PairedNvml(box, **library).install(monkeypatch)
    monkeypatch.setattr("preflight.discover.node.NvmlRun", _Answering)
    monkeypatch.setattr("preflight.discover.node.HcaRun", _NoChild)
    if tree is None:
        tree = Tree(tmp_path / "root")
        plant(tree, box)
    node = discover_node("node1", root=tree.root, environ=dict(box.environ))
    limits = Limits(
        memlock_bytes=UNLIMITED,
        memlock_hard_bytes=UNLIMITED,
        privileged=not box.user,
        open_files=2**20,
        shm_bytes=32 * 10**9,
        shm_free_bytes=31 * 10**9,
    )
    return replace(node, clock=ClockSync(synchronised=True, max_error_s=0.01, offset_s=0.0), limits=limits)


class _Answering:
    """A child that has read the library of this process."""

    def __init__(self, deadline_s: float) -> None:
        del deadline_s

    def result(self) -> NvmlReading:
        return read_gpus()

    def close(self) -> None:
        pass


class _NoChild:
    """In the place of the child for HCAs: there is none, and they are read in this process."""

    def __init__(self, root: Path) -> None:
        del root

    def result(self, total_s: float) -> None:
        del total_s

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Judged:
    """What all checks of `preflight node` make of some nodes."""

    answer: Answer
    findings: tuple[Finding, ...]

    def of(self, check: str) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.check == check)

    def with_verdict(self, *verdicts: Verdict) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict in verdicts)

    @property
    def failed(self) -> dict[str, set[str]]:
        """Check -> the subjects that it fails."""
        found: dict[str, set[str]] = {}
        for finding in self.with_verdict(Verdict.FAIL):
            found.setdefault(finding.check, set()).add(finding.subject)
        return found

    @property
    def blamed(self) -> set[tuple[str, str]]:
        """Kind and name of all that FAILs blame."""
        return {
            (finding.blames.kind, finding.blames.name) for finding in self.with_verdict(Verdict.FAIL) if finding.blames
        }

    @property
    def suspected(self) -> set[tuple[str, str]]:
        """Kind and name of all that any finding blames."""
        return {(finding.blames.kind, finding.blames.name) for finding in self.findings if finding.blames}

    def said(self, check: str) -> str:
        """All that a check says, in one text."""
        return " | ".join(
            f"{one.verdict.value} {one.subject}: {one.observed} -> {one.remedy}" for one in self.of(check)
        )

    def text(self, *verdicts: Verdict) -> list[str]:
        """One line for each finding of these verdicts, for messages of failed tests."""
        return [
            f"{one.verdict.value} {one.check} ({one.need}) {one.subject}: {one.observed}"
            for one in self.with_verdict(*verdicts)
        ]


def judged(*nodes: Node, **facts: Any) -> Judged:
    """All checks of `preflight node` over these nodes, with the profiles that come with preflight."""
    inventory = Inventory(nodes=nodes)
    evidence = Evidence(inventory=inventory, profiles=profiles_of(inventory), **facts)
    findings, _, answer = judge(evidence, checks_of_nodes(evidence))
    return Judged(answer, findings)


def kinds(parts: set[tuple[str, str]]) -> set[str]:
    """The kinds among those blamed or suspected."""
    return {kind for kind, _ in parts}


def judge_file(path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Judged]:
    """What `preflight node --from` makes of a file: exit code and report."""
    capsys.readouterr()
    code = run_command_line(["node", "--from", str(path), "--format", "json", *arguments])
    report = from_json(capsys.readouterr().out, Report)
    return code, Judged(report.answer, report.findings)
