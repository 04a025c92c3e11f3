"""The rows of a page's tables: worst pairs of GPUs and of nodes, groups alone and together, nodes. Texts are ready to print; None: not measured."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from preflight.model import Evidence, Report
from preflight.model.units import show_bytes, show_rate
from preflight.report.page.pairs import Pair, Pairs
from preflight.report.page.verdicts import LOUD, safe
from preflight.report.rates import GroupRate, by_axis, group_rates
from preflight.report.text import in_reading_order
from preflight.statistics import spread_of

MAX_PAIRS = 15
MAX_GROUPS = 12  # of one axis and message that stand open; the rest is folded
MAX_NODES = 16
MAX_NAME = 200  # letters


class PairRow(NamedTuple):
    """A pair of ranks, or the worst one between two nodes (or inside one)."""

    a: int
    b: int
    first: str
    second: str
    route: str
    rate: str
    reference: str
    ratio: str
    one_way: tuple[str, ...]


class GroupRow(NamedTuple):
    """`share`: together / alone in percent, at most 100, for the bar; None: not known."""

    group: str
    ranks: str
    alone: str
    together: str
    ratio: str
    share: int | None
    mixed: str
    skewed: str


class GroupTable(NamedTuple):
    """The groups of an axis at one message size, those that lose most first."""

    axis: str
    collective: str
    size: str
    rows: list[GroupRow]
    mixed: bool
    skewed: bool


class NodeRow(NamedTuple):
    """One node: the middle pair inside it and to others, which tells of the node; the slowest one with its other end, which may tell of that; how many findings are about it, by verdict."""

    number: int
    name: str
    leaf: str
    gpus: str
    inside: str
    between: str
    slowest: str
    findings: str


def percent(ratio: float | None) -> str:
    """0.873 -> "87 %"; "unknown" of None. What is less than all is never rounded up to it."""
    if ratio is None:
        return "unknown"
    return "99.9 %" if 0.995 <= ratio < 0.9995 else f"{ratio * 100:.0f} %"


def rate_text(rate: float | None) -> str:
    """Of a pair that was probed; None: it failed."""
    return "failed" if rate is None else show_rate(rate)


def rank_name(pairs: Pairs, rank: int) -> str:
    """As in "rank 12, gpu017 GPU 4"; the bare number where no plan tells more."""
    ends = pairs.ends
    if ends is None or not 0 <= rank < len(ends.node):
        return f"rank {rank}"
    return f"rank {rank}, {safe(ends.nodes[ends.node[rank]], MAX_NAME)} GPU {ends.slot[rank]}"


def pair_rows(pairs: Pairs) -> list[PairRow]:
    """The worst pairs of GPUs."""
    return [_pair_row(pairs, pair) for pair in pairs.worst_first[:MAX_PAIRS]]


def node_pair_rows(pairs: Pairs) -> list[PairRow]:
    """The worst pairs of different nodes, each with its worst pair of GPUs; empty without nodes."""
    ends, seen = pairs.ends, dict[tuple[int, int], Pair]()
    if ends is None:
        return []
    for pair in pairs.worst_first:
        if max(pair.a, pair.b) < len(ends.node) and len(seen) < MAX_PAIRS:
            nodes = sorted((ends.node[pair.a], ends.node[pair.b]))
            if nodes[0] != nodes[1]:
                seen.setdefault((nodes[0], nodes[1]), pair)
    return [_pair_row(pairs, pair) for pair in seen.values()]


def _pair_row(pairs: Pairs, pair: Pair) -> PairRow:
    route = pairs.routes[pair.route]
    ways = [(a, b, rate) for a, b, rate in pairs.sends if {a, b} == {pair.a, pair.b}]
    return PairRow(
        a=pair.a,
        b=pair.b,
        first=rank_name(pairs, pair.a),
        second=rank_name(pairs, pair.b),
        route=route.name,
        rate=rate_text(pair.rate),
        reference=show_rate(route.reference) if route.reference else "unknown",
        ratio="failed" if pair.rate is None else percent(pairs.ratio(pair)),
        one_way=tuple(f"{a} \N{RIGHTWARDS ARROW} {b} {rate_text(rate)}" for a, b, rate in ways),
    )


def group_tables(evidence: Evidence) -> list[GroupTable]:
    """Axis by axis, message by message."""
    found = by_axis(group_rates(evidence.measurements or ()))
    order = in_reading_order({axis for axis, _, _ in found})
    tables = []
    for (axis, collective, size_bytes), rates in sorted(found.items(), key=lambda item: order.index(item[0][0])):
        usual = spread_of(rate.alone for rate in rates if rate.alone is not None)
        ordered = sorted(rates, key=lambda rate: _loss(rate, usual.median if usual else None))
        rows = [_group_row(evidence, axis, rate) for rate in ordered]
        tables.append(
            GroupTable(
                axis=safe(axis, MAX_NAME),
                collective=collective,
                size=show_bytes(size_bytes),
                rows=rows,
                mixed=any(rate.mixed is not None for rate in rates),
                skewed=any(rate.skewed is not None for rate in rates),
            )
        )
    return tables


def _loss(rate: GroupRate, usual: float | None) -> tuple[bool, float]:
    """Failed ones first, then those that lose most, to contention or against the middle group of the table, `usual`."""
    nothing = rate.alone is None and rate.together is None
    figure = rate.together if rate.alone is None else rate.alone
    against = figure / usual if figure is not None and usual else 2.0
    return not nothing, min(2.0 if rate.contention is None else rate.contention, against)


def _group_row(evidence: Evidence, axis: str, rate: GroupRate) -> GroupRow:
    def told(figure: float | None) -> str:
        return "unknown" if figure is None else show_rate(figure)

    number = rate.group.removeprefix(axis)
    groups = evidence.plan.groups.get(axis, ()) if evidence.plan else ()
    ranks = groups[int(number)] if number.isascii() and number.isdigit() and int(number) < len(groups) else ()
    return GroupRow(
        group=safe(rate.group, MAX_NAME),
        ranks=_some_ranks(ranks),
        alone=told(rate.alone),
        together=told(rate.together),
        ratio="unknown" if rate.contention is None else f"{rate.contention:.2f}",
        share=None if rate.contention is None else min(100, int(rate.contention * 100)),
        mixed=told(rate.mixed),
        skewed=told(rate.skewed),
    )


def _some_ranks(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown}, ... ({len(ranks)})" if len(ranks) > 8 else shown or "unknown"


def node_rows(report: Report, pairs: Pairs, of_nodes: Mapping[int, Iterable[tuple[str, ...]]]) -> list[NodeRow]:
    """Every node, those with the worst findings first, then those whose middle pair is slowest: a single slow pair may be its partner's fault. `of_nodes`: node number -> its findings (verdict first)."""
    ends = pairs.ends
    if ends is None:
        return []
    found: dict[tuple[int, bool], list[Pair]] = {}
    for pair in pairs.worst_first:
        if max(pair.a, pair.b) < len(ends.node):
            a, b = ends.node[pair.a], ends.node[pair.b]
            for node in {a, b}:
                found.setdefault((node, a == b), []).append(pair)
    gpus = {node.name: node.gpus for node in report.evidence.inventory.nodes} if report.evidence.inventory else {}
    rows = []
    for index, name in enumerate(ends.nodes):
        verdicts = [verdict for verdict, *_ in of_nodes.get(index, ())]
        told = [f"{verdicts.count(verdict.value)} {verdict.value}" for verdict in LOUD if verdict.value in verdicts]
        known, inside, between = gpus.get(name), found.get((index, True), []), found.get((index, False), [])
        row = NodeRow(
            number=index,
            name=safe(name, MAX_NAME),
            leaf=safe((ends.leaves[index] if ends.leaves else None) or "unknown", MAX_NAME),
            gpus="unknown" if known is None else str(len(known)),
            inside=_middle_text(pairs, inside),
            between=_middle_text(pairs, between),
            slowest=_slowest_text(pairs, index, between or inside),
            findings=", ".join(told) or "none",
        )
        rank = next((number for number, verdict in enumerate(LOUD) if verdict.value in verdicts), len(LOUD))
        rows.append((rank, min(_goodness(pairs, inside), _goodness(pairs, between)), row))
    return [row for *_, row in sorted(rows, key=lambda item: (item[0], item[1], item[2].number))]


def _middle(some: Sequence[Pair]) -> Pair | None:
    """Of pairs worst first; failed ones count as the worst. None: none was measured."""
    return some[len(some) // 2] if some else None


def _goodness(pairs: Pairs, some: Sequence[Pair]) -> float:
    pair = _middle(some)
    ratio = None if pair is None else 0.0 if pair.rate is None else pairs.ratio(pair)
    return 9.0 if ratio is None else round(ratio, 2)


def _middle_text(pairs: Pairs, some: Sequence[Pair]) -> str:
    pair = _middle(some)
    return "not measured" if pair is None else _figure(pairs, pair)


def _figure(pairs: Pairs, pair: Pair) -> str:
    ratio = pairs.ratio(pair)
    return rate_text(pair.rate) + ("" if ratio is None else f" ({percent(ratio)})")


def _slowest_text(pairs: Pairs, node: int, some: Sequence[Pair]) -> str:
    if not some or pairs.ends is None:
        return "not measured"
    ends, pair = pairs.ends, some[0]
    here, there = (pair.a, pair.b) if ends.node[pair.a] == node else (pair.b, pair.a)
    return f"{_figure(pairs, pair)}, GPU {ends.slot[here]} with {safe(ends.name(there), MAX_NAME)}"
