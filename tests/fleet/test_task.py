"""A round in a few words, for people who wait for it."""

import pytest

from preflight.fleet.task import describe
from preflight.model import Probe
from tests.builders import make_probe

GROUPS = tuple(make_probe((2 * n, 2 * n + 1), axis="tp", subject=f"tp{n}", collective="all_reduce") for n in range(2))
MIXED = (GROUPS[0], make_probe((2, 3), axis="ep", subject="ep0", collective="all_to_all", mode="mixed"))
COPIES = tuple(make_probe((n,), subject=f"gpu {n}", collective="host_to_device") for n in range(3))


@pytest.mark.parametrize(
    ("probes", "text"),
    [
        ((make_probe((0, 1)),), "pair 0-1"),
        ((make_probe((0, 1)), make_probe((2, 3))), "2 pairs at once"),
        (GROUPS[:1], "tp0 alone"),
        (GROUPS, "tp groups alone"),
        (MIXED, "tp and ep groups alone"),
        (COPIES, "host to device on 3 GPUs"),
        (COPIES[:1], "host to device, gpu 0"),
    ],
)
def test_a_round_is_described_by_what_it_measures(probes: tuple[Probe, ...], text: str):
    assert describe(probes) == text
