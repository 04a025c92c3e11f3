"""Values of a plan file, as people write them."""

import pytest

from preflight.plan.values import WrongValueError, count


@pytest.mark.parametrize("written", [70_000_000_000, 70e9, "70B", "70000000000"])
def test_a_count_may_be_written_in_each_usual_way(written):
    value = count(10**15)(written)
    assert (value, type(value)) == (70 * 10**9, int)


@pytest.mark.parametrize("written", [0.5, 7.5e0, float("nan"), float("inf"), 1e300, 0.0, -1e9, True, "seventy", None])
def test_what_is_no_count_is_refused(written):
    with pytest.raises(WrongValueError):
        count(10**15)(written)
