"""Limits of what Slurm calls on a node: of time, and of signals. Either becomes an exception, so that children, files and locks go with it."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

LEAST_S = 0.001
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class TimeIsUpError(BaseException):
    """The budget is spent. Not an Exception: nothing that expects a broken source may take it for one."""


class EndedError(BaseException):
    """Somebody asked this process to end."""


@contextlib.contextmanager
def limited(budget_s: float) -> Iterator[None]:
    """The block ends with TimeIsUpError after so long, and with EndedError at a signal that asks for it. In the main thread only."""
    before = {number: signal.getsignal(number) for number in (signal.SIGALRM, *_ENDING)}
    signal.signal(signal.SIGALRM, _time_is_up)
    for number in _ENDING:
        signal.signal(number, _ended)
    allow(budget_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def allow(budget_s: float) -> None:
    """From now on so long, in place of what was left."""
    signal.setitimer(signal.ITIMER_REAL, max(budget_s, LEAST_S))  # 0 would be without end


def _time_is_up(_number: int, _frame: FrameType | None) -> None:
    raise TimeIsUpError


def _ended(number: int, _frame: FrameType | None) -> None:
    raise EndedError(signal.Signals(number).name)
