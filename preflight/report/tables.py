"""The tables of the terminal report: pairs, GPUs alone, groups, first calls. Small enough for a screen, whatever the cluster's size."""

from collections.abc import Iterable, Sequence

from preflight.model import Evidence, Measurement
from preflight.model.units import GIGA, LEAST_OF_UNIT, MEGA, TERA, show_bytes, show_rate, show_seconds, three_digits
from preflight.report.rates import (
    GroupRate,
    alone_rates,
    by_axis,
    first_calls_s,
    group_rates,
    node_of,
    pair_rates,
    rates_by_node,
)
from preflight.report.text import cells, clean, columns, hang, table
from preflight.statistics import Spread, spread_of

MAX_MATRIX = 16  # ranks; 16 columns of 6 characters fit a terminal
MAX_ROWS = 16  # groups of an axis, or nodes: the slowest ones
MAX_WORST = 5  # pairs, or groups of an axis with more than MAX_ROWS
UNITS = {"GB/s": GIGA, "MB/s": MEGA}  # of the matrix of pairs
OPERATIONS = {"matmul": "matrix product", "host_to_device": "host to GPU", "device_to_host": "GPU to host"}


def pair_lines(evidence: Evidence, *, width: int) -> list[str]:
    """A matrix of all pairs for few ranks that fit the width; else the minimum and median of the slowest nodes."""
    pairs = pair_rates(evidence.measurements or ())
    ranks = sorted({rank for pair in pairs for rank in pair})
    if not pairs:
        return []
    if len(ranks) <= MAX_MATRIX:
        matrix = _matrix(evidence, pairs, ranks)
        if max(map(cells, matrix)) <= width:
            return matrix
    return _node_lines(evidence, width=width) or [_line_of(spread_of(v for v in pairs.values() if v is not None))]


def pair_unit(evidence: Evidence) -> str:
    """What the matrix of pairs is in, "GB/s" or "MB/s": one for all cells, so that they can be compared at a glance."""
    return unit_of(rate for rate in pair_rates(evidence.measurements or ()).values() if rate is not None)


def unit_of(rates: Iterable[float]) -> str:
    """The unit in which the fastest of these has at least a tenth."""
    return "GB/s" if max(rates, default=GIGA) >= LEAST_OF_UNIT * GIGA else "MB/s"


def in_unit(bytes_per_s: float, unit: float) -> str:
    """A slow link beside fast ones keeps two digits."""
    value = bytes_per_s / unit
    return three_digits(value) if value >= LEAST_OF_UNIT else f"{value:.2g}"


def _matrix(evidence: Evidence, pairs: dict[tuple[int, int], float | None], ranks: Sequence[int]) -> list[str]:
    unit = UNITS[pair_unit(evidence)]

    def cell(a: int, b: int) -> str:
        pair = (min(a, b), max(a, b))
        if a == b:
            return "."
        if pair not in pairs:
            return "-"
        rate = pairs[pair]
        return "failed" if rate is None else in_unit(rate, unit)

    rows = [["rank", "node", *map(str, ranks)]]
    rows += [[str(a), clean(node_of(evidence.plan, a) or "?"), *(cell(a, b) for b in ranks)] for a in ranks]
    lines = columns(rows, left=2)
    return [*lines, "  - not measured"] if any("-" in row[2:] for row in rows) else lines


def _node_lines(evidence: Evidence, *, width: int) -> list[str]:
    spreads = [(node, route, spread_of(values)) for (node, route), values in rates_by_node(evidence).items()]
    known = [(node, route, spread) for node, route, spread in spreads if spread]
    known.sort(key=lambda item: item[2].minimum)
    rows = [["node", "pairs", "minimum", "median", "number"]]
    rows += [
        [clean(node), f"{route} nodes" if route == "between" else "inside it", *_figures(spread)]
        for node, route, spread in known[:MAX_ROWS]
    ]
    lines = table(rows, left=2, width=width) if known else []
    return [*lines, f"  ... and {len(known) - MAX_ROWS} rows of faster ones"] if len(known) > MAX_ROWS else lines


def _figures(spread: Spread) -> list[str]:
    return [_rate(spread.minimum), _rate(spread.median), str(spread.number)]


def _line_of(spread: Spread | None) -> str:
    if spread is None:
        return "  every pair failed"
    return f"  minimum {_rate(spread.minimum)}, median {_rate(spread.median)}, {spread.number} pairs"


def worst_pair_lines(evidence: Evidence) -> list[str]:
    """Of more pairs than a matrix shows, the slowest and those that failed."""
    pairs = pair_rates(evidence.measurements or ())
    if len({rank for pair in pairs for rank in pair}) <= MAX_MATRIX:
        return []
    slowest = sorted(pairs, key=lambda pair: (pairs[pair] is not None, pairs[pair] or 0.0))[:MAX_WORST]
    rows = [["slowest pairs", "", ""]]
    rows += [
        [
            f"ranks {a} - {b}",
            " - ".join(clean(node_of(evidence.plan, end) or "?") for end in (a, b)),
            _failed(pairs[a, b]),
        ]
        for a, b in slowest
    ]
    return columns(rows, left=2)


def _failed(rate: float | None) -> str:
    return "failed" if rate is None else _rate(rate)


def gpu_lines(evidence: Evidence, *, width: int) -> list[str]:
    """What the GPUs do by themselves: for each operation the spread, and who is slowest."""
    found = alone_rates(evidence.measurements or ())
    rows = [["operation", "slowest", "minimum", "median", "maximum", "number"]]
    for op, by_rank in found.items():
        spread = spread_of(by_rank.values())
        if spread is None:
            continue
        show = _flops if op == "matmul" else _rate
        slowest = min(by_rank, key=lambda rank: by_rank[rank])
        where = f"rank {slowest}, {clean(node_of(evidence.plan, slowest) or '?')}"
        figures = [show(spread.minimum), show(spread.median), show(spread.maximum), str(spread.number)]
        rows.append([OPERATIONS.get(op, op), where, *figures])
    return table(rows, left=2, width=width) if len(rows) > 1 else []


def group_lines(measurements: Sequence[Measurement], *, width: int) -> list[str]:
    """Each group alone, together with the others of its axis, the ratio; in the mixed step and with a skewed split where that was timed. Of many groups, the middle and those that lose most."""
    rates = group_rates(measurements)
    if not rates:
        return []
    extra = [mode for mode in ("mixed", "skewed") if any(getattr(rate, mode) is not None for rate in rates)]
    rows = [["axis", "group", "collective", "message", "alone", "together", "ratio", *extra]]
    messages = by_axis(rates)
    axes = list(dict.fromkeys(axis for axis, _, _ in messages))
    many = False
    for _, groups in sorted(messages.items(), key=lambda message: axes.index(message[0][0])):
        shown = groups
        if len(groups) > MAX_ROWS:
            many = True
            shown = sorted(groups, key=_loss)[:MAX_WORST]
            rows.append(_middle_row(groups, extra))
        rows += [_group_row(rate, extra) for rate in shown]
    lines = table(rows, left=3, width=width)
    notes = [f"of more than {MAX_ROWS} groups: the median, and the {MAX_WORST} that lose most"] if many else []
    if any("-" in row[4:6] for row in rows):
        notes.append("- no figure: it failed, or was not measured")
    return [*lines, *(line for note in notes for line in hang("", note, width=width, indent=2))]


def _loss(rate: GroupRate) -> tuple[float, float]:
    """Sort key: a failed group first, then the one that contention costs most, then the slowest."""
    return (rate.contention or 0.0, rate.together or rate.alone or 0.0)


def _middle_row(groups: Sequence[GroupRate], extra: Sequence[str]) -> list[str]:
    """The medians over many groups of one message."""

    def middle(mode: str) -> str:
        spread = spread_of(value for rate in groups if (value := getattr(rate, mode)) is not None)
        return _rate(spread.median if spread else None)

    ratio = spread_of(rate.contention for rate in groups if rate.contention is not None)
    first = groups[0]
    head = [clean(first.axis), f"median of {len(groups)}", first.collective, show_bytes(first.size_bytes)]
    return [*head, middle("alone"), middle("together"), f"{ratio.median:.2f}" if ratio else "-", *map(middle, extra)]


def _group_row(rate: GroupRate, extra: Sequence[str]) -> list[str]:
    ratio = "-" if rate.contention is None else f"{rate.contention:.2f}"
    message = show_bytes(rate.size_bytes)
    return [
        clean(rate.axis),
        clean(rate.group),
        rate.collective,
        message,
        _rate(rate.alone),
        _rate(rate.together),
        ratio,
        *(_rate(getattr(rate, mode)) for mode in extra),
    ]


def first_call_lines(measurements: Sequence[Measurement], *, width: int) -> list[str]:
    """Median and slowest first call of pairs and of each axis: that is where connections are made."""
    rows = []
    for kind, values_s in first_calls_s(measurements).items():
        spread = spread_of(values_s)
        if spread:
            rows.append(
                [clean(kind), f"median {show_seconds(spread.median)}", f"slowest {show_seconds(spread.maximum)}"]
            )
    lines = columns(rows)
    if lines and max(map(cells, lines)) > width:
        return [line for row in rows for line in hang("", f"{row[0]}: {', '.join(row[1:])}", width=width, indent=2)]
    return lines


def _flops(flops_per_s: float) -> str:
    return f"{flops_per_s / TERA:.3g} TFLOP/s"


def _rate(busbw: float | None) -> str:
    return "-" if busbw is None else show_rate(busbw)
