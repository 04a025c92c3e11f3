"""Finds Slurm's programs, and runs one: by absolute path, without a shell, with a deadline and in a process group of its own that ends with it."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from preflight.errors import SlurmError

MAX_OUTPUT_BYTES = 64 * 2**20  # a node's record has about 1 kB, and there are not 50,000 nodes
MAX_COMPLAINT_BYTES = 8192
REAP_S = 2.0  # for a process that was killed to go
FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin", "/usr/sbin")
DAEMONS = {"slurmd", "slurmctld", "slurmstepd"}
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")  # what says where the controller is, and who we are
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC0", "SLURM_TIME_FORMAT": "standard", "PATH": "/usr/bin:/bin"}


def ask(program: Path, arguments: Sequence[str], limit_s: float) -> tuple[str, str | None]:
    """What a program prints, and what it complains of; None: nothing, it ended well. Raises SlurmError if it can't be started, doesn't end in time, or prints without end."""
    shown = " ".join([program.name, *arguments])[:120]
    environment = ENVIRONMENT | {key: os.environ[key] for key in KEPT if key in os.environ}
    try:
        process = subprocess.Popen(  # noqa: S603 - absolute path, no shell
            [str(program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise SlurmError(f"{program} can't be started: {error}") from error
    try:
        said, complaint, ended = _read(process, time.monotonic() + limit_s)
    finally:  # a limit of time of the whole command may end the wait, too
        code = _end(process)
    if len(said) > MAX_OUTPUT_BYTES:
        raise SlurmError(f"{shown}: more than {MAX_OUTPUT_BYTES // 2**20} MiB of answer")
    if not ended:
        raise SlurmError(f"{shown}: no answer within {limit_s:.3g} s")
    text = said.decode("utf-8", errors="replace")
    if not code:
        return text, None
    lines = (complaint or said).decode("utf-8", errors="replace").splitlines()
    told = " / ".join(line.strip() for line in lines[-3:] if line.strip())
    return text, f"{shown}: {told[-300:] or f'exit code {code}'}"


def find(bin_dir: str | None) -> Path:
    """The folder of Slurm's programs: as given, else looked for. Raises SlurmError if there is no scontrol."""
    if bin_dir is not None:
        folders = [Path(bin_dir)]
    else:
        folders = [*_of_daemon(), *map(Path, FOLDERS)]
        if os.geteuid():  # root trusts no PATH
            folders += [Path(folder) for folder in os.environ.get("PATH", "").split(":") if folder.startswith("/")]
    for folder in folders:
        if os.access(folder / "scontrol", os.X_OK):
            return folder
    raise SlurmError(
        f"no scontrol in {', '.join(dict.fromkeys(map(str, folders)))}: set bin_dir in [slurm] of preflight.toml"
    )


def _of_daemon() -> list[Path]:
    """The folders of the Slurm daemon that started us, if one did: seen some parents up, since a wrapper lies between."""
    pid = os.getppid()
    for _ in range(6):
        with contextlib.suppress(OSError, ValueError):
            name, _, rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").partition("(")[2].rpartition(")")
            if name in DAEMONS:
                folder = Path(f"/proc/{pid}/exe").readlink().parent
                return [folder.parent / "bin", folder]
            pid = int(rest.split()[1])
            if pid > 1:
                continue
        break
    return []


def _read(process: "subprocess.Popen[bytes]", ends_at: float) -> tuple[bytes, bytes, bool]:
    """What it printed and what it complained of, up to the limits, and whether it ended in time."""
    assert process.stdout is not None
    assert process.stderr is not None
    said, complaint = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, said)
        selector.register(process.stderr, selectors.EVENT_READ, complaint)
        while selector.get_map():
            ready = selector.select(max(0.0, ends_at - time.monotonic()))
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                key.data.extend(data)
                if not data:
                    selector.unregister(key.fileobj)
            del complaint[:-MAX_COMPLAINT_BYTES]
            if not ready or len(said) > MAX_OUTPUT_BYTES:
                return bytes(said), bytes(complaint), False
    try:
        process.wait(max(0.0, ends_at - time.monotonic()))
    except subprocess.TimeoutExpired:
        return bytes(said), bytes(complaint), False
    return bytes(said), bytes(complaint), True


def _end(process: "subprocess.Popen[bytes]") -> int | None:
    """Nothing of it stays. Its exit code, None: it would not even be killed."""
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    if process.returncode is None:  # not reaped, so that the group's number is still its own
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(REAP_S)
    return process.returncode
