"""pipeline_bubble catches pipelines that idle, and leaves alone those with enough micro-batches."""

import pytest

from preflight.model import Finding, Rule, Verdict
from preflight_checks.pipeline_bubble import CHECK
from tests.builders import make_evidence, make_plan


def judge(**job) -> Finding:
    [finding] = CHECK.judge(make_evidence(plan=make_plan(**{"tp": 8, "pp": 4, **job})))
    return finding


@pytest.mark.parametrize(
    ("micro_batches", "verdict"),
    [
        (32, Verdict.PASS),
        (27, Verdict.PASS),
        (26, Verdict.WARN),
        (9, Verdict.WARN),
        (8, Verdict.FAIL),
        (4, Verdict.FAIL),
    ],
)
def test_above_ten_percent_is_a_warning_and_above_a_quarter_a_failure(micro_batches, verdict):
    assert judge(micro_batches=micro_batches).verdict is verdict


def test_a_failure_shows_both_figures_and_the_numbers_that_would_do():
    finding = judge(micro_batches=4)
    assert finding.observed == "idle share 42.9 %, overhead 75.0 %, with 4 stages and 4 micro-batches"
    assert "at least 27 micro-batches (global batch 54)" in finding.remedy
    assert "9 would do for 25.0 %, with a warning" in finding.remedy


def test_virtual_stages_count():
    assert judge(micro_batches=8).verdict is Verdict.FAIL
    assert judge(micro_batches=8, virtual_stages=4).verdict is Verdict.PASS


def test_a_healthy_pipeline_needs_no_remedy():
    finding = judge(micro_batches=32)
    assert (finding.remedy, finding.blames) == ("", None)


def test_unknown_micro_batches_are_unknown_not_pass():
    finding = judge(micro_batches=None)
    assert finding.verdict is Verdict.UNKNOWN
    assert "training.micro_batches" in finding.remedy


def test_without_a_pipeline_there_is_nothing_to_judge():
    assert list(CHECK.judge(make_evidence(plan=make_plan(tp=8)))) == []


def test_limits_of_the_plan_file_go_before_the_defaults():
    rule = Rule(limits={"warn_idle_share": 0.05, "fail_idle_share": 0.06})
    assert judge(micro_batches=32, rules={"pipeline_bubble": rule}).verdict is Verdict.FAIL


def test_a_limit_that_no_number_reaches_is_said_so():
    rule = Rule(limits={"warn_idle_share": 0.0})
    finding = judge(micro_batches=32, rules={"pipeline_bubble": rule})
    assert finding.verdict is Verdict.WARN
    assert "no number of micro-batches reaches 0.0 %" in finding.remedy


def test_the_schedule_decides():
    assert judge(micro_batches=9, schedule="gpipe").verdict is Verdict.WARN
    assert judge(micro_batches=8, schedule="zb-h1").verdict is Verdict.WARN  # 3 / 24 over ideal
    assert judge(micro_batches=9, schedule="zb-h1").verdict is Verdict.PASS  # 3 / 27: one tenth idle
    assert judge(micro_batches=9, schedule="zb-h2").verdict is Verdict.PASS
    assert judge(micro_batches=9, schedule="dualpipe").verdict is Verdict.PASS  # 2 / 27


def test_a_schedule_out_of_the_ordinary_is_named():
    assert "with 4 stages and 2 micro-batches, zbv schedule" in judge(micro_batches=2, schedule="zbv").observed
    assert "schedule" not in judge(micro_batches=32).observed


def test_a_schedule_with_few_micro_batches_is_told_how_many_it_needs():
    finding = judge(micro_batches=1, schedule="zb-h1")
    assert finding.verdict is Verdict.FAIL
    assert "use at least 9 micro-batches (global batch 18) for 10.0 %; 4 would do for 25.0 %" in finding.remedy
