"""What systemd wants to hear of a service: ready, what it does, that it lives, that it leaves. Own lines over its datagram socket; without systemd nothing is sent.

Source: sd_notify(3) and sd_watchdog_enabled(3): NOTIFY_SOCKET is a path, or "@name" in the abstract namespace; WATCHDOG_USEC, the longest silence, counts for process WATCHDOG_PID alone.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, MutableMapping

MAX_STATUS = 200  # letters


class Notifier:
    """`address` None: nobody listens. `watchdog_s`: the longest silence before systemd restarts the service, None: it doesn't watch."""

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        self.address = address
        self.watchdog_s = watchdog_s

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> "Notifier":
        """As systemd asked, if it did. The variables are taken out: no child speaks for the service."""
        address = environ.pop("NOTIFY_SOCKET", None)
        usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        mine = not pid or pid == str(os.getpid())
        watchdog_s = int(usec) / 1e6 if usec.isdecimal() and int(usec) > 0 and mine else None
        return cls(address if address and address[0] in "/@" else None, watchdog_s)

    def send(self, *lines: str) -> None:
        """Never waits and never fails: a service manager that doesn't listen costs the message alone."""
        if self.address is None:
            return
        target = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), target)

    def ready(self, status: str) -> None:
        """It listens."""
        self.send("READY=1", f"STATUS={_one_line(status)}")

    def stopping(self) -> None:
        """It leaves."""
        self.send("STOPPING=1", "STATUS=ends its workers")

    async def keep_telling(self, status: Callable[[], str]) -> None:
        """From the loop that serves, until cancelled: that it lives, twice in the time that the watchdog allows, and what it does. A loop that hangs falls silent."""
        if self.address is None:
            return
        every_s = self.watchdog_s / 2 if self.watchdog_s else 10.0
        while True:
            self.send(*(["WATCHDOG=1"] if self.watchdog_s else []), f"STATUS={_one_line(status())}")
            await asyncio.sleep(every_s)


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:MAX_STATUS]
