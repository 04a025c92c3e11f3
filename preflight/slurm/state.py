"""The state folder: reports, verdicts and locks of root's. Nothing in it is believed, followed or overwritten unless it is root's own (or of the user that we run as)."""

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from preflight.errors import WorldError
from preflight.slurm.files import PARTIAL, write_whole

MAX_BYTES = 16 * 2**20  # a report on a node of 16 GPUs has some 200 kB
PARTIAL_AGE_S = 60.0


class StateFolder:
    """One folder below the state folder, held open by its descriptor: what others rename or link meanwhile doesn't matter. Made, with mode 0700, if it is missing.

    `name`: of the folder; "" for the state folder itself. Raises WorldError: no permission, a link, or somebody else's.
    """

    def __init__(self, state_dir: str, name: str = "") -> None:
        self.path = Path(state_dir, name) if name else Path(state_dir)
        self._fd = -1
        try:
            self._fd = _open_folder(self.path, Path(state_dir))
        except OSError as error:
            raise WorldError(f"{self.path}: can't be used as state folder: {error.strerror or error}") from error

    def __enter__(self) -> "StateFolder":  # noqa: PYI034 - Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folder."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def write(self, name: str, data: bytes, *, mode: int = 0o600) -> None:
        """The file whole, or not at all. Raises WorldError: full disk, no permission."""
        try:
            write_whole(self._fd, name, data, mode)
        except OSError as error:
            raise WorldError(f"{self.path / name}: can't be written: {error.strerror or error}") from error

    def read(self, name: str) -> bytes | None:
        """The file's content; None: there is none. Raises WorldError: a link, no regular file, another's, writable for others, or larger than MAX_BYTES."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise WorldError(f"{self.path / name}: can't be read: {error.strerror or error}") from error
        with os.fdopen(fd, "rb") as file:
            refuse_foreign(os.fstat(fd), f"{self.path / name}", stat.S_ISREG)
            try:
                data = file.read(MAX_BYTES + 1)
            except OSError as error:
                raise WorldError(f"{self.path / name}: can't be read: {error.strerror or error}") from error
        if len(data) > MAX_BYTES:
            raise WorldError(f"{self.path / name}: is larger than {MAX_BYTES // 2**20} MiB")
        return data

    def remove(self, name: str) -> None:
        """The file is gone, whether or not it was there. Raises WorldError."""
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise WorldError(f"{self.path / name}: can't be removed: {error.strerror or error}") from error

    def keep_newest(self, count: int, *, beginning: str = "") -> None:
        """Remove all but the newest files whose names begin so, and what a killed process may have left. Never raises: it is tried again next time."""
        with contextlib.suppress(OSError), os.scandir(self._fd) as entries:
            found = [(_mtime(entry), entry.name) for entry in entries if entry.is_file(follow_symlinks=False)]
            kept = sorted((pair for pair in found if pair[1].startswith(beginning)), reverse=True)
            left = [
                (at_s, name) for at_s, name in found if name.startswith(PARTIAL) and at_s < time.time() - PARTIAL_AGE_S
            ]
            for _, name in (*kept[count:], *left):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self._fd)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[bool]:
        """Whether this process alone has the lock, without waiting. It ends with the process, however that ends; the empty file stays. Raises WorldError."""
        try:
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._fd)
        except OSError as error:
            raise WorldError(f"{self.path / name}: can't be locked: {error.strerror or error}") from error
        try:
            yield _locked(fd, str(self.path / name))
        finally:
            os.close(fd)


def _locked(fd: int, shown: str) -> bool:
    """Whether we have it now; False: another process has. Raises WorldError: there are no locks, as on some network file systems."""
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise WorldError(f"{shown}: can't be locked: {error.strerror or error}") from error
    return True


def refuse_foreign(status: os.stat_result, shown: str, is_kind: object = None) -> None:
    """Raises WorldError unless this is root's or our own, of the wanted kind (a function of stat), and nobody else can write to it."""
    if callable(is_kind) and not is_kind(status.st_mode):
        raise WorldError(f"{shown}: is not what it should be (a link, device or pipe)")
    if status.st_uid not in {0, os.geteuid()}:
        raise WorldError(f"{shown}: belongs to user {status.st_uid}, not to root")
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise WorldError(f"{shown}: others can write to it (mode {stat.S_IMODE(status.st_mode):04o})")


def _open_folder(path: Path, state_dir: Path) -> int:
    """The folder's descriptor; it, the state folder and that one's own folder are made if they are missing."""
    state_dir.parent.mkdir(mode=0o755, exist_ok=True)
    for folder in dict.fromkeys((state_dir, path)):
        folder.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        refuse_foreign(os.fstat(fd), str(path))
        refuse_foreign(state_dir.lstat(), str(state_dir), stat.S_ISDIR)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _mtime(entry: "os.DirEntry[str]") -> float:
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except OSError:
        return 0.0
