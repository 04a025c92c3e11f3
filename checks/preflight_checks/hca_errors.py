"""No port of an HCA shows far more errors than the others do.

Counters of a port run since it was last cleared, often since boot or longer, so that a total never fails a port: one that stands out among all ports is a cable, a transceiver or
a switch port to look at. Growth between two snapshots is judged by `counter_growth`. A counter at its ceiling (255, 65535, ...) is no fresh event and no health either: it can't tell.
Only ports that are up are judged: spare and management ports go down and come up as they like (NVSentinel issues 1361, 1379, 1462).
Source: Azure's health checks (5 flaps a day: `link_downs`); byteps issue 179 (2705 timeouts of acknowledgements on a RoCE network without flow control: `packets`); saturated
counters: gpud issue 943; widths: IBTA specification, PortCounters. `errors`, `times_others` are ours.
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Hca, Node, Part, Port, Verdict
from preflight.model.counters import PORT_COUNTERS, Counter, Meaning, half_of_others, saturated

NAME = "hca_errors"
LIMITS = {"link_downs": 5.0, "errors": 100.0, "packets": 1000.0, "times_others": 10.0}
_EXPECTED = "no port that stands out with errors"
_REMEDY = "clear the counters (perfquery -R), look again under load: if it grows, clean or replace cable and transceiver, or move to another switch port"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One warning for each port that stands out, one UNKNOWN for counters at their ceilings, one PASS for each node."""
    limits = evidence.limits(NAME, LIMITS)
    everything = _all_values(evidence)
    for node in evidence.health or ():
        if node.hcas is None:
            yield from _unreadable(node)
        elif node.hcas:
            yield from _judge_node(node, node.hcas, limits, everything)


def _judge_node(
    node: Node, hcas: tuple[Hca, ...], limits: dict[str, float], everything: dict[str, list[int]]
) -> Iterator[Finding]:
    ports = [(hca, port) for hca in hcas for port in hca.ports or () if port.up]
    read = [(hca, port) for hca, port in ports if port.counters]
    full: list[str] = []
    good = 0
    for hca, port in read:
        name = f"{hca.name} port {port.number}"
        bad, stuck = _sort(hca, port, limits, everything)
        full += [f"{name} {counter}" for counter in stuck]
        good += not bad and not stuck
        if bad:
            yield Finding(
                check=NAME,
                subject=f"{node.name} {name}",
                verdict=Verdict.WARN,
                observed="since last cleared: " + ", ".join(bad),
                expected=_EXPECTED,
                remedy=_REMEDY,
                blames=Part(kind="nic", name=f"{node.name} {name}", confidence="possible"),
            )
    if full:
        observed = "at their ceilings, so that new errors can't be seen: " + ", ".join(full)
        yield _finding(node, Verdict.UNKNOWN, observed, "clear the counters (perfquery -R)")
    unread = [
        f"{hca.name} port {port.number}" for hca, port in ports if not port.counters and not hca.is_virtual_function
    ]
    if unread:
        yield _finding(node, Verdict.UNKNOWN, f"no error counters could be read: {', '.join(unread)}", "")
    if good:
        yield _finding(node, Verdict.PASS, f"{good} port{'s' * (good != 1)}: no errors that stand out", "")


def _sort(
    hca: Hca, port: Port, limits: dict[str, float], everything: dict[str, list[int]]
) -> tuple[list[str], list[str]]:
    """What stands out, and what is at its ceiling."""
    bad, full = [], []
    for name, value in port.counters.items():
        meaning = PORT_COUNTERS.get(name, "normal")
        if meaning == "normal" or (name == "out_of_sequence" and port.link_layer != "Ethernet"):
            continue  # adaptive routing of InfiniBand puts packets out of sequence by design
        others = half_of_others(everything[name], value)
        if saturated(Counter(hca.name, f"port {port.number}", name), value):
            full.append(f"{name} {value}")
        elif value >= _enough(meaning, limits) and value >= limits["times_others"] * others:
            bad.append(f"{name} {value} (half of all other ports: {others} or less)")
    return bad, full


def _enough(meaning: Meaning, limits: dict[str, float]) -> float:
    if meaning in {"failed", "recovered"}:
        return limits["link_downs"]
    return limits["packets"] if meaning == "path" else limits["errors"]


def _all_values(evidence: Evidence) -> dict[str, list[int]]:
    """Counter -> the values of all ports that are up, in order."""
    values: dict[str, list[int]] = {}
    for node in evidence.health or ():
        for hca in node.hcas or ():
            for port in hca.ports or ():
                for name, value in port.counters.items() if port.up else ():
                    values.setdefault(name, []).append(value)
    return {name: sorted(numbers) for name, numbers in values.items()}


def _unreadable(node: Node) -> Iterator[Finding]:
    """Worth a word only where there are GPUs to be joined to others."""
    if node.open_gpus:
        why = "; ".join(problem.text for problem in node.problems if problem.field == "hcas") or "not in this snapshot"
        yield _finding(node, Verdict.UNKNOWN, f"HCAs unknown: {why}", "")


def _finding(node: Node, verdict: Verdict, observed: str, remedy: str) -> Finding:
    return Finding(check=NAME, subject=node.name, verdict=verdict, observed=observed, expected=_EXPECTED, remedy=remedy)


CHECK = Check(
    name=NAME,
    claim="No port of an HCA shows far more errors than the others do.",
    why="A port with a bad cable sends again and again, goes down under load, and holds up every group whose traffic crosses it.",
    source="Azure's health checks (flaps); byteps issue 179; gpud issue 943 (ceilings); IBTA specification; the comparison with other ports is our own choice.",
    remedy="Clear the counters and look again under load; clean or replace cable and transceiver of a port whose errors grow.",
    uses=("health",),
    judge=judge,
    need="advisory",
    limits=LIMITS,
)
