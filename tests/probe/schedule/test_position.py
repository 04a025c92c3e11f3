"""A tournament goes on where it stopped, for the same nodes only."""

import msgspec
import pytest

from preflight.model.base import from_json, to_json
from preflight.model.localisation import Ends
from preflight.model.position import Position
from preflight.probe.schedule.position import fingerprint_of, is_through, new_position, resumed, scan_text
from preflight.probe.schedule.strata import Tournament
from tests.probe.schedule.fleets import ends_on

ENDS = ends_on([4, 4], 2)


def test_a_position_is_saved_and_loaded():
    position = msgspec.structs.replace(new_position(ENDS, 7), inside=1, across=3)
    assert from_json(to_json(position), Position) == position
    assert resumed(position, ENDS)[0] == position


@pytest.mark.parametrize(
    "ends", [ends_on([4, 5], 2), ends_on([5, 3], 2), ends_on([4, 4], 1), ends_on([4, 4], 2, told=False)]
)
def test_another_set_of_nodes_begins_anew_with_another_seed(ends):
    old = msgspec.structs.replace(new_position(ENDS, 7), inside=1, across=3)
    new, _ = resumed(old, ends)
    assert (new.inside, new.across) == (0, 0)
    assert new.seed != old.seed
    assert new.fingerprint == fingerprint_of(ends) != old.fingerprint


def test_the_order_in_which_nodes_are_listed_is_no_change():
    assert ENDS.leaves
    turned = Ends(
        nodes=ENDS.nodes[::-1],
        node=tuple(len(ENDS.nodes) - 1 - node for node in ENDS.node),
        slot=ENDS.slot,
        leaves=ENDS.leaves[::-1],
    )
    assert fingerprint_of(turned) == fingerprint_of(ENDS)


def test_a_tournament_that_is_through_begins_anew_with_another_seed():
    tournament = Tournament(ENDS, 7)
    through = msgspec.structs.replace(
        new_position(ENDS, 7), inside=tournament.num_inside + 2, across=tournament.num_across
    )
    assert is_through(through, tournament)
    position, _ = resumed(through, ENDS)
    assert position == new_position(ENDS, 8)


def test_one_node_has_nothing_to_go_through():
    ends = ends_on([1], 8)
    position, tournament = resumed(None, ends)
    assert not is_through(position, tournament)
    assert scan_text(position, position, tournament) == ""


def test_how_far_it_has_come_is_said_in_words():
    tournament = Tournament(ends_on([64], 1, told=False), 0)
    at = [Position(seed=0, fingerprint="", across=across) for across in (0, 5, 6, 10, 63, 70)]
    said = [scan_text(at[a], at[b], tournament) for a, b in ((0, 1), (1, 3), (1, 2), (0, 0), (1, 1), (3, 5), (4, 5))]
    assert said == [
        "rounds 1 to 5 of 63",
        "rounds 6 to 10 of 63",
        "round 6 of 63",
        "none of 63 rounds",
        "5 of 63 rounds before, none of them now",
        "rounds 11 to 63 of 63",
        "63 of 63 rounds before, none of them now",
    ]
