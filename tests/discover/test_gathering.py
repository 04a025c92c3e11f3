"""Questions with a limit of time: one that hangs or fails costs its own facts only."""

import threading

import pytest

from preflight.discover.gathering import Gathering


@pytest.fixture
def never():
    """An event that is set only when the test is over, so that no thread outlives it."""
    event = threading.Event()
    yield event
    event.set()


def test_answers_come_back_in_order():
    gathering = Gathering(10.0)
    assert [gathering.ask("x", None, lambda i=i: i * i, -1) for i in range(3)] == [0, 1, 4]
    assert gathering.problems == []
    gathering.close()


def test_where_no_thread_can_be_had_nothing_is_asked_without_a_limit(monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    gathering = Gathering(10.0)
    assert gathering.ask("/sys/x", "hcas", lambda: 1, None) is None
    (problem,) = gathering.problems
    assert problem.field == "hcas"
    assert "can't start new thread" in problem.text
    gathering.close()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied", "/sys/x"), "Permission denied"),
        (ValueError("odd"), "ValueError: odd"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), "UnicodeDecodeError"),
        (RecursionError("deep"), "RecursionError"),
    ],
)
def test_a_source_that_fails_is_a_problem_with_its_field(error, words):
    def read():
        raise error

    gathering = Gathering(10.0)
    assert gathering.ask("/sys/x", "hcas", read, None) is None
    assert gathering.ask("/sys/y", "nics", lambda: 1, None) == 1
    (problem,) = gathering.problems
    assert (problem.source, problem.field) == ("/sys/x", "hcas")
    assert words in problem.text
    gathering.close()


def test_a_source_that_hangs_is_left_behind_and_the_next_is_asked(never):
    gathering = Gathering(10.0, each_s=0.05)
    assert gathering.ask("/sys/x", "hcas", never.wait, None) is None
    assert gathering.ask("/sys/y", "nics", lambda: 1, None) == 1
    assert "did not answer within 0.05 s" in gathering.problems[0].text
    gathering.close()


def test_when_the_time_is_over_nothing_more_is_asked_unless_it_is_allowed(never):
    gathering = Gathering(0.05)
    assert gathering.ask("/sys/x", None, never.wait, None) is None
    asked = []
    assert gathering.ask("/sys/y", "nics", lambda: asked.append(1), None) is None
    assert (asked, gathering.problems[1].text) == ([], "not read: 0.05 s were over")
    gathering.allow(10.0)
    assert gathering.ask("/sys/z", None, lambda: 1, None) == 1
    gathering.close()
