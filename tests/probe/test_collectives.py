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
        self.lose: int | None = None
        self.before: dict = {}
        self.group = self
        self.sending: dict = {}
        self.receiving: dict = {}

    def spoil(self, tensor) -> None:
        self.runs += 1
        if self.index == 0 and self.runs == self.lose:
            tensor.copy_(self.before[id(tensor)])
        self.before[id(tensor)] = tensor.clone()
        if self.index == 0 and self.runs == self.corrupt:
            tensor[len(tensor) // 2] += BIT

    def allreduce(self, tensors) -> Done:
        contributions = self.wire.exchange(self.index, tensors[0].clone())
        tensors[0].copy_(sum(contributions[1:], contributions[0]))
        self.spoil(tensors[0])
        return Done()

    def alltoall_base(self, received, sent, into, out) -> Done:
        rows = self.wire.exchange(self.index, (sent.clone(), out or [len(sent) // self.size] * self.size))
        at = 0
        for sender, (row, lengths) in enumerate(rows):
            begin, length = sum(lengths[: self.index]), lengths[self.index]
            assert not into or into[sender] == length
            received[at : at + length] = row[begin : begin + length]
            at += length
        assert at == len(received)
        self.spoil(received)
        return Done()

    def _allgather_base(self, received, sent) -> Done:
        import torch

        received.copy_(torch.cat(self.wire.exchange(self.index, sent.clone())))
        self.spoil(received)
        return Done()

    def _reduce_scatter_base(self, received, sent, _options) -> Done:
        rows = self.wire.exchange(self.index, sent.clone())
        part = len(received)
        received.copy_(sum(rows[1:], rows[0])[self.index * part : (self.index + 1) * part])
        self.spoil(received)
        return Done()

    def send(self, tensors, to: int, _tag: int) -> None:
        self.sending[to] = tensors[0].clone()

    def recv(self, tensors, sender: int, _tag: int) -> None:
        self.receiving[sender] = tensors[0]

    def together(self, starts) -> None:
        self.sending, self.receiving = {}, {}
        for start in starts:
            start()
        letters = self.wire.exchange(self.index, dict(self.sending))
        for sender, buffer in self.receiving.items():
            buffer.copy_(letters[sender][self.index])
        if self.receiving:
            self.spoil(next(iter(self.receiving.values())))


EXCHANGES = ["all_gather", "reduce_scatter", "all_to_all", "send_recv"]  # out of place
EVERY = ["all_reduce", *EXCHANGES]


def after(
    collective: str,
    size: int,
    runs: int,
    *,
    num_elements: int = 24,
    corrupt: int | None = None,
    lose: int | None = None,
    split: tuple[float, ...] = (),
) -> list[bool]:
    """What each rank's check says after so many runs. `lose`: the run in which nothing arrives at rank 0, which keeps what it had."""
    from preflight.probe.collectives import OPERATIONS

    wire = Wire(size)
    said: dict[int, bool] = {}

    def rank(index: int) -> None:
        group = ModelGroup(wire, index, corrupt)
        group.lose = lose
        operation = OPERATIONS[collective](group, num_elements, split)
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


@pytest.mark.parametrize("collective", EVERY)
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_right_data_passes_on_every_rank(collective, size):
    assert after(collective, size, 1) == [True] * size
    assert after(collective, size, 4) == [True] * size


@settings(max_examples=25, deadline=None)
@given(size=st.integers(2, 6), runs=st.integers(1, 64))
def test_sums_that_wrapped_around_are_still_right(size, runs):
    """64 runs over 3 ranks multiply the data by 3^63."""
    assert after("all_reduce", size, runs, num_elements=8) == [True] * size


@pytest.mark.parametrize("collective", EVERY)
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


@pytest.mark.parametrize("collective", EVERY)
def test_an_operation_that_does_nothing_is_wrong(collective):
    from preflight.probe.collectives import OPERATIONS

    operation = OPERATIONS[collective](ModelGroup(Wire(2), 0), 16)
    operation.fill()
    assert not operation.check(1)


@pytest.mark.parametrize("collective", EVERY)
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


@pytest.mark.parametrize("collective", EXCHANGES)
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("runs", [2, 5, 9])
def test_one_wrong_element_in_the_run_before_the_last_is_seen_too(collective, size, runs):
    """The last run brings right data to another buffer, and can't hide it."""
    assert after(collective, size, runs, corrupt=runs - 1) == [False, *[True] * (size - 1)]


@pytest.mark.parametrize("collective", EXCHANGES)
def test_any_of_the_last_four_runs_of_small_messages_is_verified(collective):
    assert [after(collective, 2, 8, corrupt=run)[0] for run in range(1, 9)] == [True] * 4 + [False] * 4


@pytest.mark.parametrize("collective", EXCHANGES)
@pytest.mark.parametrize("lost", [5, 6, 8])
def test_a_run_that_brings_nothing_leaves_data_of_an_earlier_one_which_is_seen(collective, lost):
    assert after(collective, 2, 8, lose=lost)[0] is False


@pytest.mark.parametrize("split", [(0.5, 0.5), (0.9, 0.1), (0.3, 0.3, 0.4), (0.0, 1.0, 0.0, 0.0)], ids=str)
def test_a_skewed_all_to_all_sends_each_member_its_share(split):
    size = len(split)
    assert after("all_to_all", size, 3, num_elements=100, split=split) == [True] * size
    assert after("all_to_all", size, 3, num_elements=100, split=split, corrupt=3)[0] is False


def test_a_one_way_send_is_verified_by_its_receiver():
    assert after("send", 2, 3) == [True, True]
    assert after("send", 2, 3, corrupt=1) == [True, True]  # rank 0 sends, and receives nothing that could be wrong


def test_what_all_positions_and_senders_carry_differs():
    import torch

    from preflight.probe.collectives import STEP, VIEWS, stamp

    cpu = torch.device("cpu")
    assert len(stamp(0, 50_000, 3, cpu).unique()) == 50_000
    senders = torch.stack([stamp(0, 1000, seed, cpu) for seed in range(200)])
    assert all(len(column.unique()) == 200 for column in senders.T[:50])
    whole = stamp(0, 1000, 7, cpu)
    assert all((whole[: -STEP * view] != whole[STEP * view :]).all() for view in range(1, VIEWS))
    assert torch.equal(stamp(200, 100, 7, cpu), whole[200:300])


def test_the_last_views_and_buffers_have_no_common_divisor():
    """Otherwise a buffer would get the same data each time, and data that never came would look right."""
    from preflight.probe.collectives import FEW_BUFFERS, MANY_BUFFERS, VIEWS

    assert MANY_BUFFERS % VIEWS
    assert FEW_BUFFERS % VIEWS


def test_a_backend_has_the_calls_that_nccl_groups_of_operations_need_and_takes_no_device():
    """NCCL can't be tried on a CPU, but its backend inherits these from the same class."""
    import torch.distributed as dist

    backend = dist.ProcessGroupGloo.__mro__[1]
    for name in ("_start_coalescing", "_end_coalescing"):
        assert f"{name}(self: torch._C._distributed_c10d.Backend) ->" in getattr(backend, name).__doc__
