"""What a one-way probe measures over a limited link, beside iperf3 over the same link."""

import pytest

from tests.cluster.box import SICK_MBIT, Box, iperf3_bytes_per_s

pytestmark = [
    pytest.mark.root,
    pytest.mark.fabric,
    pytest.mark.debian("iproute2", "ip", "tc"),
    pytest.mark.debian("iperf3"),
]

MAX_GAP = 0.05
TRIES = 3  # a busy machine may spoil one of the two; both are measured anew then


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    """n2 sends at the sick rate, n3 receives at it, n1 is healthy."""
    with Box(tmp_path_factory.mktemp("box"), leaves=(3,)) as box:
        box.start_agents()
        box.limit("n2", SICK_MBIT, "sending")
        box.limit("n3", SICK_MBIT, "receiving")
        yield box


@pytest.mark.soak
def test_one_way_probes_are_within_5_percent_of_iperf3_over_healthy_and_sick_links(box, record_property):
    ways = [
        (0, 1),
        (1, 0),
        (0, 2),
        (2, 0),
    ]  # healthy, from the one that is slow in sending, to the one that is slow in receiving, healthy
    best: dict[tuple[int, int], float] = {}
    for _ in range(TRIES):
        left = [way for way in ways if best.get(way, 1.0) > MAX_GAP]
        if not left:
            break
        theirs = [iperf3_bytes_per_s(box, box.nodes[sender], box.nodes[receiver]) for sender, receiver in left]
        rounds = box.drive([[(*way, "send")] for way in left])
        for way, reference, [pair] in zip(left, theirs, (one["pairs"] for one in rounds), strict=True):
            assert pair["failure"] is None
            assert pair["right"] is True
            best[way] = min(best.get(way, 1.0), abs(pair["bytes_per_s"] / reference - 1))
            print(f"\n{way}: {reference * 8e-6:.1f} Mbit/s by iperf3, {pair['bytes_per_s'] * 8e-6:.1f} by a probe")
    record_property("gaps", str(best))
    assert max(best.values()) <= MAX_GAP, best
