"""The rows of a page's tables: worst pairs of GPUs and of nodes, groups alone and together, nodes. Texts are ready to print; None: not measured."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from preflight.model import Evidence, Report
from preflight.model.units import show_bytes, show_rate
from preflight.report.page.pairs import Pair, Pairs
from preflight.report.page.verdicts import LOUD, safe
from preflight.report.rates import GroupRate, by_axis, group_rates
from preflight.report.text import in_reading_order

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
    one_way: str


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
    """One node: worst pair inside it and to others, how many findings it has, by verdict."""

    index: int
    name: str
    leaf: str
    gpus: str
    inside: str
    between: str
    findings: str
    bad: bool


def percent(ratio: float | None) -> str:
    """0.873 -> "87 %"; "unknown" of None. What is less than all is never rounded up to it."""
    if ratio is None:
        return "unknown"
    return "99.9 %" if 0.995 <= ratio < 0.9995 else f"{ratio * 100:.0f} %"


def rate_text(rate: float | None) -> str:
    """Of a pair that was probed; None: it failed."""
    return "failed" if rate is None else show_rate(rate)


def rank_name(pairs: Pairs, rank: int) -> str:
    """ "rank 12, gpu017 GPU 4"; the bare number where no plan tells more."""
    ends = pairs.ends
    if ends is None or not 0 <= rank < len(ends.node):
        return f"rank {rank}"
    return f"rank {rank}, {safe(ends.nodes[ends.node[rank]], MAX_NAME)} GPU {ends.slot[rank]}"


def pair_rows(pairs: Pairs) -> list[PairRow]:
    """The worst pairs of GPUs."""
    return [_pair_row(pairs, pair) for pair in pairs.worst_first()[:MAX_PAIRS]]


def node_pair_rows(pairs: Pairs) -> list[PairRow]:
    """The worst pairs of different nodes, each with its worst pair of GPUs; empty without nodes."""
    ends, seen = pairs.ends, dict[tuple[int, int], Pair]()
    if ends is None:
        return []
    for pair in pairs.worst_first():
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
        one_way="; ".join(f"{a} \N{RIGHTWARDS ARROW} {b} {rate_text(rate)}" for a, b, rate in ways),
    )


def group_tables(evidence: Evidence) -> list[GroupTable]:
    """Axis by axis, message by message."""
    found = by_axis(group_rates(evidence.measurements or ()))
    order = in_reading_order({axis for axis, _, _ in found})
    tables = []
    for (axis, collective, size_bytes), rates in sorted(found.items(), key=lambda item: order.index(item[0][0])):
        rows = [_group_row(evidence, axis, rate) for rate in sorted(rates, key=_loss)]
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


def _loss(rate: GroupRate) -> tuple[bool, float, float]:
    """Failed ones first, then those that contention costs most, then the slowest."""
    nothing = rate.alone is None and rate.together is None
    contention = 2.0 if rate.contention is None else rate.contention
    return not nothing, contention, rate.together or rate.alone or 0.0


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
    """Every node, those with the worst findings first, then those with the slowest pairs. `of_nodes`: node number -> its findings (verdict first)."""
    ends = pairs.ends
    if ends is None:
        return []
    worst: dict[tuple[int, bool], Pair] = {}
    for pair in pairs.worst_first():
        if max(pair.a, pair.b) < len(ends.node):
            a, b = ends.node[pair.a], ends.node[pair.b]
            worst.setdefault((a, a == b), pair)
            worst.setdefault((b, a == b), pair)
    gpus = {node.name: node.gpus for node in report.evidence.inventory.nodes} if report.evidence.inventory else {}
    rows = []
    for index, name in enumerate(ends.nodes):
        found = [verdict for verdict, *_ in of_nodes.get(index, ())]
        told = [f"{found.count(verdict.value)} {verdict.value}" for verdict in LOUD if verdict.value in found]
        known = gpus.get(name)
        row = NodeRow(
            index=index,
            name=safe(name, MAX_NAME),
            leaf=safe((ends.leaves[index] if ends.leaves else None) or "unknown", MAX_NAME),
            gpus="unknown" if known is None else str(len(known)),
            inside=_worst_text(pairs, worst.get((index, True))),
            between=_worst_text(pairs, worst.get((index, False))),
            findings=", ".join(told) or "none",
            bad=bool(told),
        )
        rows.append((_rank(found), _badness(pairs, worst.get((index, False)), worst.get((index, True))), row))
    return [row for *_, row in sorted(rows, key=lambda item: (item[0], item[1], item[2].index))]


def _rank(verdicts: list[str]) -> int:
    return next((number for number, verdict in enumerate(LOUD) if verdict.value in verdicts), len(LOUD))


def _badness(pairs: Pairs, *worst: Pair | None) -> float:
    known = [0.0 if pair.rate is None else pairs.ratio(pair) for pair in worst if pair]
    return min((ratio for ratio in known if ratio is not None), default=9.0)


def _worst_text(pairs: Pairs, pair: Pair | None) -> str:
    if pair is None:
        return "not measured"
    ratio = pairs.ratio(pair)
    return rate_text(pair.rate) + (f" ({percent(ratio)})" if ratio is not None else "")
