"""A drop is told from noise, outliers, seasons and recoveries; how often quiet series are called is counted in tests/soak/test_quiet_series.py."""

import math
import random

import pytest

from preflight.model.changes import LEAST_BEFORE, SETTLED, day, drop_in


def noisy(levels, noise=0.01, seed=0):
    rng = random.Random(seed)
    return [level * math.exp(rng.gauss(0, noise)) for level in levels]


@pytest.mark.parametrize("seed", range(5))
def test_a_step_is_found_with_its_run_and_depth(seed):
    drop = drop_in(noisy([100] * 20 + [80] * 4, 0.01, seed))
    assert (drop.kind, drop.at, drop.runs_before, drop.runs_after) == ("step", 20, 20, 4)
    assert drop.depth == pytest.approx(0.2, abs=0.02)
    assert drop.lasting


def test_a_deep_drop_is_called_in_its_first_run_and_a_shallow_one_once_three_runs_show_it():
    assert drop_in(noisy([100] * 20 + [75])).at == 20
    assert drop_in(noisy([100] * 20 + [88])) is None
    assert drop_in(noisy([100] * 20 + [88] * 2)) is None
    assert drop_in(noisy([100] * 20 + [88] * 3)).at == 20


@pytest.mark.parametrize("seed", range(5))
def test_a_slow_drift_is_found_before_it_is_deep(seed):
    series = noisy([100 - n for n in range(30)], 0.01, seed)
    first = next(n for n in range(LEAST_BEFORE + 1, 31) if drop_in(series[:n]))
    assert 12 <= first <= 24  # at 1 % a run: of 12 to 24 %
    assert drop_in(series[:first]).depth < 0.2


def test_a_small_step_hidden_in_a_decline_is_called_a_drift_since_its_beginning():
    series = noisy([100] * 6 + [100 - 0.8 * n for n in range(22)], 0.004)
    drop = drop_in(series)
    assert drop.depth > 0.1
    assert drop.at >= 5


@pytest.mark.parametrize(
    "levels",
    [
        [100] * 4 + [60],  # four earlier runs are too few
        [100] * 20 + [70] + [100] * 3,  # an outlier, long past
        [100, 70, 100, 100, 60, 100, 100, 100, 75, 100, 70],  # held up now and then
        [100] * 10 + [70] * 5 + [100] * 3,  # recovered
        [100] * 10 + [70] * 5 + [98],  # recovered just now
        [70] * 10 + [100] * 10,  # mended
        [100] * 10 + [80] * SETTLED,  # its usual level by now
        [100, 93] * 12 + [93],  # two levels that take turns
        [100 + 4.5 * math.sin(n / 2.2) for n in range(40)],  # a season of 9 %
        [100] * 20 + [93] * 5,  # less than the floor
    ],
)
def test_what_is_no_drop_is_not_called(levels):
    for seed in range(5):
        assert drop_in(noisy(levels, 0.005, seed)) is None


def test_the_noise_sets_how_deep_a_drop_must_be():
    called = {
        noise: sum(drop_in(noisy([100] * 20 + [85] * 3, noise, seed)) is not None for seed in range(20))
        for noise in (0.005, 0.08)
    }
    assert called[0.005] == 20
    assert called[0.08] == 0


def test_quiet_series_are_not_called():
    rng = random.Random(1)
    for number in range(300):
        length, noise = rng.randint(6, 50), rng.choice((0.003, 0.01, 0.03, 0.06))
        assert drop_in(noisy([100] * length, noise, number)) is None


def test_a_day_is_told_in_utc_and_a_clock_that_cant_be_one_breaks_nothing():
    assert [day(at_s) for at_s in (0.0, 1.7e9, 1e30, float("nan"))] == ["1970-01-01", "2023-11-14", "?", "?"]
