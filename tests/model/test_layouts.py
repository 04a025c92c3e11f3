"""Layouts: what a matrix of NVLinks says, and whom it blames."""

import random
from itertools import combinations

import pytest

from preflight.model import Gpu, GpuPeer, NvlinkLayout
from preflight.model.layout_fit import Fit, best_fit
from preflight.model.layouts import (
    guess_layout,
    islands,
    link_sums,
    members_of,
    pair_numbers,
    shared_deficits,
    show_numbers,
)


def layout(gpus: int, kind: str, per_pair: tuple[int, ...], per_gpu: int) -> NvlinkLayout:
    return NvlinkLayout(gpus=gpus, kind=kind, per_pair=per_pair, per_gpu=per_gpu, source="test")


SWITCHED, MESH = layout(8, "switched", (18,), 18), layout(4, "mesh", (6,), 18)
BRIDGES = (layout(2, "bridge", (18,), 18), layout(4, "bridge", (6,), 18))


def uniform(number: int, links: int) -> dict[tuple[int, int], int | None]:
    return dict.fromkeys(combinations(range(number), 2), links)


def without(numbers, index, links=0):
    return {pair: links if index in pair else number for pair, number in numbers.items()}


def fit(numbers, *layouts: NvlinkLayout) -> Fit:
    found = best_fit(numbers, layouts)
    assert found is not None
    return found


def test_the_smaller_word_of_two_ends_counts_and_one_word_is_enough():
    gpus = (
        Gpu(index=0, peers=(GpuPeer(index=1, num_nvlinks=18), GpuPeer(index=2, num_nvlinks=18))),
        Gpu(index=1, peers=(GpuPeer(index=0, num_nvlinks=17),)),
        Gpu(index=2, peers=(GpuPeer(index=1),)),
    )
    assert pair_numbers(gpus) == {(0, 1): 17, (0, 2): 18, (1, 2): None}


def test_islands_are_what_nvlink_joins():
    assert islands(range(5), {(0, 1): 4, (1, 2): 4, (3, 4): 0}) == [(0, 1, 2), (3,), (4,)]


def test_sums_leave_out_gpus_with_unknown_pairs():
    assert link_sums({(0, 1): 2, (0, 2): None, (1, 2): 1}) == {1: 3}


@pytest.mark.parametrize("number", range(2, 9))
def test_any_part_of_a_switched_board_is_whole(number):
    assert fit(uniform(number, 18), SWITCHED, MESH).oddities == ()


@pytest.mark.parametrize("number", range(3, 9))
@pytest.mark.parametrize("left", [0, 17])
def test_one_sick_gpu_is_the_only_one_blamed(number, left):
    for sick in range(number):
        (oddity,) = fit(without(uniform(number, 18), sick, left), SWITCHED).oddities
        assert (oddity.kind, oddity.gpus) == ("gpu", (sick,))


def test_of_two_gpus_neither_is_blamed_alone():
    (oddity,) = fit(uniform(2, 17), SWITCHED).oddities
    assert (oddity.kind, oddity.gpus) == ("board", (0, 1))


def test_several_sick_gpus_are_named_and_healthy_ones_never():
    rng = random.Random(7)
    for _ in range(300):
        sick = {index: rng.choice([0, 9, 17]) for index in rng.sample(range(8), rng.randint(1, 6))}
        numbers = {pair: min([18, *(sick[index] for index in pair if index in sick)]) for pair in uniform(8, 18)}
        oddities = fit(numbers, SWITCHED).oddities
        assert {oddity.gpus for oddity in oddities} == {(index,) for index in sick}


def test_a_random_matrix_never_breaks_the_reading():
    rng = random.Random(3)
    layouts = (SWITCHED, MESH, layout(8, "cube", (1, 2), 6), *BRIDGES)
    for _ in range(500):
        number = rng.randint(1, 9)
        numbers = {pair: rng.choice([None, 0, 1, 6, 17, 18]) for pair in uniform(number, 0)}
        chosen = rng.sample(layouts, rng.randint(0, len(layouts)))
        found = best_fit(numbers, chosen)
        assert found is None or found.odd_pairs >= 0
        guess_layout([numbers])


def test_of_several_boards_the_one_that_fits_best_is_meant():
    assert fit(uniform(4, 6), SWITCHED, MESH).layout is MESH
    assert fit(uniform(4, 18), SWITCHED, MESH).layout is SWITCHED
    assert fit(uniform(4, 5), SWITCHED, MESH).layout is MESH


def test_a_size_that_no_board_has_fits_nothing():
    assert best_fit(uniform(9, 18), (SWITCHED,)) is None
    assert best_fit({(0, 1): None}, (SWITCHED,)) is None
    assert best_fit({}, (SWITCHED,)) is None


def test_bridges_of_two_sizes_are_told_apart():
    pairs = {pair: 18 if pair in ((0, 1), (2, 3)) else 0 for pair in uniform(4, 0)}
    assert fit(pairs, *BRIDGES).oddities == ()
    assert fit(uniform(4, 6), *BRIDGES).oddities == ()
    (oddity,) = fit({**uniform(4, 6), (0, 3): 4}, *BRIDGES).oddities
    assert (oddity.kind, oddity.gpus) == ("link", (0, 3))


def test_whom_missing_links_point_at():
    assert shared_deficits({0: 1, 1: 1}) == ((0, 1), ())
    assert shared_deficits({3: 2, 0: 1, 2: 1}) == ((3,), (0, 2))
    assert shared_deficits({3: 2}) is None
    assert shared_deficits({0: 1, 1: 1, 2: 1}) is None


def test_a_guess_needs_a_majority():
    assert guess_layout([]) is None
    assert guess_layout([uniform(2, 4)]) is None
    assert guess_layout([uniform(8, 0)]) is None
    seen = guess_layout([without(uniform(8, 18), 2)])
    assert seen is not None
    assert (seen.kind, seen.per_pair) == ("switched", (18,))
    assert guess_layout([{(0, 1): 4, (0, 2): 0, (1, 2): 0}]) is None


def test_numbers_are_said_as_alternatives():
    assert show_numbers([12]) == "12"
    assert show_numbers([12, 4, 8]) == "4, 8 or 12"
    assert members_of({(2, 5): 0, (0, 2): 1}) == (0, 2, 5)
