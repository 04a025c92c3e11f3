"""Which users may ask an agent for work, by name: those of the site's file, and Slurm's own."""

import os
import pwd
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from preflight.errors import ConfigError
from preflight.fleet.munge import MungeGate

# where Slurm's programs look: packages, configless nodes (a link that slurmd makes), Debian before 11
SLURM_CONF = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")
MAX_CONF_BYTES = 4 * 2**20

_SLURM_USER = re.compile(r"^\s*SlurmUser\s*=\s*([^\s#(]+)", re.IGNORECASE | re.MULTILINE)


def gate_of(users: Iterable[str], socket: str | None = None, bin_dir: str | None = None) -> MungeGate:
    """Root, the agent's own user, Slurm's, and these (names or numbers) may ask. Raises ConfigError for a user that this node doesn't know."""
    slurm = slurm_user()
    known = frozenset(uid_of(user) for user in users) | ({slurm} if slurm is not None else frozenset())
    return MungeGate(known, socket, bin_dir)


def uid_of(user: str) -> int:
    """The number of a user. Raises ConfigError."""
    if re.fullmatch("[0-9]{1,10}", user):
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError) as error:
        raise ConfigError("agent.users", f"there is no user {user[:80]!r} on this node") from error


def slurm_user() -> int | None:
    """The user that slurmctld runs as. None: no slurm.conf names one that this node knows, so that nobody is let in for it."""
    named = os.environ.get("SLURM_CONF")
    for path in (named,) if named else SLURM_CONF:
        text = _text(Path(path))
        if text is None:
            continue
        found = _SLURM_USER.search(text)
        try:
            return uid_of(found[1]) if found else None
        except ConfigError:
            return None
    return None


def _text(path: Path) -> str | None:
    """A file that not just anybody can write to. None: there is none, or it can't be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_mode & stat.S_IWOTH:
                return None
            return file.read(MAX_CONF_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
