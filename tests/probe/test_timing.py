"""Timing: the first rank decides for all, the first call is kept apart, every window's data counts."""

import pytest

pytestmark = pytest.mark.fabric


class Rank:
    """One rank of a group. `each_s`: how long an operation takes, as its clock says. `told`: what the first rank broadcasts, None: this is the first."""

    def __init__(self, each_s: float = 1.0, told: list[int] | None = None) -> None:
        import torch

        self.device = torch.device("cpu")
        self.each_s, self.told = each_s, told
        self.index, self.size = (0, 2) if told is None else (1, 2)
        self.group = self
        self.repetitions: list[int] = []
        self.limits: list[float] = []

    def broadcast(self, tensors, _options):
        if self.told is not None:
            tensors[0].fill_(self.told.pop(0))
        return self

    def wait(self) -> None:
        return

    def settle(self) -> None:
        return

    def limit(self, timeout_s: float) -> None:
        self.limits.append(timeout_s)

    def seconds(self, operation, repetitions: int) -> float:
        self.repetitions.append(repetitions)
        for _ in range(repetitions):
            operation()
        return self.each_s * repetitions


def operation(*, wrong_check: int | None = None, max_runs: int | None = None, log: list[str] | None = None):
    """An operation whose data is wrong at one check, counted from 1."""
    from preflight.probe.collectives import Operation

    log = log if log is not None else []

    def check(runs: int) -> bool:
        log.append(f"check {runs}")
        return len([entry for entry in log if entry.startswith("check")]) != wrong_check

    return Operation(fill=lambda: log.append("fill"), run=lambda: log.append("run"), check=check, max_runs=max_runs)


def timed(rank: Rank, loop_s: float = 0.0, *, stop_s: float = float("inf"), **facts):
    from preflight.probe.breadcrumbs import Trail
    from preflight.probe.timing import Patience, time_operation

    patience = Patience(first_s=7.0, floor_s=4.0, stop_s=stop_s)
    return time_operation(rank, operation(**facts), loop_s, patience, Trail(None, 0))


def test_the_shortest_loop_still_gives_three_windows_beside_first_call_and_warm_up():
    rank = Rank(each_s=1.0)
    result = timed(rank)
    assert rank.repetitions == [1, 3, 1, 1, 1]
    assert result.first_call_s == 1.0
    assert result.durations_s == [1.0] * 3


def test_a_window_of_short_operations_holds_many_and_its_duration_is_that_of_one():
    rank = Rank(each_s=0.001)
    result = timed(rank)
    assert result.window == 10  # of 10 ms
    assert rank.repetitions[2:] == [10, 10, 10]
    assert result.durations_s == pytest.approx([0.001] * 3)


@pytest.mark.parametrize(("max_runs", "window"), [(None, 64), (8, 8), (100, 64)])
def test_a_window_is_no_longer_than_the_data_can_be_verified(max_runs, window):
    assert timed(Rank(each_s=1e-7), max_runs=max_runs).window == window


def test_an_endless_loop_ends_after_the_most_windows():
    from preflight.probe.timing import MAX_WINDOWS

    assert len(timed(Rank(each_s=1.0), loop_s=3600).durations_s) == MAX_WINDOWS


def test_other_ranks_do_as_the_first_one_says():
    """Three to warm up, a window of 5, then two windows, whatever their own clocks say."""
    rank = Rank(each_s=1.0, told=[3, 5, 0, 0, 1])
    result = timed(rank, loop_s=3600)
    assert result.window == 5
    assert rank.repetitions == [1, 3, 5, 5]
    assert rank.told == []


@pytest.mark.parametrize("wrong_check", [1, 2, 3, 4, 5])
def test_wrong_data_in_the_first_call_the_warm_up_or_any_window_is_kept(wrong_check):
    assert timed(Rank(), wrong_check=wrong_check).data_correct is False
    assert timed(Rank(), wrong_check=None).data_correct is True


def test_buffers_are_filled_anew_before_all_that_is_verified():
    log: list[str] = []
    timed(Rank(each_s=0.004), log=log)
    runs = 0
    for entry in log:
        if entry == "fill":
            runs = 0
        elif entry == "run":
            runs += 1
        else:
            assert entry == f"check {runs}"
    assert len([entry for entry in log if entry.startswith("check")]) == 5


def test_on_a_link_so_slow_that_little_fits_one_operation_warms_up_and_one_window_is_timed():
    import time

    rank = Rank(each_s=3.0)
    result = timed(rank, loop_s=60, stop_s=time.monotonic())
    assert rank.repetitions == [1, 1, 1]
    assert result.durations_s == [3.0]


def test_each_stage_has_its_own_deadline():
    """The first operation its own, then three times what a window should take, but never less than the floor."""
    rank = Rank(each_s=0.001)
    timed(rank)
    assert rank.limits == [7.0, 4.0]
    rank = Rank(each_s=1.9)
    timed(rank)
    assert rank.limits == pytest.approx([7.0, 5.7])
    assert rank.repetitions[0] == 1


def test_the_trail_tells_each_operation_of_a_window():
    from preflight.probe.breadcrumbs import Trail
    from preflight.probe.timing import Patience, time_operation

    trail = Trail(None, 0)
    seen: list[tuple[str, int]] = []

    class Spy(Rank):
        def seconds(self, operation, repetitions: int) -> float:
            def spied() -> None:
                operation()
                seen.append((trail.stage, trail.operation))

            return super().seconds(spied, repetitions)

    time_operation(Spy(each_s=0.005), operation(), 0, Patience(first_s=1, floor_s=1, stop_s=0), trail)
    assert seen == [
        ("first operation", 1),
        ("warm-up", 1),
        ("warm-up", 1),
        ("warm-up", 1),
        ("operation", 1),
        ("operation", 2),
    ]
