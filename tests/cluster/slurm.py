"""A real Slurm of a few nodes with GPUs, each in a network namespace of its own behind a leaf (tests/cluster/box.py): munge, slurmctld at the head, one slurmd a node, device files as GPUs.

Needs root, Debian's slurm-wlm and munge, iproute2 and a C compiler. Nothing of it outlives the block, and no port is taken outside the namespaces.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from tests.cluster.box import Box, sh
from tests.cluster.slurm_setup import SITE, hooks, install, lay_out, write_conf
from tests.plan.launchers import slurm_box as base

NEEDS = [
    pytest.mark.root,
    pytest.mark.cc,
    pytest.mark.debian("slurm-wlm", "srun", "slurmctld", "slurmd"),
    pytest.mark.debian("munge", "munged", "munge"),
    pytest.mark.debian("iproute2", "ip", "tc"),
    pytest.mark.timeout(900),
]
__all__ = ["NEEDS", "SITE", "SlurmCluster", "slurm_cluster"]
WAIT_S = 60.0  # for whatever should happen within seconds, on a busy machine
Gpus = Literal["healthy", "sick", "hanging", "missing"]


# a node of its own to whoever asks: its name, and the boot id by which two names of one machine are told apart
_AS_NODE = """mount --bind "$0" /proc/sys/kernel/random/boot_id && hostname "$1" && shift && exec "$@"
"""


class NodeState(NamedTuple):
    """What `scontrol show node` says. `states`: in lower case, flags among them. None: no reason."""

    states: frozenset[str]
    reason: str | None
    by: str | None


class SlurmCluster(base.SlurmBox):
    """The cluster. `nodes`: n1, n2, ...; `box`: their network, None where all are on one machine; `folder`: of everything, which every user can read."""

    def __init__(self, folder: Path, nodes: list[str], gpus: int, box: Box | None) -> None:
        super().__init__(folder, dict.fromkeys(nodes, max(gpus, 1)))
        self.nodes, self.gpus, self.box = nodes, gpus, box
        self.clean = ("env", "-i", f"SLURM_CONF={folder}/slurm.conf")
        self.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    # --- what users and operators do ------------------------------------------------------------------------------------

    def words(self, *command: str) -> list[str]:
        """The command as it is run: at the head."""
        return self.box.words("head", *command) if self.box else list(command)

    def on(self, name: str, *command: str) -> list[str]:
        """The command as it is run on a node: in its network, under its name."""
        if self.box is None:
            return list(command)
        return self.box.words(name, *self._as_node(name), *command)

    def _as_node(self, name: str) -> tuple[str, ...]:
        boot_id = str(self.place_of(name) / "boot_id")
        return ("unshare", "--uts", "--mount", "/bin/sh", "-c", _AS_NODE, boot_id, name)

    def srun(self, *options: str, timeout_s: float = WAIT_S, **environment: str) -> str:
        """What an `srun` of these options prints; it is ended when it takes longer. Raises CalledProcessError."""
        return self.run("srun", "--time=2", *options, timeout_s=timeout_s, **environment)

    def sbatch(self, *options: str, script: str = "exit 0") -> int:
        """The number of a batch job of these lines, whose output is in job-NUMBER.out in the cluster's folder."""
        output = f"--output={self.folder}/job-%j.out"
        return int(self.run("sbatch", "--parsable", "--time=2", output, *options, f"--wrap={script}").split(";")[0])

    def output(self, job: int) -> str:
        """What the job has printed so far."""
        path = self.folder / f"job-{job}.out"
        return path.read_text() if path.exists() else ""

    def node(self, name: str) -> NodeState:
        """How it stands with a node."""
        text = self.run("scontrol", "show", "node", "--oneliner", name)
        state = re.search(r" State=(\S+)", text)
        reason = re.search(r" Reason=(.*) \[(\S+)@[^\]]*\]", text)
        assert state is not None, text
        return NodeState(frozenset(state[1].lower().split("+")), *(reason.groups() if reason else (None, None)))

    def nodes_now(self) -> dict[str, NodeState]:
        """All nodes."""
        return {name: self.node(name) for name in self.nodes}

    def drained(self) -> set[str]:
        """The nodes that take no more jobs."""
        return {name for name, node in self.nodes_now().items() if "drain" in node.states}

    def job(self, job: int) -> dict[str, str]:
        """What `scontrol show job -d` says of a job: JobState, Restarts, Reason, NodeList, Comment, ..."""
        text = self.run("scontrol", "show", "job", "--details", "--oneliner", str(job))
        return {
            key: value.strip() for key, value in re.findall(r"([A-Z][\w/:]*)=(.*?)(?= [A-Z][\w/:]*=|$)", text.strip())
        }

    def wait_for(self, condition: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
        """Until it is so. Looked at every 0.1 s."""
        until = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > until:
                raise AssertionError(f"not within {timeout_s:.0f} s: {what}\n{self.story()}")
            time.sleep(0.1)

    def wait_for_job(self, job: int, *states: str, timeout_s: float = WAIT_S) -> dict[str, str]:
        """Until the job is in one of the states; what Slurm says of it then."""
        self.wait_for(lambda: self.job(job)["JobState"] in states, f"job {job} {' or '.join(states)}", timeout_s)
        return self.job(job)

    def story(self) -> str:
        """How it stands with all nodes and jobs, for a failed test."""
        nodes = self.run("sinfo", "-h", "-N", "-o", "%N %T %H %E")
        jobs = self.run("squeue", "-h", "-o", "%i %u %T %r %N")
        return f"{nodes}\n{jobs}\n{self.log(lines=30)}"

    def log(self, name: str = "slurmctld", lines: int = 10_000) -> str:
        """The end of a daemon's log: "slurmctld", "slurmd-n1"."""
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])

    def processes(self, name: str) -> dict[int, str]:
        """What runs on a node (or at the "head") beside Slurm's daemons: process id and command line."""
        assert self.box is not None
        found = {}
        for pid in sh("ip", "netns", "pids", self.box.space(name)).split():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
                if Path(words[0]).name not in {"slurmd", "slurmctld", ""}:
                    found[int(pid)] = " ".join(words).strip()
        return found

    def reset(self) -> None:
        """No jobs, all nodes idle, healthy GPUs, all links as they were: for the next test."""
        self.run("scancel", "--user=root")
        self.wait_for(lambda: not self.run("squeue", "-h").strip(), "an empty queue")
        for name in self.nodes:
            self.set_gpus(name, "healthy")
            self.before(name, None)
            if "drain" in self.node(name).states:
                self.run("scontrol", "update", f"nodename={name}", "state=resume")
            if self.node(name).reason:
                self.run("scontrol", "update", f"nodename={name}", "reason=")
        self.wait_until_idle()
        if self.box:
            self.box.heal()

    # --- what a site sets up --------------------------------------------------------------------------------------------

    def configure(self, text: str, *names: str) -> None:
        """preflight.toml of these nodes (or "head"), of all and of the head if none is named. {folder} in it is that of the node, {cluster} the cluster's."""
        for name in names or (*self.nodes, "head"):
            folder = self.place_of(name)
            path = folder / "preflight.toml"
            path.write_text(text.replace("{folder}", str(folder)).replace("{cluster}", str(self.folder)))
            path.chmod(0o644)

    def set_conf(self, key: str, value: str) -> None:
        """Another value of one key of slurm.conf, from now on."""
        path = self.folder / "slurm.conf"
        lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{key}=")]
        path.write_text("\n".join([*lines, f"{key}={value}"]) + "\n")
        self.run("scontrol", "reconfigure")

    def restart_slurmctld(self, number: int) -> None:
        """End the controller by this signal, and start another in its place."""
        controller = self.daemons.pop(1)
        controller.send_signal(number)
        controller.wait(WAIT_S)
        self.daemons.insert(1, self._slurmctld())
        self.wait_for(lambda: " UP" in self.run("/bin/sh", "-c", "scontrol ping || :"), "the new controller answers")

    def _slurmctld(self) -> base.Daemon:
        slurmctld = shutil.which("slurmctld")
        assert slurmctld is not None
        return base.start_daemon(self.words(*self.clean, slurmctld, "-D"), dict(os.environ))

    def start(self, daemons: list[base.Daemon]) -> None:
        """The daemons, with the environment that an init system gives: no PATH of a user's. `daemons`: the list of them."""
        self.daemons = daemons
        daemons.append(base.start_munge(self.folder / "munge"))
        daemons.append(self._slurmctld())
        slurmd = shutil.which("slurmd")
        assert slurmd is not None
        for name in self.nodes:
            words = self.on(name, *self.clean, slurmd, "-D", "-N", name)
            daemons.append(base.start_daemon(words, dict(os.environ)))
        self.wait_until_idle(daemons)

    def before(self, name: str, lines: str | None) -> None:
        """Shell lines that run on the node before each of its programs: variables, or a wait. None: no more."""
        path = self.place_of(name) / "before"
        path.unlink(missing_ok=True)
        if lines is not None:
            path.write_text(f"{lines}\n")

    def place_of(self, name: str) -> Path:
        """The folder of one node's files, or of the "head"'s: preflight.toml, state, metrics, nvml."""
        return self.folder / "head" if name == "head" else self.folder / "nodes" / name

    def set_gpus(self, name: str, kind: Gpus) -> None:
        """What the driver of a node says from now on: "sick": a row of the last GPU could not be remapped; "missing": there is no library."""
        link = self.place_of(name) / "nvml"
        fresh = link.with_name("nvml.new")
        fresh.symlink_to(self.folder / "libraries" / kind)
        fresh.replace(link)

    def start_agents(self, *options: str) -> None:
        """The resident agent of each node, as its service starts it; returns when all listen."""
        assert self.box is not None
        started = []
        for name in self.nodes:
            place = self.place_of(name)
            told = {"PREFLIGHT_CONFIG": place / "preflight.toml", "LD_LIBRARY_PATH": place / "nvml"}
            command = (sys.executable, "-m", "preflight", "agent", "--name", name, "--address", self.box.address(name))
            environment = self.environment | {key: str(value) for key, value in told.items()}
            words = (*command, "--munge", *options)
            words = (*self._as_node(name), *words)
            started.append(self.box.start(f"agent-{name}", name, *words, env=environment, stdout=subprocess.PIPE))
        for name, process in zip(self.nodes, started, strict=True):
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.strip(), (self.folder / f"agent-{name}.stderr").read_text()


@contextlib.contextmanager
def slurm_cluster(
    folder: Path | None = None,
    *,
    nodes: int = 4,
    gpus: int = 8,
    config: str = "",
    prolog: str | None = None,
    prolog_slurmctld: str | None = None,
    health: str | None = None,
    namespaces: bool = True,
) -> Iterator[SlurmCluster]:
    """The cluster, ready to run jobs. `config`: more lines of slurm.conf. `prolog`, `prolog_slurmctld`, `health`: a command, run by the shell's exec. In all of them {cluster} is the cluster's folder, where
    {cluster}/deploy has the scripts of deploy/slurm, set up for this cluster.

    `folder`: where logs are kept after a failure; everything else is in a short folder of the cluster's own, since munge's sockets need short names and users must reach them.
    """
    own = Path(tempfile.mkdtemp(prefix="pf-slurm-"))
    own.chmod(0o755)
    names = [f"n{number + 1}" for number in range(nodes)]
    try:
        with contextlib.ExitStack() as stack:
            # daemons end before the network does
            box = stack.enter_context(Box(own, leaves=(nodes - nodes // 2, nodes // 2))) if namespaces else None
            cluster = SlurmCluster(own, names, gpus, box)
            stack.callback(_end_all, cluster)
            started = stack.enter_context(base.daemons(own))
            lay_out(cluster)
            install(cluster)
            ours = hooks(cluster, prolog, prolog_slurmctld, health)
            write_conf(cluster, ours + config.replace("{cluster}", str(own)))
            cluster.start(started)
            yield cluster
    finally:
        if folder is not None:
            for log in own.glob("*.log"):
                shutil.copy(log, folder)
        shutil.rmtree(own)


def _end_all(cluster: SlurmCluster) -> None:
    """Whatever still runs in the nodes' namespaces."""
    if cluster.box is None:
        return
    for name in (*cluster.nodes, "head"):
        for pid in sh("ip", "netns", "pids", cluster.box.space(name), check=False).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)
