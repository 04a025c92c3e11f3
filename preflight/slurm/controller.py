"""The controller prolog: before a job starts, its nodes' resident agents measure what the job will use; a node that is to blame is drained and the job goes elsewhere.

Whatever is not known, ours to blame or the site's, lets the job start: only a drained node makes Slurm requeue it. slurmctld kills the prolog when it stops and starts it again with itself: what was
decided before is not measured again.
"""

import os
import signal
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from preflight.config import Site, read_config
from preflight.errors import ConfigError, PreflightError, WorldError
from preflight.slurm.commands import Slurm
from preflight.slurm.controller_act import START, Outcome, carry_out
from preflight.slurm.controller_record import MAX_STARTS, Decision, Record, Records
from preflight.slurm.directive import Directive, read_directive
from preflight.slurm.job import SlurmJobContext, read_job
from preflight.slurm.limits import EndedError, TimeIsUpError, allow, limited
from preflight.slurm.logline import joined
from preflight.slurm.prolog import acts
from preflight.slurm.telling import Telling, lenient_textfile_dir

if TYPE_CHECKING:
    from preflight.fleet.world import World
    from preflight.model import Report

COMMAND = "slurm prolog-slurmctld"
SET_UP_S = 10.0
MORE_S = 60.0  # beyond the budget, for what Slurm and the log take: then we are stuck
# what is decided about the job: a report may be a no-go for what drains nobody and holds nothing, such as a worker of ours that did not start
ANSWER = {"start": "go", "unknown": "undecided", "warn": "no-go", "hold": "no-go", "drain": "no-go"}
LEVEL = {"start": "info", "unknown": "warning", "warn": "warning", "hold": "error", "drain": "error"}


def run_controller(
    environ: Mapping[str, str],
    *,
    config: str | None = None,
    textfile_dir: str | None = None,
    world: "World | None" = None,
) -> int:
    """The exit code: 10 if a node of the job was drained and Slurm should requeue the job, else 0. `world`: where agents are, None: on the network. Never raises an Exception."""
    signal.pthread_sigmask(
        signal.SIG_SETMASK, ()
    )  # slurmctld starts us with nearly all signals blocked, our own alarm among them
    number = environ.get("SLURM_JOB_ID", "")
    about = f"controller prolog of job {number if number.isascii() and number.isdigit() else 'unknown'}"
    telling = Telling(COMMAND, os.uname().nodename, about, textfile_dir=textfile_dir)
    try:
        with limited(SET_UP_S):
            site = read_config(config)
            telling.textfile_dir = telling.textfile_dir or site.slurm.textfile_dir
            return _run(environ, site, telling, world)
    except TimeIsUpError:
        telling.fault("its time was over; the job starts")
    except (EndedError, KeyboardInterrupt) as error:
        telling.fault(f"it was ended ({error}); the job starts")
    except Exception as error:  # noqa: BLE001 - also a broken installation or configuration lets the job start
        telling.textfile_dir = telling.textfile_dir or lenient_textfile_dir(config)
        kind = "" if isinstance(error, PreflightError) else f"{type(error).__name__}: "
        telling.fault(f"{kind}{error}; the job starts")
    return START


def _run(environ: Mapping[str, str], site: Site, telling: Telling, world: "World | None") -> int:
    job = read_job(environ)
    directive = read_directive(job.comment, job.extra, job.constraints)
    if directive.problem:
        telling.note(f"the job's directive: {directive.problem}", "warning")
    if not acts(site, directive):
        return START
    if job.job_id is None or job.nodes is None:
        telling.fault(f"Slurm's variables tell no job or no nodes: {'; '.join(job.problems)}; the job starts")
        return START
    allow(site.slurm.controller_budget_s + MORE_S)
    number, restart = job.job_id, job.restart_count or 0
    with (
        Records(site.slurm.state_dir) as records,
        records.alone(number, restart, site.slurm.controller_budget_s) as alone,
    ):
        if not alone:
            telling.fault("another start of it does not come to an end; the job starts")
            return START
        record = records.read(number, restart)
        if record is not None and record.exit_code is not None:
            telling.note(f"decided before: {record.outcome}")
            return record.exit_code
        return _Case(job, directive, site, telling, records=records, world=world).settle(record)


class _Case:
    """One start of one job, which this process alone works on."""

    def __init__(
        self,
        job: SlurmJobContext,
        directive: Directive,
        site: Site,
        telling: Telling,
        *,
        records: Records,
        world: "World | None",
    ) -> None:
        assert job.job_id is not None
        self.job, self.directive, self.site = job, directive, site
        self.number, self.restart = job.job_id, job.restart_count or 0
        self.telling, self.records, self.world = telling, records, world
        self.slurm = Slurm(site.slurm.bin_dir)
        self.report: Report | None = None

    def settle(self, record: Record | None) -> int:
        """Decide, unless an earlier start has; then act. Raises WorldError: the record can't be written, so nothing is done."""
        starts = record.starts + 1 if record is not None else 1
        record = record or Record(job=self.number, restart=self.restart, began_at_s=time.time())
        record = msgspec.structs.replace(record, starts=starts)
        self.records.keep(record)
        if record.decision is None:
            why = self._why_not_measured(starts)
            decision = _unknown(why) if why else self._measured()
            record = msgspec.structs.replace(record, decision=decision)
            self.records.keep(record)
        assert record.decision is not None
        outcome = self._act(record.decision)
        done = msgspec.structs.replace(record, exit_code=outcome.exit_code, outcome=outcome.text)
        try:
            self.records.keep(done)
        except WorldError as error:  # what was done is done: a second start of the prolog finds it so
            self.telling.note(str(error), "warning")
        self._tell(record.decision, outcome)
        self._remember(record.decision, outcome)
        return outcome.exit_code

    def _why_not_measured(self, starts: int) -> str:
        """Why another try would only keep the job from starting; empty: it is the first, or the last was left in peace. Raises WorldError."""
        if starts > MAX_STARTS:
            return f"killed {starts - 1} times while at work"
        if self.records.was_cut(self.number, self.restart):
            return "it was ended while it measured for the last start of the job: by Slurm's time-out? PrologEpilogTimeout must be 120 s more than controller_budget"
        return ""

    def _measured(self) -> Decision:
        """The decision; what can't be measured is not known. Raises only what ends us."""
        from preflight.slurm.controller_run import measure_and_decide

        try:
            decision, self.report = measure_and_decide(
                self.job, self.directive, self.site, self.slurm, world=self.world, spent_s=self.telling.spent_s
            )
        except (
            ConfigError
        ) as error:  # the job's own plan may not fit it: that is told to its owner, who alone can mend it
            own = self.directive.plan is not None or self.directive.degrees
            return Decision(course="warn" if own else "unknown", text=joined(str(error)))
        except PreflightError as error:
            return _unknown(joined(str(error)))
        except Exception as error:  # noqa: BLE001 - a mistake of ours lets the job start, and is told
            return _unknown(f"{type(error).__name__}: {error}")
        if self.report is not None:
            try:
                self.telling.keep(self.report, self.site.slurm.state_dir)
            except WorldError as error:
                self.telling.note(str(error), "warning")
        return decision

    def _act(self, decision: Decision) -> Outcome:
        if decision.course in {"start", "unknown"}:
            return Outcome(START, "the job starts")
        requeues = self.records.requeues(self.number, self.restart)
        return carry_out(decision, self.number, self.slurm, self.site, requeues=requeues, partition=self.job.partition)

    def _remember(self, decision: Decision, outcome: Outcome) -> None:
        """What was measured goes into the history of this machine, now that all is told; it changes nothing any more."""
        from preflight.slurm.controller_remember import remember_run

        if self.report is not None:
            drained = outcome.drain in {"drained", "kept"}
            remember_run(self.report, decision, self.site, self.telling, drained=drained)

    def _tell(self, decision: Decision, outcome: Outcome) -> None:
        from preflight.slurm.controller_decide import summary

        text = f"{summary(decision, self.job.nodes or (), outcome.text)}. {outcome.text}"
        if self.report is not None:
            self.telling.result(self.report, text, drain=outcome.drain, answer=ANSWER[decision.course])
        elif decision.course in {"unknown", "warn"}:
            self.telling.fault(text)
        else:
            self.telling.note(text, LEVEL[decision.course])


def _unknown(text: str) -> Decision:
    return Decision(course="unknown", text=" ".join(text.split()))
