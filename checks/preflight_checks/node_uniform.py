"""All nodes are alike: GPUs, driver, kernel, CPUs.

Collectives run at the pace of the slowest member, and mixed drivers make NCCL choose different transports on two ends.
The majority is the reference: a node unlike it is to blame. Without a majority nobody is, and the difference is a WARN.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from preflight.model import Check, Evidence, Finding, Node, Part, Verdict
from preflight.model.hostlist import fold
from preflight.model.units import show_bytes

NAME = "node_uniform"

# Drivers reserve differently much of the same product's memory, below 1 %; the next smaller product has 15 % less or more.
LIMITS = {"memory_tolerance_ratio": 0.02}

Value = str | int | None


class _Fact(NamedTuple):
    """`read` gives None for unknown. `applies` is false where a node can't have the fact. `worst`: a difference is that bad."""

    label: str
    read: Callable[[Node], Value]
    applies: Callable[[Node], bool]
    worst: Verdict
    of_gpu: bool = True


def _names(node: Node) -> Value:
    return " + ".join(sorted({gpu.name for gpu in node.gpus or () if gpu.name})) or None


def _memory_bytes(node: Node) -> Value:
    return min((gpu.memory_bytes for gpu in node.gpus or () if gpu.memory_bytes is not None), default=None)


def _count(node: Node) -> Value:
    return None if node.gpus is None else len(node.gpus)


def _always(node: Node) -> bool:
    return bool(node.name)


def _has_gpus(node: Node) -> bool:
    return node.gpus is None or bool(node.gpus)


FACTS = (
    _Fact("number of GPUs", _count, _always, Verdict.FAIL),
    _Fact("GPU product", _names, _has_gpus, Verdict.FAIL),
    _Fact("GPU memory", _memory_bytes, _has_gpus, Verdict.FAIL),
    _Fact("driver version", lambda node: node.driver_version, _has_gpus, Verdict.FAIL),
    _Fact("kernel", lambda node: node.kernel, _always, Verdict.WARN, of_gpu=False),
    _Fact("number of CPUs", lambda node: node.num_cpus, _always, Verdict.WARN, of_gpu=False),
)


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each fact: one PASS, or a finding for each node that differs or doesn't know. Nothing for a single node."""
    assert evidence.inventory is not None
    nodes = evidence.inventory.nodes
    if len(nodes) < 2:
        return
    tolerance = evidence.limits(NAME, LIMITS)["memory_tolerance_ratio"]
    for fact in FACTS:
        if fact.of_gpu and evidence.settings.cpu_declared:
            continue
        values = {node.name: fact.read(node) for node in nodes if fact.applies(node)}
        yield from _judge_fact(fact, values, tolerance if fact.label == "GPU memory" else 0.0)


def _judge_fact(fact: _Fact, values: dict[str, Value], tolerance: float) -> Iterator[Finding]:
    unknown = [name for name, value in values.items() if value is None]
    known = {name: value for name, value in values.items() if value is not None}
    for name in unknown:
        yield Finding(
            check=NAME,
            subject=name,
            verdict=Verdict.UNKNOWN,
            observed=f"{fact.label} unknown",
            expected=f"the {fact.label} of every node",
            remedy=f"run `preflight node` on {name}: it says what can't be read there, and why",
        )
    if len(known) < 2:
        return
    reference = _commonest(known.values(), tolerance)
    unlike = [name for name, value in known.items() if not _same(value, reference, tolerance)]
    num_alike = len(known) - len(unlike)
    if not unlike:
        yield Finding(
            check=NAME,
            subject=fact.label,
            verdict=Verdict.PASS,
            observed=f"{_show(fact, reference)} on {num_alike} nodes",
            expected="the same on all nodes",
        )
    elif 2 * num_alike <= len(known):
        yield _no_majority(fact, known)
    else:
        for name in unlike:
            yield Finding(
                check=NAME,
                subject=name,
                verdict=fact.worst,
                observed=f"{fact.label} {_show(fact, known[name])}",
                expected=f"{_show(fact, reference)}, as on {num_alike} of {len(known)} nodes",
                remedy=f"make the {fact.label} equal to the other nodes', or leave the node out of the job",
                blames=Part(kind="node", name=name, confidence="likely"),
            )


def _commonest(values: Iterable[Value], tolerance: float) -> Value:
    """The value that most nodes have, near values counted together; of equals the one met first."""
    counts = Counter(values)
    return max(counts, key=lambda value: sum(n for other, n in counts.items() if _same(value, other, tolerance)))


def _no_majority(fact: _Fact, known: Mapping[str, Value]) -> Finding:
    shown = {name: _show(fact, value) for name, value in known.items()}
    sets = "; ".join(
        f"{text} on {fold(n for n, t in shown.items() if t == text)}" for text in dict.fromkeys(shown.values())
    )
    return Finding(
        check=NAME,
        subject=fact.label,
        verdict=Verdict.WARN,
        observed=sets,
        expected="the same on all nodes; no majority, so which nodes are wrong is not identifiable",
        remedy=f"ask for nodes of one kind (in Slurm: a partition or --constraint), or align their {fact.label}",
    )


def _same(a: Value, b: Value, tolerance: float) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return abs(a - b) <= tolerance * max(a, b)
    return a == b


def _show(fact: _Fact, value: Value) -> str:
    return show_bytes(value) if fact.label == "GPU memory" and isinstance(value, int) else str(value)


CHECK = Check(
    name=NAME,
    claim="All nodes have the same GPUs, driver, kernel and number of CPUs.",
    why="Collectives run at the pace of the slowest member, and mixed drivers choose different transports on two ends.",
    uses=("inventory",),
    judge=judge,
    limits=LIMITS,
)
