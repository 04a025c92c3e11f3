"""Which nodes the findings of a run are reason enough to drain (pure).

Only what was seen to be bad (FAIL), pinned on a part that lies in one node, surely or likely. A fault of the plan, of the placement, of the environment, of a path, a leaf, a rail or a slot of many nodes is no node's;
what a node lacks for one plan, or what only says that preflight itself did not get on, is no fault of its hardware.
"""

import re
from collections.abc import Iterable, Sequence

from preflight.model.evidence import Evidence
from preflight.model.finding import Finding, Part, Verdict
from preflight.slurm.reason import MEASURED

ALIKE = 4  # DESIGN.md section 6: everything slow alike over four nodes or more is the environment
# kinds of parts that may lie in one node; "switch": the NVSwitch of its own board; "link": between its own GPUs, or from one of them to its board
IN_NODES = frozenset({"node", "gpu", "nic", "link", "switch"})
# what a plan asks of a node, an agent that doesn't answer, what the subnet manager was told: nobody's hardware
NEVER = frozenset(
    {"gpu_count", "gpu_per_rank", "group_uniform", "equal_workers", "hca_addressing", "ranks_match", "reachable"}
)
# evidence of the part itself, which many others with the same don't excuse
HARD = frozenset(
    {
        "counter_growth",
        "data_correct",
        "ecc_errors",
        "gpu_census",
        "gpus_answer",
        "nvswitch_errors",
        "recovery_action",
        "retired_pages",
        "row_remap",
        "xid",
    }
)
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def guilty_nodes(
    findings: Iterable[Finding], evidence: Evidence, *, alike: int = ALIKE, let_off: list[str] | None = None
) -> dict[str, tuple[Finding, ...]]:
    """The nodes to drain, each with the findings that it is to be drained for, in the order given.

    A check that finds all nodes that could be judged guilty, `alike` or more of them, has found the environment, unless it goes by hard evidence of each part. What was measured counts only
    where nothing else may have slowed the part (alibi.py). `let_off`: why what speaks against a node drains it not is added to it.
    """
    known = known_nodes(evidence)
    findings = tuple(findings)
    guilty: dict[str, list[Finding]] = {}
    silent: set[str | None] = set()  # of these nothing else could be found
    for finding in findings:
        node = guilty_node(finding, known)
        if node is not None:
            guilty.setdefault(node, []).append(finding)
        elif finding.check == "reachable" and finding.blames is not None:
            silent.add(node_of(finding.blames, known))
    judged = {node for node in known if node not in silent}
    excused = _of_all(guilty, judged) if len(judged) >= alike else set()
    left = {node: [each for each in mine if each.check not in excused] for node, mine in guilty.items()}
    kept = _without_alibi(left, findings, evidence, let_off if let_off is not None else [])
    return {node: mine for node, mine in kept.items() if mine}


def _without_alibi(
    accused: dict[str, list[Finding]], findings: Sequence[Finding], evidence: Evidence, let_off: list[str]
) -> dict[str, tuple[Finding, ...]]:
    """Without what was measured and may have had another reason."""
    checks = {finding.check for mine in accused.values() for finding in mine}
    if evidence.plan is None or evidence.measurements is None or not checks & MEASURED:
        return {node: tuple(mine) for node, mine in accused.items()}
    from preflight.slurm.alibi import Alibis

    of_check = {
        check: {node for node, mine in accused.items() if check in {finding.check for finding in mine}}
        for check in checks
    }
    alibis = Alibis(evidence, of_check, findings)
    told = {(node, i): alibis.of(finding, node) for node, mine in accused.items() for i, finding in enumerate(mine)}
    let_off += [f"{node} is not drained for {accused[node][i].check}: {why}" for (node, i), why in told.items() if why]
    return {node: tuple(f for i, f in enumerate(mine) if not told[node, i]) for node, mine in accused.items()}


def known_nodes(evidence: Evidence) -> tuple[str, ...]:
    """The names of all nodes that the run knows of."""
    names: list[str] = []
    if evidence.inventory is not None:
        names += [node.name for node in evidence.inventory.nodes]
    if evidence.plan is not None:
        names += evidence.plan.placement.nodes
    if evidence.localisation is not None:
        names += evidence.localisation.ends.nodes
    return tuple(dict.fromkeys(names))


def guilty_node(finding: Finding, known: Sequence[str]) -> str | None:
    """The one node that this finding would be reason enough to drain; None: none."""
    part = finding.blames
    if finding.verdict is not Verdict.FAIL or part is None or part.confidence == "possible":
        return None
    if part.kind not in IN_NODES or finding.check in NEVER:
        return None
    return node_of(part, known)


def node_of(part: Part, known: Sequence[str]) -> str | None:
    """The node that a part lies in, by its name ("n3 GPU 2 (GPU-...)", "NIC of n3 GPU 2", "n3 mlx5_0"); None: it lies in several, or in none that is known."""
    if part.kind == "node":
        return part.name if part.name in known else None
    leading = _leading(part.name, known)
    ends = part.name.split(" to ")
    if len(ends) > 1:  # the far end of a link may be on a node that is not known
        return leading if {_leading(end, known) for end in ends} == {leading} else None
    if leading is None and part.kind in {"link", "switch"}:
        return None
    named = {word for word in _WORD.findall(part.name) if word in known and not word.isdigit()}
    if leading is not None:
        named.add(leading)  # "3 GPU 2": the 3 is a node, the 2 is none
    return named.pop() if len(named) == 1 else None


def _leading(text: str, known: Sequence[str]) -> str | None:
    """The node that the name begins with, "NIC of" aside."""
    match = _WORD.match(text.removeprefix("NIC of "))
    return match[0] if match and match[0] in known else None


def _of_all(guilty: dict[str, list[Finding]], judged: set[str]) -> set[str]:
    """The checks that find every node guilty, hard evidence aside."""
    if not judged <= set(guilty):
        return set()
    return set.intersection(*({finding.check for finding in guilty[node]} for node in judged)) - HARD
