"""One line for the operator: to the system's log, and to stderr. Never waits and never raises: a log that hangs must not keep a job."""

import contextlib
import os
import socket
import stat
import sys
import time

LOG_SOCKET = "/dev/log"
MAX_LINE = 900  # letters; syslogd may cut at 1024 bytes (RFC 3164)
_DAEMON = 3 << 3  # the facility
LEVELS = {"error": 3, "warning": 4, "info": 6}  # RFC 3164


def say(text: str, level: str = "info", *, log_socket: str = LOG_SOCKET) -> None:
    """The text on one line, what doesn't print replaced. `level`: "error", "warning" or "info"."""
    line = one_line(text)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # None: closed before we began
        sys.stderr.write(f"{_stamp()}preflight: {line}\n")
        sys.stderr.flush()
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.connect(log_socket)
        sender.send(f"<{_DAEMON | LEVELS[level]}>preflight[{os.getpid()}]: {line}".encode())


def _stamp() -> str:
    """In a file of ours, the time as Slurm's own logs have it; elsewhere nothing: a journal knows it, and a person sees it."""
    try:
        in_a_file = stat.S_ISREG(os.fstat(sys.stderr.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):  # no descriptor, or none any more
        return ""
    return time.strftime("[%Y-%m-%dT%H:%M:%S] ") if in_a_file else ""


def joined(text: str) -> str:
    """An error's lines as one: what is wrong; what mends it."""
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def one_line(text: str) -> str:
    """Printable ASCII on one line, at most MAX_LINE letters: a user's text steers neither a terminal nor a log."""
    plain = "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in " ".join(text.split()))
    return plain if len(plain) <= MAX_LINE else f"{plain[: MAX_LINE - 3]}..."
