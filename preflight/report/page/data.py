"""What the page's script draws: nodes, places, pairs, groups, and what is known of each node, as one JSON document that is safe inside a script element."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from preflight.model import Evidence, Finding, Node, Plan, Report
from preflight.model.localisation import Ends
from preflight.model.units import TERA, show_bytes
from preflight.report.page.pairs import Pairs, packed
from preflight.report.page.rows import MAX_NAME
from preflight.report.page.verdicts import LOUD, safe
from preflight.report.rates import alone_rates
from preflight.report.tables import OPERATIONS
from preflight.report.text import in_reading_order

MAX_OF_NODE = 40  # findings shown with one node
MAX_OF_NODE_TEXT = 400  # letters
MAX_FACTS = 24
NOT_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}

Found = Mapping[int, Sequence[tuple[str, ...]]]


def script_json(document: Any) -> str:
    """JSON in which nothing can end the script element, begin a comment in it, or break a line of a script."""
    return (
        msgspec.json.encode(document).decode().translate({ord(letter): text for letter, text in NOT_IN_SCRIPT.items()})
    )


def document_of(report: Report, pairs: Pairs, found: Found) -> dict[str, Any]:
    """The document. Places and pairs are numbers; names stand once."""
    ends, evidence = pairs.ends, report.evidence
    inside = tuple(p for p in pairs.pairs if ends is not None and max(p.a, p.b) < len(ends.node))
    document: dict[str, Any] = {
        "simulated": evidence.settings.simulated,
        "nodes": [],
        "routes": [[r.name, r.reference, r.expected, safe(r.source, MAX_NAME)] for r in pairs.routes],
        "floor": evidence.localisation.floor if evidence.localisation else None,
    }
    if ends is None:
        return document
    leaves = list(dict.fromkeys(leaf for leaf in ends.leaves or () if leaf is not None))
    facts, facts_of = _facts(evidence, ends)
    document |= {
        "nodes": [safe(name, MAX_NAME) for name in ends.nodes],
        "leaves": [safe(leaf, MAX_NAME) for leaf in leaves],
        "leafOf": [leaves.index(leaf) if leaf is not None else -1 for leaf in ends.leaves or (None,) * len(ends.nodes)],
        "nodeOf": ends.node,
        "slotOf": ends.slot,
        "pairs": packed(inside, len(ends.node)),
        "sends": [send for send in pairs.sends if max(send[:2]) < len(ends.node)],
        "axes": [_axis(evidence.plan, axis) for axis in in_reading_order(evidence.plan.groups)]
        if evidence.plan
        else [],
        "alone": _alone(evidence, len(ends.node)),
        "facts": facts,
        "factsOf": facts_of,
        "findings": {str(index): [list(one) for one in some] for index, some in found.items()},
    }
    return document


def findings_of_nodes(report: Report, ends: Ends | None) -> dict[int, list[tuple[str, ...]]]:
    """Node number -> what is not well with it: (verdict, check, subject, observed, remedy), worst first. What is about several nodes is nobody's alone."""
    if ends is None:
        return {}
    numbers, found = {name: index for index, name in enumerate(ends.nodes)}, dict[int, list[tuple[str, ...]]]()
    for finding in sorted((f for f in report.findings if f.verdict in LOUD), key=lambda f: f.verdict.rank):
        node = _node_of(finding, numbers)
        if node is not None:
            texts = (finding.check, finding.subject, finding.observed, finding.remedy)
            some = found.setdefault(node, [])
            if len(some) < MAX_OF_NODE:
                some.append((finding.verdict.value, *(safe(text, MAX_OF_NODE_TEXT) for text in texts)))
    return found


def _node_of(finding: Finding, numbers: Mapping[str, int]) -> int | None:
    """The one node that it names as its part ("NIC of n3 GPU 2"), else as its subject; None: none, or several."""
    for name in (finding.blames.name if finding.blames else "", finding.subject):
        if name in numbers:
            return numbers[name]
        named = {numbers[word] for word in re.split(r"[\s,:;()]+", name[:MAX_OF_NODE_TEXT]) if word in numbers}
        if named:
            return named.pop() if len(named) == 1 else None
    return None


def _axis(plan: Plan, axis: str) -> dict[str, Any]:
    """The group of each rank (-1: in none), and which groups leave their NVLink domain: "1", "0", "?" where nobody can say."""
    group_of = [-1] * len(plan.placement.node_ranks)
    crossing = []
    for index, ranks in enumerate(plan.groups[axis]):
        for rank in ranks:
            group_of[rank] = index
        domains = plan.placement.domains_of(ranks)
        known = len({domain for domain in domains if domain is not None}) > 1
        crossing.append("1" if known else "?" if None in domains else "0")
    return {"name": safe(axis, MAX_NAME), "groupOf": group_of, "crossing": "".join(crossing)}


def _alone(evidence: Evidence, world: int) -> list[dict[str, Any]]:
    """What each GPU gave by itself, for each operation; None: not measured."""
    found = []
    for op, by_rank in alone_rates(evidence.measurements or ()).items():
        unit, name = (TERA, "TFLOP/s") if op == "matmul" else (1e9, "GB/s")
        values = [None if rate is None else float(f"{rate / unit:.4g}") for rate in map(by_rank.get, range(world))]
        found.append({"name": OPERATIONS.get(op, op), "unit": name, "values": values})
    return found


def _facts(evidence: Evidence, ends: Ends) -> tuple[list[list[list[str]]], list[int]]:
    """What discovery found, as lists of (name, value) that many nodes share; and which list is whose (-1: nothing is known of that node)."""
    nodes = {node.name: node for node in evidence.inventory.nodes} if evidence.inventory else {}
    lists: dict[tuple[tuple[str, str], ...], int] = {}
    numbers = [
        lists.setdefault(_facts_of_node(nodes[name]), len(lists)) if name in nodes else -1 for name in ends.nodes
    ]
    return [[list(fact) for fact in facts] for facts in lists], numbers


def _facts_of_node(node: Node) -> tuple[tuple[str, str], ...]:
    gpus = None if node.gpus is None else len(node.gpus)
    products = ", ".join(dict.fromkeys(gpu.name or "product unknown" for gpu in node.gpus or ()))
    hcas = None if node.hcas is None else ", ".join(hca.name for hca in node.hcas) or "none"
    facts: dict[str, object] = {
        "GPUs": gpus,
        "product": products or None,
        "why": node.gpu_note,
        "driver": node.driver_version,
        "CUDA": node.cuda_version,
        "kernel": node.kernel,
        "CPU": node.cpu_model,
        "CPUs": node.num_cpus,
        "memory": None if node.memory_bytes is None else show_bytes(node.memory_bytes),
        "HCAs": hcas,
        **node.versions,
        "could not be read": "; ".join(problem.text for problem in node.problems[:8]) or None,
    }
    hidden = {"why", "could not be read"}  # said only where there is something to say
    told = [
        (name, "unknown" if value is None else str(value))
        for name, value in facts.items()
        if value or name not in hidden
    ]
    return tuple((safe(name, MAX_NAME), safe(value, MAX_OF_NODE_TEXT)) for name, value in told[:MAX_FACTS])
