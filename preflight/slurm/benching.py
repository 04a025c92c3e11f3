"""Taking this node out of service: by preflight/slurm/drain.py, which knows the brake and foreign reasons; what became of it in one word and in one line."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from preflight.model.base import Record
from preflight.model.finding import Finding

if TYPE_CHECKING:
    from preflight.config import Site
    from preflight.model import Evidence

LEAST_S = 2.0  # for a question to the controller


class Bench(Record, frozen=True):
    """`result`: one of textfile.DRAINS. `benched`: the node is out of service now, with a reason that a person can act on: then alone a prolog may fail. `text`: what was done and why."""

    result: str
    benched: bool
    text: str


def guilty_of(findings: Sequence[Finding], evidence: "Evidence", node: str) -> tuple[Finding, ...]:
    """Those findings that pin a fault on this very node."""
    if all(finding.verdict.rank for finding in findings):  # no FAIL
        return ()
    from preflight.slurm.drain import guilty_nodes

    return tuple(guilty_nodes(findings, evidence).get(node, ()))


def bench(
    node: str | None, findings: Sequence[Finding], run_id: str, site: "Site", *, measured: bool, left_s: float
) -> Bench:
    """Drain the node for these findings, if the site wants that and may. `node`: its name in Slurm, None: not known. `measured`: only a new measurement can clear them. `left_s`: for all of it. Never raises an Exception of Slurm's."""
    from preflight.errors import WorldError
    from preflight.slurm.commands import Slurm
    from preflight.slurm.drain import drain
    from preflight.slurm.reason import reason_of

    kind = "fabric" if measured else None
    reason = reason_of(findings, run_id, node=node, kind=kind)
    if node is None:
        return Bench(
            "failed", benched=False, text=f"{reason}; not drained: SLURMD_NODENAME doesn't say which node this is"
        )
    if not site.slurm.enforce:
        return Bench("would-drain", benched=False, text=f"would drain (enforce is off): {reason}")
    slurm = Slurm(site.slurm.bin_dir, deadline_s=max(LEAST_S, left_s / 3))
    try:
        done = drain(slurm, (node,), reason, site)
    except WorldError as error:
        return Bench("failed", benched=False, text=f"not drained: {error}; {reason}")
    for result, names in (("drained", done.done), ("foreign", done.foreign), ("braked", done.braked)):
        if node in names:
            return Bench(result, benched=result != "braked", text=f"{result}: {done.text}; {reason}")
    return Bench("failed", benched=False, text=f"not drained: {done.text}; {reason}")


def is_drained(node: str, site: "Site") -> bool:
    """Whether Slurm has the node drained now. Where Slurm gives no answer: no."""
    from preflight.errors import WorldError
    from preflight.slurm.commands import Slurm

    try:
        found = Slurm(site.slurm.bin_dir, deadline_s=LEAST_S).nodes([node]).get(node)
    except WorldError:
        return False
    return found is not None and "drain" in found.states
