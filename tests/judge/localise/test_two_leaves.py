"""Two leaves: everything between them is slow. Whether the way is at fault, or merely shared out, a pair that has it to itself tells."""

import pytest

from preflight.judge.localise import localise
from preflight.model.localisation import LONE
from preflight.probe.schedule import ask_probe, pack_asks
from tests.judge.localise.shots import HEALTHY, gpu_ends, measured, rail_pairs, shots_of

NODES, SLOTS = 8, 2
ENDS = gpu_ends(NODES, SLOTS, NODES // 2)


def across(a: int, b: int) -> bool:
    return (a // SLOTS < NODES // 2) != (b // SLOTS < NODES // 2)


def shared_rows(factor: float):
    return measured(rail_pairs(ENDS, 7), lambda a, b: HEALTHY * (factor if across(a, b) else 1))


def lone_rows(asks, factor: float):
    return measured([(ask.a, ask.b) for ask in asks], lambda *_: HEALTHY * factor, op=f"send_recv {LONE}")


def lone_asks(found):
    return [ask for ask in found.asks if ask.lone]


def test_a_gap_beyond_that_of_healthy_routes_is_possibly_the_path_and_two_pairs_are_asked_for_with_the_way_to_themselves():
    found = localise(ENDS, shots_of(shared_rows(0.5)))
    [path] = found.culprits
    assert (path.kind, path.confidence) == ("path", "possible")
    asked = lone_asks(found)
    assert len(asked) == 2
    assert all(across(ask.a, ask.b) for ask in asked)


@pytest.mark.parametrize(
    ("alone", "confidence", "words"),
    [(0.5, "likely", "is slow too"), (0.97, "possible", "it is shared out: too few uplinks by design")],
)
def test_what_a_pair_reaches_with_the_way_to_itself_decides(alone, confidence, words):
    rows = shared_rows(0.5)
    rows += lone_rows(lone_asks(localise(ENDS, shots_of(rows))), alone)
    found = localise(ENDS, shots_of(rows))
    [path] = found.culprits
    assert (path.kind, path.confidence) == ("path", confidence)
    assert words in path.reason
    assert lone_asks(found) == []


def test_a_gap_as_healthy_fabrics_have_it_is_no_culprit_and_asks_for_nothing():
    found = localise(ENDS, shots_of(shared_rows(0.9)))
    assert found.culprits == ()
    assert lone_asks(found) == []


def test_shots_with_the_way_to_themselves_are_no_peers_of_those_that_share_it():
    """Else the few fast ones would be the reference, and all others slow."""
    rows = shared_rows(0.8)
    before = localise(ENDS, shots_of(rows))
    after = localise(ENDS, shots_of([*rows, *measured([(0, 8), (2, 10)], lambda *_: HEALTHY, op=f"send_recv {LONE}")]))
    assert before.culprits == after.culprits == ()


def test_a_lone_ask_has_a_round_of_its_own_and_its_probe_is_told_apart():
    asks = localise(ENDS, shots_of(shared_rows(0.5))).asks
    for asked in pack_asks(asks):
        assert len(asked) == 1 or not any(ask.lone for ask in asked)
    lone = next(ask for ask in asks if ask.lone)
    assert ask_probe(lone, "gloo").size_name == LONE
    assert LONE in ask_probe(lone, "gloo").key
