"""What we ask of Slurm and what we tell it, by its own programs (preflight/slurm/programs.py runs them).

Times are asked for in UTC. Slurm takes lists where it takes a name, and "ALL" for every node there is: what is not one plain name is refused here, whoever asks.
"""

import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from preflight.errors import SlurmError
from preflight.slurm.jobs import SlurmJob, parse_job
from preflight.slurm.nodes import SlurmNode, SlurmPartition, parse_nodes, parse_partitions, parse_time
from preflight.slurm.programs import ask, find

MAX_TEXT = 1000  # of a reason or a comment that we set
MAX_NAMED = 256  # nodes asked for by name; it is all of them that the controller sends anyway
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_JOB = re.compile(r"[0-9]{1,10}(_[0-9]{1,10}|\+[0-9]{1,10})?")
_UNKNOWN = re.compile(r"^Node \S+ not found\n", re.MULTILINE)
_STATES = {"drain", "resume", "undrain"}  # the only ones that we ever ask for


class Slurm:
    """Asks the controller. `bin_dir`: where scontrol is; None: looked for when it is first needed. `deadline_s`: of each command; `ends_at`: of all together, by time.monotonic(); None: none.

    Everything raises SlurmError: the program is missing, failed, or gave no answer in time.
    """

    def __init__(self, bin_dir: str | None = None, deadline_s: float = 10.0, *, ends_at: float | None = None) -> None:
        self.bin_dir = bin_dir
        self.ends_at = ends_at
        self.deadline_s = deadline_s
        self._folder: Path | None = None

    def nodes(self, names: Iterable[str] | None = None) -> dict[str, SlurmNode]:
        """The nodes of these names, or all, by name. A name that Slurm doesn't know is missing from the answer."""
        wanted = None if names is None else [node_name(name) for name in names]
        if wanted == []:
            return {}
        if wanted is None or len(wanted) > MAX_NAMED:
            said = self.run("scontrol", "show", "node")
        else:
            said, complaint = self._ask("scontrol", "show", "node", ",".join(wanted))
            if complaint is not None and _UNKNOWN.search(said) is None and " not found" not in complaint:
                raise SlurmError(complaint)
            said = _UNKNOWN.sub("", said)  # between the records, without an empty line
        if said and not said.endswith("\n"):  # "IDLE" may be the half of "IDLE+DRAIN"
            raise SlurmError(f"scontrol show node: the answer is cut, it ends with {said[-40:]!r}")
        found = parse_nodes(said)
        known = {node.name: node for node in found}
        return known if wanted is None else {name: known[name] for name in wanted if name in known}

    def job(self, job: str | int) -> SlurmJob:
        """What Slurm knows of a job. Raises SlurmError also if there is no such job."""
        return parse_job(self.run("scontrol", "show", "job", "-d", job_id(job)), job_id(job))

    def partitions(self) -> dict[str, SlurmPartition]:
        """All partitions, by name."""
        return {each.name: each for each in parse_partitions(self.run("scontrol", "show", "partition"))}

    def now_s(self) -> float:
        """The controller's clock: Unix time, in whole seconds."""
        first = self.run("scontrol", "show", "config").partition("\n")[0]
        told = parse_time(first.rpartition(" ")[2])
        if told is None:
            raise SlurmError(f"scontrol show config begins with {first[:80]!r}, and not with a time")
        return told

    def version(self) -> tuple[int, int]:
        """Of the commands: (22, 5) for 22.05."""
        said = self.run("scontrol", "--version")
        match = re.search(r"([0-9]+)\.([0-9]+)", said)
        if match is None:
            raise SlurmError(f"scontrol --version says {said[:80]!r}")
        return int(match[1]), int(match[2])

    def update_node(
        self,
        names: str | Sequence[str],
        *,
        state: str | None = None,
        reason: str | None = None,
        extra: str | None = None,
        comment: str | None = None,
    ) -> None:
        """Change these nodes in one call. `state`: "drain", "resume" or "undrain".

        Slurm forgets a reason that is set on a node that is neither drained nor down (22.05), and wants one with every drain: both go together.
        """
        assert state is None or state in _STATES
        assert state != "drain" or reason
        wanted = [node_name(name) for name in ([names] if isinstance(names, str) else names)]
        assert wanted
        changes = {"state": state, "reason": reason, "extra": extra, "comment": comment}
        given = [f"{key}={plain(value)}" for key, value in changes.items() if value is not None]
        self.run("scontrol", "update", f"nodename={','.join(wanted)}", *given)

    def run(self, program: str, *arguments: str, deadline_s: float | None = None) -> str:
        """What a program of Slurm prints. Raises SlurmError with what it complained of."""
        said, complaint = self._ask(program, *arguments, deadline_s=deadline_s)
        if complaint is not None:
            raise SlurmError(complaint)
        return said

    def _ask(self, program: str, *arguments: str, deadline_s: float | None = None) -> tuple[str, str | None]:
        """What it prints, and what it complains of; None: nothing, it ended well. Raises SlurmError if it can't be started, or doesn't end."""
        limit_s = self.deadline_s if deadline_s is None else deadline_s
        if self.ends_at is not None:
            limit_s = max(0.0, min(limit_s, self.ends_at - time.monotonic()))
        return ask(self.folder() / program, arguments, limit_s)

    def folder(self) -> Path:
        """Where Slurm's programs are. Raises SlurmError if they are nowhere."""
        if self._folder is None:
            self._folder = find(self.bin_dir)
        return self._folder


def node_name(name: str) -> str:
    """The name, if it is one plain name. Raises SlurmError."""
    if not _NODE.fullmatch(name) or name.upper() == "ALL":
        raise SlurmError(f"{name[:80]!r} is not the name of one node")
    return name


def job_id(job: str | int) -> str:
    """The number of a job, as Slurm takes it: "17", "17_3", "17+1". Raises SlurmError."""
    text = str(job)
    if not _JOB.fullmatch(text):
        raise SlurmError(f"{text[:80]!r} is not the number of a job")
    return text


def plain(text: str) -> str:
    """A text for Slurm, if it is one line of printable ASCII and not too long. Raises SlurmError."""
    if not (text.isascii() and (text.isprintable() or not text)) or len(text) > MAX_TEXT:
        raise SlurmError(f"{text[:80]!r} is not a short line of printable ASCII")
    return text
