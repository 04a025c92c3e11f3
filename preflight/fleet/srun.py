"""Under srun: what one task of a step knows of the whole step, from Slurm's variables alone. Read on the path of every task: imports nothing heavy.

Sources: srun(1), OUTPUT ENVIRONMENT VARIABLES. Tried with Slurm 22.05: a batch script and a shell of salloc have no SLURM_STEP_ID; a step over several components of a
heterogeneous job has one node list and one numbering of nodes; SLURM_DISTRIBUTION is there where somebody asked
for one, and in every step of a batch script: by default "block", but "cyclic" where there are no more tasks than nodes.
"""

import os
import re
import zlib
from collections.abc import Mapping

from preflight.errors import ConfigError
from preflight.model.base import Noun
from preflight.model.hostlist import unfold

SOURCE = "environment"
SPECIAL_STEPS = 0xFFFFFFF0  # above: batch, extern and interactive steps (slurm.h, SLURM_BATCH_SCRIPT and others), which srun did not start for us
# Unused in Debian's /etc/services, below the kernel's ephemeral ports (32768, net.ipv4.ip_local_port_range) and Kubernetes' NodePorts (30000), away from torchrun's 29400 and 29500
FIRST_PORT, LAST_PORT = 28600, 29099
MAX_CANDIDATES = (
    16  # ports that agents try and coordinators look at: of so many steps on one node at once each finds one
)
_REMEDY = "unset what was left over from another step, or start it with srun"


class Step(Noun, frozen=True, kw_only=True):
    """One task's view of its step. `nodes` in the order of the step's node list; `node` is this task's, by Slurm's name, `node_rank` its place among them.

    `tasks_per_node` as Slurm writes it ("8(x2),4"), None: not said. `distribution`: what the step was dealt by, None: it tells nothing of other steps. `launched_from`: address of the host where srun
    runs, None: not said.
    """

    job: int
    step: int
    nodes: tuple[str, ...]
    node: str
    node_rank: int
    local_rank: int
    tasks_per_node: str | None = None
    distribution: str | None = None
    launched_from: str | None = None

    @property
    def deals_nothing(self) -> bool:
        """Whether no node has two tasks, so that the step doesn't show how ranks are dealt."""
        return self.distribution is None and _one_each(self.tasks_per_node or "")

    @property
    def leads_node(self) -> bool:
        """Whether this task serves as its node's agent."""
        return self.local_rank == 0

    @property
    def leads_step(self) -> bool:
        """Whether this task is the coordinator too."""
        return self.leads_node and self.node_rank == 0

    def target(self, node: str) -> str:
        """What the agent of a node of this step is called: no agent of another step answers to it."""
        return f"{self.job}.{self.step}.{node}"

    def ports(self, first: int | None, last: int | None) -> tuple[int, ...]:
        """The ports that this step's agents try, and its coordinator looks at, in this order. `first`, `last`: the site's range, None: FIRST_PORT to LAST_PORT."""
        low, high = (first, last) if first is not None and last is not None else (FIRST_PORT, LAST_PORT)
        width = high - low + 1
        begin = zlib.crc32(f"{self.job}.{self.step}".encode()) % width
        return tuple(low + (begin + i) % width for i in range(min(MAX_CANDIDATES, width)))


def read_step(environ: Mapping[str, str]) -> Step | None:
    """This task's step. None: this process is no task of a step that srun started. Raises ConfigError where the variables contradict each other."""
    if not all(environ.get(name) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID")):
        return None
    step = _number(environ, "SLURM_STEP_ID")
    if step >= SPECIAL_STEPS:
        return None
    name = "SLURM_STEP_NODELIST" if environ.get("SLURM_STEP_NODELIST") else "SLURM_JOB_NODELIST"
    try:
        nodes = tuple(unfold(environ.get(name, "")))
    except ValueError as error:
        raise ConfigError(SOURCE, f"can't be read: {error}", key=name, remedy=_REMEDY) from error
    if len(set(nodes)) < len(nodes):
        raise ConfigError(SOURCE, f"{environ[name][:80]!r} names a node twice", key=name, remedy=_REMEDY)
    foreign = next((node for node in nodes if re.fullmatch(r"[A-Za-z0-9._:-]{1,200}", node) is None), None)
    if foreign is not None:
        raise ConfigError(SOURCE, f"{foreign[:80]!r} is no name of a node", key=name, remedy=_REMEDY)
    node_rank = _number(environ, "SLURM_NODEID")
    node = environ.get("SLURMD_NODENAME") or (nodes[node_rank] if node_rank < len(nodes) else "")
    if node_rank >= len(nodes) or nodes[node_rank] != node:
        said = f"{node_rank}, but node {node[:80]!r} is not there in {environ[name][:80]!r}"
        raise ConfigError(SOURCE, said, key="SLURM_NODEID", remedy=_REMEDY)
    one_component = environ.get("SLURM_HET_SIZE", "1") in {"", "1"}
    return Step(
        job=_number(environ, "SLURM_JOB_ID"),
        step=step,
        nodes=nodes,
        node=node,
        node_rank=node_rank,
        local_rank=_number(environ, "SLURM_LOCALID"),
        tasks_per_node=environ.get("SLURM_STEP_TASKS_PER_NODE") or None,
        distribution=_distribution(environ) if one_component else None,
        launched_from=environ.get("SLURM_LAUNCH_NODE_IPADDR") or None,
    )


def outside_hint(environ: Mapping[str, str]) -> str:
    """What to say to somebody who starts a run inside a job, but not with srun; empty outside of jobs."""
    if not environ.get("SLURM_JOB_ID"):
        return ""
    return "; this is a Slurm job: start it with srun, `srun preflight run PLAN`"


def _distribution(environ: Mapping[str, str]) -> str | None:
    """What the step was dealt by. With one task on a node nothing was dealt, and "cyclic" is what Slurm then says by itself: of the job's own step, which has more tasks, that tells nothing."""
    method = environ.get("SLURM_DISTRIBUTION") or None
    if method is not None and method.startswith("cyclic") and _one_each(environ.get("SLURM_STEP_TASKS_PER_NODE", "")):
        return None
    if method is not None and method.split(":")[0] == "plane" and environ.get("SLURM_DIST_PLANESIZE"):
        return f"plane={environ['SLURM_DIST_PLANESIZE'][:9]}"
    return method


def _one_each(tasks_per_node: str) -> bool:
    """Whether no node of the step has two tasks: "1(x4)"."""
    return re.fullmatch(r"1(\(x[0-9]+\))?", tasks_per_node) is not None


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise ConfigError(SOURCE, f"{text[:40]!r} is no number from 0 on", key=name, remedy=_REMEDY)
    return int(text)


def own_uid() -> int:
    """Whose run this is."""
    return os.geteuid()
