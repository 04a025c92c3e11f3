"""Every collective delivers the right data, and every GPU computes and copies it right.

Each rank compares what it received with what it must have received, for every timed window. Wrong data is FAIL whatever the speed:
training on it goes on silently. Logs of others may come without that look (nccl-tests -c 0): they are told to be unverified, and their answer is about speed.
What a GPU does alone involves no other, so there it is to blame itself.
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Measurement, Part, Probe, Verdict
from preflight.model.bandwidth import ALONE
from preflight.model.finding import Confidence
from preflight.model.hostlist import fold_numbers


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each pair or group with wrong data, or one for all."""
    assert evidence.measurements is not None
    measured = [m for m in evidence.measurements if m.samples or _wrong(m)]
    wrong = [m for m in measured if _wrong(m)]
    unverified = [m for m in measured if m.data_correct is None and not _wrong(m)]
    by_itself = {m.probe.ranks[0] for m in wrong if m.probe.collective in ALONE}
    common = set(wrong[0].probe.ranks).intersection(*(m.probe.ranks for m in wrong)) if wrong else set()
    elsewhere = {m.probe.subject for m in wrong}
    for m in {m.probe.subject: m for m in wrong}.values():
        mine = by_itself.intersection(m.probe.ranks)
        one = next(iter(common)) if len(common) == 1 and len(elsewhere) > 1 else None
        one = next(iter(mine)) if one is None and len(mine) == 1 else one
        yield Finding(
            check="data_correct",
            subject=m.probe.subject,
            verdict=Verdict.FAIL,
            observed=_says(m.probe, logged=evidence.plan is None and evidence.localisation is not None),
            expected="every element as it was sent or summed",
            remedy="do not train on these; "
            + (f"replace the GPU or NIC of rank {one}" if one is not None else "test its ranks one by one"),
            blames=None
            if one is None
            else Part(
                kind="rank", name=f"rank {one}", confidence="likely" if one in by_itself else _confidence(one, measured)
            ),
            evidence=(m.probe.key,),
        )
    if measured and unverified and evidence.plan is None:
        yield Finding(
            check="data_correct",
            subject="data",
            verdict=Verdict.WARN,
            observed=f"not verified: {len(unverified)} of {len(measured)} logged measurements were made without a look at the data (nccl-tests -c 0), so that they tell of speed only",
            expected="all data verified",
            remedy="run nccl-tests again with -c 1 if it matters",
        )
    elif not measured or unverified:
        yield Finding(
            check="data_correct",
            subject="data",
            verdict=Verdict.UNKNOWN,
            observed=f"the data of {len(unverified)} measurements was not verified"
            if measured
            else "nothing was measured",
            expected="all data verified",
            remedy="run again",
        )
    elif not wrong:
        yield Finding(
            check="data_correct",
            subject="data",
            verdict=Verdict.PASS,
            observed=f"the data of all {len(measured)} measurements was right",
            expected="every element as it was sent or summed",
        )


def _says(probe: Probe, *, logged: bool) -> str:
    """What went wrong, in the words of the operation; of a run that somebody logged, in those of its log."""
    if logged:
        return f"wrong data in a run over {probe.subject}: {probe.size_source}"
    if probe.collective == "matmul":
        return f"rank {probe.ranks[0]} computed a wrong matrix product"
    if probe.collective in ALONE:
        return f"rank {probe.ranks[0]} copied wrong data ({probe.collective})"
    if probe.collective == "send":
        return f"what rank {probe.ranks[0]} sent arrived wrong at rank {probe.ranks[1]}"
    return f"{probe.collective} over ranks {fold_numbers(probe.ranks)} delivered wrong data"


def _wrong(measurement: Measurement) -> bool:
    return measurement.data_correct is False or (
        measurement.failure is not None and measurement.failure.kind == "wrong_data"
    )


def _confidence(rank: int, measured: list[Measurement]) -> Confidence:
    """A rank that also delivered right data may be the victim of two paths."""
    right = any(m.data_correct and not _wrong(m) and rank in m.probe.ranks for m in measured)
    return "possible" if right else "likely"


CHECK = Check(
    name="data_correct",
    claim="Every collective delivers the right data, and every GPU computes and copies it right.",
    why="Silent corruption in a link or a GPU ruins a training run without an error.",
    source="our own probes: each rank knows what it must receive; nccl-tests does the same in its #wrong column",
    remedy="find the GPU or link that the failing operations have in common, and test it with dcgmi diag -r 3 before it trains again",
    uses=("measurements",),
    judge=judge,
)
