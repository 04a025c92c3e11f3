"""What a query of a dashboard asks: its syntax tree with Grafana's variables filled in, the series it selects, and the labels that its answer has."""

from collections.abc import Iterator
from typing import Any

import promql_parser as parser

from deploy.grafana.ask import filled
from deploy.grafana.queries import labels_of, metric_of

# what Grafana fills in itself; the values are those of a dashboard of six hours
BUILT_IN = {"__rate_interval": "5m", "__range": "6h", "__range_s": "21600", "__to": "1796076286000", "__interval": "1m"}
# series of others that our dashboards show, and their labels
FOREIGN = {
    "up": {"instance", "job", "cluster"},
    "ALERTS": {
        *("alertname", "alertstate", "severity", "instance", "job", "cluster"),
        *("node", "check", "other_node", "leaf", "other_leaf", "route", "answer"),
    },
    "node_textfile_mtime_seconds": {"file", "instance", "job", "cluster"},
}


def tree(text: str) -> Any:
    """Raises ValueError: no PromQL."""
    return parser.parse(filled(text, BUILT_IN))


def parts(node: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Each part of the tree with those around it, outermost first."""
    yield from _parts(node, ())


def _parts(node: Any, around: tuple[Any, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    yield node, around
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        child = getattr(node, name, None)
        if child is not None:
            yield from _parts(child, (*around, node))
    for child in getattr(node, "args", None) or ():
        yield from _parts(child, (*around, node))


def selectors(node: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Each selector with what is around it."""
    return ((each, around) for each, around in parts(node) if isinstance(each, parser.VectorSelector))


def matchers(selector: Any) -> list[tuple[str, str]]:
    """Name and value of each matcher of labels."""
    return [(each.name, each.value) for each in selector.matchers.matchers]


def name_of(selector: Any) -> str:
    """The series' name; empty where it is chosen by a pattern."""
    return selector.name or next((value for name, value in matchers(selector) if name == "__name__"), "")


def labels(selector: Any) -> set[str] | None:
    """All labels that the selected series may have; None: it is none of ours nor of those we know."""
    if metric := metric_of(name_of(selector)):
        return set(labels_of(metric))
    return FOREIGN.get(name_of(selector))


def answer_labels(node: Any) -> set[str] | None:  # noqa: PLR0911 - one for each kind of node
    """Labels of the answer. None: a number. Raises ValueError for a name that nobody knows."""
    if isinstance(node, parser.VectorSelector):
        found = labels(node)
        if found is None:
            raise ValueError(f"{node.name}: nobody exports it")
        return found
    if isinstance(node, parser.NumberLiteral | parser.StringLiteral):
        return None
    if isinstance(node, parser.MatrixSelector):
        return answer_labels(node.vector_selector)
    if isinstance(node, parser.AggregateExpr):
        inner = answer_labels(node.expr) or set()
        if node.modifier is None:
            return inner if str(node.op) in ("topk", "bottomk") else set()
        chosen = set(node.modifier.labels)
        return chosen if node.modifier.type == parser.AggModifierType.By else inner - chosen
    if isinstance(node, parser.BinaryExpr):
        left, right = answer_labels(node.lhs), answer_labels(node.rhs)
        if left is None or right is None:
            return left if right is None else right
        return left & right if str(node.op) == "or" else left
    if isinstance(node, parser.Call):
        inner = next((found for each in node.args if (found := answer_labels(each)) is not None), None)
        return inner | {node.args[1].val} if node.func.name == "label_replace" else inner
    return answer_labels(node.expr)


def unknown_labels(node: Any) -> Iterator[str]:
    """Labels that a query names in a matcher, in `by` or in `on`, and that its series don't have."""
    for part, _ in parts(node):
        if isinstance(part, parser.VectorSelector):
            known = labels(part)
            if known is not None:
                yield from (f"{part.name} has no label {name}" for name, _ in matchers(part) if name not in known)
        elif isinstance(part, parser.AggregateExpr) and part.modifier:
            inner = answer_labels(part.expr) or set()
            yield from (f"by {name}, which the series don't have" for name in part.modifier.labels if name not in inner)
        elif isinstance(part, parser.BinaryExpr) and part.modifier and part.modifier.matching:
            for side in (part.lhs, part.rhs):
                inner = answer_labels(side) or set()
                yield from (
                    f"on {name}, which one side lacks" for name in part.modifier.matching.labels if name not in inner
                )
