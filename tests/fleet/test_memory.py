"""The state of a scan between runs: remembered for each set of nodes, and no other file is ever taken for it, or lost."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.errors import ConfigError, WorldError
from preflight.fleet.memory import MAX_SETS, Memory
from preflight.model.position import Position

FIRST = Position(seed=1, fingerprint="a", inside=1, across=4)
SECOND = Position(seed=2, fingerprint="b", across=9)


def test_without_a_file_every_scan_is_new(tmp_path):
    assert Memory(tmp_path / "state.json").position_of("a") is None
    assert not list(tmp_path.iterdir())


def test_an_empty_file_is_a_new_one(tmp_path):
    (tmp_path / "state.json").touch()
    assert Memory(tmp_path / "state.json").positions == ()


def test_a_position_is_found_again_for_its_own_set_of_nodes_only(tmp_path):
    path = tmp_path / "state.json"
    Memory(path).keep(FIRST)
    Memory(path).keep(SECOND)
    again = Memory(path)
    assert again.position_of("a") == FIRST
    assert again.position_of("b") == SECOND
    assert again.position_of("c") is None
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_later_position_takes_the_place_of_an_earlier_one(tmp_path):
    path = tmp_path / "state.json"
    Memory(path).keep(FIRST)
    Memory(path).keep(Position(seed=1, fingerprint="a", inside=2, across=8))
    assert [(p.inside, p.across) for p in Memory(path).positions] == [(2, 8)]


def test_what_another_run_wrote_meanwhile_stays(tmp_path):
    path = tmp_path / "state.json"
    mine = Memory(path)
    Memory(path).keep(SECOND)
    mine.keep(FIRST)
    assert {p.fingerprint for p in Memory(path).positions} == {"a", "b"}


def test_the_set_that_was_used_longest_ago_is_forgotten_first(tmp_path):
    path = tmp_path / "state.json"
    for number in range(MAX_SETS + 1):
        Memory(path).keep(Position(seed=1, fingerprint=str(number)))
    positions = Memory(path).positions
    assert len(positions) == MAX_SETS
    assert positions[0].fingerprint == "1"


FOREIGN = [
    b"[1, 2]",
    b"{}",
    b'{"positions": []}',
    b'{"schema": "preflight.report/1"}',
    b'{"schema": "preflight.state/2", "positions": []}',
    b'{"schema": "preflight.state/1", "positions": [{"seed": "x"}]}',
    b'{"schema": "preflight.state/1", "positions": [{"seed": 1, "fingerprint": "a", "inside": -1}]}',
    b'{"schema": "preflight.state/1", "positions": [{"seed": 1, "fingerprint": "a", "across": -4611686018427387904}]}',
    b'{"schema": "preflight.state/1", "positions": [{"seed": 18446744073709551615, "fingerprint": "a"}]}',
    b"my thesis",
    b"\xff\xfe",
    b"[" * 100_000,
]


@pytest.mark.parametrize("content", FOREIGN)
def test_another_file_is_refused_and_stays_as_it_is(tmp_path, content):
    path = tmp_path / "thesis.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="holds no state of a scan"):
        Memory(path)
    assert path.read_bytes() == content


@given(st.binary(min_size=1, max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_bytes_are_a_state_or_refused(tmp_path, content):
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        Memory(path)


def test_a_file_that_became_foreign_during_the_run_is_not_overwritten(tmp_path):
    path = tmp_path / "state.json"
    mine = Memory(path)
    path.write_bytes(b"my thesis")
    with pytest.raises(ConfigError):
        mine.keep(FIRST)
    assert path.read_bytes() == b"my thesis"


def test_a_folder_a_link_and_a_folder_that_is_not_there_are_refused(tmp_path):
    with pytest.raises(ConfigError):
        Memory(tmp_path)
    with pytest.raises(WorldError):
        Memory(tmp_path / "none" / "state.json").keep(FIRST)
    memory = Memory(tmp_path / "link")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises((ConfigError, WorldError), match="is a link"):
        memory.keep(FIRST)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("target", ["real.json", "missing.json"])
def test_a_link_is_refused_before_measuring_since_nothing_could_be_kept_through_it(tmp_path, target):
    Memory(tmp_path / "real.json").keep(FIRST)
    (tmp_path / "link").symlink_to(tmp_path / target)
    with pytest.raises(ConfigError, match="is a link"):
        Memory(tmp_path / "link")
