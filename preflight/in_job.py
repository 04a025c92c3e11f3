"""Inside a job, in the first lines of its script: are the ranks where the plan needs them? Public as `preflight.assert_placement`.

Three ways to know where the ranks are: gathered over the job's own torch.distributed, given as a file of `preflight ranks`, or derived from what the
launcher tells each process. Torch is never imported here: a job that uses torch.distributed has done so.
"""

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from preflight.discover.rank import Place, common_domain, facts_without_gpu, has_driver, place_of, read_driver, with_gpu
from preflight.errors import ConfigError, PlacementError, PreflightError
from preflight.formats import read_bytes
from preflight.model import (
    Evidence,
    Finding,
    Job,
    Noun,
    Placement,
    Plan,
    RankFacts,
    Settings,
    Topology,
    Verdict,
    to_json,
)

if TYPE_CHECKING:
    from preflight.probe.attendance import Attendance

DEADLINE_S = 60.0  # ranks reach the first line of a script within seconds of one another; slow file systems take longer
GRACE_S = 10.0  # what ranks other than 0 wait longer, so that rank 0's answer about a missing rank reaches them
DRIVER_S = 10.0  # for the GPU driver of a node; the answer is then "not known"
MAX_SHOWN = 5  # broken rules that the text names
# letters: less than half of probe.gather.ROW_BYTES and ANSWER_BYTES, since JSON doubles some
MAX_ERROR, MAX_REASON = 400, 7000
ROOT = Path("/")

PlanLike = str | Path | Job | Plan


class Outcome(NamedTuple):
    """`reason` empty: every rule holds."""

    reason: str
    fingerprint: str


class Row(Noun, frozen=True, kw_only=True):
    """What one rank sends to rank 0: where it is and which plan it has (a digest), or why it can't say."""

    facts: RankFacts | None = None
    digest: str = ""
    error: str | None = None


class Answer(Noun, frozen=True, kw_only=True):
    """What rank 0 sends to all."""

    reason: str
    fingerprint: str = ""


def assert_placement(
    plan: PlanLike, *, ranks: str | Path | Sequence[RankFacts] | None = None, deadline_s: float = DEADLINE_S
) -> str:
    """Raise PlacementError unless the ranks of this job sit where its plan needs them. Call it on every rank, after init_process_group.

        import preflight
        torch.distributed.init_process_group(...)
        preflight.assert_placement("job.toml")

    `plan`: a plan file (TOML), or a Job or Plan of preflight.model; of a Plan only its job counts, since the placement is what is in question.

    Under an initialised torch.distributed every rank sends its host, boot id, local rank, GPU UUID and NVLink domain to rank 0, as tensors over the default
    group; rank 0 judges the placement they form by every installed check that needs nothing but a plan (tensor-parallel groups inside an NVLink
    domain, one rank per GPU, the launcher's expected order, divisibility, ..., as [rules] of the plan file want them; not by estimates of memory and
    bubble, which are the planner's business), and sends its reason to all. So all ranks raise, with one text, or none does; also if a rank can't read the plan, has another plan than rank 0, or did not come within
    `deadline_s` seconds. GPUs are named by the device that the process uses already, else by CUDA_VISIBLE_DEVICES and the local rank.

    Without torch.distributed: the placement is derived from the launcher's variables (Slurm's step, torchrun's numbers) or predicted from [launch], judged, and this process must
    be where it says. Each rank then answers for itself: the reason is the same for all as far as the plan is at fault, and names this rank where it is elsewhere.

    `ranks`: a file or folder of `preflight ranks`, or its facts, in place of all this: judged by each process alone, nothing is sent.

    Gives the fingerprint of the plan as it is placed ("pf1-..."), for checkpoints to carry. A FAIL raises; WARN and UNKNOWN don't. Raises nothing but
    PlacementError, except for a wrong type of argument (TypeError).
    """
    if not isinstance(plan, str | Path | Job | Plan):
        raise TypeError(f"plan: {type(plan).__name__}, expected the path of a plan file, a Job or a Plan")
    torch_distributed = sys.modules.get("torch.distributed")
    if ranks is not None:
        outcome = _outcome(lambda: judged(plan, _given(ranks)))
    elif torch_distributed is not None and torch_distributed.is_available() and torch_distributed.is_initialized():
        outcome = _agreed(plan, deadline_s)
    else:
        outcome = _outcome(lambda: _derived(plan))
    if outcome.reason:
        raise PlacementError(outcome.reason)
    return outcome.fingerprint


def judged(plan: PlanLike, placement: Placement) -> Outcome:
    """The verdict on one placement of the plan's job. Raises PreflightError (the plan can't be read, or is at odds with the placement)."""
    from preflight.judge.run import judge
    from preflight.plan.build import build_plan
    from preflight.plan.fingerprint import fingerprint
    from preflight.plan.measured import predict_for
    from preflight.plan.planfile import check_rules
    from preflight.registry import load_checks

    job = _job(plan)
    topology = _topology(job)
    checks = load_checks()
    check_rules(job, {check.name: check.limits for check in checks})
    built = build_plan(job, placement=placement, topology=topology)
    if placement.source == "measured":
        built = msgspec.structs.replace(built, predicted=predict_for(job, placement, topology))
    evidence = Evidence(settings=Settings(cpu_declared=job.hardware.backend == "gloo"), topology=topology, plan=built)
    findings, _, _ = judge(evidence, [check for check in checks if check.of_placement and set(check.uses) <= {"plan"}])
    return Outcome(_reason(job, findings), fingerprint(built))


def _reason(job: Job, findings: Sequence[Finding]) -> str:
    """The broken rules as one text, empty if there are none."""
    broken = [finding for finding in findings if finding.verdict is Verdict.FAIL]
    if not broken:
        return ""
    lines = [f"{job.source}: the placement of this job breaks {len(broken)} rule{'s' * (len(broken) > 1)}"]
    for finding in broken[:MAX_SHOWN]:
        lines.append(f"  {finding.check}, {finding.subject}: {finding.observed}")
        lines += [f"    {finding.remedy}"] if finding.remedy else []
    if len(broken) > MAX_SHOWN:
        lines.append(f"  and {len(broken) - MAX_SHOWN} more")
    return "\n".join(lines)


def _outcome(judgement: Callable[[], Outcome]) -> Outcome:
    """The outcome, whatever happens: what can't be found out is a reason too."""
    try:
        return judgement()
    except PreflightError as error:
        return Outcome(str(error), "")
    except Exception as error:  # noqa: BLE001 - a fault of ours on rank 0 must not leave the others waiting
        return Outcome(f"the placement could not be judged: {type(error).__name__}: {error}", "")


def _job(plan: PlanLike) -> Job:
    if isinstance(plan, Plan):
        return plan.job
    if isinstance(plan, Job):
        return plan
    from preflight.plan.planfile import read_job

    return read_job(plan)


def _topology(job: Job) -> Topology | None:
    if job.launch.topology is None:
        return None
    from preflight.discover.topology_files import read_topology

    return read_topology(Path(job.launch.topology))


def _given(ranks: str | Path | Sequence[RankFacts]) -> Placement:
    from preflight.plan.measured import measured_placement, read_ranks

    return measured_placement(read_ranks(ranks) if isinstance(ranks, str | Path) else ranks)


def _derived(plan: PlanLike) -> Outcome:
    """Judge what this process's launcher tells it, without a word to the others."""
    from preflight.plan.derived import SOURCE, Seat, derive_placement

    place = place_of(os.environ)
    if place.world_size is None:
        raise ConfigError(
            SOURCE,
            f"{place.numbered_by} is set, but no variable tells the number of ranks",
            key="WORLD_SIZE",
            remedy="call assert_placement after torch.distributed.init_process_group, or set WORLD_SIZE",
        )
    facts = facts_without_gpu(os.environ, place, ROOT)
    names = tuple(name for name in (facts.node, facts.host) if name)
    job = _job(plan)
    seat = Seat(place.rank, place.world_size, place.local_rank, names)
    return judged(job, derive_placement(job, os.environ, seat, _topology(job)))


def _agreed(plan: PlanLike, deadline_s: float) -> Outcome:
    """Gather, let rank 0 judge, and take its answer: one text for all."""
    from preflight.probe.attendance import Attendance
    from preflight.probe.gather import Exchange, RanksApart

    try:
        exchange = Exchange(deadline_s, GRACE_S)
    except RuntimeError as error:  # CUDA
        raise PlacementError(f"no tensor can be made for the job's process group: {error}") from error
    attendance = Attendance(exchange.rank, exchange.size)
    row = _row(plan, exchange.rank, exchange.size)
    if exchange.rank == 0:
        _load()
    apart, missing = "", list[int]()
    try:
        try:
            rows = exchange.gather(to_bytes(row))
            outcome = Outcome("", "") if rows is None else _outcome(lambda: _judge_rows(plan, rows))
        except RanksApart:
            if exchange.rank != 0:
                raise
            missing = attendance.missing()
            apart = _apart(missing, exchange.size, deadline_s)
            attendance.tell(apart)  # the answer may not reach those whose way to rank 0 leads over a missing one
            outcome = Outcome(apart, "")
        answer = Answer(reason=_cut(outcome.reason, MAX_REASON), fingerprint=outcome.fingerprint)
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


def _row(plan: PlanLike, rank: int, size: int) -> Row:
    """What this rank sends. Never raises: a rank that can't say anything says that."""
    try:
        return Row(facts=_own_facts(rank, size), digest=_digest(plan))
    except PreflightError as error:
        return Row(error=_cut(str(error), MAX_ERROR))
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks wait for this row
        return Row(error=_cut(f"{type(error).__name__}: {error}", MAX_ERROR))


def _own_facts(rank: int, size: int) -> RankFacts:
    """Where this process is, numbered as torch.distributed numbers it. The driver is asked only where that tells more: for the GPU if the
    process uses none yet, for the domain on the first rank of each node.
    """
    from preflight.probe.gather import gpu_of_this_process

    local = _own_local_rank(rank)
    facts = facts_without_gpu(os.environ, Place(rank, size, local, "torch.distributed"), ROOT)
    uuid = gpu_of_this_process()
    if has_driver(ROOT) and (uuid is None or not local):
        reading = read_driver(ROOT, DRIVER_S)
        if reading is not None:
            facts = with_gpu(facts, reading)
            if uuid is not None and uuid != facts.gpu_uuid:
                facts = msgspec.structs.replace(facts, domain=common_domain(reading.gpus or ()))
    return msgspec.structs.replace(
        facts,
        gpu_uuid=uuid or facts.gpu_uuid,
        environment={},
        problems=(),
        visible_devices=None,
        device_order=None,
        pci_bus_id=None,
    )


def _own_local_rank(rank: int) -> int | None:
    """The launcher's, if it numbers this process as torch does; a script may have numbered otherwise."""
    try:
        place = place_of(os.environ)
    except PreflightError:
        return None
    return place.local_rank if place.rank == rank else None


def _digest(plan: PlanLike) -> str:
    """Of the plan file's bytes, or of the job: ranks with different ones have different plans. Raises ConfigError if the file can't be read."""
    if isinstance(plan, str | Path):
        return hashlib.sha256(read_bytes(plan)).hexdigest()[:16]
    return hashlib.sha256(to_json(_job(plan))).hexdigest()[:16]


def _judge_rows(plan: PlanLike, rows: Sequence[bytes]) -> Outcome:
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
    return judged(plan, measured_placement([row.facts for row in told if row.facts is not None]))


def to_bytes(row: Row) -> bytes:
    """The row, without what doesn't fit: a host name of hundreds of letters."""
    from preflight.probe.gather import ROW_BYTES

    data = msgspec.json.encode(row)
    if len(data) <= ROW_BYTES - 8:
        return data
    return msgspec.json.encode(Row(error=f"what this rank knows takes {len(data)} bytes, {ROW_BYTES - 8} fit"))


def _cut(text: str, letters: int) -> str:
    """The text in ASCII, without control characters, cut where it would not fit."""
    plain = "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
    plain = plain.encode("ascii", "backslashreplace").decode()
    return plain if len(plain) <= letters else plain[: letters - 3] + "..."
