"""Questions to the operating system, each with a limit of time: a read that hangs in a driver costs its own facts only.

A file of sysfs may ask a card's firmware, and a home directory may lie on a server that is gone: such reads can hang in the kernel, where nothing ends them.
They run in a daemon thread; one that does not answer in time is left behind, and the next question gets a new thread.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from preflight.discover.files import reason
from preflight.model import Problem

EACH_S = 5.0  # all reads of a healthy node together take a few hundredths of a second

T = TypeVar("T")


class Gathering:
    """The questions about one node. `problems`: those that got no answer, and why."""

    def __init__(self, deadline_s: float, each_s: float = EACH_S) -> None:
        self._ends_at = time.monotonic() + deadline_s
        self._each_s = each_s
        self._deadline_s = deadline_s
        self._worker: _Worker | None = None
        self.problems: list[Problem] = []

    def ask(self, source: str, field: str | None, read: Callable[[], T], otherwise: T) -> T:
        """What `read` gives; `otherwise`, and a Problem about `field`, if it fails or takes too long."""
        left_s = self._ends_at - time.monotonic()
        if left_s <= 0:
            return self._without(source, field, f"not read: {self._deadline_s:g} s were over", otherwise)
        limit_s = min(self._each_s, left_s)
        try:
            self._worker = self._worker or _Worker()
        except RuntimeError as error:  # no more threads: ulimit -u, ulimit -v, or the cgroup's limit
            return self._without(source, field, f"can't be asked under a limit of time: {error}", otherwise)
        answer = self._worker.run(read, limit_s)
        if answer is None:
            self._worker = None
            return self._without(
                source,
                field,
                f"did not answer within {limit_s:.3g} s: it hangs in the kernel, or comes from a file system that is very slow",
                otherwise,
            )
        value, fault = answer
        return value if fault is None else self._without(source, field, fault, otherwise)

    def _without(self, source: str, field: str | None, text: str, otherwise: T) -> T:
        self.problems.append(Problem(source=source, text=text, field=field))
        return otherwise

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, 0 after it."""
        return max(0.0, self._ends_at - time.monotonic())

    def allow(self, more_s: float) -> None:
        """Let what is still to be asked take so long from now on, whatever the time."""
        self._ends_at = max(self._ends_at, time.monotonic() + more_s)

    def close(self) -> None:
        """End the thread, if it isn't left behind already."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None


class _Worker:
    """A thread that answers one question after another. (Semaphores: the module `queue` brings four others along, which a prolog would load on every node.)"""

    def __init__(self) -> None:
        self._read: Callable[[], Any] | None = None
        self._answer: tuple[Any, str | None] | None = None
        self._asked, self._answered = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._work, name="preflight-read", daemon=True).start()

    def run(self, read: Callable[[], Any], limit_s: float) -> tuple[Any, str | None] | None:
        """The value or, in words, why there is none. None: no answer within the limit; the worker can then not be asked again."""
        self._read = read
        self._asked.release()
        return self._answer if self._answered.acquire(timeout=limit_s) else None

    def end(self) -> None:
        """Let the thread end when it has nothing to do."""
        self._read = None
        self._asked.release()

    def _work(self) -> None:
        while True:
            self._asked.acquire()
            if self._read is None:
                return
            self._answer = _answer(self._read)
            self._answered.release()


def _answer(read: Callable[[], Any]) -> tuple[Any, str | None]:
    try:
        return read(), None
    except OSError as error:
        return None, reason(error)
    except Exception as error:  # noqa: BLE001 - what one source holds, or a mistake of ours, must not cost the facts of the others
        return None, f"can't be understood: {type(error).__name__}: {error}"
