"""Rates: the plan file's as they are, a profile's lowered to what collectives get."""

import pytest

from preflight.model import Hardware
from preflight.plan.profiles import all_profiles, find_profile
from preflight.plan.rates import Rates, rates_of


def test_a_profile_s_links_are_lowered_to_what_collectives_reach():
    rates = rates_of(Hardware(), find_profile("H100-80GB"))
    assert rates.nvlink_bytes_per_s == pytest.approx(360e9)
    assert rates.nic_bytes_per_s == pytest.approx(48e9)
    assert rates.memory_bytes_per_s == 3.35e12


def test_the_plan_file_s_rates_go_before_the_profile_s_and_are_taken_as_they_are():
    rates = rates_of(Hardware(nvlink_bytes_per_s=370 * 10**9, nic_bytes_per_s=45 * 10**9), find_profile("H100-80GB"))
    assert (rates.nvlink_bytes_per_s, rates.nic_bytes_per_s) == (370e9, 45e9)


def test_without_a_profile_only_what_the_plan_file_says_is_known():
    assert rates_of(Hardware(nic_bytes_per_s=10**9), None) == Rates(nic_bytes_per_s=10**9)


def test_large_matrix_products_run_at_the_measured_rate_or_a_share_of_peak():
    measured = rates_of(Hardware(), find_profile("A100-80GB"))
    assert measured.matmul("bf16") == 267.9e12
    shared = rates_of(Hardware(), find_profile("B200-180GB"))
    assert shared.matmul("bf16") == pytest.approx(0.8 * 2250e12)
    assert measured.matmul("fp8") is None  # A100 has no fp8


@pytest.mark.parametrize("profile", list(all_profiles()), ids=lambda profile: profile.name)
def test_every_rate_of_a_profile_is_plausible_and_has_a_source(profile):
    for precision, matmul in profile.matmul_flops.items():
        assert 0.5 * profile.peak_flops[precision].value < matmul.value < profile.peak_flops[precision].value
    every = [
        *profile.peak_flops.values(),
        *profile.matmul_flops.values(),
        profile.memory_bytes_per_s,
        profile.nic_bytes_per_s,
    ]
    for expected in every:
        assert expected is None or (expected.value > 0 and len(expected.source) > 10)


@pytest.mark.parametrize(
    "name",
    [
        "A100-40GB",
        "A100-80GB",
        "A800-80GB",
        "B200-180GB",
        "GB200-186GB",
        "H100-80GB",
        "H20-96GB",
        "H200-141GB",
        "H800-80GB",
    ],
)
def test_the_machines_that_jobs_are_planned_for_tell_all_that_an_estimate_needs(name):
    profile = find_profile(name)
    assert profile is not None
    assert profile.gpus_per_node in {4, 8}
    assert profile.memory_bytes_per_s is not None
    assert profile.nvlink_bytes_per_s is not None
    assert {"bf16", "fp16"} <= set(profile.peak_flops)
