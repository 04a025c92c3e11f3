"""Ctrl-C and SIGTERM during a run: they end the measuring, and nothing else, until the report is out.

asyncio's own handlers end with its loop; a second Ctrl-C then would cost the report that the first one asked for.
"""

import asyncio
import signal
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruptions:
    """A context in which these signals set an event of the running loop. Only in the main thread."""

    def __init__(self) -> None:
        self.requested = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.event: asyncio.Event | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Interruptions":  # noqa: PYI034 - Self is in typing since 3.11 only
        """Take the signals over."""
        self.before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give them back. Once asked to end, we are ending: what comes now is ignored, or it would change the exit code."""
        for number, handler in self.before.items():
            signal.signal(number, signal.SIG_IGN if self.requested else handler)

    def attach(self, event: asyncio.Event) -> None:
        """Set this event of the running loop when a signal comes, or has come."""
        self.loop, self.event = asyncio.get_running_loop(), event
        if self.requested:
            event.set()

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.requested = True
        if self.loop is not None and self.event is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.event.set)
