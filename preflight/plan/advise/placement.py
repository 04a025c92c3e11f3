"""The smallest change that repairs a placement, tried by the same rules before it is offered."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from preflight.model import Advice, Change, Job, Plan, Topology
from preflight.plan.advise.allocation import allocations
from preflight.plan.advise.flags import LAYOUT_COST, framework_flags, launcher_flags, smaller_tp
from preflight.plan.advise.nodes import node_orders
from preflight.plan.advise.situation import Situation, situation_of
from preflight.plan.advise.trial import (
    Candidate,
    Judged,
    Outcome,
    badness,
    contented_checks,
    helped_checks,
    is_complete,
    left_over,
    moved,
    outcome_of,
    repairs,
    try_candidate,
)

MAX_STARTS = 3  # first changes to which others are added
MAX_STEPS = 3  # changes put together in one advice; more is not a small change any more

__all__ = ["advise_placement"]


def advise_placement(job: Job, plan: Plan, judged: Judged, *, topology: Topology | None = None) -> tuple[Advice, ...]:
    """What would repair the placement of a plan, smallest change first; empty if nothing is wrong with it or nothing that we know helps.

    `judged` gives the findings about a plan, and is asked again for each change: what does not help is not offered. Complete repairs come before partial ones;
    where no single change leaves nothing to say, changes are put together, at most three. `topology`: what is known of the nodes beyond the plan.
    """
    situation = situation_of(job, plan, topology)
    before = outcome_of(plan, situation.topology, judged)
    tried = _try_all(situation, before, judged)
    found = [Found((candidate.change,), after) for candidate, after in tried]
    wanted = frozenset[str]().union(*(contented_checks(before, one.after) for one in found))
    if not any(one.after.problems == {} for one in found):
        together = _together(situation, tried, judged)
        if together is not None and all(badness(together.after)[:-1] < badness(one.after)[:-1] for one in found):
            found.append(together)
            wanted |= contented_checks(before, together.after)
    advices = [_advice(before, one, wanted) for one in found]
    if any(advice.complete and "degrees" not in advice.kinds for advice in advices):  # other degrees are another job
        advices = [advice for advice in advices if "degrees" not in advice.kinds]
    return tuple(_undominated(advices))


class Found(NamedTuple):
    """Changes that help, and what becomes of the job with them."""

    changes: tuple[Change, ...]
    after: Outcome


def _candidates(situation: Situation) -> Iterator[Candidate]:
    sources = launcher_flags, framework_flags, node_orders, allocations, smaller_tp
    return chain.from_iterable(source(situation) for source in sources)


def _try_all(situation: Situation, before: Outcome, judged: Judged) -> list[tuple[Candidate, Outcome]]:
    """The changes that help, smallest first, each with what becomes of the job."""
    if not (before.tally.fail or before.tally.warn or before.tally.split_groups or before.step_s):
        return []
    tried = []
    for candidate in sorted(_candidates(situation), key=lambda candidate: candidate.cost):
        after = try_candidate(situation, candidate, judged)
        if after is not None and repairs(before, after):
            tried.append((candidate, after))
    return tried


def _together(situation: Situation, tried: Sequence[tuple[Candidate, Outcome]], judged: Judged) -> Found | None:
    """The best single changes with more added to them, until nothing is left or nothing helps; the best of these, None if nothing could be added.

    Changes that write a file come last, since the file holds for the nodes of the moment.
    """
    firsts = sorted(
        tried, key=lambda one: (one[0].cost >= LAYOUT_COST, one[0].change.filename is not None, badness(one[1]))
    )
    best: Found | None = None
    for first in firsts[:MAX_STARTS]:
        found = _extended(situation, first, judged)
        if len(found.changes) > 1 and (best is None or badness(found.after) < badness(best.after)):
            best = found
        if best is not None and not best.after.problems:
            break
    return best


def _extended(situation: Situation, first: tuple[Candidate, Outcome], judged: Judged) -> Found:
    """A first change, with the change added that helps most, and again."""
    candidate, here = first
    changes: tuple[Change, ...] = (candidate.change,)
    while here.problems and len(changes) < MAX_STEPS:
        situation = moved(situation, candidate, here)
        used = {change.kind for change in changes}
        options = [one for one in _try_all(situation, here, judged) if one[0].change.kind not in used]
        if not options:
            break
        candidate, here = min(options, key=lambda one: badness(one[1]))
        changes = (*changes, candidate.change)
    return Found(changes, here)


def _undominated(advices: Sequence[Advice]) -> Iterator[Advice]:
    """What is worth reading, of advices that come smallest change first: of complete repairs the best of each kind, then each partial one that reaches more
    than all before it.
    """
    best: dict[tuple[str, ...], Advice] = {}
    for advice in advices:
        known = best.get(advice.kinds)
        if advice.complete and (known is None or _reach(advice) < _reach(known)):
            best[advice.kinds] = advice
    said: set[tuple[str, str]] = set()
    for advice in best.values():
        words = (advice.paste, str(advice.files))  # two ways may come to the same file
        if words not in said:
            said.add(words)
            yield advice
    reached = [_reach(advice) for advice in best.values()]
    for advice in advices:
        if not advice.complete and all(_reach(advice) < known for known in reached):
            reached.append(_reach(advice))
            yield advice


def _reach(advice: Advice) -> tuple[float, ...]:
    """Smaller is better, as badness."""
    after = advice.after
    return (after.fail, after.split_groups, after.unknown, after.warn, advice.step_after_s or 0.0)


def _advice(before: Outcome, found: Found, wanted: frozenset[str]) -> Advice:
    return Advice(
        changes=_last_files(found.changes),
        before=before.tally,
        after=found.after.tally,
        complete=is_complete(found.after, wanted | helped_checks(before, found.after)),
        left=left_over(found.after),
        step_before_s=before.step_s,
        step_after_s=found.after.step_s,
    )


def _last_files(changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """Of several changes that write the same file, only the last one writes it and is pasted."""
    last = {change.filename: index for index, change in enumerate(changes)}
    return tuple(
        change
        if last[change.filename] == index or change.filename is None
        else msgspec.structs.replace(change, filename=None, content=None, paste="")
        for index, change in enumerate(changes)
    )
