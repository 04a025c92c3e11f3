"""A job as `scontrol show job -d` prints it (pure). Names, comments and paths are the user's: what can't be told apart from them is an error, or unknown."""

import re

from preflight.errors import SlurmError
from preflight.model.base import Noun
from preflight.model.hostlist import MAX_DIGITS, unfold
from preflight.slurm.nodes import clean

MAX_GPUS = 1024  # of one node, by number
_INDEX = re.compile(r"gpu(?::[^:,()\s]+)?:[0-9]+\(IDX:([^()]*)\)")


class SlurmJob(Noun, frozen=True, kw_only=True):
    """One job. `user`: the name, None: Slurm knows the number only. `nodes`: () while it has none. `state`: as Slurm spells it ("RUNNING", "PENDING", ...). `reason`: why it waits.

    `restarts`: how often it was requeued. `gpu_numbers`: Slurm's numbers of its GPUs on each node; a node is missing if it has none there; None: could not be found out. `features`: its constraint.
    """

    id: str
    state: str
    uid: int
    user: str | None = None
    nodes: tuple[str, ...] = ()
    reason: str | None = None
    restarts: int | None = None
    partition: str | None = None
    comment: str | None = None
    admin_comment: str | None = None
    extra: str | None = None
    features: str | None = None
    gpu_numbers: dict[str, tuple[int, ...]] | None = None


def parse_job(text: str, job: str) -> SlurmJob:
    """The job of that number in the answer. Raises SlurmError if the answer can't be read, or could be read in two ways."""
    record = text.strip("\n").split("\n\n")[0]
    if not record.startswith("JobId="):
        raise SlurmError(f"scontrol show job {job} answers {record[:80]!r}")
    user = re.fullmatch(r"(\S*)\(([0-9]{1,10})\) GroupId=.*", _only(record, "UserId", job))
    state = re.fullmatch(r"([A-Z_+]+)(?: Reason=(\S*).*)?", _only(record, "JobState", job))
    nodes = clean(_only(record, "NodeList", job).partition(" ")[0])  # behind it where it might run: SchedNodeList=
    if user is None or state is None:
        raise SlurmError(f"scontrol show job {job} tells no user or no state")
    restarts = re.search(r" Restarts=([0-9]{1,9})\b", f" {_only(record, 'Requeue', job)}")
    return SlurmJob(
        id=job,
        state=state[1],
        uid=int(user[2]),
        user=clean(user[1]),
        nodes=tuple(unfold(nodes)) if nodes else (),
        reason=clean(state[2] or ""),
        restarts=int(restarts[1]) if restarts else None,
        partition=clean(_only(record, "Partition", job).partition(" ")[0]),
        comment=_first(record, "Comment"),
        admin_comment=_first(record, "AdminComment"),
        extra=_first(record, "Extra"),
        features=clean((_first(record, "Features") or "").partition(" ")[0]),
        gpu_numbers=_gpu_numbers(record),
    )


def _all(record: str, key: str) -> list[str]:
    return re.findall(rf"^ {{3}}{key}=(.*)$", record, re.MULTILINE)


def _first(record: str, key: str) -> str | None:
    found = _all(record, key)
    return clean(found[0]) if found else None


def _only(record: str, key: str, job: str) -> str:
    """A fact that decides something: there must be one line of it, or a user's text imitates it."""
    found = _all(record, key)
    if len(found) != 1:
        raise SlurmError(f"scontrol show job {job} has {len(found)} lines that begin with {key}=")
    return str(found[0])


def _gpu_numbers(record: str) -> dict[str, tuple[int, ...]] | None:
    """The lines right behind JOB_GRES, one for nodes that are alike: "Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:8(IDX:0-7)"."""
    lines = record.split("\n")
    begins = [i for i, text in enumerate(lines) if text.startswith("   JOB_GRES=")]
    if len(begins) != 1:
        return None
    numbers: dict[str, tuple[int, ...]] = {}
    for text in lines[begins[0] + 1 :]:
        match = re.fullmatch(r" {5}Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(.*)", text)
        if match is None:
            break
        try:
            found = sorted({number for index in _INDEX.findall(match[2]) for number in _indices(index)})
            numbers |= {node: tuple(found) for node in unfold(match[1]) if found}
        except ValueError:
            return None
    return numbers


def _indices(text: str) -> list[int]:
    """The numbers of a list: "0-2,5" -> 0, 1, 2, 5. "N/A": the number is not known. Raises ValueError."""
    numbers: list[int] = []
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        if max(len(first), len(last)) > MAX_DIGITS or not 0 <= int(first) <= int(last or first) < MAX_GPUS:
            raise ValueError(f"{text[:60]!r} are no numbers of GPUs")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
