"""Pipeline schedules: formulas against published vectors, and against an event simulation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.plan.bubble import bubble_overhead, idle_share, in_flight, micro_batches_for, schedule_of
from tests.builders import make_job
from tests.plan.simulated_pipeline import simulate


# stages, micro-batches, chunks -> overhead, idle share
@pytest.mark.parametrize(
    ("p", "m", "v", "overhead", "idle"),
    [
        (4, 4, 1, 0.7500, 0.4286),
        (4, 32, 1, 0.0938, 0.0857),
        (8, 8, 1, 0.8750, 0.4667),
        (8, 64, 1, 0.1094, 0.0986),
        (16, 64, 1, 0.2344, 0.1899),
        (4, 8, 2, 0.1875, 0.1579),
        (8, 64, 3, 0.0365, 0.0352),
        (35, 280, 3, 0.0405, 0.0389),
        (16, 64, 4, 0.0586, 0.0554),
    ],
)
def test_overhead_and_idle_share_are_two_numbers(p, m, v, overhead, idle):
    schedule = "interleaved" if v > 1 else "1f1b"
    found = bubble_overhead(schedule, p=p, m=m, v=v)
    assert (round(found, 4), round(idle_share(found), 4)) == (overhead, idle)
    assert simulate(schedule, p, m, v).overhead == pytest.approx(found)


@pytest.mark.parametrize(
    ("p", "m", "v", "peak"), [(4, 8, 2, 5.50), (8, 64, 3, 10.33), (35, 280, 3, 46.33), (16, 64, 4, 19.75), (4, 4, 2, 4)]
)
def test_interleaving_keeps_more_micro_batches_than_there_are_stages(p, m, v, peak):
    assert round(in_flight("interleaved", p=p, m=m, v=v), 2) == peak


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["gpipe", "1f1b", "interleaved"]), st.integers(1, 9), st.integers(1, 4), st.integers(2, 4))
def test_a_simulated_step_has_the_bubble_and_the_peaks_of_the_formulas(schedule, p, rounds, chunks):
    m, v = p * rounds, chunks if schedule == "interleaved" else 1
    found = simulate(schedule, p, m, v)
    assert found.overhead == pytest.approx(bubble_overhead(schedule, p=p, m=m, v=v))
    assert found.peaks == [in_flight(schedule, p=p, m=m, v=v, stage=stage) for stage in range(p)]


def test_fewer_micro_batches_than_stages_are_never_held_more_often_than_they_exist():
    assert simulate("1f1b", 8, 3).peaks == [in_flight("1f1b", p=8, m=3, stage=stage) for stage in range(8)]


def test_zero_bubble_schedules_idle_a_third_or_not_at_all():
    assert bubble_overhead("zb-h1", p=8, m=64) == pytest.approx(7 / (3 * 64))
    assert bubble_overhead("zb-h2", p=8, m=64) == bubble_overhead("zbv", p=8, m=64) == 0


def test_a_zero_bubble_schedule_with_a_single_micro_batch_waits_like_any_other():
    # it goes through 2 (p - 1) other stages and back before the first stage can do anything: 14 units of 3 busy ones
    for schedule in ("zb-h1", "zb-h2", "zbv"):
        assert bubble_overhead(schedule, p=8, m=1) == pytest.approx(14 / 3)


def test_dualpipe_halves_the_stages_that_wait():
    # (p/2 - 1)(F&B + B - 3 W) with F&B = 3, B = 2, W = 1 over m (F + B) = 3 m
    assert bubble_overhead("dualpipe", p=16, m=64) == pytest.approx(7 * 2 / (3 * 64))


@pytest.mark.parametrize(
    ("schedule", "held"),
    [("gpipe", 64), ("1f1b", 8), ("zb-h1", 8), ("zbv", 8), ("zb-h2", 15), ("dualpipe", 9)],
)
def test_in_flight_multiples_of_the_first_stage(schedule, held):
    assert in_flight(schedule, p=8, m=64) == held
    assert in_flight(schedule, p=8, m=2) == 2


def test_without_a_pipeline_nothing_idles_and_one_micro_batch_is_held():
    for schedule in ("1f1b", "interleaved", "zb-h1", "zb-h2", "zbv", "dualpipe"):
        assert bubble_overhead(schedule, p=1, m=4) == 0
        assert in_flight(schedule, p=1, m=4) == 1


@settings(max_examples=60)
@given(
    schedule=st.sampled_from(["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zbv", "dualpipe"]),
    half=st.integers(1, 32),
    chunks=st.integers(2, 8),
    percent=st.integers(1, 99),
)
def test_the_number_proposed_is_enough_and_one_step_less_is_not(schedule, half, chunks, percent):
    p, v = 2 * half, chunks if schedule == "interleaved" else 1
    step, least = {"interleaved": (p, p), "dualpipe": (2, 2 * p)}.get(schedule, (1, 1))
    found = micro_batches_for(schedule, p=p, v=v, idle_share=percent / 100)

    def idle(m: int) -> float:
        return idle_share(bubble_overhead(schedule, p=p, m=m, v=v))

    assert found % step == 0
    assert idle(found) <= percent / 100 + 1e-12
    assert found == least or idle(found - step) > percent / 100


def test_five_percent_needs_nineteen_times_the_other_stages():
    assert micro_batches_for("1f1b", p=8, idle_share=0.05) == 133
    assert micro_batches_for("1f1b", p=16, idle_share=0.05) == 285
    assert micro_batches_for("1f1b", p=4, idle_share=0.1) == 27


def test_an_idle_share_that_nothing_reaches_is_refused():
    with pytest.raises(ValueError, match="not between 0 and 1"):
        micro_batches_for("1f1b", p=4, idle_share=0)


def test_a_schedule_that_is_not_given_follows_from_the_virtual_stages():
    assert schedule_of(make_job()) == "1f1b"
    assert schedule_of(make_job(tp=8, pp=4, virtual_stages=5)) == "interleaved"
    assert schedule_of(make_job(tp=8, pp=4, schedule="zbv")) == "zbv"
