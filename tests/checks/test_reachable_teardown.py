"""A worker that ends or hangs while it leaves a communicator, with its results in, is worth a look, and leaves nothing unknown."""

import pytest

from preflight.model import Evidence, Incident, Verdict
from preflight_checks.reachable import CHECK
from tests.builders import make_measurement, make_plan


def found(*incidents, nodes=2):
    plan = make_plan(tp=4, dp=nodes, nodes=nodes, gpus_per_node=4, gpu=None)
    pairs = [(0, 1), (2, 3), (4, 5), (6, 7), (0, 4), (1, 5), (2, 6), (3, 7)]
    evidence = Evidence(plan=plan, measurements=tuple(make_measurement(pair) for pair in pairs), incidents=incidents)
    return {f.subject: f for f in CHECK.judge(evidence) if f.verdict is not Verdict.PASS}


def ended(rank, kind, probe=None):
    text = f"the worker of rank {rank} ended (exit status 1) while it left a communicator, after its results were in"
    return Incident(kind=kind, text=text, phase="probing", at_s=3.0, node="node0", rank=rank, probe=probe)


@pytest.mark.parametrize("kind", ["worker_died", "worker_hung"])
@pytest.mark.parametrize("times", [1, 3])
def test_trouble_in_leaving_a_communicator_is_a_warning_that_blames_nobody(kind, times):
    [finding] = found(*[ended(2, kind)] * times).values()
    assert (finding.subject, finding.verdict, finding.blames) == ("rank 2", Verdict.WARN, None)
    assert "no result of it is missing" in finding.observed


def test_trouble_in_a_probe_stays_unknown():
    key = make_measurement((2, 3)).probe.key
    assert {s: f.verdict for s, f in found(ended(2, "worker_died", key)).items()} == {"rank 2": Verdict.UNKNOWN}


def test_a_worker_that_could_not_be_replaced_then_is_still_named():
    found_ = found(ended(2, "worker_died"), ended(2, "worker_not_started"))
    assert found_["rank 2"].verdict is Verdict.FAIL
