"""The squares of `matrix_view` as text: with figures, in per cent, or one sign each, whatever fits; else reduced, and what was left out is said.

Nothing is said by colour alone: what is slow has a mark or a digit, what failed an x, what is not known a question mark.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile

from preflight.model import Evidence, Verdict
from preflight.model.base import Record
from preflight.model.units import show_rate
from preflight.report.matrix_view import Kind, Pair, Square, pairs_of, square_of
from preflight.report.tables import UNITS, in_unit, unit_of
from preflight.report.text import cells, clean, hang, pad, paint, shorten, table

MAX_SIDE = {"GPU": 64, "node": 128, "leaf": 128}  # more rows than that nobody reads on a terminal
MAX_SPARSE = 16  # GPUs; of more, a matrix in which less than half is known shows question marks
MAX_WORST = 8  # pairs in the list beside a matrix
MAX_OF_NODE = 3  # pairs with an end on one node
MAX_NAME = 24  # columns of a name before its row
REDUCED: dict[Kind, str] = {
    "GPU": "",
    "node": "each square the worst pair of GPUs between two nodes, on the diagonal inside one",
    "leaf": "each square the worst pair of GPUs between nodes of two leaves, on the diagonal inside one",
}


class Scale(Record, frozen=True):
    """How squares are read. `floor`: below 1 - floor of its level a pair is slow, None: nothing is called slow. `unit`: of figures. `fastest`: bytes per second."""

    floor: float | None
    unit: str
    fastest: float

    def is_slow(self, pair: Pair) -> bool:
        """As the localiser calls it, by figures alone: no blame."""
        return self.floor is not None and pair.ratio is not None and pair.ratio < 1 - self.floor


Show = Callable[[Pair | None, Scale], str]


def matrix_lines(evidence: Evidence, *, width: int, colour: bool) -> list[str]:
    """The finest matrix that fits, its legend, and the worst pairs as a list; empty if no pair was measured."""
    pairs = pairs_of(evidence)
    if not pairs:
        return []
    scale = _scale(evidence, pairs)
    ends = {end.rank for pair in pairs for end in (pair.a, pair.b)}
    kinds: tuple[Kind, ...] = ("GPU", "node", "leaf")
    for kind in kinds[len(ends) > MAX_SIDE["GPU"] :]:
        square = square_of(pairs, kind)
        drawn = _drawn(square, scale, width=width, colour=colour) if square else None
        if square and drawn:
            lines = [*_reduction(square, pairs, width=width), *drawn]
            whole = kind == "GPU" and len(square.names) <= MAX_WORST
            return lines if whole else [*lines, *worst_lines(pairs, scale, width=width, colour=colour)]
    text = f"no matrix: {len(pairs):,} pairs of {len(ends):,} GPUs fit {width} columns in no form; the worst are below, all are on the page (preflight report --html)"
    return [
        *hang("", text, width=width, indent=2),
        *worst_lines(pairs, scale, width=width, colour=colour, most=2 * MAX_WORST),
    ]


def _scale(evidence: Evidence, pairs: Sequence[Pair]) -> Scale:
    found = evidence.localisation
    rates = [pair.rate for pair in pairs if pair.rate is not None]
    floor = found.floor if found is not None and not found.unjudged else None
    return Scale(floor, unit_of(rates), max(rates, default=0.0))


def _reduction(square: Square, pairs: Sequence[Pair], *, width: int) -> list[str]:
    """What the squares stand for, where they are not single pairs."""
    if square.kind == "GPU":
        return []
    number = len({end.rank for pair in pairs for end in (pair.a, pair.b)})
    text = f"{square.kind} x {square.kind}: {REDUCED[square.kind]}; the {len(pairs):,} pairs of {number:,} GPUs do not fit here, the page has them (preflight report --html)"
    return hang("", text, width=width, indent=2)


def _drawn(square: Square, scale: Scale, *, width: int, colour: bool) -> list[str] | None:
    """The matrix in the fullest form that fits; None: none does."""
    number = len(square.names)
    sparse = square.kind == "GPU" and number > MAX_SPARSE and len(square.squares) < number * (number - 1) / 4
    if sparse or number > MAX_SIDE[square.kind]:
        return None
    known = [pair for pair in square.squares.values() if pair.rate is not None]
    compared = scale.floor is not None and any(pair.ratio is not None for pair in known)
    forms: tuple[tuple[Show, bool], ...] = ((_figure, False), (_percent, False), (_sign if compared else _tenth, True))
    for show, tight in forms:
        if show is _percent and not compared:
            continue
        lines = _grid(square, scale, show, tight=tight, colour=colour)
        if max(cells(plain) for plain, _ in lines) <= width:
            return [*(painted for _, painted in lines), *_legend(square, scale, show, width=width)]
    return None


def _grid(square: Square, scale: Scale, show: Show, *, tight: bool, colour: bool) -> list[tuple[str, str]]:
    """(plain line, painted line) of the head and of each row."""
    numbers = [str(number) for number in _numbers(square)]
    names = [shorten(clean(name), MAX_NAME) for name in _row_names(square)]
    room = max(map(cells, names))
    digits = max(map(len, numbers))
    grid = [[_shown(square, row, column, scale, show) for column in range(len(names))] for row in range(len(names))]
    wide = 1 if tight else max(len(text) for row in grid for text, _ in row)
    wide = wide if tight else max(wide, digits + 1)
    gap = "" if tight else " "
    label = f"  {'':{digits}}  {'':{room}}  "
    if tight:  # numbers of columns stand upright
        heads = [label + "".join(number.rjust(digits)[place] for number in numbers) for place in range(digits)]
    else:
        heads = [label + gap.join(number.rjust(wide - 1) + " " for number in numbers)]
    lines = [(head.rstrip(), head.rstrip()) for head in heads]
    for number, name, row in zip(numbers, names, grid, strict=True):
        start = f"  {number.rjust(digits)}  {pad(name, room)}  "
        texts = [(_placed(text, wide, tight=tight), verdict) for text, verdict in row]
        plain = gap.join(text for text, _ in texts)
        painted = gap.join(_painted(text, verdict, colour=colour) for text, verdict in texts)
        lines.append(((start + plain).rstrip(), (start + painted).rstrip()))
    return lines


def _placed(text: str, wide: int, *, tight: bool) -> str:
    """To the right, signs below figures and not below their marks."""
    return text if tight else (text if text[-1] in "* " else f"{text} ").rjust(wide)


def _numbers(square: Square) -> Sequence[int]:
    """Of GPUs the rank, which other tables name too; else the place in the list."""
    if square.kind != "GPU":
        return range(len(square.names))
    ranks = {end.name: end.rank for pair in square.squares.values() for end in (pair.a, pair.b)}
    return [ranks[name] for name in square.names]


def _row_names(square: Square) -> Sequence[str]:
    """Of GPUs the node, since the number before it is the rank."""
    if square.kind != "GPU":
        return square.names
    nodes = {end.name: end.node or "?" for pair in square.squares.values() for end in (pair.a, pair.b)}
    return [nodes[name] for name in square.names]


def _shown(square: Square, row: int, column: int, scale: Scale, show: Show) -> tuple[str, Verdict | None]:
    """The text of a square and how it is coloured; None: not at all."""
    pair = square.at(row, column)
    if pair is None:
        itself = row == column and square.kind == "GPU"
        return (".", None) if itself else ("?", Verdict.UNKNOWN)
    if pair.rate is None:
        return "x", Verdict.FAIL
    if scale.is_slow(pair):
        return show(pair, scale), Verdict.WARN
    return show(pair, scale), Verdict.PASS if pair.ratio is not None and scale.floor is not None else None


def _painted(text: str, verdict: Verdict | None, *, colour: bool) -> str:
    return text if verdict is None else paint(text, verdict, color=colour)


def _figure(pair: Pair | None, scale: Scale) -> str:
    """The rate; a slow link beside fast ones keeps two digits. A blank keeps the figures of unmarked squares below each other."""
    assert pair is not None
    assert pair.rate is not None
    return in_unit(pair.rate, UNITS[scale.unit]) + ("*" if scale.is_slow(pair) else " ")


def _percent(pair: Pair | None, scale: Scale) -> str:
    assert pair is not None
    if pair.ratio is None:
        return "+ "
    return f"{min(int(100 * pair.ratio), 999)}{'*' if scale.is_slow(pair) else ' '}"


def _sign(pair: Pair | None, scale: Scale) -> str:
    assert pair is not None
    if pair.ratio is None:
        return "+"
    return str(min(int(10 * pair.ratio), 9)) if scale.is_slow(pair) else ":"


def _tenth(pair: Pair | None, scale: Scale) -> str:
    assert pair is not None
    assert pair.rate is not None
    return str(min(int(10 * pair.rate / scale.fastest), 9))


def _legend(square: Square, scale: Scale, show: Show, *, width: int) -> list[str]:
    """What the signs that occur mean."""
    drawn = list(square.squares.values())
    slow = any(scale.is_slow(pair) for pair in drawn)
    floor = "" if scale.floor is None else f"{1 - scale.floor:.0%} of what healthy pairs of like routes gave"
    meanings: dict[Show, str] = {
        _figure: f"{scale.unit}; * slow: below {floor}" if slow else scale.unit,
        _percent: f"per cent of what healthy pairs of like routes gave; * slow: below {floor}"
        if slow
        else "per cent of what healthy pairs of like routes gave",
        _sign: f": at {floor}, or above" + ("; a digit, slow: so many tenths of that" if slow else ""),
        _tenth: f"tenths of the fastest, {show_rate(scale.fastest)}; nothing is called slow: there is no reference",
    }
    number = len(square.names)
    expected = number * (number + 1) // 2 - (number if square.kind == "GPU" else 0)
    parts = [
        meanings[show],
        "+ measured, without anything to compare it with"
        if show in {_percent, _sign} and any(pair.rate is not None and pair.ratio is None for pair in drawn)
        else "",
        "x failed" if any(pair.rate is None for pair in drawn) else "",
        "? not measured, so unknown" if len(drawn) < expected else "",
    ]
    text = "; ".join(part for part in parts if part)
    return hang("", text, width=width, indent=2) if text else []


def worst_lines(pairs: Sequence[Pair], scale: Scale, *, width: int, colour: bool, most: int = MAX_WORST) -> list[str]:
    """The worst of the pairs, which come worst first, by name: what failed first, then the smallest share of what it is held against, then the slowest. Of each node a few, so that one doesn't hide the others."""
    bad = list(takewhile(lambda pair: _mark(pair, scale), pairs))
    worst: list[Pair] = []
    shown: Counter[str | None] = Counter()
    for pair in bad or pairs[:MAX_OF_NODE]:
        nodes = {pair.a.node, pair.b.node} - {None}
        if len(worst) < most and (not bad or all(shown[node] < MAX_OF_NODE for node in nodes)):
            shown.update(nodes)
            worst.append(pair)
    rows = [["worst pairs", "rate", "of its route", ""]]
    for pair in worst:
        share = "-" if pair.ratio is None else f"{pair.ratio:.0%}"
        rate = "-" if pair.rate is None else show_rate(pair.rate)
        rows.append([f"{clean(pair.a.name)} - {clean(pair.b.name)}", rate, share, _mark(pair, scale)])
    lines = table(rows, width=width)
    hidden = len(bad) - len(worst)
    rest = hang("", f"... and {hidden:,} more that are slow or failed", width=width, indent=2) if bad and hidden else []
    return [*(_coloured(line, colour=colour) for line in lines), *rest]


def _mark(pair: Pair, scale: Scale) -> str:
    return "failed" if pair.rate is None else "slow" if scale.is_slow(pair) else ""


def _coloured(line: str, *, colour: bool) -> str:
    """A line of the list in the colour of its mark."""
    marks = {" failed": Verdict.FAIL, " slow": Verdict.WARN}
    return next((paint(line, verdict, color=colour) for mark, verdict in marks.items() if line.endswith(mark)), line)
