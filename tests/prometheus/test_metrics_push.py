"""`preflight push`: one group for each cluster and kind, replaced and removed; nothing hangs, and no secret stands on a command line."""

import base64
import contextlib
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from preflight.cli.main import run_command_line
from preflight.errors import ConfigError, UsageError
from preflight.fleet.push import group_url, read_credentials
from preflight.model import to_json
from tests.prometheus.stack import ask, pushgateway
from tests.prometheus.test_metrics import real_run


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "report.json"
    path.write_bytes(to_json(real_run()))
    return path


@contextlib.contextmanager
def gateway(status: int, headers: dict[str, str] | None = None):
    """A server that answers so; the requests it got."""
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, self.headers["Authorization"], body.decode()))
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"\x1b[31m")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", got
        finally:
            server.shutdown()


def push(*words: object) -> int:
    return run_command_line(["push", *map(str, words)])


@pytest.mark.debian("prometheus-pushgateway")
def test_pushed_twice_it_stands_once_and_deleted_it_is_gone(report, tmp_path):
    with pushgateway(tmp_path / "gateway") as server:
        for answer in ("no-go", "go"):
            report.write_bytes(to_json(real_run(answer=answer)))
            assert push(report, server.url, "--cluster", "c/1 ü") == 0
            text = ask(f"{server.url}/metrics")
            lines = [line for line in text.splitlines() if line.startswith("preflight_run_answer{")]
            assert len(lines) == 3
            assert all(
                'cluster="c/1 ü"' in line and 'kind="run"' in line and 'job="preflight"' in line for line in lines
            )
            assert next(line for line in lines if line.endswith(" 1")).count(f'answer="{answer}"') == 1
        assert 'node="' not in "".join(line for line in text.splitlines() if line.startswith("preflight_pair"))
        assert push("--delete", server.url, "--cluster", "c/1 ü", "--kind", "run") == 0
        assert "preflight_run_answer" not in ask(f"{server.url}/metrics")


def test_the_group_has_neither_a_run_nor_a_node(report):
    with gateway(200) as (url, got):
        assert push(report, url, "--cluster", "c1") == 0
    ((path, secret, body),) = got
    c1, run = (base64.urlsafe_b64encode(name).decode() for name in (b"c1", b"run"))
    assert path == f"/metrics/job/preflight/cluster@base64/{c1}/kind@base64/{run}"
    assert secret is None
    assert "preflight_run_answer" in body
    assert "preflight_slowest_pair" not in body


def test_credentials_come_from_a_file_of_ones_own(report, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("user:pass word\n")
    secret.chmod(0o644)
    with pytest.raises(ConfigError, match="0600"):
        read_credentials(secret)
    secret.chmod(0o600)
    with gateway(202) as (url, got):
        assert push(report, url, "--cluster", "c1", "--credentials", secret) == 0
        secret.write_text("token")
        assert push(report, url, "--cluster", "c1", "--credentials", secret) == 0
    assert [auth for _, auth, _ in got] == ["Basic " + base64.b64encode(b"user:pass word").decode(), "Bearer token"]
    (tmp_path / "link").symlink_to(secret)
    with pytest.raises(ConfigError):
        read_credentials(tmp_path / "link")
    secret.write_text("a\nb: c")
    with pytest.raises(ConfigError):
        read_credentials(secret)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h",
        "file:///etc/passwd",
        "h:9091",
        "http://u:p@h",
        "http://h/?a=b",
        "http://h:99999",
        "http://",
        "http://[::1",
    ],
)
def test_an_address_that_is_none_is_wrong_usage(url, report, capsys):
    assert push(report, url, "--cluster", "c1") == 64
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb"])
def test_a_cluster_that_is_no_name_is_refused(name):
    with pytest.raises(UsageError):
        group_url("http://h", name, "run")


@pytest.mark.parametrize(("status", "headers"), [(400, {}), (500, {}), (302, {"Location": "http://127.0.0.1:1/"})])
def test_a_refusal_is_told_in_plain_letters_and_no_redirect_is_followed(status, headers, report, capsys):
    with gateway(status, headers) as (url, got):
        assert push(report, url, "--cluster", "c1") == 3
    said = capsys.readouterr().err
    assert str(status) in said
    assert "\x1b" not in said
    assert len(got) == 1


def test_a_server_that_says_nothing_or_drips_is_left_at_the_deadline(report, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def drip():
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                while not stop.wait(0.05):
                    connection.sendall(b"H")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        began = time.monotonic()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert push(report, url, "--cluster", "c1", "--timeout", "500ms") == 3
        assert time.monotonic() - began < 30
        stop.set()
        thread.join(10)
    assert "did not answer within 0.5 s" in capsys.readouterr().err


def test_nobody_there_is_told(report, capsys):
    assert push(report, "http://127.0.0.1:1", "--cluster", "c1") == 3
    assert "can't be reached" in capsys.readouterr().err


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad\r\nContent-Length: 60\r\n\r\n\x1b[2J\npreflight: all is well\r\n\xe2\x80\xae" + b"x" * 40,
        b"\x00\xff\x1b[2J\n" * 500,
        b"HTTP/1.1 500 " + b"x" * 100_000,
    ],
)
def test_what_a_gateway_says_is_one_short_line(answer, report, capsys):
    """A line of its own could pass for one of ours."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def say():
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=say, daemon=True)
        thread.start()
        assert push(report, f"http://127.0.0.1:{server.getsockname()[1]}", "--cluster", "c1") == 3
        thread.join(10)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said[:-1].isprintable()
    assert len(said) < 500
