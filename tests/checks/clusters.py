"""Model clusters: they answer every probe of the real schedule. A pair has a rate, noise is log-normal, and a group runs at its slowest pair."""

import random
from collections.abc import Callable, Iterable
from itertools import pairwise

import msgspec

from preflight.model import Check, Evidence, Finding, Measurement, Probe, Samples, Settings, Verdict
from preflight.probe.schedule import full_schedule
from tests.builders import make_plan

HEALTHY = 50e9  # bytes per second

Rate = Callable[[int, int], float]


def measured(probe: Probe, rate: float, noise: float, rng: random.Random) -> Measurement:
    """One measurement at an algbw of `rate`, give or take the noise."""
    seconds = probe.size_bytes / rate * rng.lognormvariate(0, noise)
    samples = tuple(Samples(rank=rank, durations_s=(seconds,) * 3, first_call_s=0.01) for rank in probe.ranks)
    return Measurement(probe=probe, samples=samples, data_correct=True, members=probe.ranks)


def cluster(
    rate: Rate = lambda _a, _b: HEALTHY, *, noise: float = 0.01, shared: float = 1.0, nodes: int = 4, seed: int = 0
) -> Evidence:
    """A whole run on nodes of 4 GPUs, tp 4. `shared`: what is left of a group's rate when all run together."""
    plan = make_plan(tp=4, dp=nodes, nodes=nodes, gpus_per_node=4, gpu=None, backend="gloo")
    rng = random.Random(seed)
    found = []
    for probe in (probe for probes in full_schedule(plan, "gloo") for probe in probes):
        slowest = min(rate(min(a, b), max(a, b)) for a, b in pairwise(probe.ranks))
        found.append(measured(probe, slowest * (shared if probe.mode == "together" else 1), noise, rng))
    return Evidence(settings=Settings(backend="gloo"), plan=plan, measurements=tuple(found))


def slow(*ranks: int, factor: float = 0.7) -> Rate:
    return lambda a, b: HEALTHY * (factor if {a, b} & set(ranks) else 1)


def with_measurements(evidence: Evidence, measurements: Iterable[Measurement]) -> Evidence:
    """The same run with other measurements."""
    return msgspec.structs.replace(evidence, measurements=tuple(measurements))


def said(check: Check, evidence: Evidence, *verdicts: Verdict) -> list[Finding]:
    """What one check says, of these verdicts only if any are given."""
    return [f for f in check.judge(evidence) if not verdicts or f.verdict in verdicts]


def subjects(check: Check, evidence: Evidence, verdict: Verdict = Verdict.FAIL) -> list[str]:
    """The subjects of which the check says this verdict."""
    return [f.subject for f in said(check, evidence, verdict)]
