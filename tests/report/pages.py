"""Runs for the tests of pages: small fabrics with planted faults, and names that want to be markup."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from preflight.model import (
    CheckRun,
    Coverage,
    Environment,
    Failure,
    Finding,
    Localisation,
    Measurement,
    Mode,
    Part,
    Placement,
    Plan,
    Report,
    RouteReference,
    Settings,
    Verdict,
)
from preflight.model.ends import ends_of
from tests.builders import make_evidence, make_measurement, make_plan, make_probe

FAST, INSIDE = 46e9, 370e9
HOSTILE = (
    "</script><script>window.hit=1</script>",
    "\"'><img src=x onerror='window.hit=1'>",
    "n\u202egpu\u2066\u2028<!--",
    "n" * 10_000,
)


def fabric(
    nodes: Sequence[str],
    *,
    slots: int = 4,
    slow: str | None = None,
    failed: tuple[int, int] | None = None,
    pairs: bool = True,
    **others: Any,
) -> Report:
    """All pairs inside nodes and of like slots between them. `slow`: the node whose pairs to others give half; `failed`: a pair of ranks. `pairs` False: none was measured. Nodes are on two leaves."""
    leaves = tuple(f"leaf{2 * n // len(nodes)}" for n in range(len(nodes)))
    placement = Placement(
        source="measured",
        method="block",
        nodes=tuple(nodes),
        node_ranks=tuple(n for n in range(len(nodes)) for _ in range(slots)),
        local_ranks=tuple(s for _ in nodes for s in range(slots)),
        leaves=leaves,
    )
    plan = make_plan(nodes=len(nodes), gpus_per_node=slots, tp=slots, dp=len(nodes))
    plan = msgspec.structs.replace(plan, placement=placement)
    measurements = [*(_pairs(nodes, slots, slow, failed) if pairs else ()), *_groups(plan)]
    evidence = make_evidence(
        plan=plan,
        measurements=tuple(measurements),
        localisation=_localisation(plan),
        settings=others.pop("settings", Settings(backend="gloo", local=True)),
    )
    findings = (
        Finding(
            check="slow_part",
            subject=slow or "fabric",
            verdict=Verdict.FAIL if slow else Verdict.PASS,
            observed="slow with every partner" if slow else "no part is slower than its peers",
            expected="at least 90%",
            remedy=f"leave {slow} out" if slow else "",
            blames=Part(kind="node", name=slow) if slow else None,
            evidence=("pair 0-4 send_recv alone 0",),
        ),
    )
    facts: dict[str, Any] = {
        "run_id": "r1",
        "command": "run",
        "started_at_s": 1.7e9,
        "duration_s": 12.0,
        "answer": "no-go" if slow else "go",
        "findings": findings,
        "evidence": evidence,
        "checks": (CheckRun(check="slow_part", duration_s=0.01, num_findings=1),),
        "coverage": Coverage(pairs_planned=999, pairs_measured=len(measurements), groups_planned=4, groups_measured=4),
        "environment": Environment(versions={"preflight": "0"}, variables={"NCCL_DEBUG": "WARN"}),
    }
    return Report(**{**facts, **others})


def _localisation(plan: Plan) -> Localisation:
    references = tuple(
        RouteReference(
            op="send_recv", route=route, bytes_per_s=rate, shots=9, source="upper mode", expected_bytes_per_s=rate
        )
        for route, rate in (
            ("inside nodes", INSIDE),
            ("same leaf, like slots", FAST),
            ("other leaf, like slots", FAST),
        )
    )
    return Localisation(ends=ends_of(plan), references=references, floor=0.1)


def _pairs(nodes: Sequence[str], slots: int, slow: str | None, failed: tuple[int, int] | None) -> Iterator[Measurement]:
    for a in range(len(nodes) * slots):
        for b in range(a + 1, len(nodes) * slots):
            inside = a // slots == b // slots
            if not inside and a % slots != b % slots:
                continue
            if (a, b) == failed:
                timed_out = Failure(kind="timed_out", text="nothing came")
                yield Measurement(probe=make_probe((a, b)), failure=timed_out)
                continue
            ill = not inside and slow in (nodes[a // slots], nodes[b // slots])
            rate = INSIDE if inside else FAST * (0.5 if ill else 1)
            yield make_measurement((a, b), algbw_bytes_per_s=rate, windows=1)


def _groups(plan: Plan) -> Iterator[Measurement]:
    modes: tuple[tuple[Mode, float], ...] = (("alone", 100e9), ("together", 80e9))
    for mode, rate in modes:
        for axis, groups in plan.groups.items():
            for index, ranks in enumerate(groups):
                name = f"{axis}{index}"
                probe = {"subject": name, "axis": axis, "collective": "all_reduce", "mode": mode}
                yield make_measurement(ranks, algbw_bytes_per_s=rate, windows=1, **probe)
