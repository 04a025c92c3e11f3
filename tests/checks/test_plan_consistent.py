"""plan_consistent catches what the framework would refuse at start-up, and leaves alone what it accepts."""

import pytest

from preflight.model import Finding, Verdict
from preflight_checks.plan_consistent import CHECK
from tests.builders import make_evidence, make_plan


def judge(**job) -> list[Finding]:
    return list(CHECK.judge(make_evidence(plan=make_plan(**{"tp": 8, "pp": 4, **job}))))


@pytest.mark.parametrize(
    "job",
    [{}, {"virtual_stages": 5}, {"cp": 2}, {"pp": 1, "layers": 7}, {"seq_length": None, "hidden_size": None, "cp": 2}],
)
def test_a_sound_plan_passes_once(job):
    [finding] = judge(**job)
    assert (finding.subject, finding.verdict) == ("plan", Verdict.PASS)


@pytest.mark.parametrize(
    ("job", "subject", "remedy"),
    [
        ({"pp": 1, "virtual_stages": 2}, "parallel.virtual_stages", "set virtual_stages = 1"),
        ({"layers": 3}, "model.layers", "until their product is at most 3"),
        ({"layers": 8, "virtual_stages": 4}, "model.layers", "until their product is at most 8"),
        ({"virtual_stages": 2, "micro_batches": 30}, "training.micro_batches", "use 32 micro-batches"),
        ({"cp": 2, "seq_length": 4098}, "training.seq_length", "use a sequence of 4100 tokens"),
        ({"hidden_size": 8190}, "model.hidden_size", "choose a tp that divides 8190"),
    ],
)
def test_what_the_framework_refuses_fails_with_the_smallest_change(job, subject, remedy):
    [finding] = judge(**job)
    assert (finding.subject, finding.verdict) == (subject, Verdict.FAIL)
    assert remedy in finding.remedy


def test_uneven_stages_are_a_warning_since_a_pipeline_layout_may_allow_them():
    [finding] = judge(layers=81)
    assert (finding.subject, finding.verdict) == ("model.layers", Verdict.WARN)


def test_each_broken_rule_is_a_finding_of_its_own():
    assert {finding.subject for finding in judge(layers=3, hidden_size=8190)} == {"model.layers", "model.hidden_size"}
