"""The HCAs that carry the job's traffic have a link, of the same speed.

Only those: which HCAs are a GPU's own is derived from PCIe places (preflight/model/rails.py), so that storage, management and unused ports that are down are no fault. Where no HCA is
close to a GPU, all InfiniBand and EFA ports count in a virtual machine, which shows no places; on metal one that is down is a WARN. What a
down port prints as its rate is a placeholder and is not judged. A port in Polling sees no partner: cable, transceiver or the switch's port. A card of two ports is two
HCAs to the system, and is often wired through one: a port that is down beside one that is up counts only where most such cards have both up.

Source: leptonai/gpud pull requests 482 and 752 (seven of eight ports, the eighth in Polling at "10 Gb/s"), 308 (an empty listing is not healthy), issues 989 (12 ports, 4 down, 8 needed: no
fault) and 371, 383 (a rate guessed from the GPU's name is wrong: peers are the reference); states: InfiniBand specification, PortInfo.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from preflight.model import Check, Evidence, Finding, Hca, Node, Part, Port, Record, Verdict
from preflight.model.rails import rails
from preflight.model.units import show_line_rate

NAME = "hca_ports"
# 0: as many as the GPUs' own HCAs. A site whose machines must have eight says 8.
LIMITS = {"ports_needed": 0.0}

_WHY = {
    "Polling": "it sees no partner: cable, transceiver or the switch's port",
    "Disabled": "it is switched off",
    "Sleep": "it sleeps",
    "LinkErrorRecovery": "its link recovers from errors again and again",
    "PortConfigurationTraining": "its link is still training",
}


class _Carried(Record, frozen=True):
    """An HCA that the job uses, and its best port; None: its ports are unknown. `kind`: GPU products of its node, and its own board: only what is alike is compared.
    `sure`: whether the job is known to use it.
    """

    hca: Hca
    port: Port | None
    kind: tuple[Hashable, ...]
    sure: bool = True


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each node with GPUs and HCAs: one finding for each port that is wrong, and one PASS for the others."""
    needed = int(evidence.limits(NAME, LIMITS)["ports_needed"])
    nodes = [node for node in evidence.health or () if node.gpus]
    of_node = {node.name: _carried(node) for node in nodes}
    both = _both_wired([items for carried in of_node.values() for items in _cards(carried).values()])
    of_node = {name: _without_spares(carried, both) for name, carried in of_node.items()}
    common = _commonest_rates([item for carried in of_node.values() for item in carried])
    for node in nodes:
        if node.hcas is None:
            yield _unknown(node, "HCAs can't be read here")
        elif node.hcas:
            yield from _half_read(node)
            carried = of_node[node.name]
            yield from _judge_node(node, carried, needed, _expected_rate(carried, common))
        elif needed:
            yield _too_few(node, 0, 0, needed)


def _carried(node: Node) -> list[_Carried]:
    if not node.hcas:
        return []
    found = rails(node)
    names = {name for own in found.own.values() for name in own}
    if not names:  # no HCA is close to a GPU: whichever isn't known to be for something else
        names = {hca.name for hca in node.hcas} - set(found.not_rails)
    sure = bool(names) or _virtual(node)
    if not names:  # all are far: a virtual machine is given what it is to use; elsewhere nobody knows
        names = {hca.name for hca in node.hcas if _is_fabric(hca)}
    products = tuple(sorted({gpu.name or "" for gpu in node.open_gpus}))
    return [
        _Carried(hca, _best(hca.ports), (products, hca.board_id or hca.driver), sure)
        for hca in node.hcas
        if hca.name in names
    ]


def _virtual(node: Node) -> bool:
    return node.platform is not None and node.platform.virtual_machine not in (None, "none")


def _is_fabric(hca: Hca) -> bool:
    """InfiniBand or EFA: networks that are there for jobs, while Ethernet carries everything."""
    return hca.driver == "efa" or any(port.link_layer == "InfiniBand" for port in hca.ports or ())


def _cards(carried: Sequence[_Carried]) -> dict[str, list[_Carried]]:
    """The HCAs of each card: functions of one PCI device."""
    cards: dict[str, list[_Carried]] = {}
    for item in carried:
        cards.setdefault((item.hca.pci_bus_id or item.hca.name).partition(".")[0], []).append(item)
    return cards


def _is_up(item: _Carried) -> bool:
    return item.port is not None and bool(item.port.up)


def _both_wired(cards: Sequence[Sequence[_Carried]]) -> set[tuple[Hashable, ...]]:
    """Kinds of cards with several HCAs of which most have all up."""
    tally: Counter[tuple[Hashable, ...]] = Counter()
    for items in cards:
        if len(items) > 1 and any(map(_is_up, items)):
            tally[items[0].kind] += 1 if all(map(_is_up, items)) else -1
    return {kind for kind, more in tally.items() if more > 0}


def _without_spares(carried: list[_Carried], both: set[tuple[Hashable, ...]]) -> list[_Carried]:
    """Without those that are down on a card that is wired through another of its ports."""
    cards = _cards(carried)
    wired = {id(item) for items in cards.values() if any(map(_is_up, items)) for item in items if item.kind not in both}
    return [item for item in carried if item.port is None or item.port.up or id(item) not in wired]


def _best(ports: Sequence[Port] | None) -> Port | None:
    """A card of two ports is used through the one that is up."""
    known = [port for port in ports or () if port.up is not None]
    return max(known, key=lambda port: (bool(port.up), port.rate_bytes_per_s or 0), default=None)


def _judge_node(node: Node, carried: list[_Carried], needed: int, common: int | None) -> Iterator[Finding]:
    up = [item for item in carried if item.port is not None and item.port.up]
    unknown = [item.hca.name for item in carried if item.port is None]
    total = max(needed, len(carried))
    expected = f"{total} ports up" + (f" at {_gbit(common)}" if common else "")
    for item in carried:
        if item.port is not None and not item.port.up:
            finding = _down(node, item.hca, item.port, f"{len(up)} of {total} ports up", expected)
            yield finding if item.sure else _unsure(finding)
    slow = [item for item in up if item.port and common and (item.port.rate_bytes_per_s or common) < common]
    for item in slow:
        yield _slow(node, item, expected) if item.sure else _unsure(_slow(node, item, expected))
    if unknown:
        yield _unknown(node, f"state of {', '.join(unknown)} unknown")
    if len(carried) < needed and len(up) == len(carried):
        yield _too_few(node, len(up), len(carried), needed)
    elif up and len(up) + len(unknown) == len(carried) and not slow:
        rates = Counter(_gbit(item.port.rate_bytes_per_s) for item in up if item.port)
        seen = ", ".join(f"{number} x {rate}" for rate, number in rates.items())
        others = len(node.hcas or ()) - len(carried)
        more = f"; {others} other HCAs are not the job's" if others else ""
        unlike = len(rates) > 1 and common is None
        yield Finding(
            check=NAME,
            subject=node.name,
            verdict=Verdict.WARN if unlike else Verdict.PASS,
            observed=f"{len(up)} of {total} ports up: {seen}{more}",
            expected=f"{expected}, all at one rate" if unlike else expected,
            remedy="look whether the slower ports are meant to be so: neither rate has a majority" if unlike else "",
        )


def _down(node: Node, hca: Hca, port: Port, tally: str, expected: str) -> Finding:
    physical = port.physical_state or "unknown"
    no_manager = port.state in ("init", "armed") and physical == "LinkUp"
    why = "no subnet manager has set it up" if no_manager else _WHY.get(physical, "")
    return Finding(
        check=NAME,
        subject=f"{node.name} {hca.name}",
        verdict=Verdict.FAIL,
        observed=f"port {port.number}: state {port.state}, physical state {physical}{f' ({why})' if why else ''}; {tally}",
        expected=expected,
        remedy="start the subnet manager, or ask why it doesn't reach this port"
        if no_manager
        else f"look at the cable and the switch port of {hca.name} (ibstat, mlxlink), or leave {node.name} out of the job",
        blames=Part(kind="nic", name=f"{node.name} {hca.name}", confidence="possible" if no_manager else "likely"),
    )


def _unsure(finding: Finding) -> Finding:
    """A port of which nobody knows whether the job uses it."""
    return Finding(
        check=NAME,
        subject=finding.subject,
        verdict=Verdict.WARN,
        observed=f"{finding.observed}; no HCA is close to a GPU, so whether jobs use this one is not known",
        expected=finding.expected,
        remedy=finding.remedy,
    )


def _slow(node: Node, item: _Carried, expected: str) -> Finding:
    assert item.port is not None
    width = f", {item.port.width} lanes" if item.port.width else ""
    return Finding(
        check=NAME,
        subject=f"{node.name} {item.hca.name}",
        verdict=Verdict.FAIL,
        observed=f"port {item.port.number} is up at {_gbit(item.port.rate_bytes_per_s)}{width}",
        expected=expected,
        remedy=f"reseat the cable of {item.hca.name} and reset its port; a link that lost lanes comes back with a new cable",
        blames=Part(kind="nic", name=f"{node.name} {item.hca.name}", confidence="likely"),
    )


def _too_few(node: Node, up: int, found: int, needed: int) -> Finding:
    return Finding(
        check=NAME,
        subject=node.name,
        verdict=Verdict.FAIL,
        observed=f"{up} ports up of {found} that carry traffic of GPUs",
        expected=f"{needed} ports up",
        remedy=f"look for the missing HCAs of {node.name} (lspci), and at {NAME}.limits.ports_needed in the rules",
        blames=Part(kind="node", name=node.name, confidence="likely"),
    )


def _unknown(node: Node, observed: str) -> Finding:
    return Finding(
        check=NAME,
        subject=node.name,
        verdict=Verdict.UNKNOWN,
        observed=observed,
        expected="the state of every port that carries traffic of GPUs",
        remedy="run `ibstat` on the node",
    )


def _half_read(node: Node) -> Iterator[Finding]:
    """Listing failed for some device: what was read of the others still counts."""
    told = [p for p in node.problems if p.field in ("hcas", "ports") and not p.not_allowed]
    if told:
        text = "; ".join(f"{problem.source}: {problem.text}" for problem in told)
        yield Finding(
            check=NAME,
            subject=node.name,
            verdict=Verdict.WARN,
            observed=f"not every HCA could be read: {text}",
            expected="all HCAs that the system lists",
            remedy="see the kernel log about that device (mlx5_core); the others were read",
        )


def _commonest_rates(carried: list[_Carried]) -> dict[tuple[Hashable, ...], int]:
    """Kind -> the rate that more than half of its ports have, where two or more are up: partitions of other products may have another network."""
    rates: dict[tuple[Hashable, ...], Counter[int]] = {}
    for item in carried:
        if item.port and item.port.up and item.port.rate_bytes_per_s:
            rates.setdefault(item.kind, Counter())[item.port.rate_bytes_per_s] += 1
    found = {}
    for kind, numbers in rates.items():
        rate, number = numbers.most_common(1)[0]
        total = sum(numbers.values())
        if total > 1 and 2 * number > total:
            found[kind] = rate
    return found


def _expected_rate(carried: list[_Carried], common: dict[tuple[Hashable, ...], int]) -> int | None:
    """What the ports of one node should have: the same for all of them, or None."""
    told = {common.get(item.kind) for item in carried}
    return told.pop() if len(told) == 1 else None


def _gbit(rate_bytes_per_s: int | None) -> str:
    return "an unknown rate" if rate_bytes_per_s is None else show_line_rate(rate_bytes_per_s)


CHECK = Check(
    name=NAME,
    claim="The HCAs that carry the job's traffic have a link, of the same speed.",
    why="A rail that is down stops the job or sends two GPUs' traffic over one port; the slowest port sets the pace of all.",
    source="leptonai/gpud pull requests 482, 752, 308 and issues 989, 371, 383; InfiniBand specification, PortInfo",
    remedy="cable, transceiver and switch port of the HCA that is named; the subnet manager where a port stays in init",
    uses=("health",),
    judge=judge,
    limits=LIMITS,
)
