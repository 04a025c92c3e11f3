"""A real Slurm in one folder: a controller, one daemon for each node, and munge, all on this machine and all ended at the end. tests/cluster/slurm.py builds on it for nodes with GPUs and networks of their own."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

CONF = """
ClusterName=box
SlurmctldHost={host}
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
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
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
"""
MUNGE_FILES = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
Daemon = subprocess.Popen[bytes]


class SlurmBox:
    """`srun` in a cluster of these nodes, each with so many CPUs, listed in the order of Slurm's node table."""

    def __init__(self, folder: Path, cpus: dict[str, int]) -> None:
        self.folder, self.cpus = folder, cpus
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SLURM_")},
            "SLURM_CONF": str(folder / "slurm.conf"),
        }

    def words(self, *command: str) -> list[str]:
        """The command as it is run."""
        return list(command)

    def run(self, *command: str, timeout_s: float = 60, **environment: str) -> str:
        """What a command of Slurm prints. Raises CalledProcessError."""
        done = subprocess.run(
            self.words(*command),
            env=self.environment | environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
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

    def wait_until_idle(self, started: Sequence[Daemon] = (), deadline_s: float = 60) -> None:
        """Until every node can take a job. `started`: daemons without which that will never be."""
        until, last = time.monotonic() + deadline_s, ""
        while time.monotonic() < until:
            ended = [daemon.args for daemon in started if daemon.poll() is not None]
            assert not ended, f"ended at once: {ended}"
            try:
                last = self.run("sinfo", "-h", "-N", "-o", "%T")
            except subprocess.CalledProcessError as error:
                last = error.stderr
            if last.split() == ["idle"] * len(self.cpus):
                return
            time.sleep(0.1)
        raise AssertionError(f"Slurm did not start: {last}")


@contextlib.contextmanager
def slurm_box(folder: Path, cpus: dict[str, int]) -> Iterator[SlurmBox]:
    """The cluster, ready to run jobs. Root only. Nothing of it outlives the block."""
    first_port = free_port_range(len(cpus) + 1)
    lines = [
        f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={first_port + 1 + i} CPUs={count} State=UNKNOWN"
        for i, (name, count) in enumerate(cpus.items())
    ]
    host = f"{socket.gethostname()}(127.0.0.1)"
    conf = CONF.format(host=host, port=first_port, folder=folder, nodes="\n".join(lines))
    (folder / "slurm.conf").write_text(conf)
    box = SlurmBox(folder, cpus)
    with daemons(folder) as started:
        started.append(start_munge(folder / "munge"))
        (folder / "state").mkdir()
        started.append(start_daemon(["slurmctld", "-D"], box.environment))
        for name in cpus:
            (folder / f"spool-{name}").mkdir()
            started.append(start_daemon(["slurmd", "-D", "-N", name], box.environment))
        box.wait_until_idle(started)
        yield box


@contextlib.contextmanager
def daemons(folder: Path) -> Iterator[list[Daemon]]:
    """A list for daemons. Those in it are ended with the block, and whatever they started: jobs, their keepers, prologs."""
    started: list[Daemon] = []
    try:
        yield started
    finally:
        for daemon in reversed(started):
            daemon.terminate()
        for daemon in reversed(started):
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        end_processes(folder)


def start_daemon(command: Sequence[str], environment: dict[str, str]) -> Daemon:
    """One daemon, which says nothing to the terminal."""
    null = subprocess.DEVNULL
    return subprocess.Popen(command, env=environment, stdin=null, stdout=null, stderr=null)


def start_munge(folder: Path) -> Daemon:
    """munged with a key, a socket and files of its own."""
    folder.mkdir(mode=0o755)
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    options = [f"--{name}={folder / file}" for name, file in MUNGE_FILES.items()]
    return start_daemon(["munged", "--foreground", "--force", *options], dict(os.environ))


def processes(folder: Path) -> list[int]:
    """All processes whose environment names the cluster's slurm.conf, as that of everything does that Slurm starts."""
    mark = f"SLURM_CONF={folder / 'slurm.conf'}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes() + b"\0":
                    found.append(int(entry.name))
    return found


def end_processes(folder: Path, deadline_s: float = 10) -> None:
    """Kill what the daemons have left, until nothing is there."""
    until = time.monotonic() + deadline_s
    while left := processes(folder):
        assert time.monotonic() < until, f"can't be ended: {left}"
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def free_port_range(count: int) -> int:
    """The first of so many ports that nobody listens on. Two that look at the same moment find different ones, mostly: where to look first is chosen by the process id."""
    places = range(17300, 30000 - count, count)
    begin = os.getpid() % len(places)
    for first in (*places[begin:], *places[:begin]):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")
