"""The localisation as a whole: references and noise, explanations of each operation, and what they come to together."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from preflight.judge.localise.asks import asks_of
from preflight.judge.localise.blocks import failed_classes
from preflight.judge.localise.culprits import Words, culprits_of
from preflight.judge.localise.directions import OneWay, direction_of, one_way_of
from preflight.judge.localise.engine import Outcome, explain
from preflight.judge.localise.members import members
from preflight.judge.localise.merge import merged
from preflight.judge.localise.notes import environment, notes_of
from preflight.judge.localise.open_questions import fewer, open_questions
from preflight.judge.localise.reference import (
    LEAST_DEPTH,
    LEAST_DEPTH_UNKNOWN,
    MODE_WIDTH,
    SIGMAS,
    ClassReference,
    Noise,
    class_references,
    noise_of,
    ratios,
)
from preflight.judge.localise.resolve import behind_others, contradictions, resolved
from preflight.judge.localise.rest import Rest, rest_of
from preflight.judge.localise.table import Table, table_of
from preflight.judge.localise.two_leaves import between_two_leaves, class_apart, lone_asks
from preflight.judge.localise.view import Scale, view_of
from preflight.judge.localise.words import reasoned
from preflight.model.localisation import Culprit, Ends, Localisation, RouteReference, Shots

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Floats = NDArray[Any]

FEWEST_PAIRS = 3
HANDFUL, LEAST_DEPTH_HANDFUL = (
    12,
    0.25,
)  # of so few pairs some lie close together by chance, whatever the noise (5 % noise, 3,000 made-up healthy runs)
NOISIEST = 0.6  # a floor above it: only halves and worse could be called, and a busy machine gives such
SEVERITY = {"environment": 0, "path": 1, "class": 2, "slot": 3, "leaf": 4, "uplink": 5, "node": 6, "gpu": 7, "nic": 8}


class Judged(NamedTuple):
    """One group of shots that are compared among themselves, and what they say."""

    op: str
    outcome: Outcome
    rest: Rest
    words: Words


class Grounds(NamedTuple):
    """What rates are held against. `pairs`: shots both ways, with `ratio`."""

    pairs: Table
    ratio: "Floats"
    references: list[ClassReference]
    noise: Noise | None
    scale: Scale
    keys: tuple[str, ...] = ()


def localise_shots(ends: Ends, shots: Shots, expected: Mapping[tuple[str, str], tuple[float, str]]) -> Localisation:
    """See localise()."""
    table = table_of(ends, shots)
    grounds = _grounds(table)._replace(keys=shots.key)
    references = _noun_references(grounds, expected)
    empty = Localisation(ends=ends, references=references, shots=len(shots.a))
    too_few = _too_few(grounds)
    if too_few:
        return msgspec.structs.replace(empty, unjudged=too_few)
    floor = grounds.scale.floor
    if floor > NOISIEST:
        assert grounds.noise is not None
        least = f" less than {floor:.0%} slow" if floor < 1 else ""
        text = f"too noisy: {grounds.noise.source} differ by {grounds.noise.value:.0%} (standard deviation), so that nothing{least} could be told from it"
        return msgspec.structs.replace(empty, unjudged=text, floor=floor)
    judged = _judge_all(grounds, shots)
    found = merged([culprits_of(each.outcome, each.rest, each.words) for each in judged])
    found += [] if any(c.kind == "class" for c in found) else failed_classes(judged)
    sends = one_way_of(table, {r.route: r.bytes_per_s for r in grounds.references})
    known = resolved(found, judged)
    known, against_map = contradictions(behind_others(known, judged), judged)
    known = [_directed(culprit, table, sends, grounds.scale.edge) for culprit in known]
    questions = open_questions(judged, known)
    asks = (*lone_asks(table, grounds), *asks_of(known + questions, judged, sends, grounds))
    everything = environment(grounds, expected, ends) + between_two_leaves(grounds, table) + known
    questions, more_notes = fewer(questions)
    everything += questions
    cleared: set[int] = set()
    for each in judged:
        cleared |= set(each.outcome.good.end.nonzero()[0].tolist())
    return msgspec.structs.replace(
        empty,
        culprits=tuple(reasoned(culprit, ends) for culprit in sorted(everything, key=_severity)),
        asks=asks,
        notes=(*notes_of(judged, grounds), *more_notes, *against_map),
        floor=floor,
        cleared_ends=len(cleared),
    )


def _grounds(table: Table) -> Grounds:
    """References, noise and floor. The noise widens the mode, which moves the reference a little."""
    import numpy as np

    pairs = table.part(~table.one_way & ~table.alone & ~table.lone)
    width, noise = MODE_WIDTH, None
    references: list[ClassReference] = []
    ratio = np.zeros(0)
    for _ in range(3):
        references = class_references(pairs, width)
        ratio = ratios(pairs, references)
        apart = class_apart(pairs, references)
        noise = noise_of(pairs.part(~apart), ratio[~apart], references)
        width = max(MODE_WIDTH, noise.value if noise else 0.0)
    unknown = bool(np.isin(pairs.route, [3, 4, 7]).any())
    value = noise.value if noise else 0.0
    floor = max(SIGMAS * value, LEAST_DEPTH_UNKNOWN if unknown else LEAST_DEPTH)
    if _num_pairs(pairs) < HANDFUL and (noise is None or noise.repeats < HANDFUL):
        floor = max(floor, LEAST_DEPTH_HANDFUL)
    return Grounds(pairs, ratio, references, noise, Scale(value, floor, 1 - floor / 2))


def _num_pairs(t: Table) -> int:
    import numpy as np

    number = len(t.ends.node)
    return int(np.unique(np.minimum(t.a, t.b) * number + np.maximum(t.a, t.b)).size) if t.a.size else 0


def _too_few(grounds: Grounds) -> str:
    pairs = _num_pairs(grounds.pairs)
    if pairs < FEWEST_PAIRS:
        return f"{pairs} pairs: too few to tell a slow one from a fast one"
    return ""


def _judge_all(grounds: Grounds, shots: Shots) -> list[Judged]:
    """Between nodes each operation by itself; inside nodes all together, each shot beside its own class."""
    import numpy as np

    t, found = grounds.pairs, []
    by_class = {(r.op, r.route): r.bytes_per_s for r in grounds.references}
    apart = class_apart(t, grounds.references)
    for op, name in enumerate(t.ops):
        mask = (t.op == op) & ~t.inside & ~apart
        if mask.any():
            found.append(_judge_one(grounds, mask, name, inside=False, shots=shots, by_class=by_class, beside=()))
    if t.inside.any():
        names = " and ".join(t.ops[i] for i in np.unique(t.op[t.inside]).tolist())
        beside = [each.outcome for each in found]
        found.append(_judge_one(grounds, t.inside, names, inside=True, shots=shots, by_class=by_class, beside=beside))
    return found


def _judge_one(
    grounds: Grounds,
    mask: "Floats",
    op: str,
    *,
    inside: bool,
    shots: Shots,
    by_class: dict[tuple[int, int], float],
    beside: Sequence[Outcome],
) -> Judged:
    view = view_of(grounds.pairs.part(mask), grounds.ratio[mask], grounds.scale, inside=inside)
    outcome = explain(view)
    return Judged(op, outcome, rest_of(outcome, beside), Words(view, shots, by_class, op))


def _noun_references(
    grounds: Grounds, expected: Mapping[tuple[str, str], tuple[float, str]]
) -> tuple[RouteReference, ...]:
    t, found = grounds.pairs, []
    for r in grounds.references:
        op, route = t.ops[r.op], t.routes[r.route]
        formula = expected.get((op, route))
        found.append(
            RouteReference(
                op=op,
                route=route,
                bytes_per_s=r.bytes_per_s,
                shots=r.shots,
                source=f"upper mode of the best shots of {r.ends} {'nodes' if t.ends.whole_nodes else 'GPUs'}"
                + (f" ({t.routes[r.lent_by]}: all that are nearer are slower)" if r.lent_by is not None else ""),
                noise=grounds.noise.value if grounds.noise and grounds.noise.repeats else None,
                expected_bytes_per_s=formula[0] if formula else None,
                expected_source=formula[1] if formula else "",
            )
        )
    return tuple(found)


def _directed(culprit: Culprit, table: Table, sends: OneWay, edge: float) -> Culprit:
    if culprit.kind in {None, "slot", "environment", "leaf", "class"}:
        return culprit
    mine, beyond = members(table, culprit)
    limit = min(edge, (1 - (culprit.depth or 0.0)) / edge)
    direction = direction_of(sends, mine, beyond, limit)
    return culprit if direction is None else msgspec.structs.replace(culprit, direction=direction)


def _severity(culprit: Culprit) -> tuple[bool, int, float]:
    return culprit.kind is None, SEVERITY.get(culprit.kind or "", 9), -(culprit.depth or 0.0)
