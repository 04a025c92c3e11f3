"""Groups made of slices are those that the coordinates of every rank give."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.plan.frameworks.grid import Grid, GroupTable, Pattern

AXES = "abcde"


def by_coordinates(sizes: list[int], along: list[str]) -> list[tuple[int, ...]]:
    """For each rank its coordinates; ranks that agree in all axes but those of the group are one group."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(math.prod(sizes)):
        rest, others = rank, []
        for axis, size in zip(AXES, sizes, strict=False):
            rest, place = divmod(rest, size)
            if axis not in along:
                others.append(place)
        groups.setdefault(tuple(others), []).append(rank)
    return sorted(tuple(ranks) for ranks in groups.values())


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 2, 3, 4, 5, 8, 16]), min_size=1, max_size=5).filter(
        lambda s: math.prod(s) < 3000
    ),
    chosen=st.sets(st.sampled_from(AXES), min_size=1),
)
def test_groups_along_any_axes_are_those_of_the_coordinates(sizes, chosen):
    axes = AXES[: len(sizes)]
    along = [axis for axis in axes if axis in chosen]
    pattern = Grid(axes, dict(zip(axes, sizes, strict=True))).along(*along)
    expected = by_coordinates(sizes, along)
    assert pattern.size == len(expected[0])
    assert pattern.number == len(expected)
    if pattern.size > 1:
        assert list(pattern.groups(tuple(range(math.prod(sizes))))) == expected
        assert pattern.offsets == expected[0]
        assert pattern.starts == tuple(group[0] for group in expected)


@pytest.mark.parametrize(
    ("members", "firsts"),
    [
        pytest.param([(16, 1)], [(4, 16)], id="consecutive"),
        pytest.param([(64, 4)], [(4, 1)], id="long rows"),
        pytest.param([(2, 8)], [(8, 1), (64, 16)], id="under a mask for each member"),
        pytest.param([(16, 64)], [(64, 1)], id="columns"),
        pytest.param([(8, 1), (16, 128)], [(16, 8)], id="columns apart"),
        pytest.param([(8, 1), (64, 16)], [(2, 8)], id="under a mask for each group"),
        pytest.param([(4, 1), (8, 64)], [(2, 4), (2, 8), (4, 512)], id="pieces"),
    ],
)
def test_every_way_to_make_groups_gives_first_rank_plus_offset(members, firsts):
    pattern = Pattern(members, firsts)
    world = pattern.size * pattern.number
    groups = pattern.groups(tuple(range(max(world, pattern.starts[-1] + pattern.offsets[-1] + 1))))
    assert groups == tuple(tuple(start + offset for offset in pattern.offsets) for start in pattern.starts)


def test_equal_patterns_are_equal_however_their_axes_are_cut():
    fine, coarse = Grid("abc", {"a": 2, "b": 4, "c": 3}), Grid("ab", {"a": 8, "b": 3})
    assert fine.along("a", "b") == coarse.along("a")
    assert len({fine.along("c"), coarse.along("b")}) == 1
    assert fine.along("a") != coarse.along("a")


def test_groups_without_a_pattern_are_sorted_and_groups_of_one_left_out():
    table = GroupTable(4)
    table.add_groups("x", [(3, 1), (2, 0)])
    table.add_groups("y", [(0,), (1,), (2,), (3,)])
    layout = table.layout({}, ())
    assert layout.groups == {"x": ((0, 2), (1, 3))}
    assert layout.patterns == {}
