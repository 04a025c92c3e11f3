"""The job that Slurm calls us for, as the environment of Prolog, PrologSlurmctld and HealthCheckProgram tells it: Slurm 22.05 to 26.05. All of it is text of users' making.

Sources: prolog_epilog guide of Slurm ("Prolog and Epilog Guide", table of variables); which version sets which was read from the manuals of 22.05 to 26.05. SLURM_JOB_NODELIST is set in
the node prolog from 23.11 on, SLURM_NODELIST before and after; SLURM_JOB_GPUS numbers the GPUs of the machine by PCI order, and is not set in PrologSlurmctld.
"""

import re
from collections.abc import Mapping

from preflight.model.base import Noun
from preflight.model.hostlist import unfold
from preflight.model.job_gpus import parse_numbers

MAX_TEXT = 4096  # letters of a comment that are looked at
MAX_NUMBER = 2**32 - 1  # Slurm's numbers of jobs and users

_NODE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")


class SlurmJobContext(Noun, frozen=True, kw_only=True):
    """What the environment says. None: it doesn't say, or says something that is none of its kind (then `problems` tell).

    `script`: where we are called, such as "prolog_slurmd". `node`: this node's name in Slurm, fit for a file's name; None on the controller. `nodes`: the job's nodes in Slurm's order.
    `restart_count`: how often the job was requeued. `het_id`, `het_offset`: the heterogeneous job that this is a component of. `gpus`: numbers of the job's GPUs on this node, by PCI order
    of the machine; None also where the job has none or they are named by UUID. `comment` and `extra` may hold line breaks; all other text is one line.
    """

    script: str | None = None
    cluster: str | None = None
    node: str | None = None
    job_id: int | None = None
    restart_count: int | None = None
    het_id: int | None = None
    het_offset: int | None = None
    user: str | None = None
    uid: int | None = None
    account: str | None = None
    partition: str | None = None
    reservation: str | None = None
    constraints: str | None = None
    comment: str | None = None
    extra: str | None = None
    nodes: tuple[str, ...] | None = None
    gpus: tuple[int, ...] | None = None
    problems: tuple[str, ...] = ()

    @property
    def attempt(self) -> str:
        """This start of this job, which a requeue makes another one of: "4711" at first, then "4711-1"; "0" if there is no job. Fit for a file's name."""
        restarts = f"-{self.restart_count}" if self.restart_count else ""
        return f"{self.job_id or 0}{restarts}"


def read_job(environ: Mapping[str, str]) -> SlurmJobContext:
    """The job of the process with these variables. Never raises."""
    problems: list[str] = []
    return SlurmJobContext(
        script=_line(environ, "SLURM_SCRIPT_CONTEXT"),
        cluster=_line(environ, "SLURM_CLUSTER_NAME"),
        node=_node(environ, problems),
        job_id=_number(environ, problems, "SLURM_JOB_ID", "SLURM_JOBID"),
        restart_count=_number(environ, problems, "SLURM_JOB_RESTART_COUNT", "SLURM_RESTART_COUNT"),
        het_id=_number(environ, problems, "SLURM_HET_JOB_ID"),
        het_offset=_number(environ, problems, "SLURM_HET_JOB_OFFSET"),
        user=_line(environ, "SLURM_JOB_USER"),
        uid=_number(environ, problems, "SLURM_JOB_UID", "SLURM_UID"),
        account=_line(environ, "SLURM_JOB_ACCOUNT"),
        partition=_line(environ, "SLURM_JOB_PARTITION"),
        reservation=_line(environ, "SLURM_JOB_RESERVATION"),
        constraints=_line(environ, "SLURM_JOB_CONSTRAINTS"),
        comment=_text(environ, "SLURM_JOB_COMMENT"),
        extra=_text(environ, "SLURM_JOB_EXTRA"),
        nodes=_nodes(environ, problems),
        gpus=_gpus(environ),
        problems=tuple(problems),
    )


def is_node_name(name: str) -> bool:
    """Whether a text can be a node's name, and so a part of a file's name."""
    return _NODE_NAME.fullmatch(name) is not None


def _text(environ: Mapping[str, str], name: str) -> str | None:
    """A value of at most MAX_TEXT letters that can be encoded and steers no terminal; lines stay lines. None: not set, empty, or Slurm's "(null)"."""
    value = environ.get(name, "").encode("utf-8", "replace").decode("utf-8", "replace")[:MAX_TEXT]
    safe = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in value).strip()
    return safe if safe and safe != "(null)" else None


def _line(environ: Mapping[str, str], name: str) -> str | None:
    value = _text(environ, name)
    return " ".join(value.splitlines())[:255] if value else None


def _number(environ: Mapping[str, str], problems: list[str], *names: str) -> int | None:
    """The first of these variables that is set."""
    for name in names:
        value = _line(environ, name)
        if value is None:
            continue
        if value.isascii() and value.isdigit() and len(value) <= 10 and int(value) <= MAX_NUMBER:
            return int(value)
        problems.append(f"{name}={value[:40]} is no number")
        return None
    return None


def _node(environ: Mapping[str, str], problems: list[str]) -> str | None:
    name = _line(environ, "SLURMD_NODENAME")
    if name is None or is_node_name(name):
        return name
    problems.append(f"SLURMD_NODENAME={name[:40]} is no node's name")
    return None


def _nodes(environ: Mapping[str, str], problems: list[str]) -> tuple[str, ...] | None:
    """The job's nodes, whatever the version calls the variable."""
    for variable in ("SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        text = environ.get(variable)
        if not text:
            continue
        try:
            names = tuple(unfold(text))
        except ValueError as error:
            problems.append(f"{variable}: {error}")
            return None
        if all(map(is_node_name, names)):
            return names
        problems.append(f"{variable} holds what is no node's name")
        return None
    return None


def _gpus(environ: Mapping[str, str]) -> tuple[int, ...] | None:
    for variable in ("SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"):
        if environ.get(variable):
            return parse_numbers(environ[variable])
    return None
