"""Nodes for tests of checks that look at the health of GPUs and ports."""

from collections.abc import Iterable
from typing import Any

from preflight.model import Check, Evidence, Finding, Gpu, Inventory, Node, Part, Settings, Verdict
from tests.builders import make_gpu


def node_with(*facts: Any, field: str, name: str = "node1", taken_at_s: float | None = 0.0, **others: Any) -> Node:
    """A node with one GPU for each value of the fact; `others`: further facts of all GPUs."""
    gpus = tuple(make_gpu(name, index, **{**others, field: fact}) for index, fact in enumerate(facts))
    return Node(name=name, gpus=gpus, hcas=(), taken_at_s=taken_at_s)


def judged(
    check: Check, *nodes: Node, before: Iterable[Node] | None = None, cpu_declared: bool = False, **facts: Any
) -> list[Finding]:
    """What the check says of these nodes."""
    evidence = Evidence(
        settings=Settings(cpu_declared=cpu_declared),
        inventory=Inventory(nodes=nodes),
        before=None if before is None else Inventory(nodes=tuple(before)),
        **facts,
    )
    return list(check.judge(evidence))


def verdicts(findings: Iterable[Finding]) -> list[tuple[str, Verdict]]:
    """Subject and verdict of each."""
    return [(finding.subject, finding.verdict) for finding in findings]


def only(findings: list[Finding], verdict: Verdict) -> Finding:
    """The one finding of that verdict."""
    (finding,) = [finding for finding in findings if finding.verdict is verdict]
    return finding


def blamed(finding: Finding) -> Part:
    """What is blamed; the test fails if nothing is."""
    assert finding.blames is not None
    return finding.blames


def lost_gpu(index: int = 0) -> Gpu:
    """A GPU that could not be opened."""
    return Gpu(index=index)
