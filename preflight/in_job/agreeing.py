"""All ranks of a job under torch.distributed: gather where they are, let rank 0 judge, take its answer. One text for all, or none."""

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from preflight.errors import PlacementError, PreflightError
from preflight.formats import read_bytes
from preflight.in_job import judging
from preflight.in_job.facts import own_facts
from preflight.in_job.judging import Outcome, PlanLike, job_in, outcome_of
from preflight.model import Noun, RankFacts, to_json

if TYPE_CHECKING:
    from preflight.probe.attendance import Attendance

GRACE_S = 10.0  # what ranks other than 0 wait longer, so that rank 0's answer about a missing rank reaches them
# letters: less than half of probe.gather.ROW_BYTES and ANSWER_BYTES, since JSON doubles some
MAX_ERROR, MAX_REASON = 400, 7000


class Row(Noun, frozen=True, kw_only=True):
    """What one rank sends to rank 0: where it is and which plan it has (a digest), or why it can't say."""

    facts: RankFacts | None = None
    digest: str = ""
    error: str | None = None


class Answer(Noun, frozen=True, kw_only=True):
    """What rank 0 sends to all."""

    reason: str
    fingerprint: str = ""


def agreed(plan: PlanLike, deadline_s: float) -> Outcome:
    """Gather, let rank 0 judge, and take its answer: one text for all."""
    from preflight.probe.attendance import Attendance
    from preflight.probe.gather import Exchange, RanksApart

    try:
        exchange = Exchange(deadline_s, GRACE_S)
    except RuntimeError as error:  # CUDA
        raise PlacementError(f"no tensor can be made for the job's process group: {error}") from error
    attendance = Attendance(exchange.rank, exchange.size)
    row = row_of(plan, exchange.rank, exchange.size)
    if exchange.rank == 0:
        _load()
    apart, missing = "", list[int]()
    try:
        try:
            rows = exchange.gather(to_bytes(row))
            outcome = Outcome("", "") if rows is None else outcome_of(lambda: judge_rows(plan, rows))
        except RanksApart:
            if exchange.rank != 0:
                raise
            missing = attendance.missing()
            apart = _apart(missing, exchange.size, deadline_s)
            attendance.tell(apart)  # the answer may not reach those whose way to rank 0 leads over a missing one
            outcome = Outcome(apart, "")
        answer = Answer(reason=cut(outcome.reason, MAX_REASON), fingerprint=outcome.fingerprint)
        told = msgspec.json.decode(exchange.answer(msgspec.json.encode(answer)), type=Answer)
    except RanksApart as error:
        if exchange.rank != 0:
            apart = attendance.told(GRACE_S) or ""
        _part(attendance, missing, apart, deadline_s)
        raise PlacementError(apart or _apart([], exchange.size, deadline_s)) from error
    _part(attendance, missing, apart or told.reason, deadline_s)
    return Outcome(told.reason, told.fingerprint)


def _part(attendance: "Attendance", missing: Sequence[int], reason: str, deadline_s: float) -> None:
    """Before a rank raises: rank 0, with which the store may go, leaves last if somebody is missing; the others may wait for its answer until their patience ends."""
    if attendance.rank != 0 and reason:
        attendance.heard()
    elif missing:
        attendance.stay(missing, deadline_s + GRACE_S)


def _apart(missing: Sequence[int], size: int, deadline_s: float) -> str:
    """Why there is no answer; `missing` empty: nobody can be named."""
    who = "not every rank came" if not missing else f"rank {missing[0]} did not come"
    more = f" (and {len(missing) - 1} more of {size})" if len(missing) > 1 else ""
    left = "" if missing else ", or one left"
    where = "it must be called on all ranks, at one point of the script"
    return f"{who} to preflight.assert_placement within {deadline_s:g} s{more}{left}: {where}"


def _load() -> None:
    """Import what rank 0 judges with, while the rows of the others are under way. What can't be imported is a reason later on."""
    with contextlib.suppress(Exception):
        from preflight.judge import run  # noqa: F401
        from preflight.plan import build, fingerprint, measured, planfile  # noqa: F401
        from preflight.registry import load_checks

        load_checks()


def row_of(plan: PlanLike, rank: int, size: int) -> Row:
    """What this rank sends. Never raises: a rank that can't say anything says that."""
    try:
        return Row(facts=own_facts(rank, size), digest=_digest(plan))
    except PreflightError as error:
        return Row(error=cut(str(error), MAX_ERROR))
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks wait for this row
        return Row(error=cut(f"{type(error).__name__}: {error}", MAX_ERROR))


def _digest(plan: PlanLike) -> str:
    """Of the plan file's bytes, or of the job: ranks with different ones have different plans. Raises ConfigError if the file can't be read."""
    if isinstance(plan, str | Path):
        return hashlib.sha256(read_bytes(plan)).hexdigest()[:16]
    return hashlib.sha256(to_json(job_in(plan))).hexdigest()[:16]


def judge_rows(plan: PlanLike, rows: Sequence[bytes]) -> Outcome:
    """What rank 0 makes of the rows, which are in rank order."""
    from preflight.plan.measured import measured_placement

    told = [msgspec.json.decode(row, type=Row) for row in rows]
    for rank, row in enumerate(told):
        if row.error is not None:
            others = sum(other.error is not None for other in told) - 1
            return Outcome(f"rank {rank}{f' (and {others} more)' if others else ''}: {row.error}", "")
    for rank, row in enumerate(told):
        if row.digest != told[0].digest:
            host = row.facts.host if row.facts else "?"
            return Outcome(f"rank {rank} on {host} has another plan than rank 0: give all ranks the same file", "")
    return judging.judged(plan, measured_placement([row.facts for row in told if row.facts is not None]))


def to_bytes(row: Row) -> bytes:
    """The row, without what doesn't fit: a host name of hundreds of letters."""
    from preflight.probe.gather import ROW_BYTES

    data = msgspec.json.encode(row)
    if len(data) <= ROW_BYTES - 8:
        return data
    return msgspec.json.encode(Row(error=f"what this rank knows takes {len(data)} bytes, {ROW_BYTES - 8} fit"))


def cut(text: str, letters: int) -> str:
    """The text in ASCII, without control characters, cut where it would not fit."""
    plain = "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
    plain = plain.encode("ascii", "backslashreplace").decode()
    return plain if len(plain) <= letters else plain[: letters - 3] + "..."
