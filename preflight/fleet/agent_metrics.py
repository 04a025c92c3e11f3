"""What an agent shows on /metrics: its node's newest judgement, its GPUs, itself. All of it stands in memory: a page waits for no driver, and is made once a second at most.

The judgement is made by a child (node_watch.py). What a failed one leaves is UNKNOWN for each check that spoke before, never the last good word; before the first one there is none at all.
"""

import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from preflight import __version__
from preflight.metrics import ANSWERS, VERDICTS, Samples, exposition, within_bounds
from preflight.model import Report
from preflight.report.gauges import dcgm_bus_id
from preflight.report.text import clean

COMMAND = "agent"
FRESH_S = 1.0  # a page is served again for so long
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATHS = ("/healthz", "/metrics", "/v1/discover", "/v1/start", "/v1/store", "/v1/round", "/v1/end", "/v1/verdict")
MAX_CODES = 64  # series of requests


class Judged:
    """A judgement of the node, of which only what a page shows is kept. `checks`: worst verdict of each."""

    def __init__(self, report: Report) -> None:
        self.answer: str = report.answer
        self.completed_s = report.started_at_s + report.duration_s
        self.duration_s = report.duration_s
        self.checks: dict[str, str] = {}
        for finding in sorted(report.findings, key=lambda f: f.verdict.rank, reverse=True):
            self.checks[clean(finding.check)] = finding.verdict.value
        self.counts = Counter((clean(f.check), f.verdict.value) for f in report.findings)
        self.durations = {clean(run.check): run.duration_s for run in report.checks}
        self.versions = {clean(part): clean(version) for part, version in report.environment.versions.items()}
        nodes = report.evidence.inventory.nodes if report.evidence.inventory else ()
        self.gpus = [
            (str(gpu.index), clean(gpu.uuid), clean(dcgm_bus_id(gpu.pci_bus_id)), clean(gpu.name or ""))
            for node in nodes[:1]
            for gpu in node.gpus or ()
            if gpu.uuid is not None
        ]


class AgentMetrics:
    """The page of one agent. `workers`: how many it has now. `clock`: Unix time."""

    def __init__(
        self, node: str, workers: Callable[[], int] = lambda: 0, clock: Callable[[], float] = time.time
    ) -> None:
        self.node, self.workers, self.clock = node, workers, clock
        self.started_s = clock()
        self.requests: Counter[tuple[str, str]] = Counter()
        self.judged: Judged | None = None
        self.success_s: float | None = None
        self.failed = False
        self._page = b""
        self._made = float("-inf")

    def judgement(self, report: Report) -> None:
        """The node was judged."""
        self.judged, self.failed = Judged(report), False
        if self.judged.answer == "go":
            self.success_s = self.judged.completed_s

    def no_judgement(self, began_s: float) -> None:
        """The judging itself failed, or was not done in time: what was known is not known any more. `began_s`: Unix time."""
        self.failed = True
        before, now_s = self.judged, self.clock()
        if before is None:
            return
        before.answer, before.completed_s, before.duration_s = "undecided", now_s, now_s - began_s
        before.checks = dict.fromkeys(before.checks, "UNKNOWN")
        before.counts = Counter((check, "UNKNOWN") for check in before.checks)
        before.durations, before.gpus = {}, []

    def count(self, path: str, code: int) -> None:
        """A request was answered."""
        key = (path if path in PATHS else "other", str(code))
        if key in self.requests or len(self.requests) < MAX_CODES:
            self.requests[key] += 1

    def page(self) -> bytes:
        """The text, at most FRESH_S old."""
        began = time.monotonic()
        if began - self._made >= FRESH_S or not self._page:
            families = list(self._families())
            kept, _ = within_bounds(families)
            kept.append(("collector_duration_seconds", [((), time.monotonic() - began)]))
            self._page, self._made = exposition(kept, {"node": self.node}).encode(), began
        return self._page

    async def handle(self, _: web.Request) -> web.Response:
        """GET /metrics."""
        return web.Response(body=self.page(), headers={"Content-Type": CONTENT_TYPE})

    def _families(self) -> Iterator[tuple[str, Samples]]:
        version = (__version__, platform.python_version())
        yield "build_info", [(version, 1.0)]
        yield "agent_start_timestamp_seconds", [((self.node,), self.started_s)]
        yield "agent_workers", [((self.node,), float(self.workers()))]
        requests = [((self.node, path, code), float(n)) for (path, code), n in sorted(self.requests.items())]
        yield "agent_requests_total", requests
        yield "collector_success", [((), float(not self.failed))]
        if self.judged is not None:
            yield from self._of_judgement(self.judged)

    def _of_judgement(self, judged: Judged) -> Iterator[tuple[str, Samples]]:
        yield "run_answer", [((COMMAND, answer), float(answer == judged.answer)) for answer in ANSWERS]
        yield "run_completion_timestamp_seconds", [((COMMAND,), judged.completed_s)]
        if self.success_s is not None:
            yield "run_success_timestamp_seconds", [((COMMAND,), self.success_s)]
        yield "run_duration_seconds", [((COMMAND,), judged.duration_s)]
        yield "run_info", [((COMMAND, ""), 1.0)]
        yield "version_info", [((COMMAND, *part), 1.0) for part in sorted(judged.versions.items())]
        pairs = [(check, verdict) for check in sorted(judged.checks) for verdict in VERDICTS]
        status = [((c, self.node, verdict), float(judged.checks[c] == verdict)) for c, verdict in pairs]
        yield "check_status", status
        yield "findings", [((COMMAND, c, verdict), float(judged.counts[c, verdict])) for c, verdict in pairs]
        yield "check_duration_seconds", [((COMMAND, check), s) for check, s in sorted(judged.durations.items())]
        yield "gpu_info", [((self.node, *gpu), 1.0) for gpu in judged.gpus]


def counting(metrics: AgentMetrics) -> Middleware:
    """The middleware that counts what was answered."""

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except web.HTTPException as refused:
            metrics.count(request.path, refused.status)
            raise
        metrics.count(request.path, response.status)
        return response

    return count


def own_environment() -> dict[str, str]:
    """What a child of ours gets: the same, without the variables that stand for the options of `preflight node`."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PREFLIGHT_NODE_") and name != "PREFLIGHT_FORMAT"
    }
