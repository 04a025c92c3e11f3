"""Pushes a run's verdict to a Pushgateway, for sites where nothing can be scraped. What is pushed replaces what was pushed before under the same cluster and kind.

The grouping key is job="preflight", cluster and kind: bounded, never a run or a node. Whatever hangs, it ends within its deadline.
"""

import base64
import http.client
import os
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urlsplit

from preflight.errors import ConfigError, UsageError, WorldError
from preflight.formats import readable
from preflight.report.text import clean

MAX_SECRET_BYTES = 4096
MAX_ANSWER_BYTES = 2000
MAX_NAME = 100

T = TypeVar("T")


def group_url(url: str, cluster: str, kind: str) -> str:
    """The address of the group. Raises UsageError: not http or https, user and password in it, a name that is no label's value."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{readable(url)}: {error}") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"{readable(url)}: give http://HOST:PORT or https://HOST:PORT of a Pushgateway")
    if parts.username is not None or parts.query or parts.fragment:
        raise UsageError("the address of a Pushgateway has no user, query or fragment; credentials come from a file")
    for what, name in (("--cluster", cluster), ("--kind", kind)):
        if not name or len(name) > MAX_NAME or not name.isprintable():
            raise UsageError(f"{what}: give 1 to {MAX_NAME} printable letters")
    del port
    group = "".join(f"/{label}@base64/{_base64(value)}" for label, value in (("cluster", cluster), ("kind", kind)))
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/metrics/job/preflight{group}"


def _base64(value: str) -> str:
    """As the Pushgateway takes values that may hold slashes."""
    return quote(base64.urlsafe_b64encode(value.encode()).decode(), safe="=")


def read_credentials(path: Path) -> str:
    """The Authorization header of a file that holds user:password (basic) or a bearer token, and that only its owner can read. Raises ConfigError."""
    source = readable(str(path))
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid not in {0, os.geteuid()}:
                raise ConfigError(
                    source, "must be a regular file of yours with mode 0600", remedy=f"chmod 0600 {source}"
                )
            text = file.read(MAX_SECRET_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(source, f"can't be read: {getattr(error, 'strerror', None) or 'no text'}") from error
    if not text or not text.isprintable() or not text.isascii():
        raise ConfigError(source, "holds no user:password and no token in one line")
    return f"Basic {base64.b64encode(text.encode()).decode()}" if ":" in text else f"Bearer {text}"


def push(url: str, body: bytes, *, deadline_s: float, authorization: str | None = None) -> None:
    """Replace the group of `group_url` by these metrics. Raises WorldError."""
    _within(deadline_s, url, lambda: _send("PUT", url, body, deadline_s, authorization))


def delete(url: str, *, deadline_s: float, authorization: str | None = None) -> None:
    """Remove the group. Raises WorldError."""
    _within(deadline_s, url, lambda: _send("DELETE", url, b"", deadline_s, authorization))


def _send(method: str, url: str, body: bytes, deadline_s: float, authorization: str | None) -> None:
    parts = urlsplit(url)
    if parts.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=deadline_s, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=deadline_s)
    headers: Mapping[str, str] = {
        "Content-Type": "text/plain; version=0.0.4; charset=utf-8",
        **({"Authorization": authorization} if authorization else {}),
    }
    try:
        connection.request(method, parts.path, body=body or None, headers=headers)
        answer = connection.getresponse()
        said = answer.read(MAX_ANSWER_BYTES)
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        raise WorldError(f"the Pushgateway refused it: {answer.status} {clean(said.decode(errors='replace'))[:300]}")


def _within(deadline_s: float, url: str, work: Callable[[], None]) -> None:
    """Looking a name up, and a server that sends one byte now and then, know no time limit: the work is left behind in its thread."""
    outcome: list[Exception] = []
    done = threading.Event()

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised again below
            outcome.append(error)
        done.set()

    threading.Thread(target=run, daemon=True).start()
    place = clean(urlsplit(url).netloc)
    if not done.wait(deadline_s):
        raise WorldError(f"the Pushgateway {place} did not answer within {deadline_s:g} s")
    if not outcome:
        return
    error = outcome[0]
    if isinstance(error, WorldError):
        raise error
    reason = "time-out" if isinstance(error, socket.timeout) else getattr(error, "strerror", None) or error
    raise WorldError(f"the Pushgateway {place} can't be reached: {clean(str(reason))[:300]}") from error
