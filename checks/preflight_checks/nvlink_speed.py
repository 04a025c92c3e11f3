"""Every active NVLink runs at the line rate of its generation.

Compared with the rate in the product's profile, else with the rate that most links of that product show here. Drivers print the same link as 25 or 25.781 GB/s, and as
50 or 53.125, before or after line coding: up to 6 % apart. The next slower rate of a generation (20 for 25.781, V100) is 22 % below. The tolerance lies between.
A faster link is never a fault.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from preflight.model import Check, Evidence, Finding, Gpu, Node, Part, Record, Verdict
from preflight.model.gpu_users import users_of
from preflight.model.per_gpu import count, gpu_name, gpu_part, gpus_subject, product_names

NAME = "nvlink_speed"
LIMITS = {"speed_tolerance_ratio": 0.1}

REMEDY = "reset GPU {gpus}, or reboot the node, so that its links are trained anew; if they stay slow, keep groups off it and have it repaired"


class _Reference(Record, frozen=True):
    bytes_per_s: float
    basis: str
    certain: bool


class _Set(Record, frozen=True):
    """GPUs of one product on one node that have active links."""

    evidence: Evidence
    node: Node
    gpus: Sequence[Gpu]
    reference: _Reference

    @property
    def expected(self) -> str:
        return f"{_show(self.reference.bytes_per_s)} per link, one way ({self.reference.basis})"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each node and product: links that are too slow, or one PASS. Nothing where there are no active links."""
    if evidence.settings.cpu_declared:
        return
    tolerance = evidence.limits(NAME, LIMITS)["speed_tolerance_ratio"]
    references: dict[str | None, _Reference | None] = {}
    for node in evidence.health or ():
        for name in dict.fromkeys(gpu.name for gpu in node.open_gpus):
            gpus = [gpu for gpu in node.open_gpus if gpu.name == name and _active_links(gpu)]
            if not gpus:
                continue
            if name not in references:
                references[name] = _reference(evidence, gpus[0])
            yield from _judge_product(evidence, node, gpus, references[name], tolerance)


def _judge_product(
    evidence: Evidence, node: Node, gpus: Sequence[Gpu], reference: _Reference | None, tolerance: float
) -> Iterator[Finding]:
    silent = [gpu for gpu in gpus if None in _active_links(gpu).values()]
    rates = {gpu.index: {link: rate for link, rate in _active_links(gpu).items() if rate is not None} for gpu in gpus}
    if not any(rates.values()):
        yield _no_speeds(node, gpus)
        return
    if reference is None:
        seen = ", ".join(_show(rate) for rate in sorted({rate for links in rates.values() for rate in links.values()}))
        observed = (
            f"links at {seen}; no profile exists for {product_names(gpus)}, and too few links are here to compare"
        )
        yield _finding(node, gpus, Verdict.UNKNOWN, observed)
        return
    least = reference.bytes_per_s * (1 - tolerance)
    slow = {gpu.index: [link for link, rate in rates[gpu.index].items() if rate < least] for gpu in gpus}
    each = _Set(evidence, node, gpus, reference)
    yield from _slow_findings(each, slow)
    for gpu in silent:
        links = [link for link, rate in _active_links(gpu).items() if rate is None]
        yield _finding(
            node, [gpu], Verdict.UNKNOWN, f"speed of links {_numbers(links)} unknown", expected=each.expected
        )
    if not silent and not any(slow.values()):
        slowest = min(rate for links in rates.values() for rate in links.values())
        number = sum(map(len, rates.values()))
        good = f"{count(gpus)}: {number} active links at {_show(slowest)} or more"
        yield _finding(node, gpus, Verdict.PASS, good, expected=each.expected)


def _active_links(gpu: Gpu) -> dict[int, int | None]:
    """Active links and their rates."""
    return {link.index: link.speed_bytes_per_s for link in gpu.links or () if link.active}


def _no_speeds(node: Node, gpus: Sequence[Gpu]) -> Finding:
    missing = next((why for gpu in gpus if (why := gpu.why_unknown("links")).kind in ("failed", "not allowed")), None)
    if missing:
        return _finding(node, gpus, Verdict.UNKNOWN, f"link speeds unknown: {missing.text}")
    return _finding(node, gpus, Verdict.SKIP, "this driver tells no link speeds")


def _reference(evidence: Evidence, gpu: Gpu) -> _Reference | None:
    """The profile's rate; without one what more than half of three or more active links of this product have."""
    profile = evidence.profile_of(gpu)
    if profile and profile.link_bytes_per_s:
        return _Reference(profile.link_bytes_per_s.value, profile.link_bytes_per_s.source, certain=True)
    rates = Counter(
        rate
        for node in evidence.health or ()
        for other in node.open_gpus
        if other.name == gpu.name
        for rate in _active_links(other).values()
        if rate is not None
    )
    rate, times = rates.most_common(1)[0] if rates else (0, 0)
    if rates.total() < 3 or 2 * times <= rates.total():
        return None
    basis = f"as {times} of {rates.total()} links of this product here; its profile, if any, has no rate"
    return _Reference(rate, basis, certain=False)


def _slow_findings(each: _Set, slow: dict[int, list[int]]) -> Iterator[Finding]:
    """One finding if all links of two or more GPUs are slow, else one for each GPU."""
    hit = [gpu for gpu in each.gpus if slow[gpu.index]]
    everything = all(len(slow[gpu.index]) == len(_active_links(gpu)) for gpu in each.gpus)
    if everything and len(hit) > 1:
        seen = {rate for gpu in hit for rate in _active_links(gpu).values() if rate is not None}
        observed = f"all links of {count(hit)} at {', '.join(map(_show, sorted(seen)))}"
        yield _fault(each, hit, observed, Part(kind="node", name=each.node.name, confidence="likely"))
        return
    for gpu in hit:
        links, active = slow[gpu.index], _active_links(gpu)
        part = gpu_part(each.node, gpu, "certain" if each.reference.certain else "likely")
        if len(links) == 1 < len(active):
            part = Part(kind="link", name=f"{gpu_name(each.node, gpu)} link {links[0]}", confidence=part.confidence)
        yield _fault(each, [gpu], _slow_text(links, active), part)


def _slow_text(links: Sequence[int], active: dict[int, int | None]) -> str:
    """As in "link 5 at 20 GB/s, the other 17 links at 26.56 GB/s or more"."""
    rates = sorted({rate for link in links if (rate := active[link]) is not None})
    others = [rate for link, rate in active.items() if link not in links and rate is not None]
    text = f"link{'s' * (len(links) != 1)} {_numbers(links)} at {', '.join(map(_show, rates))}"
    if not others:
        return text
    rest = f"the other {len(others)} links" if len(others) > 1 else "the other link"
    return f"{text}, {rest} at {_show(min(others))} or more"


def _fault(each: _Set, gpus: Sequence[Gpu], observed: str, part: Part) -> Finding:
    users = users_of(each.evidence.plan, each.node, gpus)
    return Finding(
        check=NAME,
        subject=gpu_name(each.node, gpus[0]) if len(gpus) == 1 else gpus_subject(each.node, gpus),
        verdict=users.lowered(Verdict.FAIL),
        observed=observed + users.text(),
        expected=each.expected,
        remedy=REMEDY.format(gpus=_numbers([gpu.index for gpu in gpus])),
        blames=part,
    )


def _finding(node: Node, gpus: Sequence[Gpu], verdict: Verdict, observed: str, *, expected: str = "") -> Finding:
    return Finding(check=NAME, subject=gpus_subject(node, gpus), verdict=verdict, observed=observed, expected=expected)


def _numbers(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices))


def _show(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.4g} GB/s"


CHECK = Check(
    name=NAME,
    claim="Every active NVLink runs at the line rate of its generation.",
    why="A link that trained at a lower rate slows every transfer that is spread over it, and nothing fails.",
    source="Rates: the product's profile. Tolerance: drivers print 25 or 25.781 GB/s for one link (NVIDIA/nccl issue 1054); the next slower rate is 22 % lower.",
    remedy="Reset the GPU or reboot the node, so that the links are trained anew; have the GPU or its board repaired if they stay slow.",
    uses=("health",),
    judge=judge,
    limits=LIMITS,
)
