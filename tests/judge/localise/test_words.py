"""The sentence behind a culprit says where it shows, for whom and in which direction."""

import pytest

from preflight.judge.localise.words import reasoned
from preflight.model.localisation import Culprit, Ends

ENDS = Ends(nodes=("n0", "n1", "n2", "n3"), node=(0, 0, 1, 1, 2, 2, 3, 3), slot=(0, 1) * 4, leaves=("a", "a", "b", "b"))
FIGURES = {"observed_bytes_per_s": 24e9, "reference_bytes_per_s": 48e9, "depth": 0.5}
HALVES = {"nodes": ("n0", "n1"), "other_nodes": ("n2", "n3")}


def why(**facts) -> str:
    return reasoned(Culprit(**{**FIGURES, **facts}), ENDS).reason


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"kind": "nic", "ends": (3,), "direction": "sending"}, "slow sending with every partner on other nodes"),
        ({"kind": "node", "nodes": ("n1",), "direction": "receiving"}, "slow receiving with every partner"),
        ({"kind": "path", "direction": "sending", **HALVES}, "slow from the first to the second, pairs on either side"),
        ({"kind": "path", "direction": "receiving", **HALVES}, "slow from the second to the first"),
        ({"kind": "link", "ends": (0, 2), "direction": "sending"}, "slow each time from the first to the second, both"),
        ({"kind": "link", "ends": (0, 2)}, "slow each time, both ends are fast with others"),
        ({"kind": "uplink", "leaf": "a"}, "slow towards every other leaf, fast inside"),
        (
            {"kind": "uplink", "leaf": "a", "share": 0.5, "ends": (0, 1, 2, 3, 4)},
            "towards every other leaf for n0 GPU 0, n0 GPU 1, n1 GPU 0, n1 GPU 1 and 1 more, fast inside",
        ),
    ],
)
def test_a_reason_says_where_it_shows_and_how_slow(facts, told):
    reason = why(**facts)
    assert told in reason
    assert "24.0 GB/s, 50% of its peers" in reason


def test_what_failed_has_no_rate_and_what_has_a_reason_keeps_it():
    assert "every probe across it failed" in why(kind="node", failed=True, observed_bytes_per_s=None)
    assert why(kind="node", reason="so it is") == "so it is"


def test_candidates_are_told_by_their_names():
    one = Culprit(kind="nic", ends=(3,), direction="sending")
    found = reasoned(Culprit(kind=None, candidates=(one,), **FIGURES), ENDS)
    assert found.candidates[0].reason == "NIC of n1 GPU 1, sending"
    assert "more than one explanation remains" in found.reason


def test_slow_links_keep_their_digits():
    assert "12.3 MB/s" in why(kind="node", observed_bytes_per_s=12.34e6)
