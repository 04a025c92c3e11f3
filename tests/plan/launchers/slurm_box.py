"""A real Slurm in one folder: a controller, one daemon for each node, and munge, all on this machine and all ended at the end."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

CONF = """
ClusterName=box
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=300
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
"""


class SlurmBox:
    """`srun` in a cluster of these nodes, each with so many CPUs, listed in the order of Slurm's node table."""

    def __init__(self, folder: Path, cpus: dict[str, int]) -> None:
        self.folder, self.cpus = folder, cpus
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SLURM_")},
            "SLURM_CONF": str(folder / "slurm.conf"),
        }

    def run(self, *command: str, **environment: str) -> str:
        """What a command of Slurm prints. Raises CalledProcessError."""
        done = subprocess.run(
            command,
            env=self.environment | environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        return done.stdout

    def place(self, *options: str, **environment: str) -> list[tuple[str, int, int]]:
        """(node name, node rank, local rank) of each task that `srun` starts with these options, in the order of its ranks."""
        said = "echo $SLURM_PROCID $SLURMD_NODENAME $SLURM_NODEID $SLURM_LOCALID"
        lines = self.run("srun", "--time=1", "--immediate=30", *options, "sh", "-c", said, **environment).splitlines()
        ranks = {
            int(rank): (node, int(node_rank), int(local)) for rank, node, node_rank, local in map(str.split, lines)
        }
        assert sorted(ranks) == list(range(len(ranks)))
        return [ranks[rank] for rank in range(len(ranks))]


@contextlib.contextmanager
def slurm_box(folder: Path, cpus: dict[str, int]) -> Iterator[SlurmBox]:
    """The cluster, ready to run jobs. Root only. Nothing of it outlives the block."""
    first_port = _free_port_range(len(cpus) + 1)
    lines = [
        f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={first_port + 1 + i} CPUs={count} State=UNKNOWN"
        for i, (name, count) in enumerate(cpus.items())
    ]
    (folder / "state").mkdir()
    conf = CONF.format(host=socket.gethostname(), port=first_port, folder=folder, nodes="\n".join(lines))
    (folder / "slurm.conf").write_text(conf)
    box, daemons = SlurmBox(folder, cpus), []
    try:
        daemons.append(_start_munge(folder / "munge"))
        daemons.append(_start(["slurmctld", "-D"], box.environment))
        for name in cpus:
            (folder / f"spool-{name}").mkdir()
            daemons.append(_start(["slurmd", "-D", "-N", name], box.environment))
        _wait_until_idle(box)
        yield box
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _start(command: list[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _start_munge(folder: Path) -> "subprocess.Popen[bytes]":
    """munged under a user of its own, with a key, a socket and files of its own."""
    folder.mkdir(mode=0o755)
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    options = [f"--{name}={folder / file}" for name, file in MUNGE_FILES.items()]
    return _start(["munged", "--foreground", "--force", *options], dict(os.environ))


MUNGE_FILES = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


def _wait_until_idle(box: SlurmBox, deadline_s: float = 60) -> None:
    until, last = time.monotonic() + deadline_s, ""
    while time.monotonic() < until:
        try:
            last = box.run("sinfo", "-h", "-N", "-o", "%T")
        except subprocess.CalledProcessError as error:
            last = error.stderr
        if last.split() == ["idle"] * len(box.cpus):
            return
        time.sleep(0.2)
    raise AssertionError(f"Slurm did not start: {last}")


def _free_port_range(count: int) -> int:
    """The first of so many ports that nobody listens on."""
    for first in range(17300, 30000, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")
