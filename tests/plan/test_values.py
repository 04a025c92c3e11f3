"""Values of a plan file, as people write them."""

import pytest

from preflight.plan.values import WrongValueError, count, rate


@pytest.mark.parametrize("written", [70_000_000_000, 70e9, "70B", "70000000000"])
def test_a_count_may_be_written_in_each_usual_way(written):
    value = count(10**15)(written)
    assert (value, type(value)) == (70 * 10**9, int)


@pytest.mark.parametrize("written", [0.5, 7.5e0, float("nan"), float("inf"), 1e300, 0.0, -1e9, True, "seventy", None])
def test_what_is_no_count_is_refused(written):
    with pytest.raises(WrongValueError):
        count(10**15)(written)


@pytest.mark.parametrize("written", ["50GB/s", "50 GB/s", "0.05 TB /s", "50gB/s", "50GB", 50 * 10**9])
def test_a_rate_is_in_bytes_per_second(written):
    assert rate(10**15)(written) == 50 * 10**9


@pytest.mark.parametrize("written", ["400Gb/s", "400gb/s", "400 Gb", "400Gib/s", "400b/s", "0.4Tb/s "])
def test_bits_are_refused_and_never_taken_for_bytes(written):
    with pytest.raises(WrongValueError, match="a b is a bit"):
        rate(10**15)(written)


@pytest.mark.parametrize(
    "written", ["400Gbit/s", "9" * 400 + "GB/s", "/s", "GB/s", "-1GB/s", "nan", 0, -1, 1e9, True, []]
)
def test_what_is_no_rate_is_refused(written):
    with pytest.raises(WrongValueError):
        rate(10**15)(written)
