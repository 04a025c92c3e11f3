"""What starts the workers of a resident agent: its own Python, or what the site's file names, in an environment with the site's torch and NCCL.

Never a request: those are data. What is appended is our fixed bootstrap. The program and all folders above it must be root's, or the agent's user's, and nobody else's to write. It runs as the
workers' user from the start, so that no line of another environment runs as root.
"""

import os
import pwd
import stat
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import msgspec

from preflight.errors import ConfigError

# -I: neither the working directory nor PYTHON* variables decide what an agent that runs as root imports; the path is ours, handed on
_BOOTSTRAP = "import sys; *sys.path, fd, parent = sys.argv[1:]; from preflight.probe.zygote import main; main(int(fd), int(parent))"
# in another Python: preflight is ours, whatever is installed there; all else is its own where it has it. A wrapper may stand between: any parent will do
_SITE_BOOTSTRAP = (
    "import sys; ours, *more, fd, parent = sys.argv[1:]; sys.path.insert(0, ours); import preflight; del sys.path[0]; sys.path += [ours, *more]; "
    "from preflight.probe.zygote import main; main(int(fd), None)"
)
PATH = "/usr/local/bin:/usr/bin:/bin"
# what the service's own environment may say to workers: languages, and what steers NCCL, gloo, CUDA and their transports
PASSED = ("LANG", "LC_ALL", "TZ", "OMP_NUM_THREADS")
PASSED_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "CUDA_", "UCX_", "FI_")
OTHERS = 0o022  # may be written by group or world


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How the process that forks workers is started. `command` None: this Python, in our environment, and workers change their user themselves. `user`: (uid, gid), None: as we are."""

    command: tuple[str, ...] | None = None
    environment: dict[str, str] | None = None
    user: tuple[int, int] | None = None

    def words(self) -> list[str]:
        """The whole command; a descriptor and our process id are appended."""
        if self.command is None:
            return [sys.executable, "-I", "-c", _BOOTSTRAP, *(path for path in sys.path if path)]
        return [*self.command, "-I", "-c", _SITE_BOOTSTRAP, *own_folders()]

    @property
    def is_sites(self) -> bool:
        """Whether it is another Python, perhaps behind a wrapper."""
        return self.command is not None


def launch_of(
    command: tuple[str, ...] | None,
    variables: tuple[str, ...],
    user: tuple[int, int] | None,
    *,
    source: str,
    environ: Mapping[str, str] | None = None,
) -> Launch:
    """What the site's file says, checked. `variables`: its "NAME=value"; `environ`: the agent's own, None: as it is. Raises ConfigError."""
    if command is None:
        return Launch(user=user)
    refuse_foreign_program(command[0], source)
    return Launch(
        command=command,
        environment=_environment(variables, user, os.environ if environ is None else environ),
        user=user,
    )


def own_folders() -> list[str]:
    """Where this preflight is, and what it needs beside a Python with torch."""
    folders = [str(Path(__file__).parents[2])]
    spec = find_spec("msgspec")
    if spec is not None and spec.origin is not None:
        folders.append(str(Path(spec.origin).parents[1]))
    return list(dict.fromkeys(folders))


def refuse_foreign_program(program: str, source: str) -> None:
    """Raises ConfigError unless it is there, and only root or our own user can have written it, or put another one in its place."""
    key = "agent.worker_command"
    real = os.path.realpath(program)
    try:
        status = Path(real).stat()
        if not stat.S_ISREG(status.st_mode) or not os.access(real, os.X_OK):
            raise ConfigError(source, f"{program} is no program", key=key)
        with Path(real).open("rb") as file:
            file.read(4096)  # what looks well while a file server is away may not be there to be run
        for path in dict.fromkeys(p for at in (Path(program), Path(real)) for p in (at, *at.parents)):
            _refuse_foreign(path, source, key)
    except OSError as error:
        raise ConfigError(source, f"{program} can't be looked at: {error.strerror}", key=key) from error


def _refuse_foreign(path: Path, source: str, key: str) -> None:
    status = path.stat()
    if status.st_uid not in {0, os.geteuid()}:
        raise ConfigError(source, f"{path} belongs to user {status.st_uid}, not to root or the agent's user", key=key)
    mode = stat.S_IMODE(status.st_mode)
    others = mode & OTHERS if status.st_gid else mode & stat.S_IWOTH  # root's own group is root
    sticky = stat.S_ISDIR(status.st_mode) and mode & stat.S_ISVTX  # nobody replaces what is another's there
    if others and not sticky:
        raise ConfigError(
            source, f"{path} has mode {mode:04o}: others can write to it", key=key, remedy=f"chmod go-w {path}"
        )


def _environment(
    variables: tuple[str, ...], user: tuple[int, int] | None, environ: Mapping[str, str]
) -> dict[str, str]:
    uid = os.geteuid() if user is None else user[0]
    try:
        entry = pwd.getpwuid(uid)
        home, name = entry.pw_dir, entry.pw_name
    except KeyError:
        home, name = "/", str(uid)
    passed = {n: value for n, value in environ.items() if n in PASSED or n.startswith(PASSED_PREFIXES)}
    own = dict(word.split("=", 1) for word in variables)
    return {"PATH": PATH, "HOME": home, "USER": name, "LOGNAME": name, **passed, **own}
