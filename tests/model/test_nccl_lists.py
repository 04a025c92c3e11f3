"""Values as NCCL reads them: after the examples of its user guide."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.model.nccl_lists import read_list, read_number

NICS = ("lo", "docker0", "eth0", "eth1", "ib0")
HCAS = ("mlx5_0", "mlx5_1", "mlx5_10", "mlx5_11")


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("eth", ["eth0", "eth1"]),
        ("=eth0", ["eth0"]),
        ("=eth0,eth1", ["eth0", "eth1"]),
        ("^docker", ["lo", "eth0", "eth1", "ib0"]),
        ("^=docker0", ["lo", "eth0", "eth1", "ib0"]),
        ("^docker,lo", ["eth0", "eth1", "ib0"]),
        ("eth0,,", ["eth0"]),
        ("eth0:1", []),
    ],
)
def test_interfaces(text, used):
    assert [name for name in NICS if read_list(text).takes(name)] == used


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("mlx5", list(HCAS)),
        ("mlx5_1", ["mlx5_1", "mlx5_10", "mlx5_11"]),
        ("=mlx5_1", ["mlx5_1"]),
        ("=mlx5_0:1,mlx5_1:1", ["mlx5_0", "mlx5_1"]),
        ("=mlx5_0:2", []),
        ("^=mlx5_1,mlx5_11", ["mlx5_0", "mlx5_10"]),
        ("^mlx5_1", ["mlx5_0"]),
    ],
)
def test_hcas(text, used):
    assert [name for name in HCAS if read_list(text, ports=True).takes(name, 1)] == used


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), ("0", 0), ("", None), ("true", 0), ("yes", 0), ("0x10", 16), ("010", 8), ("-2", -2), ("1abc", 1)],
)
def test_numbers(text, number):
    assert read_number(text) == number


@given(st.text())
def test_no_value_raises(text):
    read_number(text)
    read_list(text, ports=True).takes(text, 1)
    read_list(text).names("eth0")
