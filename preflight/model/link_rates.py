"""What one part of a machine carries in practice, one direction: a GPU's NVLinks, a PCIe link, a NIC (pure).

Constants are those that NCCL calculates with (its topology header, src/graph/topo.h), which published results confirm: busbw of large all-reduces by ring on 8 A100, H100 and B200 is
231 to 235, 367 to 370 and 680 to 700 GB/s, 94 to 99 % of links x constant.
"""

from collections.abc import Sequence

from preflight.model.base import Record
from preflight.model.gpu import Gpu, Link, PcieLink
from preflight.model.units import GIGA, show_line_rate, show_rate

NCCL_SOURCE = "NCCL's constants (src/graph/topo.h)"
# effective bytes per second of one link by NVLink generation; of generation 3 there are two: A100's links of 25 GB/s, and the slower ones of sm86 (A40, RTX A6000)
NVLINK = {"1": 18.0e9, "2": 20.0e9, "3": 20.0e9, "4": 20.6e9, "5": 40.1e9}
NVLINK_SM86 = 12.0e9
# line rate that a driver reports (up to so many bytes per second) -> effective rate, where it doesn't tell the generation:
# 14.06 sm86; 20 Pascal; 25 or 25.78 Volta and Ampere; 26.56 Hopper; 50 or 53.13 Blackwell
_BY_LINE_RATE = ((16e9, NVLINK_SM86), (22e9, 18.0e9), (26e9, 20.0e9), (40e9, 20.6e9), (60e9, 40.1e9))
# bytes per second of x16 by PCIe generation. 3: NCCL's constant. 4, 5, 6: NVIDIA's GTC25 slides, 24, 48 and 96 GB/s by ring
PCIE_X16 = {1: 3e9, 2: 6e9, 3: 12e9, 4: 24e9, 5: 48e9, 6: 96e9}
# copies between host and GPU: nvbandwidth's published logs have 24 to 26 GB/s on Gen4 x16 and 55.1 to 55.4 on Gen5 x16; Gen3 as NCCL's constant
HOST_COPY_X16 = {1: 3e9, 2: 6e9, 3: 12e9, 4: 25e9, 5: 55e9}
NIC_SHARE = 0.96  # NCCL's constant: 12 GB/s of 100 Gbit/s; measured 24 of 200, 46 to 49 of 400 Gbit/s (NVIDIA/nccl-tests issues 119, 267, 290, 319); EFA 96.9 %
SOCKET_SHARE = 0.80  # TCP gives about 10 GB/s on 100 GbE (NCCL issue threads)


class Rate(Record, frozen=True):
    """Bytes per second in one direction, with the words for a finding: "18 links x 20.6 GB/s = 371 GB/s". `firm`: False: a hint only."""

    bytes_per_s: float
    text: str
    firm: bool = True


def nvlink_each(version: str | None, line_rate: float | None) -> float | None:
    """Effective bytes per second of one NVLink, by its generation ("4.0") or else by the line rate that the driver reports; None: neither tells.

    >>> nvlink_each("4.0", 26.562e9), nvlink_each(None, 25.781e9), nvlink_each("3.0", 14.0625e9)
    (20600000000.0, 20000000000.0, 12000000000.0)
    """
    generation = version.partition(".")[0] if version else ""
    if generation == "3" and line_rate is not None and line_rate <= _BY_LINE_RATE[0][0]:
        return NVLINK_SM86
    if generation in NVLINK:
        return NVLINK[generation]
    if line_rate is None or line_rate <= 0:
        return None
    return next((rate for most, rate in _BY_LINE_RATE if line_rate <= most), None)


def nvlink_rate(links: Sequence[Link], *, at_most: int | None = None, nominal: float | None = None) -> Rate | None:
    """What the active links of a GPU carry. `at_most`: so many of them lead to the GPUs in question. `nominal`: line rate of one link by the profile, where the driver doesn't tell. None: not known.

    Worked example: 18 active links of NVLink 4: 18 x 20.6 = 371 GB/s; with one of them down 350 GB/s.
    """
    active = [link for link in links if link.active]
    if any(link.active is None for link in links):
        return None
    rates = [nvlink_each(link.version, link.speed_bytes_per_s or nominal) for link in active]
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(active):
        return None
    number = len(active) if at_most is None else min(at_most, len(active))
    return links_rate(number, min(known, default=0.0))


def links_rate(number: int, each: float) -> Rate:
    """So many links of so much each.

    >>> links_rate(18, 20.6e9).text
    '18 links x 20.6 GB/s = 371 GB/s'
    """
    rate = number * each
    return Rate(rate, f"{number} link{'s' * (number != 1)} x {each / GIGA:.3g} GB/s = {show_rate(rate)}")


def pcie_rate(generation: int | None, width: int | None, table: dict[int, float] = PCIE_X16) -> Rate | None:
    """What a PCIe link carries; None: generation or width not known, or no figure for that generation.

    >>> pcie_rate(4, 8).text
    'PCIe Gen4 x8: 12.0 GB/s'
    """
    if generation not in table or not width:
        return None
    rate = table[generation] * width / 16
    return Rate(rate, f"PCIe Gen{generation} x{width}: {show_rate(rate)}")


def gpu_pcie_rate(gpu: Gpu, table: dict[int, float] = PCIE_X16) -> Rate | None:
    """Of a GPU's own PCIe link. At the generation it reaches under load: an idle GPU lowers it to save power."""
    link = gpu.pcie
    return None if link is None else pcie_rate(link.max_generation or link.generation, link.width, table)


def nic_rate(line_rate: float, pcie: PcieLink | None = None, *, sockets: bool = False, firm: bool = True) -> Rate:
    """What NCCL gets out of ports of that line rate together (bytes per second) behind one PCIe link.

    Worked examples: 400 Gbit/s x 0.96 = 48 GB/s. Two ports of 100 Gbit/s on one card of Gen3 x16: 12 GB/s, not 24 (openucx/ucx issue 9520 measured 13).

    >>> nic_rate(50e9).text
    '400 Gbit/s x 0.96 = 48.0 GB/s'
    """
    share = SOCKET_SHARE if sockets else NIC_SHARE
    rate = line_rate * share
    behind = pcie_rate(pcie.generation, pcie.width) if pcie else None
    if behind is not None and behind.bytes_per_s < 0.95 * rate:
        return Rate(behind.bytes_per_s, f"{show_line_rate(line_rate)} behind {behind.text}", firm)
    through = " through TCP sockets" if sockets else ""
    return Rate(rate, f"{show_line_rate(line_rate)} x {share:.2f}{through} = {show_rate(rate)}", firm and not sockets)
