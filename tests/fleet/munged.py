"""A real munged with a key of its own, and what a user can make and read with it."""

import contextlib
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

NOBODY = 65534
# become an ordinary user once all is imported: Python itself may lie where only root can read
BECOME_NOBODY = f"import os; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})"
WAIT_S = 20.0


class Munged:
    """One daemon under way, until `stop`."""

    def __init__(self, folder: Path, key: bytes) -> None:
        self.folder, self.socket = folder, str(folder / "socket")
        (folder / "key").touch(0o600)
        (folder / "key").write_bytes(key)
        self.start()

    def start(self) -> None:
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{name}={self.folder / file}" for name, file in files.items()]
        self.process = subprocess.Popen(
            ["munged", "--foreground", "--force", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + WAIT_S
        try:
            while not self.answers():
                assert self.process.poll() is None, "munged has ended"
                assert time.monotonic() < until, "munged does not start"
                time.sleep(0.02)
        except BaseException:
            self.stop()
            raise

    def answers(self) -> bool:
        return self._run(["munge", "--no-input"]).returncode == 0

    def stop(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @contextlib.contextmanager
    def hung(self) -> Iterator[None]:
        """Stopped by a signal for the time of the block."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def encode(self, payload: bytes, *options: str, user: int | None = None) -> str:
        """A credential, made by munge itself."""
        done = self._run(["munge", *options], payload, user)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().strip()

    def decode(self, credential: str, user: int | None = None) -> tuple[int, bytes]:
        """The return code, and the payload."""
        done = self._run(["unmunge", "--metadata=/dev/null"], credential.encode(), user)
        return done.returncode, done.stdout

    def _run(
        self, command: list[str], given: bytes = b"", user: int | None = None
    ) -> "subprocess.CompletedProcess[bytes]":
        become = {} if user is None else {"user": user, "group": user, "extra_groups": ()}
        return subprocess.run(
            [*command, f"--socket={self.socket}"],
            input=given,
            capture_output=True,
            check=False,
            timeout=WAIT_S,
            **become,
        )


@contextlib.contextmanager
def munged(key: bytes | None = None) -> Iterator[Munged]:
    """munged in a folder of its own that all users can reach. `key` None: a new one."""
    folder = Path(tempfile.mkdtemp(prefix="preflight-munged-"))
    folder.chmod(0o755)
    daemon = None
    try:
        daemon = Munged(folder, key or secrets.token_bytes(1024))
        yield daemon
    finally:
        if daemon is not None:
            daemon.stop()
        shutil.rmtree(folder)
