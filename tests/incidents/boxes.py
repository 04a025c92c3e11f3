"""Healthy machines of every kind, as Box: what their makers sell, in our own form."""

import functools
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from preflight.model import Gpu, Link, Node
from tests import fake_gpus
from tests.checks.topologies import CUBE
from tests.fakes import FakeGpu, FakeLink, FakeProcess
from tests.incidents.live import PHB, Box, discovered, far

TWO_SOCKETS = (0, 0, 0, 0, 1, 1, 1, 1)
NS = 2  # nvml.h, nvmlGpuP2PStatus_t: not supported by the GPU


def direct(place: int, pairs: list[list[int]], links: int) -> tuple[FakeLink, ...]:
    """Links to other GPUs by their number for each pair, the rest inactive."""
    made = tuple(
        FakeLink(far_kind=0, far_id=far(other), far_port=0)
        for other, number in enumerate(pairs[place])
        for _ in range(number)
    )
    return made + (FakeLink(active=False),) * (links - len(made))


def every(number: int, links: int) -> list[list[int]]:
    return [[0 if a == b else links for b in range(number)] for a in range(number)]


def pairs_of_two(number: int, links: int) -> list[list[int]]:
    return [[links if b == a ^ 1 else 0 for b in range(number)] for a in range(number)]


def h100_hgx() -> Box:
    return Box(fake_gpus.h100_sxm(), TWO_SOCKETS)


def a100_hgx() -> Box:
    return Box(fake_gpus.a100_sxm(), TWO_SOCKETS, rate="200 Gb/sec (4X HDR)")


def a100_four() -> Box:
    """A board of four without switches: four links to each other GPU."""
    gpus = [replace(gpu, links=direct(i, every(4, 4), 12)) for i, gpu in enumerate(fake_gpus.a100_sxm(4))]
    return Box(gpus, (0, 0, 1, 1), rate="200 Gb/sec (4X HDR)", daemons=("nvidia-persistenced",))


def a800_hgx() -> Box:
    gpus = [replace(gpu, name="NVIDIA A800-SXM4-80GB", links=(gpu.links or ())[:8]) for gpu in fake_gpus.a100_sxm()]
    return Box(gpus, TWO_SOCKETS, rate="200 Gb/sec (4X HDR)")


def v100_dgx1() -> Box:
    cube = [[int(cell[2:]) if cell.startswith("NV") else 0 for cell in row] for row in CUBE]
    first = fake_gpus.v100_sxm()[0]
    gpus = [
        replace(first, uuid=f"GPU-v100-{i}", links=direct(i, cube, 6), retired=(0, 0, 0), module_id=i + 1)
        for i in range(8)
    ]
    return Box(gpus, TWO_SOCKETS, rate="100 Gb/sec (4X EDR)", daemons=("nvidia-persistenced",))


def b200_hgx() -> Box:
    return Box(fake_gpus.b200_sxm(), TWO_SOCKETS, daemons=("nv-fabricmanager", "nvlsm", "nvidia-persistenced"))


def gb200_tray() -> Box:
    return Box(fake_gpus.gb200_tray(), (0, 0, 1, 1), switch=False, daemons=("nvidia-imex", "nvidia-persistenced"))


def h100_nvl() -> Box:
    """Four cards, bridged in pairs, each with a card beside it."""
    gpus = [
        replace(
            gpu,
            name="NVIDIA H100 NVL",
            memory_bytes=100_485_038_080,
            links=direct(i, pairs_of_two(4, 12), 12),
            fabric=None,
            limits_mw=(400_000,) * 4,
            module_id=0,
        )
        for i, gpu in enumerate(fake_gpus.h100_sxm(4))
    ]
    return Box(gpus, (0, 0, 1, 1), daemons=("nvidia-persistenced",))


def pcie_card(name: str, uuid: str, **facts: object) -> FakeGpu:
    """A card without NVLink and MIG."""
    plain = {"name": name, "uuid": uuid, "links": None, "mig": None, "fabric": None, "module_id": None, **facts}
    return replace(fake_gpus.h100_sxm(1)[0], **plain)


def l40s() -> Box:
    gpus = [
        pcie_card(
            "NVIDIA L40S",
            f"GPU-l40s-{i}",
            memory_bytes=48_305_799_168,
            limits_mw=(350_000,) * 4,
            pcie=(1, 16, 4, 16, 4),
        )
        for i in range(8)
    ]
    return Box(gpus, TWO_SOCKETS, switch=False, daemons=("nvidia-persistenced",))


def t4() -> Box:
    facts = {
        "memory_bytes": 16_106_127_360,
        "limits_mw": (70_000,) * 4,
        "pcie": (1, 16, 3, 16, 3),
        "remapped": None,
        "retired": (0, 0, 0),
        "margin": None,
        "tlimits": None,
        "thresholds": (96, 93),
        "gsp": None,
        "sram_exceeded": None,
        "recovery": None,
        "memory_temperature": None,
    }
    gpus = [pcie_card("Tesla T4", f"GPU-t4-{i}", **facts) for i in range(4)]
    return Box(gpus, (0, 0, 1, 1), switch=False, cards=False, daemons=("nvidia-persistenced",))


def rtx_4090() -> Box:
    gpus = [replace(gpu, pcie=(1, 16, 4, 16, 4), memory_bytes=25_757_220_864) for gpu in fake_gpus.geforce()]
    return Box(
        gpus,
        (0, 0),
        switch=False,
        cards=False,
        daemons=("nvidia-persistenced",),
        p2p={0: NS, 1: NS, 2: NS, 3: NS, 4: NS},
        relation=lambda _a, _b: PHB,
    )


def h100_mig() -> Box:
    """One of eight is cut in slices."""
    gpus = fake_gpus.h100_sxm()
    return Box([*gpus[:7], fake_gpus.with_mig(gpus[7])], TWO_SOCKETS)


def h100_virtual() -> Box:
    """All eight GPUs of a board in a virtual machine; the switches and their fabric manager stay with the hypervisor."""
    gpus = [replace(gpu, pcie=(1, 1, 1, 1, 5)) for gpu in fake_gpus.h100_sxm()]
    return Box(gpus, TWO_SOCKETS, virtual=True, daemons=("nvidia-persistenced",), acs=0x001D)


def l40s_virtual() -> Box:
    return replace(l40s(), gpus=l40s().gpus[:2], sockets=(0, 0), virtual=True, cards=False)


def h100_container() -> Box:
    """A container with two of eight GPUs."""
    return Box(
        fake_gpus.h100_sxm(), TWO_SOCKETS, shown=(4, 5), container=True, environ={"NVIDIA_VISIBLE_DEVICES": "4,5"}
    )


def h100_slurm() -> Box:
    """A Slurm step whose cgroup leaves two of eight."""
    environ = {"SLURM_JOB_GPUS": "4,5", "SLURM_STEP_GPUS": "4,5", "CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_ID": "17"}
    return Box(fake_gpus.h100_sxm(), TWO_SOCKETS, shown=(4, 5), environ=environ)


def h100_four() -> Box:
    """A board of four without switches: six links to each other GPU, and nothing to register."""
    gpus = [
        replace(gpu, links=direct(i, every(4, 6), 18), fabric=(0, 0, bytes(16), 0))
        for i, gpu in enumerate(fake_gpus.h100_sxm(4))
    ]
    return Box(gpus, (0, 0, 1, 1), daemons=("nvidia-persistenced",))


def a100_pcie(links: int = 12) -> Box:
    """Four cards, bridged in pairs or (`links` 0) not."""
    gpus = [
        replace(gpu, links=direct(i, pairs_of_two(4, links), 12)) for i, gpu in enumerate(fake_gpus.a100_pcie_bridged())
    ]
    return Box(gpus, (0, 0, 1, 1), rate="200 Gb/sec (4X HDR)", daemons=("nvidia-persistenced",))


def a100_pcie_bare() -> Box:
    return a100_pcie(links=0)


def one_h100_virtual() -> Box:
    """One of eight GPUs of a board, passed through: its links lead nowhere in this machine."""
    gpu = replace(fake_gpus.h100_sxm(1)[0], links=(FakeLink(active=False),) * 18, fabric=(0, 0, bytes(16), 0))
    return Box([gpu], (0,), virtual=True, cards=False, switch=False, daemons=())


def two_products() -> Box:
    return Box([*t4().gpus[:2], *l40s().gpus[:2]], (0, 0, 1, 1), switch=False, cards=False, daemons=())


def h100_full_of_work() -> Box:
    """A job runs: clocks at the power cap, links of full generation, DCGM beside it."""
    gpus = [
        replace(
            gpu,
            clocks={1: 1755, 2: 2619},
            reasons=0x4,
            draw_mw=690_000,
            temperature=63,
            margin=24,
            processes=(FakeProcess(701, 4 * 2**20),),
        )
        for gpu in fake_gpus.h100_sxm()
    ]
    return Box(gpus, TWO_SOCKETS, daemons=("nv-fabricmanager", "nv-hostengine", "nvidia-persistenced"))


def h200_hgx() -> Box:
    gpus = [replace(gpu, name="NVIDIA H200", memory_bytes=143_771 * 2**20) for gpu in fake_gpus.h100_sxm()]
    return Box(gpus, TWO_SOCKETS)


def h20_hgx() -> Box:
    gpus = [
        replace(gpu, name="NVIDIA H20", memory_bytes=97_871 * 2**20, limits_mw=(500_000,) * 4)
        for gpu in fake_gpus.h100_sxm()
    ]
    return Box(gpus, TWO_SOCKETS)


def h800_hgx() -> Box:
    gpus = [replace(gpu, name="NVIDIA H800", links=(gpu.links or ())[:8]) for gpu in fake_gpus.h100_sxm()]
    return Box(gpus, TWO_SOCKETS)


def one_gh200() -> Box:
    """One superchip: the memory of the GPU is a NUMA node, and no profile exists."""
    superchip = replace(
        fake_gpus.gb200_tray()[0],
        name="NVIDIA GH200 480GB",
        links=(),
        fabric=(0, 0, bytes(16), 0),
        limits_mw=(900_000,) * 4,
    )
    return Box([superchip], (0,), switch=False, daemons=("nvidia-persistenced",))


def a10g_virtual() -> Box:
    facts = {"limits_mw": (300_000,) * 4, "pcie": (1, 16, 4, 16, 4), "memory_bytes": 24_146_608_128}
    gpus = [pcie_card("NVIDIA A10G", f"GPU-a10g-{i}", **facts) for i in range(4)]
    return Box(gpus, (0, 0, 0, 0), switch=False, cards=False, virtual=True, daemons=())


def workstation() -> Box:
    """Two cards with a display, ECC off, no bridge."""
    facts = {
        "ecc": 0,
        "ecc_counts": (None,) * 4,
        "sram_exceeded": None,
        "limits_mw": (300_000,) * 4,
        "pcie": (1, 16, 4, 16, 4),
        "links": (FakeLink(active=False),) * 4,
        "link_version": 5,
        "memory_bytes": 51_527_024_640,
        "processes": (FakeProcess(700, 200 * 2**20, ("Graphics",)),),
    }
    gpus = [pcie_card("NVIDIA RTX A6000", f"GPU-a6000-{i}", **facts) for i in range(2)]
    return Box(gpus, (0, 0), switch=False, cards=False, daemons=("Xorg",), relation=lambda _a, _b: PHB)


def virtual_gpus() -> Box:
    """Shares of cards in a virtual machine: hardly anything of the hardware is told."""
    untold = (
        "remapped",
        "recovery",
        "limits_mw",
        "draw_mw",
        "clocks",
        "max_clocks",
        "reasons",
        "temperature",
        "margin",
    )
    more = ("tlimits", "pcie", "replays", "serial", "memory_temperature", "application_clock", "sram_exceeded")
    facts: dict[str, Any] = dict.fromkeys((*untold, *more))
    gpus = [pcie_card("NVIDIA A100-40C", f"GPU-share-{i}", **facts, ecc_counts=(0, 0, None, None)) for i in range(2)]
    none = dict.fromkeys((0, 1, 2), 5)  # nvml.h, nvmlGpuP2PStatus_t: not supported
    return Box(gpus, (0, 0), switch=False, cards=False, virtual=True, daemons=(), p2p=none)


BOXES: dict[str, Callable[[], Box]] = {
    "HGX H100": h100_hgx,
    "HGX A100": a100_hgx,
    "board of four A100": a100_four,
    "HGX A800": a800_hgx,
    "DGX-1 V100": v100_dgx1,
    "HGX B200": b200_hgx,
    "GB200 tray": gb200_tray,
    "H100 NVL in bridged pairs": h100_nvl,
    "L40S": l40s,
    "T4": t4,
    "RTX 4090": rtx_4090,
    "H100 with one in MIG mode": h100_mig,
    "virtual machine with eight H100": h100_virtual,
    "virtual machine with two L40S": l40s_virtual,
    "container with two of eight H100": h100_container,
    "board of four H100": h100_four,
    "A100 PCIe in bridged pairs": a100_pcie,
    "A100 PCIe without bridges": a100_pcie_bare,
    "virtual machine with one H100": one_h100_virtual,
    "two T4 and two L40S": two_products,
    "HGX H100 at work": h100_full_of_work,
    "Slurm step with two of eight H100": h100_slurm,
    "HGX H200": h200_hgx,
    "HGX H20": h20_hgx,
    "HGX H800": h800_hgx,
    "one GH200": one_gh200,
    "virtual machine with A10G": a10g_virtual,
    "workstation with two RTX A6000": workstation,
    "virtual GPUs": virtual_gpus,
}


@functools.cache
def healthy(name: str) -> Node:
    """The healthy machine of that name as discovery finds it, for tests that then change single facts."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        return discovered(BOXES[name](), Path(folder), patch)


def changed(node: Node, **facts: Any) -> Node:
    return msgspec.structs.replace(node, **facts)


def with_gpus(node: Node, facts: dict[int, dict[str, Any]]) -> Node:
    """The node with some facts of some GPUs changed: index -> field -> value. A value that can be called gets the old one."""

    def one(gpu: Gpu) -> Gpu:
        mine = facts.get(gpu.index, {})
        return msgspec.structs.replace(
            gpu, **{field: value(getattr(gpu, field)) if callable(value) else value for field, value in mine.items()}
        )

    return changed(node, gpus=tuple(one(gpu) for gpu in node.gpus or ()))


def with_links(*indices: int, **facts: Any) -> Callable[[tuple[Link, ...]], tuple[Link, ...]]:
    """For `with_gpus`: these links of a GPU changed."""

    def change(links: tuple[Link, ...]) -> tuple[Link, ...]:
        return tuple(msgspec.structs.replace(link, **facts) if link.index in indices else link for link in links)

    return change
