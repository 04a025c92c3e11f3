"""Flows share capacities max-min fairly: analytic cases, and what defines max-min fairness, over random networks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.probe.simulate.flows import Crossings, fair_rates


def rates_of(capacity, crossed, limit, weight=None):
    """`crossed`: for each flow the resources that it crosses; `weight`: in the same shape, None: 1."""
    flow = [number for number, resources in enumerate(crossed) for _ in resources]
    resource = [each for resources in crossed for each in resources]
    weights = [each for row in weight for each in row] if weight else [1.0] * len(flow)
    crossings = Crossings(np.array(flow, np.int64), np.array(resource, np.int64), np.array(weights, np.float64))
    return fair_rates(np.array(capacity, np.float64), crossings, np.array(limit, np.float64)).tolist()


@pytest.mark.parametrize(
    ("capacity", "crossed", "limit", "expected"),
    [
        ([10.0], [[0], [0]], [100, 100], [5, 5]),
        ([10.0, 4.0], [[0], [0, 1], [1]], [100, 100, 100], [8, 2, 2]),
        ([10.0], [[0], [0], [0]], [1, 100, 100], [1, 4.5, 4.5]),
        ([10.0], [[0], []], [3, 7], [3, 7]),
        ([0.0], [[0], []], [3, 7], [0, 7]),
        # a parking lot: one long flow over three links of 6, 8 and 10, one short one on each
        ([6.0, 8.0, 10.0], [[0, 1, 2], [0], [1], [2]], [100] * 4, [3, 3, 5, 7]),
        ([], [[], []], [3, 7], [3, 7]),
    ],
)
def test_small_networks_have_the_rates_that_one_works_out_by_hand(capacity, crossed, limit, expected):
    assert rates_of(capacity, crossed, limit) == pytest.approx(expected)


def test_a_flow_that_takes_a_resource_twice_counts_twice():
    assert rates_of([9.0], [[0], [0]], [100, 100], [[2.0], [1.0]]) == pytest.approx([3, 3])


def test_no_flows_have_no_rates():
    empty = np.zeros(0, np.int64)
    assert fair_rates(np.ones(3), Crossings(empty, empty, np.zeros(0)), np.zeros(0)).size == 0


@st.composite
def networks(draw):
    number = draw(st.integers(1, 6))
    capacity = draw(st.lists(st.floats(0.5, 100), min_size=number, max_size=number))
    crossed = draw(st.lists(st.sets(st.integers(0, number - 1), max_size=4).map(sorted), min_size=1, max_size=12))
    limit = draw(st.lists(st.floats(0.1, 200), min_size=len(crossed), max_size=len(crossed)))
    weight = [draw(st.lists(st.floats(0.1, 3), min_size=len(row), max_size=len(row))) for row in crossed]
    return capacity, crossed, limit, weight


@settings(max_examples=100, deadline=None)
@given(networks())
def test_no_resource_is_overfull_and_no_flow_can_rise_without_lowering_one_that_has_no_more(network):
    capacity, crossed, limit, weight = network
    rates = rates_of(capacity, crossed, limit, weight)
    taken = [0.0] * len(capacity)
    for row, weights, rate in zip(crossed, weight, rates, strict=True):
        for resource, each in zip(row, weights, strict=True):
            taken[resource] += each * rate
    assert all(used <= have * (1 + 1e-6) for used, have in zip(taken, capacity, strict=True))
    for flow, row in enumerate(crossed):
        assert 0 < rates[flow] <= limit[flow] * (1 + 1e-6)
        if rates[flow] >= limit[flow] * (1 - 1e-6):
            continue
        held_back = [  # a full resource on which no other flow has more
            resource
            for resource in row
            if taken[resource] >= capacity[resource] * (1 - 1e-6)
            and all(
                rates[other] <= rates[flow] * (1 + 1e-6) for other, others in enumerate(crossed) if resource in others
            )
        ]
        assert held_back


@settings(max_examples=50, deadline=None)
@given(networks(), st.floats(0.01, 100))
def test_scaling_all_capacities_and_limits_scales_all_rates(network, scale):
    capacity, crossed, limit, weight = network
    plain = rates_of(capacity, crossed, limit, weight)
    scaled = rates_of([c * scale for c in capacity], crossed, [each * scale for each in limit], weight)
    assert scaled == pytest.approx([rate * scale for rate in plain], rel=1e-6)
