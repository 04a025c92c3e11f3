"""The figures of two runs by place: what got slower or faster beyond the noise of both (pure).

The smallest change that is called: SIGMAS x the noise of the difference of two figures, sqrt(noise of the one squared + noise of the other squared), or LEAST, whichever is more. A part is called by
the partner with which it changed least, so that one slow partner accuses nobody; a single place only if each of its repeats says so. What was measured once and looks changed is counted, and is evidence
of nothing, since a message may be held up by chance.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt

from preflight.model import Plan, Report
from preflight.model.bandwidth import ALONE
from preflight.model.base import Record
from preflight.model.baseline import Place, places_of
from preflight.model.hostlist import fold
from preflight.model.measurement import Measurement, median
from preflight.model.noise import LEAST_TRANSIENTS, SIGMAS, relative_noise
from preflight.model.units import show_bytes
from preflight.report.difference import LEVELS, Compared, Level, RateChange, Unit
from preflight.report.difference_pairs import Common, pair_changes, rule_of

LEAST = 0.05  # ours: repeats within a run don't show how far two runs of a healthy machine lie apart
TOO_NOISY = 0.5  # ours: where only less than half would be called slower, saying "no worse" would mean little
CHANCE = 3  # so many times the transients that are expected may look changed before that is an open question

Key = tuple[
    str, str, int, tuple[Place, ...]
]  # what is measured, collective, message size, places in the order of their names


class Series(Record, frozen=True):
    """The figures of one place in one run, in bytes or flops per second; `failed`: it was tried and every try failed."""

    kind: str
    values: tuple[float, ...]
    failed: bool
    name: str  # of a group: what the run calls it


class Figures(Record, frozen=True):
    """What came of it; `open`: why it can't be said that nothing got worse."""

    slower: tuple[RateChange, ...] = ()
    faster: tuple[RateChange, ...] = ()
    failing: tuple[str, ...] = ()
    compared: tuple[Compared, ...] = ()
    incomparable: tuple[str, ...] = ()
    open: tuple[str, ...] = ()


def compare_figures(before: Report, after: Report) -> Figures:
    """All that both runs measured at the same places, with the same message."""
    ours = [bool(report.evidence.measurements) for report in (before, after)]
    if not all(ours):
        return (
            Figures(incomparable=(f"only the {'first' if ours[0] else 'second'} run measured anything",))
            if any(ours)
            else Figures()
        )
    backends = [report.evidence.settings.backend for report in (before, after)]
    if backends[0] != backends[1]:
        text = f"no figure: {backends[0] or 'nothing known'} moved the data of the first run, {backends[1] or 'nothing known'} that of the second"
        return Figures(incomparable=(text,), open=(text,))
    old, new = series_of_run(before), series_of_run(after)
    common = [key for key in new if key in old]
    if not common:
        text = "no figure: the runs measured nothing at the same places with the same message"
        return Figures(incomparable=(text, *_other_sizes(old, new)), open=(text,))
    slower: list[RateChange] = []
    faster: list[RateChange] = []
    compared: list[Compared] = []
    incomparable: list[str] = list(_other_sizes(old, new))
    open_: list[str] = []
    for kind in dict.fromkeys(new[key].kind for key in common):
        keys = [key for key in common if new[key].kind == kind and old[key].values and new[key].values]
        if not keys:
            continue
        least, noises = _least(kind, old, new)
        if least is None:
            why = f"{kind}: {_why_not(noises)}"
            incomparable.append(why)
            open_.append(why)
            compared.append(
                Compared(what=kind, number=len(keys), noise_before=noises[0], noise_after=noises[1], least=None)
            )
            continue
        changes, doubtful = _changes(kind, [_common(key, old[key], new[key]) for key in keys], least, after)
        slower += [change for change in changes if change.ratio < 1]
        faster += [change for change in changes if change.ratio > 1]
        compared.append(
            Compared(
                what=kind,
                number=len(keys),
                noise_before=noises[0],
                noise_after=noises[1],
                least=least,
                doubtful=doubtful,
            )
        )
        if doubtful > max(CHANCE, CHANCE * LEAST_TRANSIENTS * len(keys)):
            open_.append(
                f"{kind}: {doubtful} of {len(keys)} look slower and were measured once: run again, or longer, to tell"
            )
    failing = tuple(_place_text(key[3]) for key in common if new[key].failed and old[key].values)
    open_ += [f"{len(failing)} places gave a figure before and failed now"] if failing else []
    slower.sort(key=lambda change: (LEVELS.index(change.level), change.ratio))
    faster.sort(key=lambda change: (LEVELS.index(change.level), -change.ratio))
    return Figures(tuple(slower), tuple(faster), failing, tuple(compared), tuple(incomparable), tuple(open_))


def series_of_run(report: Report) -> dict[Key, Series]:
    """Every pair, group and GPU of the run, by place. Left out: what was probed one way, again because it was suspected, or while all else was silent; without a plan nobody knows places."""
    plan = report.evidence.plan
    found: dict[Key, tuple[str, list[float], list[bool], str]] = {}
    for measurement in report.evidence.measurements or () if plan else ():
        assert plan is not None
        keyed = _keyed(plan, measurement)
        if keyed is None:
            continue
        key, kind = keyed
        _, values, failures, _ = found.setdefault(key, (kind, [], [], measurement.probe.subject))
        figure = _figure(measurement)
        if figure is not None:
            values.append(figure)
        failures.append(figure is None)
    return {
        key: Series(kind, tuple(values), all(failures), name) for key, (kind, values, failures, name) in found.items()
    }


def _keyed(plan: Plan, measurement: Measurement) -> tuple[Key, str] | None:
    probe = measurement.probe
    left_out = measurement.failure is not None and measurement.failure.kind == "not_run"
    places = None if left_out or probe.attempt or probe.size_name == "lone" else places_of(plan, probe.ranks)
    if places is None:
        return None
    ordered = tuple(sorted(places))
    if probe.collective in ALONE:
        return (
            probe.collective,
            probe.collective,
            probe.flops or probe.size_bytes,
            ordered,
        ), f"{probe.collective} of GPUs"
    if probe.axis is None:
        if probe.collective != "send_recv" or len(ordered) != 2:
            return None
        where = "inside nodes" if ordered[0][0] == ordered[1][0] else "between nodes"
        return ("pair", probe.collective, probe.size_bytes, ordered), f"pairs {where}"
    mode = "skewed" if probe.split else probe.mode
    size = f" {show_bytes(probe.size_bytes)}"
    return (
        f"{probe.axis} {mode}",
        probe.collective,
        probe.size_bytes,
        ordered,
    ), f"{probe.axis} groups {mode}, {probe.collective}{size}"


def _figure(measurement: Measurement) -> float | None:
    probe = measurement.probe
    if measurement.failure is not None or not measurement.duration_s:
        return None
    if probe.collective in ALONE:
        work = probe.flops if probe.collective == "matmul" else probe.size_bytes
        return work / measurement.duration_s if work else None
    return measurement.busbw_bytes_per_s


def _least(
    kind: str, old: Mapping[Key, Series], new: Mapping[Key, Series]
) -> tuple[float | None, tuple[float | None, float | None]]:
    """The smallest relative change that can be called, None: none; and the noise of both runs."""
    one, other = (_noise(kind, runs) for runs in (old, new))
    if one is None or other is None:
        return None, (one, other)
    least = max(LEAST, SIGMAS * sqrt(one**2 + other**2))
    return (least if least <= TOO_NOISY else None), (one, other)


def _noise(kind: str, series: Mapping[Key, Series]) -> float | None:
    """Of this kind of figure; where none of it was repeated, of its family (all pairs, all groups, all that GPUs do alone)."""
    own = relative_noise(each.values for each in series.values() if each.kind == kind)
    if own is not None:
        return own
    family = _family(kind)
    return relative_noise(each.values for each in series.values() if _family(each.kind) == family)


def _family(kind: str) -> str:
    return "pairs" if kind.startswith("pairs ") else "GPUs" if kind.endswith(" of GPUs") else "groups"


def _why_not(noises: tuple[float | None, float | None]) -> str:
    for name, noise in zip(("first", "second"), noises, strict=True):
        if noise is None:
            return f"nothing was repeated in the {name} run, so that its noise is not known and no change is called"
    least = SIGMAS * sqrt(sum(noise**2 for noise in noises if noise is not None))
    return f"too noisy: repeats differ by {noises[0]:.0%} and {noises[1]:.0%}; only a change of more than {min(least, 9.99):.0%} could be called"


def _common(key: Key, old: Series, new: Series) -> Common:
    return Common(key[3], new.name, old.values, new.values)


def _changes(kind: str, common: Sequence[Common], least: float, after: Report) -> tuple[list[RateChange], int]:
    """The changes of one kind, and how many places look slower but were measured once."""
    if kind.startswith("pairs "):
        return pair_changes(kind, common, rule_of(common, least), after)
    level: Level = "GPU alone" if kind.endswith(" of GPUs") else "group"
    unit: Unit = "flops" if kind == "matmul of GPUs" else "bytes"
    found: list[RateChange] = []
    ratios = [each.ratio for each in common]
    if len(common) > 2 and (max(ratios) < 1 - least or min(ratios) > 1 / (1 - least)):
        return [_change("everything", f"all {len(common)}", kind, common, unit)], 0
    rule = rule_of(common, least)
    called = [each for each in common if each.is_slower(rule) or each.is_faster(rule)]
    for each in called:
        subject = _place_text(each.places) if level == "GPU alone" else f"{each.name} ({_place_text(each.places)})"
        found.append(_change(level, subject, kind, [each], unit))
    return found, sum(each.looks_slower(least) for each in common if each not in called)


def _change(level: Level, subject: str, kind: str, common: Sequence[Common], unit: Unit) -> RateChange:
    before, after = median([each.before for each in common]), median([each.after for each in common])
    return RateChange(
        level=level,
        subject=subject,
        what=kind,
        before=before,
        after=after,
        ratio=median([each.ratio for each in common]),
        number=len(common),
        unit=unit,
    )


def _place_text(places: Iterable[Place]) -> str:
    """As in "n1 GPU 2", "n1 GPU 2 - n2 GPU 2"; of more than two the nodes."""
    listed = list(places)
    return (
        " - ".join(f"{node} GPU {slot}" for node, slot in listed)
        if len(listed) < 3
        else fold(node for node, _ in listed)
    )


def _other_sizes(old: Mapping[Key, Series], new: Mapping[Key, Series]) -> list[str]:
    """What both runs measured at the same places with other messages, by kind."""
    sizes: dict[str, set[int]] = {}
    for what, collective, size, _ in old:
        sizes.setdefault(f"{what} {collective}", set()).add(size)
    lost: dict[str, set[int]] = {}
    for what, collective, size, _ in new:
        known = sizes.get(f"{what} {collective}")
        if known and size not in known:
            lost.setdefault(f"{what} {collective}", set()).add(size)
    return [
        f"{name}: messages of {', '.join(map(show_bytes, sorted(found)))} now, of {', '.join(map(show_bytes, sorted(sizes[name])))} before"
        for name, found in lost.items()
    ]
