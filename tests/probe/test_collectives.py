"""What each collective must deliver, told by its own check: right data passes after any number of runs, one wrong element never does.

The ranks of a modelled group are threads that exchange tensors; `corrupt` spoils one element on its way to rank 0.
"""

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.fabric

BIT = 1


class Wire:
    """What the ranks of one group share: the tensors under way, and who waits."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.posted: dict = {}
        self.barrier = threading.Barrier(size, timeout=20)

    def exchange(self, rank: int, value: object) -> list:
        """What all ranks posted, in rank order."""
        self.posted[rank] = value
        self.barrier.wait()
        everything = [self.posted[other] for other in range(self.size)]
        self.barrier.wait()
        return everything


class Done:
    def wait(self) -> None:
        return


class ModelGroup:
    """One rank of a group as the collectives see it. `corrupt`: the run, counted from 1, in which rank 0 gets a wrong element."""

    def __init__(self, wire: Wire, index: int, corrupt: int | None = None) -> None:
        import torch

        self.device = torch.device("cpu")
        self.wire, self.index, self.size = wire, index, wire.size
        self.corrupt = corrupt
        self.runs = 0
        self.group = self
        self.sending: dict = {}
        self.receiving: dict = {}

    def spoil(self, tensor) -> None:
        self.runs += 1
        if self.index == 0 and self.runs == self.corrupt:
            tensor[len(tensor) // 2] += BIT

    def allreduce(self, tensors) -> Done:
        contributions = self.wire.exchange(self.index, tensors[0].clone())
        tensors[0].copy_(sum(contributions[1:], contributions[0]))
        self.spoil(tensors[0])
        return Done()

    def alltoall_base(self, received, sent, _out, _in) -> Done:
        part = len(sent) // self.size
        rows = self.wire.exchange(self.index, sent.clone())
        for sender, row in enumerate(rows):
            received[sender * part : (sender + 1) * part] = row[self.index * part : (self.index + 1) * part]
        self.spoil(received)
        return Done()

    def send(self, tensors, to: int, _tag: int) -> None:
        self.sending[to] = tensors[0].clone()

    def recv(self, tensors, sender: int, _tag: int) -> None:
        self.receiving[sender] = tensors[0]

    def together(self, starts) -> None:
        for start in starts:
            start()
        letters = self.wire.exchange(self.index, dict(self.sending))
        for sender, buffer in self.receiving.items():
            buffer.copy_(letters[sender][self.index])
        self.spoil(next(iter(self.receiving.values())))


def after(collective: str, size: int, runs: int, *, num_elements: int = 24, corrupt: int | None = None) -> list[bool]:
    """What each rank's check says after so many runs."""
    from preflight.probe.collectives import OPERATIONS

    wire = Wire(size)
    said: dict[int, bool] = {}

    def rank(index: int) -> None:
        operation = OPERATIONS[collective](ModelGroup(wire, index, corrupt), num_elements)
        operation.fill()
        for _ in range(runs):
            operation.run()
        said[index] = operation.check(runs)

    in_threads(size, rank)
    return [said[index] for index in range(size)]


def in_threads(size: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(index,)) for index in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all", "send_recv"])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_right_data_passes_on_every_rank(collective, size):
    assert after(collective, size, 1) == [True] * size
    assert after(collective, size, 4) == [True] * size


@settings(max_examples=25, deadline=None)
@given(size=st.integers(2, 6), runs=st.integers(1, 64))
def test_sums_that_wrapped_around_are_still_right(size, runs):
    """64 runs over 3 ranks multiply the data by 3^63."""
    assert after("all_reduce", size, runs, num_elements=8) == [True] * size


@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all", "send_recv"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_one_wrong_element_in_the_last_run_is_seen_by_its_rank_alone(collective, size):
    assert after(collective, size, 4, corrupt=4) == [False, *[True] * (size - 1)]


@pytest.mark.parametrize("size", [3, 5, 6, 7])
@pytest.mark.parametrize("runs", [1, 30, 64])
def test_one_wrong_element_is_seen_after_sums_that_wrapped_around(size, runs):
    assert after("all_reduce", size, runs, num_elements=8, corrupt=runs)[0] is False


@pytest.mark.parametrize("size", [2, 3, 4, 6, 8])
def test_a_wrong_element_in_the_first_of_all_runs_of_a_window_reaches_every_rank(size):
    """What rank 0 got wrong it adds to all later sums; the runs are limited so that the sums don't shift it out."""
    from preflight.probe.collectives import OPERATIONS
    from preflight.probe.timing import MAX_WINDOW

    limit = OPERATIONS["all_reduce"](ModelGroup(Wire(size), 0), 8).max_runs or MAX_WINDOW
    assert limit >= 3
    assert after("all_reduce", size, limit, num_elements=8, corrupt=1) == [False] * size


@pytest.mark.parametrize(("size", "limit"), [(2, 24), (3, None), (4, 12), (6, 24), (8, 8), (64, 4)])
def test_data_never_becomes_all_zeros(size, limit):
    """A link that delivers zeros would otherwise look right: over 8 ranks nothing else is left after 11 sums."""
    from preflight.probe.collectives import OPERATIONS

    assert OPERATIONS["all_reduce"](ModelGroup(Wire(size), 0), 8).max_runs == limit
    assert pow(size, (limit or 64) - 1, 2**32) != 0


@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all", "send_recv"])
def test_an_operation_that_does_nothing_is_wrong(collective):
    from preflight.probe.collectives import OPERATIONS

    operation = OPERATIONS[collective](ModelGroup(Wire(2), 0), 16)
    operation.fill()
    assert not operation.check(1)


@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all", "send_recv"])
def test_a_message_smaller_than_the_group_still_says_something(collective):
    assert after(collective, 4, 2, num_elements=1) == [True] * 4
    assert after(collective, 4, 2, num_elements=1, corrupt=2)[0] is False


def test_what_two_ranks_send_differs():
    """Otherwise data that came from the wrong rank would look right."""
    import torch

    from preflight.probe.collectives import pattern

    patterns = [pattern(300, seed, torch.device("cpu")) for seed in range(64)]
    assert all(not torch.equal(a, b) for i, a in enumerate(patterns) for b in patterns[:i])
    assert all((p != p.roll(shift)).any() for p in patterns[:3] for shift in (1, 2, 64, 128, 256))
    assert all(int(p.max()) < 2**9 for p in patterns)
