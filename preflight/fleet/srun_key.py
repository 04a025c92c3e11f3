"""Under srun: how the agents of a step know their coordinator. By munge, which needs nothing; or by a key: in a file that each node has, or in one that the step's first node writes
into a folder that all nodes share, and takes away at the end.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from preflight.config import AgentSite
from preflight.errors import ConfigError, MungeError, UsageError
from preflight.fleet.auth import read_key
from preflight.fleet.munge import Munge, MungeGate, MungeTools
from preflight.fleet.srun import Step, own_uid

COME_S = 60.0  # a new file shows on other nodes of a network file system after its attribute cache's time: 60 s at most by default (nfs(5), acdirmax)
PAUSE_S = 0.2


@contextlib.contextmanager
def step_key(step: Step, key_file: Path | None, site: AgentSite) -> Iterator[bytes | None]:
    """The key of this step; None: munge takes its place. A key that the step's first node wrote is gone afterwards. Raises UsageError, ConfigError."""
    if key_file is not None and key_file.is_dir():
        path = key_file / f"preflight-{step.job}.{step.step}.key"
        if not step.leads_step:
            yield _awaited(path)
            return
        try:
            yield _written(path)
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
        return
    if key_file is None and site.key_file is not None and os.access(site.key_file, os.R_OK):
        key_file = Path(site.key_file)
    if key_file is None:
        _refuse_without_munge(site)
    yield read_key(key_file) if key_file is not None else None


def client_key(key: bytes | None, site: AgentSite) -> bytes | Munge:
    """What the coordinator shows to the agents, which run as its own user."""
    return key if key is not None else Munge(own_uid(), site.munge_socket)


def agent_gate(key: bytes | None, site: AgentSite) -> MungeGate | None:
    """Whom an agent of a step believes with munge: its own user, and root. None: it has a key."""
    return None if key is not None else MungeGate(frozenset(), site.munge_socket)


def _refuse_without_munge(site: AgentSite) -> None:
    """Raises UsageError."""
    try:
        MungeTools(site.munge_socket).program("munge")
    except MungeError as error:
        raise UsageError(
            f"{error}: give --key-file FOLDER, one that all nodes of the job share and that is yours alone (chmod 700): the first node leaves a key there for the time of the step"
        ) from error


def _written(path: Path) -> bytes:
    """Raises ConfigError."""
    key = secrets.token_hex(32).encode()
    try:
        path.unlink(missing_ok=True)  # of an earlier try of the same job, which was killed
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ConfigError(str(path), f"the step's key can't be written: {error.strerror}") from error
    return key


def _awaited(path: Path) -> bytes:
    """Raises ConfigError if it does not come, or is none that we believe."""
    until = time.monotonic() + COME_S
    while True:
        with contextlib.suppress(OSError):
            if path.stat().st_size:
                return read_key(path)
        if time.monotonic() > until:
            remedy = f"{path.parent} must be the same folder on all nodes of the job"
            problem = f"the first node of the step has left no key here within {COME_S:.0f} s"
            raise ConfigError(str(path), problem, remedy=remedy)
        time.sleep(PAUSE_S)
