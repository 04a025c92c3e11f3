"""How often a part that is well is called slower than it was: thousands of quiet series of several kinds, and as many with a fault, as preflight/model/changes.py judges them.

What comes out stands beside each kind: at most so many of the runs that end such a series may be called. One that ends in a run that was itself held up (outliers) may be called in that run, and in no later one.
"""

import math
import random

import pytest

from preflight.model.changes import drop_in

LENGTHS = (6, 8, 12, 20, 35, 50)
SERIES = 2000  # of each kind and length

pytestmark = pytest.mark.soak


def steady(rng, number, noise):
    return [100 * math.exp(rng.gauss(0, noise)) for _ in range(number)]


def heavy(rng, number, noise):
    """Student's t with three degrees of freedom."""
    return [
        100 * math.exp(noise * rng.gauss(0, 1) / math.sqrt(sum(rng.gauss(0, 1) ** 2 for _ in range(3)) / 3))
        for _ in range(number)
    ]


def wandering(rng, number, noise, memory):
    """Neighbouring runs are alike: what is called of these did decline by 10 % over several runs, by nobody's fault."""
    value, found = rng.gauss(0, noise), []
    for _ in range(number):
        value = memory * value + rng.gauss(0, noise * math.sqrt(1 - memory * memory))
        found.append(100 * math.exp(value))
    return found


def seasonal(rng, number, depth, period):
    phase = rng.uniform(0, 2 * math.pi)
    return [
        x * (1 + depth * math.sin(phase + 2 * math.pi * n / period)) for n, x in enumerate(steady(rng, number, 0.01))
    ]


def held_up(rng, number, share):
    """Some runs before the last are slower by up to half; the last is not."""
    found = [x * (rng.uniform(0.5, 0.9) if rng.random() < share else 1) for x in steady(rng, number, 0.02)]
    return [*found[:-1], 100 * math.exp(rng.gauss(0, 0.02))]


KINDS = {
    "noise 0.5 %": (lambda rng, n: steady(rng, n, 0.005), 0.0),
    "noise 1 %": (lambda rng, n: steady(rng, n, 0.01), 0.0005),
    "noise 3 %": (lambda rng, n: steady(rng, n, 0.03), 0.001),
    "noise 6 %": (lambda rng, n: steady(rng, n, 0.06), 0.002),
    "noise 12 %": (lambda rng, n: steady(rng, n, 0.12), 0.002),
    "heavy tails of 3 %": (lambda rng, n: heavy(rng, n, 0.03), 0.003),
    "wandering by 3 %": (lambda rng, n: wandering(rng, n, 0.03, 0.7), 0.003),
    "wandering slowly by 4 %": (lambda rng, n: wandering(rng, n, 0.04, 0.9), 0.02),
    "a season of 10 % in 14 runs": (lambda rng, n: seasonal(rng, n, 0.05, 14), 0.005),
    "a season of 8 % in 7 runs": (lambda rng, n: seasonal(rng, n, 0.04, 7), 0.001),
    "5 % of the runs held up": (lambda rng, n: held_up(rng, n, 0.05), 0.001),
    "15 % of the runs held up": (lambda rng, n: held_up(rng, n, 0.15), 0.001),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_quiet_series_is_hardly_ever_called(kind, record_property):
    make, most = KINDS[kind]
    rng = random.Random(kind)
    called = {n: sum(drop_in(make(rng, n)) is not None for _ in range(SERIES)) / SERIES for n in LENGTHS}
    record_property("called", str(called))
    print(kind, called)
    assert max(called.values()) <= most, called


@pytest.mark.parametrize(
    ("depth", "noise", "after", "least"),
    [(0.15, 0.01, 3, 0.98), (0.2, 0.01, 1, 0.85), (0.2, 0.02, 3, 0.85), (0.3, 0.02, 1, 0.7), (0.3, 0.03, 3, 0.85)],
)
def test_a_step_is_found(depth, noise, after, least):
    rng = random.Random(1)
    for before in (5, 10, 30):
        found = sum(
            drop_in([*steady(rng, before, noise), *((1 - depth) * x for x in steady(rng, after, noise))]) is not None
            for _ in range(500)
        )
        assert found / 500 >= least, (before, found)


@pytest.mark.parametrize(("depth", "noise", "least"), [(0.15, 0.01, 0.95), (0.2, 0.02, 0.85), (0.3, 0.02, 0.98)])
def test_a_drift_over_many_runs_is_found(depth, noise, least):
    rng = random.Random(2)
    for number in (20, 30, 50):
        found = sum(
            drop_in([x * (1 - depth * n / number) for n, x in enumerate(steady(rng, number, noise))]) is not None
            for _ in range(500)
        )
        assert found / 500 >= least, (number, found)
