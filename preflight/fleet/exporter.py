"""`preflight exporter`: /metrics of a fleet from its history. Read-only: it may run as a user who can only read the file.

The history is read in a thread every few seconds where it changed; a page is made of what was read, and waits for no disk. A history that can't be read gives collector_success 0 and none of its figures.
"""

import asyncio
import contextlib
import ipaddress
import os
import platform
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web

from preflight import __version__
from preflight.errors import PreflightError, UsageError, WorldError
from preflight.fleet.agent_metrics import CONTENT_TYPE, FRESH_S
from preflight.fleet.exporter_view import View, counts_between, newest_number, view_of
from preflight.fleet.notify import Notifier
from preflight.fleet.server import Server
from preflight.metrics import Samples, exposition, histogram, within_bounds
from preflight.report.gauges import by_weight
from preflight.report.pair_table import Gauge

LOOK_S = 5.0  # between two looks at the history
STUCK_S = 60.0  # a reading that takes longer has failed
HISTOGRAM = "pair_bandwidth_ratio"
OWN_SERIES = 80  # of the histogram, the counters and the exporter itself


class Exporter:
    """The page of one history. `age_s`: how long figures count. `leaves`: leaf of each node where it is known."""

    def __init__(self, history: Path, *, age_s: float, leaves: Mapping[str, str]) -> None:
        self.history, self.age_s, self.leaves = history, age_s, leaves
        self.problem: str | None = "the history was not read yet"
        self._body = ""  # the text of what was read
        self._seen: tuple[object, ...] | None = None
        self._looked = self._viewed_s = 0.0  # by the monotonic clock; Unix time
        self._last: int | None = None
        self._counts: dict[str, list[int]] = {}
        self._took_s = 0.0
        self._page: tuple[float, bytes] = (float("-inf"), b"")

    def look(self) -> None:
        """Read the history where it has changed."""
        began, now_s = time.monotonic(), time.time()
        try:
            seen = _stamp(self.history)
            if seen != self._seen or self.problem or now_s - self._viewed_s > self.age_s / 100:
                if self._last is None:
                    self._last = newest_number(self.history)
                view = view_of(self.history, self.leaves, now_s=now_s, age_s=self.age_s)
                if view is not None and view.last_number != self._last:
                    self._count(view.last_number)
                self._body, self._seen, self._viewed_s = _body(view), seen, now_s
                self._took_s = time.monotonic() - began
            self.problem = None if self._body else "the history is empty"
        except Exception as error:  # noqa: BLE001 - also a mistake of ours, or nonsense in the file, must not end the looking
            known = isinstance(error, OSError | PreflightError)
            self.problem, self._body = str(error) if known else f"{type(error).__name__}: {error}", ""
        self._looked = time.monotonic()

    def _count(self, last: int) -> None:
        """Counters only ever grow: what retention drops from the history is not taken off."""
        assert self._last is not None
        for command, figures in counts_between(self.history, self._last, last).items():
            total = self._counts.setdefault(command, [0, 0])
            total[:] = [before + more for before, more in zip(total, figures, strict=True)]
        self._last = last  # smaller than before: it is another file

    def page(self) -> bytes:
        """The text, at most FRESH_S old."""
        now = time.monotonic()
        if now - self._page[0] >= FRESH_S:
            self._page = (now, self._text(now).encode())
        return self._page[1]

    def _text(self, now: float) -> str:
        stuck = now - self._looked > STUCK_S
        counters: list[tuple[str, Samples]] = [
            (name, [((command,), float(figures[place])) for command, figures in sorted(self._counts.items())])
            for place, name in enumerate(("pairs_measured_total", "pairs_withheld_total"))
        ]
        own: list[tuple[str, Samples]] = [
            ("build_info", [((__version__, platform.python_version()), 1.0)]),
            ("collector_success", [((), float(not stuck and self.problem is None))]),
            ("collector_duration_seconds", [((), self._took_s)]),
        ]
        return exposition([*own, *counters], {}) + ("" if stuck else self._body)


def _body(view: View | None) -> str:
    """The text of what was read, within the bounds of a page."""
    if view is None:
        return ""
    families = by_weight([Gauge(name, series) for name, series in view.families])
    kept, left_out = within_bounds(families, spent=OWN_SERIES)
    return exposition([*kept, ("families_withheld", [((), float(left_out))])], {}) + histogram(
        HISTOGRAM, view.ratios, {}
    )


def _stamp(history: Path) -> tuple[object, ...]:
    """Changes when the file does, or the log beside it. Raises OSError, WorldError: there is no file."""
    found: list[object] = []
    for path in (history, Path(f"{history}-wal")):
        try:
            status = path.stat()
        except FileNotFoundError:
            if path is history:
                raise WorldError(f"there is no history {history}") from None
            continue
        found += [status.st_ino, status.st_size, status.st_mtime_ns]
    return tuple(found)


def listening_socket(address: str, port: int) -> socket.socket:
    """Raises UsageError."""
    try:
        ip = ipaddress.ip_address(address)
        listening = socket.socket(socket.AF_INET6 if ip.version == 6 else socket.AF_INET, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((address, port))
        except BaseException:
            listening.close()
            raise
    except (OSError, OverflowError, ValueError) as error:
        raise UsageError(
            f"can't listen on {address} port {port}: {getattr(error, 'strerror', None) or error}"
        ) from error
    listening.setblocking(False)
    return listening


def app_of(exporter: Exporter) -> web.Application:
    """GET /metrics and /healthz, nothing else."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=exporter.page(), headers={"Content-Type": CONTENT_TYPE})

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application(client_max_size=1024)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    return app


async def serve(exporter: Exporter, listening: socket.socket) -> None:
    """Until SIGTERM or SIGINT."""
    loop, leave = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leave.set)
    threading.Thread(target=_look_on, args=(exporter,), daemon=True).start()
    server = Server(app_of(exporter))
    await server.start(listening)
    host, port = listening.getsockname()[:2]
    notifier = Notifier.from_environment(os.environ)
    notifier.ready(f"listens on {host} port {port}")
    with contextlib.suppress(OSError):  # closed, or on a full disk
        os.write(sys.stdout.fileno(), f"listens on {host} port {port}\n".encode())
    telling = loop.create_task(notifier.keep_telling(lambda: exporter.problem or "reads the history"))
    try:
        await leave.wait()
    finally:
        notifier.stopping()
        telling.cancel()
        await server.stop()


def _look_on(exporter: Exporter) -> None:
    while True:
        exporter.look()
        time.sleep(LOOK_S)
