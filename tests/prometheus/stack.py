"""Real Prometheus, Alertmanager, node_exporter (text files only) and Pushgateway on loopback, each on a free port and in a folder of its own; all ends with the `with` block.

    with webhook() as hook, alertmanager(tmp_path / "am", hook) as manager:
        with prometheus(tmp_path / "prom", scrape=[job("agents", fleet.targets)], rules=[RULES], alertmanager=manager) as server:
            server.wait_for('up{job="agents"} == 1', number=64)

Tests that use it are marked debian("prometheus", "prometheus", "promtool") and so on, by package.
"""

import contextlib
import json
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

START_S = 30.0
WAIT_S = 30.0
POLL_S = 0.05
_PLAIN = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}  # no proxy of the environment
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Sample(NamedTuple):
    """One series of an answer. `labels` with `__name__` where there is one."""

    labels: dict[str, str]
    value: float


class Server(NamedTuple):
    """A program that listens. `address`: 127.0.0.1:PORT."""

    address: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def get(self, path: str, **query: str) -> str:
        """The page's text. Raises AssertionError with the server's words on any other status than 2xx."""
        return ask(f"{self.url}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else ""))


class Prometheus(NamedTuple):
    server: Server

    @property
    def url(self) -> str:
        return self.server.url

    def query(self, expr: str) -> list[Sample]:
        """The newest value of each series, or the one of a scalar. Raises AssertionError if it is no PromQL."""
        data = json.loads(self.server.get("/api/v1/query", query=expr))["data"]
        if data["resultType"] in ("scalar", "string"):
            return [Sample({}, float(data["result"][1]))]
        return [Sample(each["metric"], float(each["value"][1])) for each in data["result"]]

    def wait_for(self, expr: str, number: int = 1, deadline_s: float = WAIT_S) -> list[Sample]:
        """The answer, once it has `number` series or more; 0: once it has none. Raises AssertionError at the deadline."""
        found: list[Sample] = []

        def enough() -> bool:
            found[:] = self.query(expr)
            return len(found) >= number if number else not found

        wait_until(enough, f"{expr} has {number} series", deadline_s, lambda: f"{len(found)}: {found[:3]}")
        return found

    def targets(self) -> list[dict[str, Any]]:
        """Active targets as the API tells them: scrapeUrl, health, lastError, labels."""
        return list(json.loads(self.server.get("/api/v1/targets", state="active"))["data"]["activeTargets"])

    def alerts(self) -> list[dict[str, Any]]:
        """Pending and firing ones: labels, annotations, state."""
        return list(json.loads(self.server.get("/api/v1/alerts"))["data"]["alerts"])


class Webhook:
    """What Alertmanager sent: `events` is every (status, labels, annotations) in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.url = ""

    def wait_for(self, status: str, deadline_s: float = WAIT_S, **labels: str) -> tuple[dict[str, str], dict[str, str]]:
        """Labels and annotations of the first such event. `status`: firing or resolved."""

        def found() -> list[tuple[str, dict[str, str], dict[str, str]]]:
            return [each for each in self.events if each[0] == status and labels.items() <= each[1].items()]

        wait_until(
            lambda: bool(found()), f"{status} with {labels}", deadline_s, lambda: str([e[:2] for e in self.events])
        )
        return found()[0][1:]


def wait_until(
    done: Callable[[], bool], what: str, deadline_s: float = WAIT_S, seen: Callable[[], str] = lambda: ""
) -> None:
    """Poll. Raises AssertionError with what was seen last."""
    ends_at = time.monotonic() + deadline_s
    while not done():
        assert time.monotonic() < ends_at, f"not within {deadline_s:g} s: {what}; last: {seen()}"
        time.sleep(POLL_S)


def ask(url: str, data: bytes | None = None, method: str | None = None) -> str:
    """The page's text, without any proxy. Raises AssertionError with the server's words on any other status than 2xx."""
    try:
        with _OPENER.open(urllib.request.Request(url, data=data, method=method), timeout=20) as reply:
            return str(reply.read().decode())
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url}: {error.code} {error.read().decode(errors='replace')}") from error


def job(name: str, targets: Sequence[str], **more: Any) -> dict[str, Any]:
    """One scrape configuration; `more` as in Prometheus' file: metrics_path, honor_labels, relabel_configs, metric_relabel_configs, ..."""
    return {"job_name": name, "static_configs": [{"targets": list(targets)}], **more}


@contextlib.contextmanager
def prometheus(
    folder: Path,
    *,
    scrape: Sequence[str | Mapping[str, Any]] = (),
    rules: Sequence[Path] = (),
    alertmanager: Server | None = None,
    interval: str = "500ms",
    external_labels: Mapping[str, str] | None = None,
) -> Iterator[Prometheus]:
    """A server that scrapes and evaluates every `interval`. `scrape`: host:port (all of them as job "preflight"), or whole configurations (see `job`)."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = [each for each in scrape if isinstance(each, str)]
    jobs = [
        *([job("preflight", plain)] if plain else []),
        *(dict(each) for each in scrape if not isinstance(each, str)),
    ]
    config: dict[str, Any] = {
        "global": {
            "scrape_interval": interval,
            "scrape_timeout": interval,
            "evaluation_interval": interval,
            "external_labels": dict(external_labels or {}),
        },
        "rule_files": [str(each) for each in rules],
        "scrape_configs": jobs,
    }
    if alertmanager is not None:
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager.address]}]}]}
    written = folder / "prometheus.yml"
    written.write_text(json.dumps(config))  # YAML, too
    command = (
        "prometheus",
        f"--config.file={written}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--rules.alert.resend-delay=1s",
    )
    with program(folder, *command, ready="/-/ready") as server:
        yield Prometheus(server)


@contextlib.contextmanager
def alertmanager(folder: Path, hook: Webhook, *, config: Mapping[str, Any] | None = None) -> Iterator[Server]:
    """Sends all to the hook, by alert and node, at once. `config`: another one, whose receivers the caller has set."""
    folder.mkdir(parents=True, exist_ok=True)
    receiver = {"name": "hook", "webhook_configs": [{"url": hook.url, "send_resolved": True}]}
    route = {"receiver": "hook", "group_by": ["..."], "group_wait": "0s", "group_interval": "500ms"}
    written = folder / "alertmanager.yml"
    written.write_text(json.dumps(config or {"route": route, "receivers": [receiver]}))
    command = ("prometheus-alertmanager", f"--config.file={written}", f"--storage.path={folder / 'data'}")
    with program(folder, *command, "--cluster.listen-address=", ready="/-/ready") as server:
        yield server


@contextlib.contextmanager
def node_exporter(folder: Path, textfiles: Path) -> Iterator[Server]:
    """One that has the text-file collector only and reads `textfiles`."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ("prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile")
    with program(folder, *command, f"--collector.textfile.directory={textfiles}", ready="/") as server:
        yield server


@contextlib.contextmanager
def pushgateway(folder: Path) -> Iterator[Server]:
    """An empty one that keeps nothing on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    with program(folder, "prometheus-pushgateway", ready="/-/ready") as server:
        yield server


@contextlib.contextmanager
def webhook() -> Iterator[Webhook]:
    """A receiver of Alertmanager's messages."""
    hook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            hook.events += [(each["status"], each["labels"], each["annotations"]) for each in said["alerts"]]
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hook.url = f"http://127.0.0.1:{server.server_address[1]}/"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield hook
        finally:
            server.shutdown()
            thread.join(10)


@contextlib.contextmanager
def program(folder: Path, *command: str, ready: str) -> Iterator[Server]:
    """One of these programs on a port of the system's choice, once the page `ready` answers; killed at the end, and with this process."""
    log = folder / f"{command[0]}.log"
    words = ["setpriv", "--pdeathsig", "KILL", *command, "--web.listen-address=127.0.0.1:0"]
    with log.open("wb") as into:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=into, stderr=into, env=_PLAIN, start_new_session=True, cwd=folder
        )
    try:
        yield _listening(process, log, ready)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)  # they keep nothing that anybody wants
        process.wait(10)


def _listening(process: subprocess.Popen[bytes], log: Path, ready: str) -> Server:
    found: list[Server] = []

    def answers() -> bool:
        assert process.poll() is None, f"ended with {process.returncode}: {log.read_text()[-2000:]}"
        said = re.search(r'msg="Listening on" address=(\S+)', log.read_text())
        if said is None:
            return False
        found[:] = [Server(said[1], process, log)]
        with contextlib.suppress(AssertionError, OSError):
            found[0].get(ready)
            return True
        return False

    wait_until(answers, f"{process.args} listens", START_S, lambda: log.read_text()[-500:])
    return found[0]
