"""What the GPUs of a run are joined by, as discovery found it: NVLinks among them, PCIe, the NICs that are theirs (pure).

Everything is one direction, in bytes per second, with the words for a finding.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from preflight.model.base import Record
from preflight.model.domains import NO_NVLINK
from preflight.model.evidence import Evidence
from preflight.model.expectation import Share
from preflight.model.gpu import Gpu, PcieLink
from preflight.model.inventory import Node
from preflight.model.link_rates import Rate, gpu_pcie_rate, links_rate, nic_rate, nvlink_each, nvlink_rate
from preflight.model.nic import Hca
from preflight.model.profile import Profile
from preflight.model.rails import Device, fabric_devices, rails
from preflight.model.units import show_rate

BARE = "without NVLink"  # begins the words of a rate over PCIe
GENERATION = {20.6e9: "4", 40.1e9: "5"}  # of NVLink, by what one link carries; older ones have no NVLS


class Seat(Record, frozen=True):
    """A GPU that was found, and its node."""

    node: Node
    gpu: Gpu


class Nics:
    """The NICs of one node: `own`, the cards of each GPU by its index (a card of two functions or ports is one); `rate` of each card."""

    def __init__(self, node: Node) -> None:
        self._devices = {device.name: device for device in fabric_devices(node.hcas, node.nics)}
        self._node = node
        self.own: dict[int, tuple[str, ...]] = {}
        found = rails(node)
        for index, names in found.own.items():
            cards = tuple(dict.fromkeys(self._card(name) for name in names if self._line(name) != 0))
            if cards:
                self.own[index] = cards
        left_out = set(found.not_rails)
        self.others = tuple(
            dict.fromkeys(self._card(name) for name in self._devices if name not in left_out and self._line(name))
        )

    def _card(self, name: str) -> str:
        """Functions of one card share its PCIe link: all before the last dot of the address."""
        bus_id = self._devices[name].pci_bus_id
        return f"{self._node.name}/{bus_id.rpartition('.')[0] if bus_id else name}"

    def _line(self, name: str) -> float | None:
        """Line rate of what is up; 0: all of it is down; None: not known."""
        device = self._devices[name]
        if not isinstance(device, Hca):
            return 0.0 if device.up is False else device.speed_bytes_per_s
        if device.ports is None or any(port.up is None for port in device.ports):
            return None
        rates = [port.rate_bytes_per_s for port in device.ports if port.up]
        return None if None in rates else float(sum(rate or 0 for rate in rates))

    @cached_property
    def rate(self) -> dict[str, Rate | None]:
        """Of each card; None: not known."""
        members: dict[str, list[str]] = {}
        for name in self._devices:
            members.setdefault(self._card(name), []).append(name)
        return {card: self._rate(names) for card, names in members.items()}

    def _rate(self, names: Sequence[str]) -> Rate | None:
        lines = [self._line(name) for name in names]
        if None in lines:
            return None
        first = self._devices[names[0]]
        firm = not any(_is_unsure(self._devices[name]) for name in names) and not self._on_several_links(names)
        pcie: PcieLink | None = first.pcie if isinstance(first, Hca) else None
        total = sum(line or 0.0 for line in lines)
        return nic_rate(total, pcie, sockets=not isinstance(first, Hca), firm=firm) if total else None

    def _on_several_links(self, names: Sequence[str]) -> bool:
        """One card behind several PCIe links (socket direct): each shows the rate of a port that they share (NVIDIA/nccl issue 307: two cables of 100 Gbit/s look like four interfaces)."""
        guids = {device.card_guid for name in names if isinstance(device := self._devices[name], Hca)} - {None}
        return any(
            isinstance(device, Hca) and device.card_guid in guids and self._card(name) != self._card(names[0])
            for name, device in self._devices.items()
        )


def _is_unsure(device: Device) -> bool:
    """A bond (NVIDIA/nccl-tests issue 265: 395 Gbit/s by RDMA test, 240 by NCCL, queue pairs pinned to one leg), or a share of a card."""
    return "bond" in device.name or (isinstance(device, Hca) and bool(device.is_virtual_function))


def nics_of_share(seats: Sequence[Seat], nics: dict[str, Nics]) -> tuple[Rate | None, Rate | None]:
    """(all NICs of these GPUs together, those of the GPU that has the least); None: not known. NICs that several of these GPUs share count in parts for each."""
    cards: dict[tuple[str, int], tuple[str, ...]] = {}
    rates: dict[str, Rate | None] = {}
    firm = True
    for seat in seats:
        place = nics[seat.node.name]
        own = place.own.get(seat.gpu.index)
        if own is None and not place.own:  # nobody's by PCIe, as in a virtual machine: all of them, as a hint
            own, firm = place.others, False
        cards[seat.node.name, seat.gpu.index] = own or ()
        rates |= {card: place.rate.get(card) for card in own or ()}
    known = [rate for rate in rates.values() if rate]
    if not known or len(known) < len(rates):
        return None, None
    users = Counter(card for own in cards.values() for card in own)
    together = _sum_of(known, firm=firm)
    each = [_each(own, rates, users, firm=firm) for own in cards.values()]
    slowest = min((rate for rate in each if rate), key=lambda rate: rate.bytes_per_s, default=None)
    return together, slowest if all(each) else None


def _each(own: Sequence[str], rates: dict[str, Rate | None], users: Counter[str], *, firm: bool) -> Rate | None:
    parts = [(rate.bytes_per_s / users[card], rate) for card in own if (rate := rates[card])]
    if not parts:
        return None
    most = max(users[card] for card in own)
    whole = _sum_of([rate for _, rate in parts], firm=firm)
    if most == 1:
        return whole
    left = sum(part for part, _ in parts)
    return Rate(left, f"{whole.text}, shared by {most} GPUs: {show_rate(left)}", whole.firm)


def _sum_of(rates: Sequence[Rate], *, firm: bool) -> Rate:
    if len(rates) == 1:
        return rates[0] if firm else rates[0].replace(firm=False)
    total = sum(rate.bytes_per_s for rate in rates)
    alike = len({round(rate.bytes_per_s) for rate in rates}) == 1
    each = f" x {show_rate(rates[0].bytes_per_s)}" if alike else ""
    return Rate(total, f"{len(rates)} NICs{each} = {show_rate(total)}", firm and all(rate.firm for rate in rates))


def ring_of(seats: Sequence[Seat], evidence: Evidence) -> tuple[Rate | None, str | None]:
    """What the slowest of these GPUs has towards the others of them, and the NVLink generation if they sit behind NVSwitches; None: not known. They are of one NVLink domain, or of one node."""
    rates = [_usable(seat, seats, evidence) for seat in seats]
    known = [rate for rate in rates if rate]
    if len(known) < len(rates):
        return None, None
    if len({seat.node.name for seat in seats}) == 1 and not _is_joined(seats):
        return _by_pcie(seats), None
    slowest = min(known, key=lambda rate: rate.bytes_per_s)
    return slowest, _generation(seats) if _is_switched(seats) else None


def _usable(seat: Seat, seats: Sequence[Seat], evidence: Evidence) -> Rate | None:
    gpu = seat.gpu
    profile = evidence.profile_of(gpu)
    if gpu.links == () or gpu.nvlink_domain == NO_NVLINK:
        return _by_pcie([seat])
    others = [other.gpu.index for other in seats if other.node is seat.node and other.gpu is not gpu]
    towards = [peer.num_nvlinks for peer in gpu.peers if peer.index in others]
    at_most = None
    if len(others) == len(seats) - 1 == len(towards) and None not in towards:
        at_most = sum(number or 0 for number in towards)
        if 0 in towards and at_most and _is_joined(seats):
            return None  # joined in a cube: which rings NCCL finds there, no formula says
    nominal = profile.link_bytes_per_s.value if profile and profile.link_bytes_per_s else None
    rate = nvlink_rate(gpu.links, at_most=at_most, nominal=nominal) if gpu.links else None
    if rate is None:
        return _by_profile(profile)
    bridged = profile is not None and {layout.kind for layout in profile.nvlink_layouts or ()} == {"bridge"}
    return rate.replace(firm=False) if bridged else rate


def _by_profile(profile: Profile | None) -> Rate | None:
    """All links of the product, where the driver did not tell which are active: a hint."""
    if profile is None or profile.nvlink_links is None or profile.link_bytes_per_s is None:
        return None
    each = nvlink_each(None, profile.link_bytes_per_s.value)
    if each is None or not profile.nvlink_links.value:
        return None
    rate = links_rate(round(profile.nvlink_links.value), each)
    return Rate(rate.bytes_per_s, f"{rate.text} (by the profile: active links not known)", firm=False)


def _by_pcie(seats: Sequence[Seat]) -> Rate | None:
    """Over PCIe: a hint, since what lies between cards decides (8 RTX 5090 reach 28 of the 48 GB/s that Gen5 promises)."""
    rates = [gpu_pcie_rate(seat.gpu) for seat in seats]
    known = [rate for rate in rates if rate]
    if not known or len(known) < len(rates):
        return None
    slowest = min(known, key=lambda rate: rate.bytes_per_s)
    return Rate(slowest.bytes_per_s, f"{BARE}, {slowest.text}", firm=False)


def _is_joined(seats: Sequence[Seat]) -> bool:
    """Whether NVLinks lead from each of these GPUs of a node to each other one, over others if need be. What is not told counts as joined."""
    reached, left = [seats[0]], list(seats[1:])
    for seat in reached:
        near = [other for other in left if _number(seat.gpu, other.gpu) != 0]
        reached += near
        left = [other for other in left if other not in near]
    return not left


def _number(gpu: Gpu, other: Gpu) -> int | None:
    peer = gpu.peer(other.index)
    return 0 if NO_NVLINK in (gpu.nvlink_domain, other.nvlink_domain) else peer.num_nvlinks if peer else None


def _is_switched(seats: Sequence[Seat]) -> bool:
    links = [link for link in seats[0].gpu.links or () if link.active]
    return bool(links) and all(link.peer_kind == "switch" for link in links)


def _generation(seats: Sequence[Seat]) -> str | None:
    for link in seats[0].gpu.links or ():
        each = nvlink_each(link.version, link.speed_bytes_per_s)
        return GENERATION.get(each) if each else None
    return None


def share_of(seats: Sequence[Seat], nics: dict[str, Nics], evidence: Evidence, *, across: bool) -> Share:
    """The part of a group on these GPUs. `across`: there are others, so that the NICs matter."""
    ring, generation = ring_of(seats, evidence) if len(seats) > 1 else (None, None)
    hardware = evidence.plan.job.hardware if evidence.plan else None
    given = hardware.nic_bytes_per_s if hardware else None
    together = each = None
    if across and given:
        each = Rate(given, f"nic_bandwidth of the plan file {show_rate(given)}")
        together = Rate(given * len(seats), f"{len(seats)} x {each.text} = {show_rate(given * len(seats))}")
    elif across:
        together, each = nics_of_share(seats, nics)
    return Share(len(seats), len({seat.node.name for seat in seats}), ring, together, each, generation)
