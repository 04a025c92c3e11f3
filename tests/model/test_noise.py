"""Noise is pooled over repeats, and tells the smallest shortfall that can be called."""

import random
from math import log, sqrt

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.model import Failure, Measurement
from preflight.model.noise import (
    by_subject,
    callable_shortfall,
    relative_noise,
    repeats_of,
    upper_median,
    why_too_noisy,
)
from tests.builders import make_measurement, make_probe


def test_the_worked_example():
    assert relative_noise([[10, 12]]) == pytest.approx(log(1.2) / sqrt(2))
    assert callable_shortfall(relative_noise([[10, 12]])) == pytest.approx(0.645, abs=0.001)


@pytest.mark.parametrize("series", [[], [[]], [[5.0]], [[5.0], [7.0]]])
def test_without_repeats_the_noise_is_unknown(series):
    assert relative_noise(series) is None


def test_equal_repeats_have_no_noise():
    assert relative_noise([[5.0, 5.0], [7.0, 7.0]]) == 0
    assert callable_shortfall(0) == 0


def test_what_differs_between_subjects_is_no_noise():
    assert relative_noise([[1.0, 1.01], [100.0, 101.0]]) == pytest.approx(relative_noise([[1.0, 1.01]]))


def test_noise_never_calls_more_than_everything():
    assert callable_shortfall(3.0) == 1.0


@settings(max_examples=60)
@given(
    series=st.lists(st.lists(st.floats(1e6, 1e12), min_size=2, max_size=4), min_size=1, max_size=6),
    scale=st.floats(1e-3, 1e3),
)
def test_noise_depends_on_no_unit(series, scale):
    scaled = [[value * scale for value in values] for values in series]
    assert relative_noise(scaled) == pytest.approx(relative_noise(series), rel=1e-6, abs=1e-9)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), noise=st.floats(0.001, 0.5))
def test_the_noise_that_was_put_in_comes_out(seed, noise):
    rng = random.Random(seed)
    series = [[rng.lognormvariate(20, noise) for _ in range(2)] for _ in range(500)]
    assert relative_noise(series) == pytest.approx(noise, rel=0.2)


def test_the_upper_median_takes_the_better_of_two():
    assert upper_median([3.0, 1.0]) == 3.0
    assert upper_median([1.0, 2.0, 9.0]) == 2.0
    with pytest.raises(ValueError, match="no values"):
        upper_median([])


def test_only_figures_of_the_plan_count_as_repeats():
    good = [make_measurement((0, 1), algbw_bytes_per_s=rate, repeat=i) for i, rate in enumerate((1e9, 2e9))]
    again = msgspec.structs.replace(good[0], probe=msgspec.structs.replace(good[0].probe, attempt=1))
    broken = msgspec.structs.replace(good[0], failure=Failure(kind="error", text="reset"))
    nothing = Measurement(probe=make_probe((2, 3)), failure=Failure(kind="not_run", text="left out"))
    assert repeats_of([*good, again, broken, nothing]) == {("pair 0-1", "alone"): pytest.approx([1e9, 2e9])}


def test_alone_and_together_are_kept_apart():
    one = {"subject": "tp0", "axis": "tp", "collective": "all_reduce"}
    both = repeats_of(make_measurement((0, 1), mode=mode, **one) for mode in ("alone", "together", "together"))
    assert {name: len(values) for name, values in by_subject(both, "alone").items()} == {"tp0": 1}
    assert {name: len(values) for name, values in by_subject(both, "together").items()} == {"tp0": 2}


@pytest.mark.parametrize(
    ("noise", "shortfall", "text"),
    [
        (0.02, 0.1, None),  # five times 2 % is just within 10 %
        (0.04, 0.1, "a shortfall below 20%"),
        (0.3, 0.1, "any shortfall"),
        (None, 0.1, "measured once"),
    ],
)
def test_noise_that_forbids_to_judge_says_what_it_forbids(noise, shortfall, text):
    why = why_too_noisy(noise, shortfall)
    assert why is None if text is None else text in why
