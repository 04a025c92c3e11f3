"""What the controller prolog does with its decision: drain, requeue, hold, tell. Each step may be done a second time, by a prolog that is started again, without harm.

Slurm puts the job back into the queue if the prolog ends with REQUEUE. That is asked for only when a node of the job is drained now, so that it can't come back to the same nodes for ever, and only so
often as the site says.
"""

from collections.abc import Sequence

from preflight.config import Site
from preflight.errors import SlurmError
from preflight.model.base import Record
from preflight.model.hostlist import fold
from preflight.slurm.commands import MAX_TEXT, Slurm, job_id
from preflight.slurm.controller_record import REQUEUE, Decision
from preflight.slurm.drain import Drained, drain
from preflight.slurm.reason import readable

START = 0
# not "preflight:", which begins what a job asks of us (directive.py)
HELD, WARNED, REQUEUED = "Held by preflight - ", "Warning of preflight - ", "Requeued by preflight - "
_OURS = (HELD, WARNED, REQUEUED)


class Outcome(Record, frozen=True):
    """The prolog's exit code, what was done in words, and what became of a drain (textfile.DRAINS), None: none was asked for."""

    exit_code: int
    text: str
    drain: str | None = None


def carry_out(
    decision: Decision, job: int, slurm: Slurm, site: Site, *, requeues: int, partition: str | None
) -> Outcome:
    """Do it. `requeues`: how often we have had the job requeued. Never raises SlurmError."""
    if decision.course == "drain":
        return _drain(decision, job, slurm, site, requeues=requeues, partition=partition)
    if decision.course == "hold":
        return Outcome(START, _hold(decision.text, job, slurm, site))
    if decision.course == "warn":
        return Outcome(START, _warn(decision.text, job, slurm, site))
    return Outcome(START, "the job starts")


def _drain(decision: Decision, job: int, slurm: Slurm, site: Site, *, requeues: int, partition: str | None) -> Outcome:
    each = [drain(slurm, [node], reason, site, partition=partition) for node, reason in decision.guilty.items()]
    out = [name for one in each for name in (*one.done, *one.kept)]  # no job gets them any more
    text = "; ".join(one.text for one in each)
    result = _result(each)
    if not site.slurm.enforce or not out:
        return Outcome(START, f"{text}; the job starts", result)
    told = _owner(f"{fold(out)} drained before the start of the job: {' / '.join(decision.guilty[n] for n in out)}")
    if requeues < site.slurm.requeues:
        _try(slurm, "notify", job_id(job), REQUEUED + told)
        _comment(slurm, job, REQUEUED + told, in_comment=False)
        return Outcome(
            REQUEUE, f"{text}; the job goes back into the queue ({requeues + 1} of {site.slurm.requeues})", result
        )
    told = f"requeued {requeues} times already; {told}"
    how = _hold if site.slurm.nobody_guilty == "hold" else _warn
    return Outcome(START, f"{text}; requeued {requeues} times already: {how(told, job, slurm, site)}", result)


def _hold(text: str, job: int, slurm: Slurm, site: Site) -> str:
    """Back into the queue, held, with the reason in its comment; what was done, in words. A job of srun or salloc can't be held: it is told."""
    if not site.slurm.enforce:
        return "the job would be held (enforce is off); it starts"
    complaint = _try(slurm, "requeuehold", job_id(job))
    if complaint:
        return f"the job can't be held ({complaint}): {_warn(text, job, slurm, site)}"
    complaint = _comment(slurm, job, HELD + _owner(text), in_comment=True)
    return "the job is held" + (f"; its comment could not be written: {complaint}" if complaint else "")


def _warn(text: str, job: int, slurm: Slurm, site: Site) -> str:
    """On the terminal of srun and salloc, and in the job's AdminComment; what was done, in words."""
    if not site.slurm.enforce:
        return "the job would be warned (enforce is off); it starts"
    _try(slurm, "notify", job_id(job), WARNED + _owner(text))  # says nothing to a batch job that has not begun
    complaint = _comment(slurm, job, WARNED + _owner(text), in_comment=False)
    return "the job starts with a warning" + (
        f"; its AdminComment could not be written: {complaint}" if complaint else ""
    )


def _comment(slurm: Slurm, job: int, text: str, *, in_comment: bool) -> str:
    """Write the text into AdminComment, and behind the user's own words in Comment if it is to be there; what Slurm complained of. A comment that Slurm would not take back whole is left alone."""
    changes = [f"AdminComment={text}"]
    if in_comment:
        try:
            known = slurm.job(job).comment or ""
        except SlurmError as error:
            return str(error)
        comment = commented(known, text)
        changes += [f"Comment={comment}"] if comment is not None else []
    return _try(slurm, "update", f"jobid={job_id(job)}", *changes)


def commented(known: str, text: str) -> str | None:
    """The user's comment with our text behind it, in place of an earlier text of ours; None: it can't be kept whole."""
    for mark in _OURS:
        known = known.partition(f"; {mark}")[0] if not known.startswith(mark) else ""
    whole = f"{known}; {text}" if known else text
    return whole if whole.isascii() and whole.isprintable() and len(whole) <= MAX_TEXT else None


def _owner(text: str) -> str:
    """Words for the job's owner, which are never taken for a directive of his."""
    return readable(text).replace("preflight:", "")[: MAX_TEXT // 2]


def _try(slurm: Slurm, *arguments: str) -> str:
    """Run scontrol; what it complained of, empty: nothing."""
    try:
        slurm.run("scontrol", *arguments)
    except SlurmError as error:
        return str(error)
    return ""


def _result(each: Sequence[Drained]) -> str:
    """One word for all: the first of these that holds."""
    for name, word in (("done", "drained"), ("kept", "drained"), ("planned", "would-drain"), ("braked", "braked")):
        if any(getattr(one, name) for one in each):
            return word
    return "foreign" if any(one.foreign for one in each) else "failed"
