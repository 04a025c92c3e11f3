"""What the controller prolog has decided of a job, kept so that a second start of it (slurmctld kills it when it stops, and starts it again) measures and acts only once.

One record for each start of a job: job id and restart count. Written by SlurmUser into state_dir/jobs.
"""

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Literal

import msgspec

from preflight.errors import WorldError
from preflight.model.base import Noun, from_json, to_json
from preflight.slurm.state import StateFolder

FOLDER = "jobs"
REQUEUE = 10  # the exit code that deploy/slurm/prolog-slurmctld.sh passes on; Slurm puts the job back into the queue
MAX_RECORDS = 4000  # 1 kB each
MAX_STARTS = 3  # of a prolog that is killed each time: a job must not wait for ever for it
LOOK_S = 0.2  # between two looks whether another start has ended

Course = Literal["start", "unknown", "warn", "hold", "drain"]
_RECORD = re.compile(r"record-([0-9]{1,10})-([0-9]{1,10})\.json")


class Decision(Noun, frozen=True, kw_only=True):
    """What is to be done for a job, before anything of it is done.

    `course`: "start" (go), "unknown" (nothing is known; it starts), "warn" (it starts, with a warning), "hold", "drain" (of `guilty`: node -> the reason that it gets). `text`: why, on one line; of "warn" and
    "hold" what the job's owner reads. `repeated`: on what repeated evidence nodes are called guilty. `let_off`: why what speaks against a node drains it not. `cut`: the measuring was interrupted.
    """

    course: Course
    text: str
    run_id: str = ""
    guilty: dict[str, str] = {}
    repeated: tuple[str, ...] = ()
    let_off: tuple[str, ...] = ()
    cut: bool = False


class Record(Noun, frozen=True, kw_only=True, tag_field="schema", tag="preflight.job/1"):
    """One start of one job. `starts`: of the prolog for it. `decision` None: not decided yet. `exit_code` None: not all done yet; `outcome`: what was done, in words. Times are Unix time."""

    job: int
    restart: int
    began_at_s: float
    starts: int = 1
    decision: Decision | None = None
    exit_code: int | None = None
    outcome: str = ""


class Records:
    """The folder of all records. Raises WorldError: it can't be made or written, or is somebody else's. Close it."""

    def __init__(self, state_dir: str) -> None:
        self.folder = StateFolder(state_dir, FOLDER)

    def __enter__(self) -> "Records":  # noqa: PYI034 - Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.folder.close()

    @contextlib.contextmanager
    def alone(self, job: int, restart: int, wait_s: float) -> Iterator[bool]:
        """Whether no other start of the prolog works for the same start of the same job, having waited so long for its end. The kernel lets go of it with the process. Raises WorldError."""
        name, until = f"lock-{job}-{restart}", time.monotonic() + wait_s
        while True:
            with self.folder.lock(name) as got:
                if got or time.monotonic() >= until:
                    try:
                        yield got
                    finally:
                        if got:
                            with contextlib.suppress(WorldError):
                                self.folder.remove(name)
                    return
            time.sleep(LOOK_S)

    def read(self, job: int, restart: int) -> Record | None:
        """What is kept of this start of the job. None: nothing, or nothing that can be understood. Raises WorldError."""
        data = self.folder.read(_record(job, restart))
        try:
            record = from_json(data, Record) if data is not None else None
        except (ValueError, RecursionError, msgspec.MsgspecError):
            return None
        return record if record is not None and (record.job, record.restart) == (job, restart) else None

    def keep(self, record: Record) -> None:
        """Write it, and forget the oldest of very many. Raises WorldError."""
        self.folder.write(_record(record.job, record.restart), to_json(record))
        for kind in ("record-", "lock-"):
            self.folder.keep_newest(MAX_RECORDS, beginning=kind)

    def was_cut(self, job: int, restart: int) -> bool:
        """Whether the prolog of the start before this one was ended in the middle, as Slurm does at its time-out, which requeues the job. Raises WorldError."""
        before = self.read(job, restart - 1) if restart else None
        return before is not None and (before.decision is None or before.exit_code is None or before.decision.cut)

    def requeues(self, job: int, restart: int) -> int:
        """How often we have had the job requeued before this start of it. A restart of which nothing is kept counts as one of ours. Raises WorldError."""
        kept = [self.read(job, earlier) for earlier in range(min(restart, 64))]
        return sum(record is None or record.exit_code == REQUEUE for record in kept) + max(0, restart - 64)


def _record(job: int, restart: int) -> str:
    name = f"record-{job}-{restart}.json"
    assert _RECORD.fullmatch(name)
    return name
