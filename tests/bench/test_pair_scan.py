"""All pairs of 16 ranks over gloo, each in a network namespace behind a link of 200 Mbit/s: what a scan takes beside the bare operations, and beside the same pairs one after another."""

import statistics

import pytest

from preflight.probe.schedule import circle_rounds
from tests.cluster.box import Box

pytestmark = [
    pytest.mark.bench,
    pytest.mark.root,
    pytest.mark.fabric,
    pytest.mark.debian("iproute2", "ip", "tc"),
    pytest.mark.timeout(1200),
]

RANKS, RATE_MBIT = 16, 200
MAX_OVERHEAD, MIN_GAIN = 1.3, 4.0


def test_a_pair_scan_of_16_ranks_takes_little_more_than_its_operations(tmp_path, record_property):
    rounds = [[(a, b, "send_recv") for a, b in pairs] for pairs in circle_rounds(RANKS)]
    assert len({frozenset(pair[:2]) for pairs in rounds for pair in pairs}) == RANKS * (RANKS - 1) // 2
    singles = [[pairs[number % len(pairs)]] for number, pairs in enumerate(rounds)]  # an eighth of all pairs
    with Box(tmp_path, leaves=(RANKS,), rate_mbit=RATE_MBIT) as box:
        box.start_agents()
        figures = box.drive([*rounds, *singles])
    scan, alone = figures[: len(rounds)], figures[len(rounds) :]
    failures = [pair["failure"] for one in figures for pair in one["pairs"] if pair["failure"]]
    assert not failures
    wall_s = sum(one["wall_s"] for one in scan)
    raw_s = sum(max(pair["raw_s"] for pair in one["pairs"]) for one in scan)
    singly_s = sum(one["wall_s"] for one in alone) * RANKS / 2
    rates = sorted(pair["bytes_per_s"] * 8e-6 for one in scan for pair in one["pairs"])
    told = (
        f"{len(rounds)} rounds: {wall_s:.1f} s, operations {raw_s:.1f} s, ratio {wall_s / raw_s:.2f}; one pair after another {singly_s:.0f} s, "
        f"{singly_s / wall_s:.1f} times as long; rates {rates[0]:.0f} to {rates[-1]:.0f}, median {statistics.median(rates):.0f} Mbit/s"
    )
    print(f"\n{told}; rounds {[round(one['wall_s'], 2) for one in scan]}")
    print(f"alone {[(round(one['wall_s'], 2), round(one['pairs'][0]['raw_s'], 2)) for one in alone]}")
    record_property("pair_scan", told)
    assert wall_s <= MAX_OVERHEAD * raw_s, told
    assert singly_s >= MIN_GAIN * wall_s, told
