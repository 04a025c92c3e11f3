"""Bandwidths of a report come from the raw durations."""

import pytest

from preflight.model import Failure, Measurement
from preflight.report.rates import first_calls_s, group_rates, node_of, pair_rates, rates_by_node
from tests.builders import make_evidence, make_measurement, make_plan, make_probe


def tp(mode, rate, repeat=0):
    return make_measurement(
        (0, 1), subject="tp0", axis="tp", collective="all_reduce", mode=mode, algbw_bytes_per_s=rate, repeat=repeat
    )


def test_contention_is_together_over_alone():
    [rate] = group_rates([tp("alone", 100e9), tp("together", 60e9)])
    assert rate.alone == pytest.approx(100e9)  # all_reduce over two ranks: factor 2 * 1/2 = 1
    assert rate.contention == pytest.approx(0.6)


def test_repeats_count_by_their_median():
    [rate] = group_rates([tp("alone", value, i) for i, value in enumerate((90e9, 100e9, 10e9))])
    assert rate.alone == pytest.approx(90e9)
    assert rate.together is None
    assert rate.contention is None


def test_a_pair_whose_attempts_all_failed_is_known_to_have_failed():
    failed = Measurement(probe=make_probe((2, 1)), failure=Failure(kind="timed_out", text="no end after 5 s"))
    assert pair_rates([failed]) == {(1, 2): None}
    assert pair_rates([failed, make_measurement((1, 2), algbw_bytes_per_s=1e9)])[1, 2] == pytest.approx(1e9)


def test_first_calls_are_kept_by_axis():
    assert first_calls_s([tp("alone", 1e9), make_measurement((0, 1))]) == {"tp": [0.1, 0.1], "pairs": [0.1, 0.1]}


def test_rates_of_a_node_keep_inside_and_between_apart():
    plan = make_plan(nodes=2, gpus_per_node=2, tp=2, dp=2)
    measurements = (make_measurement((0, 1)), make_measurement((1, 2), algbw_bytes_per_s=10e9))
    found = rates_by_node(make_evidence(plan=plan, measurements=measurements))
    assert found == {
        ("node0", "inside"): [pytest.approx(100e9)],
        ("node0", "between"): [pytest.approx(10e9)],
        ("node1", "between"): [pytest.approx(10e9)],
    }


def test_the_node_of_a_rank_that_the_plan_lacks_is_unknown():
    assert node_of(make_plan(), 64) is None
    assert node_of(None, 0) is None
