"""Cases of checks that look at nodes alone: evidence of nodes, and the findings of one check about it."""

from collections.abc import Sequence
from typing import Any

from preflight.judge.run import run_checks
from preflight.model import Check, Evidence, Finding, Hca, Inventory, Node, Port, Verdict

GBIT = 10**9 // 8  # bytes per second


def evidence_of(*nodes: Node, **others: Any) -> Evidence:
    """What was found on these nodes, and nothing else."""
    return Evidence(inventory=Inventory(nodes=nodes), **others)


def findings_of(check: Check, *nodes: Node, **others: Any) -> tuple[Finding, ...]:
    """What the harness makes of a check on these nodes, worst first."""
    return run_checks([check], evidence_of(*nodes, **others))[0]


def only(check: Check, *nodes: Node, **others: Any) -> Finding:
    """The single finding of a check on these nodes."""
    (finding,) = findings_of(check, *nodes, **others)
    return finding


def verdicts(findings: Sequence[Finding]) -> list[Verdict]:
    """Their verdicts in order."""
    return [finding.verdict for finding in findings]


def make_port(**changes: Any) -> Port:
    """An active InfiniBand port of 400 Gbit/s."""
    facts: dict[str, Any] = {
        "number": 1,
        "state": "active",
        "physical_state": "LinkUp",
        "rate_bytes_per_s": 400 * GBIT,
        "width": 4,
        "link_layer": "InfiniBand",
        "lid": 7,
        "sm_lid": 1,
        "pkeys": (0xFFFF,),
    }
    return Port(**{**facts, **changes})


def make_hca(name: str = "mlx5_0", *, port: Port | None = None, **changes: Any) -> Hca:
    """An HCA with one healthy port."""
    return Hca(name=name, **{"driver": "mlx5_core", "ports": (port or make_port(),), **changes})
