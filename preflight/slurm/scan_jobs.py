"""A sweep's own jobs, and the jobs of users that they give way to: what is asked of Slurm's sbatch, squeue and scancel.

Our jobs are known by their name together with our user, so that the next sweep finds those of one that was killed. They end by their own time limit, and one that still waits when it could not end in time any more is dropped by Slurm itself (--deadline).
"""

import contextlib
import math
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from preflight.config import VARIABLE, ScanSite
from preflight.errors import ConfigError, SlurmError
from preflight.model.base import Record
from preflight.model.hostlist import fold_for_slurm, unfold
from preflight.slurm.commands import Slurm, job_id, node_name
from preflight.slurm.scan_nodes import Kind

JOB_NAME = "preflight-scan"
COMMENT = "preflight: off"  # neither prolog looks at these jobs: they are its own measurement
NICE = 1_000_000  # takes more from a job's priority than the multifactor plug-in's usual weights give
SPARE_S = 120.0  # beyond the budget: starting the job, and Slurm's own time to end it
BATCH = 500  # job ids in one call of scancel
# why a job waits that could start if ours made room; "None": nobody has looked at it yet
WAITING = {"Resources", "Priority", "None", "ReqNodeNotAvail", "NodeNotAvail", "Nodes_required_for_job_are_busy"}
# where the sweep was told of another configuration file, its jobs use that too if they can read it
_CONFIG = """if [ -r {path} ]; then
    {variable}={path}
    export {variable}
fi
"""
# the report comes back to the sweep, which keeps it with its verdicts: the run itself must not be there first
# --export: srun would take over what sbatch was told (NIL), and drop PATH and the configuration file
_SCRIPT = """#!/bin/sh
# written by preflight scan
PATH=/usr/bin:/bin
export PATH
PREFLIGHT_RUN_NO_HISTORY=1
export PREFLIGHT_RUN_NO_HISTORY
{config}exec {srun} --export=ALL --ntasks={nodes} --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=0 {command}
"""


class Queued(Record, frozen=True):
    """One of our jobs in the queue. `state`: "PENDING", "RUNNING", ... `nodes`: () while it waits."""

    id: str
    state: str
    nodes: tuple[str, ...]


class Waiting(Record, frozen=True):
    """A user's job that waits. `nodes`: how many it needs, None: not known. `named`: those that it names itself."""

    id: str
    partitions: tuple[str, ...]
    reason: str
    nodes: int | None
    named: tuple[str, ...]


def submit(
    slurm: Slurm, nodes: Sequence[str], kind: Kind, site: ScanSite, *, folder: Path, command: Sequence[str]
) -> str:
    """Put a job on just these nodes into the queue; its number. `folder`: on a file system that nodes share, for its script and output. `command`: what srun starts. Raises SlurmError, ConfigError."""
    script = folder / "job.sh"
    told = os.environ.get(VARIABLE)
    text = _SCRIPT.format(
        nodes=len(nodes),
        command=shlex.join(command),
        srun=shlex.quote(str(slurm.folder() / "srun")),
        config=_CONFIG.format(path=shlex.quote(told), variable=VARIABLE) if told else "",
    )
    try:
        script.write_text(text)
    except OSError as error:
        raise ConfigError(str(folder), f"can't be written: {error.strerror}") from error
    minutes = max(1, math.ceil(site.time_limit_s / 60))
    words = [
        *("--parsable", f"--job-name={JOB_NAME}", f"--comment={COMMENT}", f"--partition={kind.partition}"),
        *(
            f"--nodelist={fold_for_slurm([node_name(name) for name in nodes])}",
            f"--nodes={len(nodes)}",
            "--exclusive",
            "--no-requeue",
        ),
        *(f"--time={minutes}", f"--nice={NICE}", f"--deadline=now+{math.ceil(minutes * 60 + SPARE_S)}"),
        *(f"--chdir={folder}", f"--output={folder}/job.log", "--export=NIL", "--mem=0", "--ntasks-per-node=1"),
        *([f"--gres={kind.gpus}"] if kind.gpus else []),
        *([f"--qos={site.qos}"] if site.qos else []),
        *([f"--account={site.account}"] if site.account else []),
    ]
    said = slurm.run("sbatch", *words, str(script))
    return job_id(said.strip().partition(";")[0])


def own_jobs(slurm: Slurm) -> dict[str, Queued]:
    """Our jobs that have not ended, of this sweep or of an earlier one, by number. Raises SlurmError."""
    said = slurm.run("squeue", "-h", f"--user={os.geteuid()}", f"--name={JOB_NAME}", "-o", "%A|%T|%N")
    found = {}
    for line in said.splitlines():
        number, state, nodes = (f"{line.strip()}||").split("|")[:3]
        found[job_id(number)] = Queued(number, state, tuple(_names(nodes)))
    return found


def waiting_jobs(slurm: Slurm, own: Iterable[str]) -> list[Waiting]:
    """The jobs of users that wait for nodes. Those that are held, or wait for another job, a date or a licence, are none. `own`: our own numbers. Raises SlurmError."""
    said, ours, found = slurm.run("squeue", "-h", "-t", "PENDING", "-o", "%A|%P|%D|%n|%r"), set(own), []
    for line in said.splitlines():
        fields = line.strip().split("|", 4)
        if len(fields) == 5 and fields[0] not in ours:
            number, partitions, nodes, named, reason = fields
            word = re.split(r"[, ]", reason.strip("() "), maxsplit=1)[0]
            if word in WAITING:
                count = re.match(r"[0-9]{1,9}", nodes)
                waits = Waiting(
                    number, tuple(partitions.split(",")), reason, int(count[0]) if count else None, tuple(_names(named))
                )
                found.append(waits)
    return found


def wants(job: Waiting, ours: Iterable[str], partitions: Iterable[str], num_idle: int) -> bool:
    """Whether a job that waits could start if our jobs left their nodes, `ours`. `partitions`: all that these nodes are in; `num_idle`: how many other nodes are idle.

    A job that needs more nodes than that all the same is not helped: Slurm keeps nodes for it by itself, and ours are small and short.
    """
    nodes = set(ours)
    if not nodes or not set(job.partitions) & set(partitions):
        return False
    if job.named:
        return bool(nodes & set(job.named))
    return job.nodes is None or job.nodes <= len(nodes) + num_idle


def cancel(slurm: Slurm, jobs: Iterable[str]) -> None:
    """End these jobs. Raises SlurmError; jobs that have ended by themselves are no error."""
    numbers = sorted({job_id(job) for job in jobs})
    for first in range(0, len(numbers), BATCH):
        try:
            slurm.run("scancel", *numbers[first : first + BATCH])
        except SlurmError as error:
            if "Invalid job id" not in str(error):
                raise


def cancel_all(slurm: Slurm, known: Iterable[str]) -> None:
    """End all jobs of ours, those that are known and what Slurm took without saying so; tried three times. Raises SlurmError."""
    left = set(known)
    for last in (False, False, True):
        try:
            left |= set(own_jobs(slurm))
            cancel(slurm, left)
        except SlurmError:
            if last:
                raise
        else:
            return


def _names(text: str) -> list[str]:
    with contextlib.suppress(ValueError):
        return unfold(text) if text.strip() not in {"", "(null)"} else []
    return []
