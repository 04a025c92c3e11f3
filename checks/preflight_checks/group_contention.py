"""Groups keep their bandwidth when all groups of their axis run at once, as they do in training.

The ratio together / alone is near 1 where groups share nothing, and 1/k where k groups share a NIC. On agents that share one machine (--local) the groups also share its
cores, so the ratio says nothing of a fabric and is never called FAIL.
"""

from collections.abc import Iterator
from math import hypot

from preflight.model import Check, Evidence, Finding, Verdict
from preflight.model.measurement import median
from preflight.model.noise import TOO_NOISY_REMEDY, by_subject, relative_noise, repeats_of, why_too_noisy

# Two groups on one NIC give 0.5; below that the layout leaves most of the fabric unused. 0.8: clearly more than measuring noise (1 to 3 %) and route effects (5 to 12 %).
LIMITS = {"warn_ratio": 0.8, "fail_ratio": 0.5}


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each group that was timed both ways, or one for each axis where the noise forbids to tell."""
    assert evidence.plan is not None
    assert evidence.measurements is not None
    limits = evidence.limits("group_contention", LIMITS)
    repeats = repeats_of(evidence.measurements)
    alone, together = by_subject(repeats, "alone"), by_subject(repeats, "together")
    for axis in evidence.plan.timed_axes:
        planned = [group.name for group in evidence.plan.on_axis(axis)]
        names = [name for name in planned if name in alone and name in together]
        missing = [name for name in planned if name in alone and name not in together]  # else group_busbw speaks
        if missing and len(planned) > 1:
            yield _unmeasured(axis, missing)
        if not names:
            continue
        ratios = {name: median(together[name]) / median(alone[name]) for name in names}
        lowest = min(ratios, key=lambda name: ratios[name])
        noises = [relative_noise(mode[name] for name in names) for mode in (alone, together)]
        noise = None if None in noises else hypot(*(n for n in noises if n is not None))
        noisy = why_too_noisy(noise, 1 - limits["warn_ratio"])
        if noisy:
            yield Finding(
                check="group_contention",
                subject=f"{axis} groups",
                verdict=Verdict.WARN,
                observed=f"{noisy}; lowest ratio {ratios[lowest]:.2f} ({lowest})",
                expected=f"repeats alike enough to see a ratio of {limits['warn_ratio']:g}",
                remedy=TOO_NOISY_REMEDY,
            )
            continue
        for name, ratio in ratios.items():
            once = min(len(alone[name]), len(together[name])) == 1
            yield _group(name, ratio, limits, once=once, local=evidence.settings.local)


def _unmeasured(axis: str, names: list[str]) -> Finding:
    """An axis of which some groups lack a figure: what they do to each other is not known."""
    return Finding(
        check="group_contention",
        subject=f"{axis} groups",
        verdict=Verdict.UNKNOWN,
        observed=f"{len(names)} groups were timed alone, but not together with the others: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}",
        expected="every group of the axis timed alone and with all others",
        remedy="see reachable for groups that failed; else give a larger --budget",
    )


def _group(name: str, ratio: float, limits: dict[str, float], *, once: bool, local: bool) -> Finding:
    """`once`: it was timed only once in one of the two ways, on which no FAIL can rest."""
    verdict = Verdict.PASS
    if ratio < limits["warn_ratio"]:
        verdict = Verdict.FAIL if ratio < limits["fail_ratio"] and not once and not local else Verdict.WARN
    shared = "the agents share one machine's cores, so this says nothing of a fabric" if local else ""
    return Finding(
        check="group_contention",
        subject=name,
        verdict=verdict,
        observed=f"{ratio:.2f} of its bandwidth is left when all groups of the axis run at once"
        + (f"; {shared}" if shared and verdict is Verdict.WARN else ""),
        expected=f"at least {limits['warn_ratio']:g} (below {limits['fail_ratio']:g}: FAIL)",
        remedy=""
        if verdict is Verdict.PASS or local
        else "look for a NIC, uplink or route that groups of this axis share; another rank order may part them",
        evidence=(f"{name} alone", f"{name} together"),
    )


CHECK = Check(
    name="group_contention",
    claim="Groups keep their bandwidth when all groups of their axis run at once.",
    why="In training they do run at once; a tool that times one at a time sees a fabric that the job never gets.",
    source="the ratio of two measurements of the same run, alone and together",
    remedy="give groups that run at once NICs of their own, or ask the network's operator about oversubscribed uplinks",
    uses=("plan", "measurements"),
    judge=judge,
    limits=LIMITS,
)
