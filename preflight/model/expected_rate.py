"""What a collective should reach on the hardware that was found, by formula or by a profile's measured figure (pure).

`expected_of(evidence, collective, ranks, size_bytes)` for one question; `Expectations(evidence)` for many of them; `expected_of_profile(profile, ...)` where only the product is known (a log).
"""

from collections.abc import Sequence
from functools import cached_property

from preflight.model.bandwidth import ALONE, Collective
from preflight.model.domains import NO_NVLINK
from preflight.model.evidence import Evidence
from preflight.model.expectation import ALMOST, AT_LEAST, HINT_AT_LEAST, Expectation, Share, cannot_say, expectation
from preflight.model.found_links import BARE, Nics, Seat, share_of
from preflight.model.link_rates import HOST_COPY_X16, NIC_SHARE, Rate, gpu_pcie_rate, links_rate, nic_rate, nvlink_each
from preflight.model.profile import SITE_SOURCE, ExpectedRate, Profile
from preflight.model.rails import on_grace
from preflight.model.units import GIB, MIB, show_rate

__all__ = ["Expectation", "Expectations", "expected_of", "expected_of_profile"]

HOST_COPY_SOURCE = "nvbandwidth's published logs of PCIe Gen4 and Gen5 x16"
HOST_COPY_AT_LEAST = 0.75  # limits in use for healthy machines: 9, 21 and 48 GB/s on Gen3, Gen4 and Gen5 (Azure's node health checks), 0.75 to 0.87 of these
# NVLink-C2C, GB300: 359 GB/s to the GPU, 377 back (vendor's log); half of it when both go at once
GRACE_COPY = 359e9


def expected_of(evidence: Evidence, collective: Collective, ranks: Sequence[int], size_bytes: int) -> Expectation:
    """What this collective over these ranks of the plan should reach, from the inventory of the run.

    "send_recv" and "send" of two ranks: one direction's rate. "host_to_device", "device_to_host": of the slowest of the ranks' GPUs.
    """
    return Expectations(evidence).of(collective, ranks, size_bytes)


class Expectations:
    """The expectations of one run; what they rest on is looked up once."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self._nics: dict[str, Nics] = {}
        self._known_shares: dict[tuple[object, ...], Share] = {}

    def of(self, collective: Collective, ranks: Sequence[int], size_bytes: int) -> Expectation:
        """As expected_of."""
        evidence = self.evidence
        if evidence.plan is None or evidence.settings.backend == "gloo" or evidence.settings.cpu_declared:
            return cannot_say("a run without GPUs is compared with its peers only")
        if evidence.inventory is None:
            return cannot_say("no node was looked at")
        seats = [self.seat(rank) for rank in ranks]
        known = [seat for seat in seats if seat]
        if len(known) < len(seats):
            return cannot_say(f"which GPU rank {ranks[seats.index(None)]} has is not known")
        if collective in ALONE:
            return _alone(collective, known)
        shares = self._shares(known)
        by_formula = expectation(collective, shares, size_bytes)
        return self._by_profile(collective, known, shares, size_bytes, by_formula) or by_formula

    @cached_property
    def _by_uuid(self) -> dict[str, Seat]:
        nodes = self.evidence.inventory.nodes if self.evidence.inventory else ()
        return {gpu.uuid: Seat(node, gpu) for node in nodes for gpu in node.gpus or () if gpu.uuid}

    @cached_property
    def _racks(self) -> set[str]:
        """NVLink domains that span nodes. Inside a node GPUs of several domains (bridged pairs) talk over PCIe, and over no network card."""
        nodes: dict[str, set[str]] = {}
        for seat in self._by_uuid.values():
            if seat.gpu.nvlink_domain is not None and seat.gpu.nvlink_domain != NO_NVLINK:
                nodes.setdefault(seat.gpu.nvlink_domain, set()).add(seat.node.name)
        return {domain for domain, names in nodes.items() if len(names) > 1}

    def _domain(self, seat: Seat) -> str:
        domain = seat.gpu.nvlink_domain
        return domain if domain is not None and domain in self._racks else seat.node.name

    def seat(self, rank: int) -> Seat | None:
        """The GPU of a rank; None: not known which."""
        placement = self.evidence.plan.placement if self.evidence.plan else None
        uuids = placement.gpu_uuids if placement else None
        if uuids is None or not 0 <= rank < len(uuids):
            return None
        return self._by_uuid.get(uuids[rank] or "")

    def nics(self, rank: int) -> tuple[str, ...] | None:
        """The network cards of a rank's GPU, "node/card"; empty: it has none so close; None: not known."""
        seat = self.seat(rank)
        return None if seat is None else self._nics_of(seat).own.get(seat.gpu.index, ())

    def domain(self, rank: int) -> str | None:
        """What a rank's GPU reaches without a network: its NVLink domain where that spans nodes, else its node; None: not known which GPU it is."""
        seat = self.seat(rank)
        return None if seat is None else self._domain(seat)

    def _nics_of(self, seat: Seat) -> Nics:
        if seat.node.name not in self._nics:
            self._nics[seat.node.name] = Nics(seat.node)
        return self._nics[seat.node.name]

    def _shares(self, seats: Sequence[Seat]) -> list[Share]:
        domains: dict[str, list[Seat]] = {}
        for seat in seats:
            self._nics_of(seat)
            domains.setdefault(self._domain(seat), []).append(seat)
        return [self._share(part, across=len(domains) > 1) for part in domains.values()]

    def _share(self, part: Sequence[Seat], *, across: bool) -> Share:
        key = (*(seat.gpu.uuid for seat in part), across)
        found = self._known_shares.get(key)
        if found is None:
            found = self._known_shares[key] = share_of(part, self._nics, self.evidence, across=across)
        return found

    def _by_profile(
        self, collective: Collective, seats: Sequence[Seat], shares: Sequence[Share], size: int, formula: Expectation
    ) -> Expectation | None:
        """What a profile says was measured on such machines, if these are such: as many links, NICs of the same rate."""
        profiles = {seat.gpu.name: self.evidence.profile_of(seat.gpu) for seat in seats}
        profile = next(iter(profiles.values())) if len(profiles) == 1 else None
        nodes = len({seat.node.name for seat in seats})
        found = measured_rate(profile, collective, len(seats), nodes, size)
        if profile is None or found is None or not _is_like(profile, found, shares):
            return None
        # what nobody could verify here (links not read, cards on PCIe) stays a hint; what a site measured on its own machines doesn't
        firm = found.source.startswith(SITE_SOURCE) or (formula.bytes_per_s is not None and formula.firm)
        return Expectation(
            bytes_per_s=found.busbw_bytes_per_s,
            at_least=AT_LEAST if firm else HINT_AT_LEAST,
            firm=firm,
            formula=f"measured on such machines: {show_rate(found.busbw_bytes_per_s)} ({profile.name})",
            source=found.source,
            may_reach=formula.may_reach,
        )


def measured_rate(
    profile: Profile | None, collective: str, gpus: int, nodes: int, size_bytes: int
) -> ExpectedRate | None:
    """The profile's figure for this collective, number of GPUs and nodes, of the largest size up to this one; one without a size is of large messages."""
    least = 256 * MIB if gpus == 2 and collective in ("send_recv", "send") else GIB
    fitting = [
        rate
        for rate in (profile.rates if profile else ())
        if (rate.collective, rate.gpus, rate.nodes) == (collective, gpus, nodes)
        and size_bytes >= ALMOST * (rate.size_bytes or least)
    ]
    return max(fitting, key=lambda rate: rate.size_bytes or 0, default=None)


def _is_like(profile: Profile, rate: ExpectedRate, shares: Sequence[Share]) -> bool:
    """Whether a figure of the profile holds here. A site's does. A published one only with all links up and, between nodes, NICs of the profile's rate."""
    if rate.source.startswith(SITE_SOURCE):
        return True
    if len(shares) == 1:
        ring, links, line = shares[0].ring, profile.nvlink_links, profile.link_bytes_per_s
        each = nvlink_each(None, line.value) if line else None
        whole = links.value * each if links and each else 0.0
        if ring is not None and ring.text.startswith(BARE) and rate.busbw_bytes_per_s > 1.1 * ring.bytes_per_s:
            return False  # measured over NVLink, which does not join these GPUs
        return ring is None or ring.bytes_per_s >= 0.99 * whole or not ring.firm
    line = profile.nic_bytes_per_s
    nics = [share.each_nic for share in shares]
    return line is not None and all(
        nic is not None and abs(nic.bytes_per_s / (line.value * NIC_SHARE) - 1) < 0.05 for nic in nics
    )


def _alone(collective: Collective, seats: Sequence[Seat]) -> Expectation:
    """Copies between a GPU and its host; of matrix products no link says anything."""
    if collective == "matmul":
        return cannot_say("a matrix product crosses no link")
    if any(on_grace(seat.gpu) for seat in seats):
        text = f"NVLink-C2C: {show_rate(GRACE_COPY)}"
        return Expectation(bytes_per_s=GRACE_COPY, formula=text, source="a GB300's log", at_least=0.4, firm=False)
    rates = [gpu_pcie_rate(seat.gpu, HOST_COPY_X16) for seat in seats]
    known = [rate for rate in rates if rate]
    if not known or len(known) < len(rates):
        return cannot_say("the PCIe link of the GPU is not known")
    slowest = min(known, key=lambda rate: rate.bytes_per_s)
    return Expectation(
        bytes_per_s=slowest.bytes_per_s,
        formula=slowest.text,
        source=HOST_COPY_SOURCE,
        at_least=HOST_COPY_AT_LEAST,
        firm=slowest.firm,
    )


def expected_of_profile(
    profile: Profile | None,
    collective: Collective,
    *,
    gpus: int,
    nodes: int = 1,
    size_bytes: int,
    nic_bytes_per_s: float | None = None,
) -> Expectation:
    """The same where only the product is known: all its links are taken to be up, nodes to have equal shares of the `gpus`. Always a hint (`firm` False).

    `nic_bytes_per_s`: line rate of one GPU's NICs, one direction; None: not known, and nothing is said between nodes.
    """
    if profile is None:
        return cannot_say("the product is not known")
    if nodes < 1 or gpus % nodes:
        return cannot_say("the GPUs are spread unevenly over the nodes")
    each = nvlink_each(None, profile.link_bytes_per_s.value) if profile.link_bytes_per_s else None
    ring = None
    if profile.nvlink_links and profile.nvlink_links.value and each:
        ring = links_rate(round(profile.nvlink_links.value), each).replace(firm=False)
    per_node = gpus // nodes
    nic = nic_rate(nic_bytes_per_s, firm=False) if nic_bytes_per_s else None
    total = per_node * nic.bytes_per_s if nic else 0.0
    nics = Rate(total, f"{per_node} x {nic.text} = {show_rate(total)}", firm=False) if nic else None
    rack = profile.fabric == "rack"
    shares = [Share(gpus, nodes, ring)] if rack else [Share(per_node, 1, ring, nics, nic)] * nodes
    found = expectation(collective, shares, size_bytes)
    if found.bytes_per_s is None:
        return found
    note = f"all links of {profile.name} up" + (
        f", and one NVLink domain over {nodes} nodes" if rack and nodes > 1 else ""
    )
    return Expectation(
        bytes_per_s=found.bytes_per_s,
        formula=found.formula,
        source=found.source,
        at_least=found.at_least,
        firm=False,
        may_reach=found.may_reach,
        unknown=(*found.unknown, f"taken for granted: {note}"),
    )
