"""How much may be drained for the same reason, counted over all nodes, also when prologs on many nodes fail at the same moment and know nothing of one another.

Who wants to drain a node announces it on the node itself, in its Extra field or else its Comment (Slurm forgets a Reason that comes without a drain: tried with 22.05), and only then looks at all nodes. It goes on
only if there is room even for all others who announced; those who find enough before them take theirs back, the rest wait for that. Draining and taking back the announcement are one call. So of all that drain,
the last to look has seen every other, whatever the delays: never more than the limit. Too little time, a silent controller, a field that is used by others: nothing is drained, and it is said.

An announcement of a process that was killed counts for STALE_S by the controller's clock, then no more.
"""

import contextlib
import math
import os
import random
import re
import time
from collections.abc import Iterable, Mapping, Sequence

from preflight.config import Brake
from preflight.errors import SlurmError
from preflight.model.base import Record
from preflight.model.hostlist import fold, natural_key
from preflight.slurm.commands import Slurm
from preflight.slurm.nodes import SlurmNode
from preflight.slurm.reason import check_of

STALE_S = 120.0  # far more than the slowest drain takes: 10 s each for look and drain
POLL_S = (0.1, 0.5)  # first and longest wait between two looks
CLUSTER = "the cluster"
_CLAIM = re.compile(r"preflight-wants-drain:(?P<check>[a-z][a-z0-9_]*)@(?P<at>[0-9]{1,12})#(?P<by>[0-9a-f]{8})")


class Decision(Record, frozen=True):
    """`allowed`: may be drained now, each with its announcement, that `release` takes back and a drain replaces. `why`: in words, empty if all are allowed.

    `ends_at`: by time.monotonic(), after which it holds no more: others may not count us then.
    """

    allowed: tuple[str, ...]
    refused: tuple[str, ...]
    why: str
    claims: dict[str, "Claim"] = {}
    ends_at: float = math.inf


class Claim(Record, frozen=True):
    """One announcement: for which check, when by the controller's clock, by whom (a random word), and in which field of the node."""

    check: str
    at_s: int
    by: str
    field: str

    @property
    def text(self) -> str:
        """As it stands in the field."""
        return f"preflight-wants-drain:{self.check}@{self.at_s}#{self.by}"


class View(Record, frozen=True):
    """What counts, at one look: nodes drained for this check within the period, and the live announcements of others, by node."""

    drained: frozenset[str]
    claims: Mapping[str, Claim]
    groups: Mapping[str, tuple[str, ...]]  # of each node
    limits: Mapping[str, int]  # of each group


def allowed(
    slurm: Slurm, names: Sequence[str], reason: str, brake: Brake, *, partition: str | None = None, dry: bool = False
) -> Decision:
    """Which of these nodes may be drained for this reason of ours now. Never raises SlurmError: where Slurm doesn't answer, or refuses, nothing is allowed, and `why` says so.

    At most `brake.nodes` nodes, and `brake.percent` of each partition of the node (of `partition` alone, if given), are drained for the check that the reason names within `brake.period_s`. Waits up to
    `brake.jitter_s` before it announces, and up to `brake.settle_s` for others to make up their minds. `dry`: announces nothing, and says what would be.
    """
    check = check_of(reason)
    assert check is not None
    mine: dict[str, Claim] = {}
    kept = Decision((), tuple(names), "")
    try:
        if not dry and brake.jitter_s:
            time.sleep(random.uniform(0, brake.jitter_s))
        nodes = slurm.nodes()
        now_s = slurm.now_s()
        view = look(nodes, check, now_s, brake, partition)
        busy = [name for name in names if name in nodes and _is_live(claim_on(nodes[name]), now_s)]
        if busy:
            why = f"another preflight process is about to drain {fold(busy)}"
            return Decision((), tuple(names), why)
        wanted = [name for name in names if name in nodes]
        plan = judge(view, {name: Claim(check, int(now_s), "", "") for name in wanted})
        if dry or not (plan.sure or plan.waiting):
            kept = _decided(plan.sure + plan.waiting, names, view, check, brake)
            return kept
        mine = _announce(slurm, nodes, plan.sure + plan.waiting, check, int(now_s))
        kept = _settle(slurm, names, mine, brake, partition)
    except SlurmError as error:
        return Decision((), tuple(names), f"nothing is drained: {error}")
    finally:
        _take_back(slurm, {name: claim for name, claim in mine.items() if name not in kept.allowed})
    return kept


def release(slurm: Slurm, decision: Decision) -> None:
    """Take back what was announced and not drained. Best effort: what stays goes stale."""
    _take_back(slurm, decision.claims)


class _Plan(Record, frozen=True):
    sure: list[str]
    waiting: list[str]
    hopeless: list[str]


def judge(view: View, mine: Mapping[str, Claim]) -> _Plan:
    """Of my nodes in the order of the announcements (all processes have the same): surely room, whatever the others do; none, since enough come before; or to wait for (pure)."""
    plan = _Plan([], [], [])
    others = {name: claim for name, claim in view.claims.items() if name not in mine and name not in view.drained}
    for name in sorted(mine, key=lambda name: _turn(name, mine[name])):
        spare = waits = True
        for group in view.groups.get(name, (CLUSTER,)):
            taken = _count({*view.drained, *plan.sure} - {name}, group, view)
            before = [each for each, claim in others.items() if _turn(each, claim) < _turn(name, mine[name])]
            limit = view.limits.get(group, 1)
            spare &= taken + _count(others, group, view) < limit
            waits &= taken + _count(before, group, view) < limit
        (plan.sure if spare else plan.waiting if waits else plan.hopeless).append(name)
    return plan


def look(nodes: Mapping[str, SlurmNode], check: str, now_s: float, brake: Brake, partition: str | None = None) -> View:
    """What counts, at this state of all nodes (pure)."""
    drained, claims, groups, sizes = set(), {}, {}, {CLUSTER: 0}
    for name, node in nodes.items():
        own = node.partitions if partition is None else [each for each in node.partitions if each == partition]
        groups[name] = (CLUSTER, *own)
        for group in own:
            sizes[group] = sizes.get(group, 0) + 1
        recent = node.reason_at_s is None or now_s - node.reason_at_s < brake.period_s
        if check_of(node.reason) == check and recent and (node.drained or node.absent):
            drained.add(name)
        claim = claim_on(node)
        if claim is not None and claim.check == check and _is_live(claim, now_s):
            claims[name] = claim
    shares = {group: max(1, int(size * brake.percent / 100)) for group, size in sizes.items() if group != CLUSTER}
    return View(frozenset(drained), claims, groups, {CLUSTER: brake.nodes, **shares})


def claim_on(node: SlurmNode) -> Claim | None:
    """The announcement on a node, stale ones too; None: there is none."""
    for field, text in (("extra", node.extra), ("comment", node.comment)):
        match = _CLAIM.fullmatch(text or "")
        if match:
            return Claim(match["check"], int(match["at"]), match["by"], field)
    return None


def _is_live(claim: Claim | None, now_s: float) -> bool:
    return claim is not None and abs(now_s - claim.at_s) < STALE_S


def _turn(name: str, claim: Claim) -> tuple[int, tuple[tuple[str | int, ...], str]]:
    return claim.at_s, natural_key(name)


def _count(names: Iterable[str], group: str, view: View) -> int:
    return sum(group in view.groups.get(name, ()) for name in names)


def _announce(
    slurm: Slurm, nodes: Mapping[str, SlurmNode], names: Sequence[str], check: str, at_s: int
) -> dict[str, Claim]:
    """Write the announcements, in one call for nodes with the same free field. Raises SlurmError if a node has none."""
    by = os.urandom(4).hex()
    made: dict[str, Claim] = {}
    for name in names:
        stale = claim_on(nodes[name])
        used = {"extra": nodes[name].extra, "comment": nodes[name].comment}
        free = [field for field, text in used.items() if text is None or (stale and stale.field == field)]
        if not free:
            raise SlurmError(f"Extra and Comment of {name} are both in use: there is nowhere to announce a drain")
        made[name] = Claim(check, at_s, by, stale.field if stale else free[0])
    for field in ("extra", "comment"):
        if chosen := [name for name, claim in made.items() if claim.field == field]:
            slurm.update_node(chosen, **{field: made[chosen[0]].text})
    return made


def _settle(
    slurm: Slurm, names: Sequence[str], mine: Mapping[str, Claim], brake: Brake, partition: str | None
) -> Decision:
    """Look until each of my nodes is decided, or the time is up."""
    announced_at = time.monotonic()
    check = next(iter(mine.values())).check
    left, pause_s = dict(mine), POLL_S[0]
    while True:
        nodes = slurm.nodes()
        view = look(nodes, check, slurm.now_s(), brake, partition)
        left = {name: claim for name, claim in left.items() if name in nodes and claim_on(nodes[name]) == claim}
        plan = judge(view, left)
        _take_back(slurm, {name: left.pop(name) for name in plan.hopeless})
        waited_s = time.monotonic() - announced_at
        if waited_s > STALE_S / 2:  # we were stopped: others may not count us any more
            return Decision(
                (), tuple(names), "nothing is drained: it took too long to find out what is drained already"
            )
        if not plan.waiting or waited_s > brake.settle_s:
            decided = _decided(plan.sure, names, view, check, brake)
            claims = {name: left[name] for name in plan.sure}
            return decided.replace(claims=claims, ends_at=announced_at + STALE_S / 2)
        time.sleep(random.uniform(pause_s / 2, pause_s))
        pause_s = min(1.5 * pause_s, POLL_S[1])


def _decided(sure: Sequence[str], names: Sequence[str], view: View, check: str, brake: Brake) -> Decision:
    refused = tuple(name for name in names if name not in sure)
    return Decision(
        tuple(name for name in names if name in sure), refused, _why(refused, view, check, brake) if refused else ""
    )


def _why(refused: Sequence[str], view: View, check: str, brake: Brake) -> str:
    full = [
        f"{group}: {_count(view.drained, group, view)} of at most {limit}"
        for group, limit in view.limits.items()
        if any(group in view.groups.get(name, ()) for name in refused) and _count(view.drained, group, view) >= limit
    ]
    hours = f"{brake.period_s / 3600:g} h"
    if full:
        return f"brake: {fold(refused)} not drained for {check}; drained for it within {hours}: {', '.join(full)}"
    others = fold([name for name in view.claims if name not in refused])
    return f"brake: {fold(refused)} not drained for {check}; {others or 'others'} want it at the same time, and that is as many as may be within {hours}"


def _take_back(slurm: Slurm, claims: Mapping[str, Claim]) -> None:
    """Only what still stands as we wrote it."""
    if not claims:
        return
    with contextlib.suppress(SlurmError):
        nodes = slurm.nodes(claims)
        for field in ("extra", "comment"):
            own = [name for name, claim in claims.items() if claim.field == field and _stands(nodes, name, claim)]
            if own:
                slurm.update_node(own, **{field: ""})


def _stands(nodes: Mapping[str, SlurmNode], name: str, claim: Claim) -> bool:
    return name in nodes and claim_on(nodes[name]) == claim
