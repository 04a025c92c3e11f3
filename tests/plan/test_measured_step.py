"""A measured step beside the predicted one: what would explain the gap."""

from pathlib import Path

import pytest

from preflight.plan.ledger import make_ledger
from preflight.plan.measured_step import explain
from preflight.plan.profiles import find_profile
from preflight.plan.rates import rates_of
from preflight.plan.steptime import RANGE, RANGE_SOURCE
from tests.builders import make_plan
from tests.plan.step_rows import step_rows
from tests.plan.test_ledger import LLAMA_70B
from tests.plan.test_steptime import known


def gap(measured: float, **job):
    """The reference job, measured at that many times its prediction."""
    plan = make_plan(model=LLAMA_70B, **job)
    step = known(plan)
    ledger = make_ledger(plan.job, plan.degrees, 32, rates_of(plan.job.hardware, find_profile("H100-80GB")))
    return step, explain(step, measured * step.total_s, ledger=ledger, footprints=plan.footprints)


def test_a_gap_no_larger_than_the_estimate_s_own_error_is_left_alone():
    _, said = gap(1.3)
    assert said.within_error
    assert said.suspects == ()
    assert "within the range of the estimate" in said.text


def test_the_range_is_that_of_published_runs():
    folder = Path(__file__).parent / "rows"
    rows = [row for file in folder.glob("step_*.toml") for row in step_rows(file.stem.removeprefix("step_"))]
    low, high = RANGE
    outside = [row for row in rows if not low <= row.measured_s / row.predicted.total_s <= high]
    assert f"{len(rows) - len(outside)} of {len(rows)} published steps" in RANGE_SOURCE
    assert max(row.measured_s / row.predicted.total_s for row in outside) < 2.4
    assert len(outside) <= 0.07 * len(rows)


def test_tp_across_nodes_is_recognised_by_the_time_it_would_take():
    cyclic = known(make_plan(model=LLAMA_70B, launch={"launcher": "slurm", "distribution": "cyclic"}))
    step, _ = gap(1)
    _, said = gap(cyclic.total_s / step.total_s)
    assert said.suspects[0].term == "tp"
    assert said.suspects[0].plausible
    assert "its ranks may not share an NVLink domain" in said.suspects[0].text
    assert "communication along tp explains it" in said.text


def test_each_suspect_says_how_many_times_it_would_have_to_grow():
    step, said = gap(1.6)
    for suspect in said.suspects:
        assert suspect.needed_s == pytest.approx(step.terms[suspect.term] + 0.6 * step.total_s)
        assert suspect.factor == pytest.approx(suspect.needed_s / step.terms[suspect.term])
    (compute,) = [suspect for suspect in said.suspects if suspect.term == "compute"]
    assert f"MFU of {step.mfu / 1.6:.0%}" in compute.text


def test_without_a_plausible_cause_the_term_that_would_grow_least_comes_first():
    _, said = gap(1.5)
    assert not said.suspects[0].plausible
    assert said.suspects[0].term == "compute"
    assert "no term explains it by itself" in said.text


def test_axes_that_are_outside_already_are_not_said_to_leave():
    _, said = gap(3.0, launch={"launcher": "slurm", "distribution": "cyclic"})
    (tp,) = [suspect for suspect in said.suspects if suspect.term == "tp"]
    assert not tp.plausible
    assert "a fraction of the rate" in tp.text


def test_a_run_faster_than_predicted_blames_the_rates():
    _, said = gap(0.7)
    assert said.gap_s < 0
    assert "faster than predicted" in said.text
    assert all(suspect.needed_s >= 0 for suspect in said.suspects)
    assert said.suspects
    for suspect in said.suspects:  # what only slows a run is no reason for a faster one
        assert not any(slow in suspect.text for slow in ("slowed by heat", "a missing NIC", "fewer micro-batches"))


def test_no_ledger_is_needed():
    step = known(make_plan(model=LLAMA_70B))
    said = explain(step, 2 * step.total_s)
    assert {suspect.term for suspect in said.suspects} == set(step.terms)
    assert not any(suspect.plausible for suspect in said.suspects)
