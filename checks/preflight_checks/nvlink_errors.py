"""No NVLink shows far more errors than the others do.

Counters of a link run since the driver was loaded. A few repaired errors are life; one link that stands out is a cable, a connector or a GPU that is going: of 5760 links one had
505 recoveries while all others had none, and five days later it failed and took 16 nodes down (marin issues 8934 and 9086). If an earlier snapshot shows that nothing
was added for `quiet_s`, the errors are history; growth is judged by `counter_growth`. Errors that a part before the link had marked are not held against it.
Source: marin (above); imbue's health checks warn at 5 (`events`); meaning of the counters: nvml.h, in `model/counters.py`. `times_others`, `quiet_s` and `corrected` are ours: repeated
packets and the like, which nobody notices, add up over months, so that 5 of them on one of a fleet's 144,000 links tell nothing.
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Gpu, Link, Node, Part, Verdict
from preflight.model.counters import LINK_COUNTERS, Counter, compare, half_of_others, owner_of
from preflight.model.per_gpu import Fault, gpu_name, judge_gpus

NAME = "nvlink_errors"
LIMITS = {"events": 5.0, "failures": 1.0, "corrected": 100.0, "times_others": 10.0, "quiet_s": 3600.0}
_GOOD = "no NVLink stands out with errors"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One warning for each GPU with such links. It names the link, which has two ends, and never the GPUs at the far end."""
    limits = evidence.limits(NAME, LIMITS)
    everything = _all_values(evidence)
    history: dict[str, set[Counter]] = {}

    def fault(node: Node, gpu: Gpu, links: tuple[Link, ...]) -> Fault | None:
        counted = [link for link in links if any(name in LINK_COUNTERS for name in link.counters)]
        if not counted:
            return _no_counters(gpu, links)
        seen = {link.index: _stands_out(gpu, link, limits, everything) for link in counted}
        if any(seen.values()) and node.name not in history:
            history[node.name] = _quiet(evidence, node, limits["quiet_s"])
        bad = {
            index: text for index, found in seen.items() if (text := _told(gpu, index, found, history.get(node.name)))
        }
        if not bad:
            return None if any(link.active is not False for link in links) else Fault(Verdict.SKIP, "no active NVLink")
        name = gpu_name(node, gpu)
        one = len(bad) == 1
        return Fault(
            Verdict.WARN,
            "since the driver was loaded: " + "; ".join(f"link {index}: {text}" for index, text in bad.items()),
            f"no link with {limits['events']:.0f} errors and {limits['times_others']:.0f} times what links usually have",
            f"take two snapshots some minutes apart under load (preflight node --since): if it grows, drain {node.name}, reseat or replace what "
            f"{'that link goes' if one else 'those links go'} through, at GPU {gpu.index} first",
            part=Part(kind="link", name=f"{name} link {next(iter(bad))}", confidence="likely")
            if one
            else Part(kind="gpu", name=name, confidence="possible"),
        )

    yield from judge_gpus(
        NAME, evidence, "links", fault, good=_GOOD, expected="no link that stands out", note=_note, unless=_no_links
    )


def _no_links(gpu: Gpu) -> str | None:
    return "this product has no NVLink" if gpu.links == () else None


def _note(_gpu: Gpu, links: tuple[Link, ...]) -> str | None:
    total = sum(
        value
        for link in links
        for name, value in link.counters.items()
        if LINK_COUNTERS.get(name, "normal") != "normal"
    )
    return f"{total} errors on its links since the driver was loaded" if total else None


def _no_counters(gpu: Gpu, links: tuple[Link, ...]) -> Fault:
    if not any(link.active for link in links):
        return Fault(Verdict.SKIP, "no active NVLink")
    missing = gpu.why_unknown("links")
    why = "the driver tells none" if missing.kind == "not told" else missing.text
    return Fault(Verdict.UNKNOWN, f"NVLink error counters unknown: {why}")


def _all_values(evidence: Evidence) -> dict[tuple[str | None, str], list[int]]:
    """Product and counter -> the values of all links, in order."""
    values: dict[tuple[str | None, str], list[int]] = {}
    for node in evidence.health or ():
        for gpu in node.open_gpus:
            for link in gpu.links or ():
                for name, value in link.counters.items():
                    values.setdefault((gpu.name, name), []).append(value)
    return {key: sorted(numbers) for key, numbers in values.items()}


def _stands_out(
    gpu: Gpu, link: Link, limits: dict[str, float], everything: dict[tuple[str | None, str], list[int]]
) -> dict[str, str]:
    """Counter -> what is to be said of it."""
    bad = {}
    for name, value in link.counters.items():
        meaning = LINK_COUNTERS.get(name, "normal")
        enough = limits[{"failed": "failures", "corrected": "corrected"}.get(meaning, "events")]
        if meaning == "normal" or value < enough:
            continue
        others = half_of_others(everything[gpu.name, name], value)
        if value >= limits["times_others"] * others:
            bad[name] = f"{name} {value} (half of all other links: {others} or less)"
    return bad


def _quiet(evidence: Evidence, node: Node, quiet_s: float) -> set[Counter]:
    """Counters that an earlier snapshot shows not to have grown for so long."""
    before = evidence.before.node(node.name) if evidence.before else None
    compared = compare(before, node) if before else None
    if compared is None or compared.seconds is None or compared.seconds < quiet_s:
        return set()
    return {growth.counter for growth in compared.growths if growth.delta == 0}


def _told(gpu: Gpu, index: int, found: dict[str, str], quiet: set[Counter] | None) -> str:
    """What stands out on a link and isn't history."""
    counters = {name: Counter(owner_of(gpu), f"link {index}", name) for name in found}
    return ", ".join(text for name, text in found.items() if not quiet or counters[name] not in quiet)


CHECK = Check(
    name=NAME,
    claim="No NVLink shows far more errors than the others do.",
    why="A link that repairs itself again and again fails days later, and takes every node of its NVLink domain with it.",
    source="marin issues 8934 and 9086; imbue's health checks (5 errors); nvml.h; the comparison with other links is our own choice.",
    remedy="See with two snapshots whether it grows; if so drain the node and have link and GPU looked at.",
    uses=("health",),
    judge=judge,
    need="advisory",
    limits=LIMITS,
)
