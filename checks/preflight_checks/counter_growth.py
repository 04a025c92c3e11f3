"""Nothing that counts errors grew between the earlier snapshot and this one.

Totals tell the age of a machine, growth tells its health: the same counter is 505 for months or 3 more in 21 minutes. What grew is held against the smallest part that counts it: a
GPU's memory, one NVLink, one port. A counter that started over, stands at its ceiling or is missing on a side is unknown, never zero.
Sources of limits: corrected memory errors: a GPU that was going had 17,700 per second under load while its neighbours had none (DCGM issue 313; Azure's limit of 20 million in all is
reached in 6 hours at `corrected_fail_per_s`; `corrected_warn_per_s` is ours). PCIe: DCGM's health watch warns above 8 replays a minute. NVLink: recoveries came five days
before a link failed (marin issue 8934): one is enough; DCGM's limit for repaired errors is 100 per second. Ports: a link that went down ends the job (NVSentinel pull request 752);
symbol errors up to a bit error rate of 1e-12 (ibdiagnet's limit). `port_lost_packets`, `port_path_packets` and `throttled_share` are ours.
"""

from collections.abc import Iterator, Sequence

from preflight.model import Check, Evidence, Finding, Gpu, Hca, Node, Part, Port, Record, Verdict
from preflight.model.counters import (
    LINK_COUNTERS,
    PORT_COUNTERS,
    Compared,
    Growth,
    Meaning,
    compare,
    counters_of,
    held_down_by_fault,
    owner_of,
    tells_errors,
)
from preflight.model.hostlist import fold
from preflight.model.per_gpu import gpu_name, gpu_part

NAME = "counter_growth"
LIMITS = {
    "corrected_warn_per_s": 1.0,
    "corrected_fail_per_s": 1000.0,
    "pcie_replays_per_minute": 8.0,
    "nvlink_corrected_per_s": 100.0,
    "port_bit_error_rate": 1e-12,
    "port_lost_packets": 10.0,
    "port_path_packets": 100.0,
    "throttled_share": 0.05,
}
_EXPECTED = "no error counter that grows"
_MAX_SHOWN = 8


class Grown(Record, frozen=True):
    """Something that grew, before it is told of a part."""

    verdict: Verdict
    text: str


class View(Record, frozen=True):
    """One node at both times."""

    node: Node
    compared: Compared
    owners: dict[str, list[Growth]]
    limits: dict[str, float]

    def over(self) -> str:
        """The time between, in words."""
        return "a time unknown" if self.compared.seconds is None else f"{self.compared.seconds:.0f} s"

    def rate(self, growth: Growth, at_least_s: float = 1.0) -> float | None:
        """Events per second; over `at_least_s` at least, so that one event in a short time isn't a high rate."""
        seconds = self.compared.seconds
        return None if growth.delta is None or seconds is None else growth.delta / max(seconds, at_least_s)


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each part that counts errors, one for what can't be told, one PASS for each node."""
    assert evidence.before is not None
    for node in evidence.health or ():
        before = evidence.before.node(node.name)
        if before is None:
            if counters_of(node):
                told = f"not in the earlier snapshot, which is of {fold(one.name for one in evidence.before.nodes)}"
                ask = f"give an earlier snapshot of {node.name} (preflight node --save)"
                yield _about_node(node, Verdict.UNKNOWN, told, remedy=ask)
            continue
        compared = compare(before, node)
        view = View(node, compared, compared.by_owner(), evidence.limits(NAME, LIMITS))
        gpus = () if evidence.settings.cpu_declared else node.open_gpus
        bad = [finding for gpu in gpus for finding in _judge_gpu(view, gpu)]
        bad += [
            finding for hca in node.hcas or () for port in hca.ports or () for finding in _judge_port(view, hca, port)
        ]
        yield from bad
        yield from _summary(view, gpus, anything_bad=bool(bad))


def _judge_gpu(view: View, gpu: Gpu) -> Iterator[Finding]:
    name = gpu_name(view.node, gpu)
    by_part: dict[str, list[Growth]] = {}
    for growth in view.owners.get(owner_of(gpu), ()):
        if growth.delta:
            by_part.setdefault(growth.counter.part, []).append(growth)
    for part, growths in by_part.items():
        if part == "memory":
            grown, blamed = _memory(view, growths), gpu_part(view.node, gpu)
            remedy = f"drain {view.node.name}, reset GPU {gpu.index} and run the vendor's memory diagnostic"
        elif part == "PCIe":
            grown, blamed = _pcie(view, growths), Part(kind="link", name=f"{name} PCIe", confidence="likely")
            remedy = f"reseat GPU {gpu.index} of {view.node.name} or its riser, and look at the slot's signal settings"
        elif part == "clock":
            grown, blamed = _clock(view, growths), gpu_part(view.node, gpu, "possible")
            remedy = f"look at cooling and power of GPU {gpu.index} on {view.node.name}"
        else:
            grown, blamed = _link(view, growths), Part(kind="link", name=f"{name} {part}", confidence="likely")
            remedy = (
                f"drain {view.node.name} and have {part} of GPU {gpu.index} looked at: connectors, cable, then the GPU"
            )
        if grown:
            yield _about_part(blamed.name, grown, remedy, blamed)


def _memory(view: View, growths: Sequence[Growth]) -> list[Grown]:
    """Errors count once although two counters have them: the volatile one and the one of the GPU's life."""
    grown = []
    for kind in ("uncorrected", "corrected"):
        of_kind = [growth for growth in growths if growth.counter.name.startswith(f"{kind}_")]
        most = max(of_kind, key=lambda growth: growth.delta or 0, default=None)
        if most is None:
            continue
        text = f"{kind} memory errors: {most.delta} more in {view.over()}"
        if kind == "uncorrected":
            grown.append(Grown(Verdict.FAIL, text))
        elif (rate := view.rate(most)) is not None and rate >= view.limits["corrected_warn_per_s"]:
            verdict = Verdict.FAIL if rate >= view.limits["corrected_fail_per_s"] else Verdict.WARN
            grown.append(Grown(verdict, f"{text}, {rate:.0f} per second, {most.after} in all"))
    return grown


def _pcie(view: View, growths: Sequence[Growth]) -> list[Grown]:
    rates = [(growth, view.rate(growth, at_least_s=60.0)) for growth in growths]
    return [
        Grown(Verdict.WARN, f"PCIe replays: {growth.delta} more in {view.over()}")
        for growth, rate in rates
        if rate is not None and rate * 60 > view.limits["pcie_replays_per_minute"]
    ]


def _clock(view: View, growths: Sequence[Growth]) -> list[Grown]:
    seconds = view.compared.seconds or 0.0
    return [
        Grown(Verdict.WARN, f"held down by {growth.counter.name} for {growth.delta / 1e9:.1f} s of {view.over()}")
        for growth in growths
        if growth.delta
        and held_down_by_fault(growth.counter.name)
        and growth.delta / 1e9 >= view.limits["throttled_share"] * seconds > 0
    ]


def _link(view: View, growths: Sequence[Growth]) -> list[Grown]:
    grown = []
    for growth in growths:
        meaning = LINK_COUNTERS.get(growth.counter.name, "normal")
        rate = view.rate(growth)
        if meaning == "normal" or (meaning == "corrected" and (rate or 0.0) < view.limits["nvlink_corrected_per_s"]):
            continue
        verdict = Verdict.FAIL if meaning == "failed" else Verdict.WARN
        grown.append(Grown(verdict, _more(view, growth)))
    return grown


def _judge_port(view: View, hca: Hca, port: Port) -> Iterator[Finding]:
    grown: list[Grown] = []
    path: list[Grown] = []
    for growth in view.owners.get(hca.name, ()):
        meaning = PORT_COUNTERS.get(growth.counter.name, "normal")
        if not growth.delta or growth.counter.part != f"port {port.number}" or meaning == "normal":
            continue
        if growth.counter.name == "out_of_sequence" and port.link_layer != "Ethernet":
            continue  # adaptive routing of InfiniBand puts packets out of sequence by design
        if growth.delta >= _enough_for_port(view, port, meaning):
            verdict = Verdict.FAIL if meaning == "failed" and _near_a_gpu(view.node, hca) else Verdict.WARN
            (path if meaning == "path" else grown).append(Grown(verdict, _more(view, growth)))
    name = f"{view.node.name} {hca.name} port {port.number}"
    if grown:
        part = Part(kind="nic", name=name, confidence="likely")
        yield _about_part(name, grown, "clean or replace cable and transceiver, then try another switch port", part)
    if path:
        yield _about_part(name, path, "look at flow control and congestion of the network behind this port", None)


def _enough_for_port(view: View, port: Port, meaning: Meaning) -> float:
    """How many more events are worth a word."""
    if meaning == "lost":
        return view.limits["port_lost_packets"]
    if meaning == "path":
        return view.limits["port_path_packets"]
    if meaning == "corrected":
        bits = 8.0 * (port.rate_bytes_per_s or 0) * (view.compared.seconds or 0.0)
        return max(view.limits["port_bit_error_rate"] * bits, view.limits["port_lost_packets"])
    return 1.0


def _near_a_gpu(node: Node, hca: Hca) -> bool:
    """A port for training; others may go down without harm to a job."""
    return any(gpu.nics.get(hca.name) in {"PIX", "PXB"} for gpu in node.open_gpus)


def _more(view: View, growth: Growth) -> str:
    least = "at least " if growth.at_least else ""
    return f"{growth.counter.name} grew by {least}{growth.delta} in {view.over()}, to {growth.after}"


def _summary(view: View, gpus: Sequence[Gpu], *, anything_bad: bool) -> Iterator[Finding]:
    """What can't be told, and how much could."""
    names = {owner_of(gpu): f"GPU {gpu.index}" for gpu in gpus} | {hca.name: hca.name for hca in view.node.hcas or ()}
    telling = [
        growth for growth in view.compared.growths if growth.counter.owner in names and tells_errors(growth.counter)
    ]
    unclear: dict[str, list[str]] = {}
    for growth in telling:
        if growth.state in {"reset", "saturated"} or growth.state.startswith("absent"):
            part = "" if growth.counter.part == "memory" else f" {growth.counter.part}"
            unclear.setdefault(growth.state, []).append(f"{names[growth.counter.owner]}{part} {growth.counter.name}")
    if view.compared.restarted:
        yield _about_node(view.node, Verdict.UNKNOWN, f"not comparable: {view.compared.restarted}")
        unclear.pop("reset", None)
    for state, counters in unclear.items():
        shown = ", ".join(counters[:_MAX_SHOWN]) + (
            f" and {len(counters) - _MAX_SHOWN} more" if counters[_MAX_SHOWN:] else ""
        )
        yield _about_node(view.node, Verdict.UNKNOWN, f"{_STATES[state]}: {shown}")
    compared = sum(growth.state == "compared" for growth in telling)
    if compared and view.compared.seconds is None:
        yield _about_node(
            view.node, Verdict.UNKNOWN, "the time between the snapshots is unknown, so that rates are too"
        )
    elif compared and not anything_bad:
        yield _about_node(
            view.node, Verdict.PASS, f"{compared} error counters in {view.over()}: no growth that matters"
        )


_STATES = {
    "reset": "started over between the snapshots",
    "saturated": "at their ceilings, so that new errors can't be seen",
    "absent before": "not in the earlier snapshot",
    "absent after": "in the earlier snapshot and not in this one",
}


def _about_part(subject: str, grown: Sequence[Grown], remedy: str, part: Part | None) -> Finding:
    worst = min((one.verdict for one in grown), key=lambda verdict: verdict.rank)
    text = "; ".join(one.text for one in grown)
    return Finding(
        check=NAME, subject=subject, verdict=worst, observed=text, expected=_EXPECTED, remedy=remedy, blames=part
    )


def _about_node(node: Node, verdict: Verdict, observed: str, *, remedy: str = "") -> Finding:
    remedy = remedy or ("take two snapshots without a restart between them" if verdict is Verdict.UNKNOWN else "")
    return Finding(check=NAME, subject=node.name, verdict=verdict, observed=observed, expected=_EXPECTED, remedy=remedy)


CHECK = Check(
    name=NAME,
    claim="Nothing that counts errors grew between the earlier snapshot and this one.",
    why="Growth finds the link, the memory or the port that is going days before it fails; totals can't.",
    source="DCGM issue 313 and health watches; marin issue 8934; NVSentinel pull request 752; ibdiagnet's bit error rate; the rest is our own choice, see the file's header.",
    remedy="Take two snapshots under load; drain the node whose counters grow, and have the named part looked at.",
    uses=("health", "before"),
    judge=judge,
    need="advisory",
    limits=LIMITS,
)
