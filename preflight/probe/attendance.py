"""Who came: a roll call over the rendezvous store that the job already has, so that a rank that did not come is named.

Nothing depends on it. The store's calls may block without limit if its server hangs, so each runs in a thread that is left behind at a deadline; without a
store (torch keeps it to itself, and a job may have none) nobody is named.
"""

import itertools
import threading
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d

T = TypeVar("T")

CALL_S = 5.0  # for one call, which takes a fraction of a millisecond
_numbers = itertools.count()  # all ranks call assert_placement equally often, or the one that doesn't is missing


class Attendance:
    """The roll call of one gathering. Every rank makes one, at the same point of the script."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.store: Any = _in_time(CALL_S, lambda: _store(next(_numbers)))
        if self.store is not None:
            _in_time(CALL_S, lambda: self.store.set(f"here/{rank}", "1"))

    def missing(self) -> list[int]:
        """The ranks that have not come so far; empty if nobody can be named."""
        if self.store is None:
            return []
        return _in_time(CALL_S, lambda: [r for r in range(self.size) if not self.store.check([f"here/{r}"])]) or []

    def tell(self, text: str) -> None:
        """Leave a text for those whom no collective reaches any more."""
        if self.store is not None:
            _in_time(CALL_S, lambda: self.store.set("reason", text))

    def told(self, wait_s: float) -> str | None:
        """The text that was left, None if there is none within `wait_s` seconds."""

        def read() -> str:
            self.store.wait(["reason"], timedelta(seconds=wait_s))
            return bytes(self.store.get("reason")).decode()

        return None if self.store is None else _in_time(wait_s + CALL_S, read)

    def heard(self) -> None:
        """Say that this rank knows why it raises, so that rank 0 may go."""
        if self.store is not None:
            _in_time(CALL_S, lambda: self.store.set(f"heard/{self.rank}", "1"))

    def stay(self, missing: Collection[int], limit_s: float) -> None:
        """On rank 0, which may serve the store: wait until all but the missing ones have heard, `limit_s` seconds at most."""
        if self.store is not None:
            keys = [f"heard/{rank}" for rank in range(self.size) if rank != self.rank and rank not in missing]
            _in_time(limit_s + CALL_S, lambda: self.store.wait(keys, timedelta(seconds=limit_s)))


def _store(number: int) -> Any:
    return dist.PrefixStore(f"preflight/assert_placement/{number}", distributed_c10d._get_default_store())  # noqa: SLF001 - torch offers no other way


def _in_time(limit_s: float, call: Callable[[], T]) -> T | None:
    """What the call gives; None if it raises, or is not back in time."""
    result: list[T] = []

    def run() -> None:
        try:
            result.append(call())
        except Exception:  # noqa: BLE001 - a lost store names nobody
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    return result[0] if result else None
