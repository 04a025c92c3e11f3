"""Work that may hang in the kernel, done by a child that can be left behind: a disk or network file system that answers nobody holds its callers whatever signal they get, and neither a budget nor an exit code may hang on that."""

import contextlib
import os
import signal
from collections.abc import Callable

from preflight.errors import PreflightError, WorldError
from preflight.slurm.logline import joined

_DONE = b"+"  # before anything else: a child that was killed has said nothing
MAX_SAID = 2000


def in_child(work: Callable[[], None]) -> None:
    """Do it in a copy of this process, which gives back nothing but how it ended. The alarm of the caller ends the wait, and the child with it.

    Raises WorldError: it failed, or was killed; OSError: there is no room for another process.
    """
    ours, theirs = os.pipe()
    try:
        child = os.fork()
    except OSError:
        os.close(ours)
        os.close(theirs)
        raise
    if child == 0:
        _be_child(work, theirs)
    os.close(theirs)
    try:
        said = b"".join(iter(lambda: os.read(ours, 4096), b""))
    finally:
        os.close(ours)
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)  # what hangs may not even take that: then it is left
            os.waitpid(child, 0 if _ended(child) else os.WNOHANG)
    if said[:1] != _DONE:
        raise WorldError("what writes it was killed")
    if len(said) > 1:
        raise WorldError(said[1:].decode("utf-8", "replace"))


def _ended(child: int) -> bool:
    """Whether it can be waited for without waiting: it was killed, and takes that at once, as a rule within some milliseconds."""
    import select

    try:
        descriptor = os.pidfd_open(child)
    except (AttributeError, OSError):  # Python before 3.9, Linux before 5.3
        return False
    try:
        return bool(select.select([descriptor], [], [], 0.05)[0])
    finally:
        os.close(descriptor)


def _be_child(work: Callable[[], None], theirs: int) -> None:
    """Never returns. Nobody who waits for the end of our outputs is to wait for this one."""
    said = ""
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        os.closerange(3, theirs)
        os.closerange(theirs + 1, 1024)
        try:
            work()
        except PreflightError as error:
            said = joined(str(error))
        except BaseException as error:  # noqa: BLE001 - told by the parent
            said = f"{type(error).__name__}: {error}"
        os.write(theirs, _DONE + said.encode("utf-8", "replace")[:MAX_SAID])
    finally:
        os._exit(0)
