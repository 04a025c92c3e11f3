"""Taking this node out of service: by preflight/slurm/drain.py, which knows the brake and foreign reasons; what became of it in one word and in one line."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from preflight.model.base import Record
from preflight.model.finding import Finding
from preflight.slurm.limits import TimeIsUpError

if TYPE_CHECKING:
    from preflight.config import Site
    from preflight.model import Evidence
    from preflight.slurm.drain import Drained

LEAST_S = 2.0  # for a question to the controller
TELLS_S = 0.3  # kept for metrics and log line
OUT_OF_SERVICE = ("drained", "kept", "foreign")  # no new job comes here, and a reason says why


class Bench(Record, frozen=True):
    """`result`: one of textfile.DRAINS. `benched`: the node is out of service now, with a reason that a person can act on: then alone a prolog may fail. `text`: what was done and why."""

    result: str
    benched: bool
    text: str


def guilty_of(findings: Sequence[Finding], evidence: "Evidence", node: str) -> tuple[Finding, ...]:
    """Those findings that pin a fault on this very node."""
    if all(finding.verdict.rank for finding in findings):  # no FAIL
        return ()
    from preflight.slurm.guilty import guilty_nodes

    return tuple(guilty_nodes(findings, evidence).get(node, ()))


def bench(
    node: str | None, findings: Sequence[Finding], run_id: str, site: "Site", *, measured: bool, left_s: float
) -> Bench:
    """Drain the node for these findings, if the site wants that and the brake lets it. `node`: its name in Slurm, None: not known. `measured`: only a new measurement can clear
    them. `left_s`: for all of it; when a limit of time ends it earlier, that is a drain that failed. Never raises an Exception of Slurm's.
    """
    from preflight.errors import WorldError
    from preflight.slurm.commands import Slurm
    from preflight.slurm.drain import drain
    from preflight.slurm.reason import reason_of

    reason = reason_of(findings, run_id, node=node, kind="fabric" if measured else None)
    if node is None:
        return Bench(
            "failed", benched=False, text=f"not drained: SLURMD_NODENAME doesn't say which node this is; {reason}"
        )
    try:
        slurm = Slurm(
            site.slurm.bin_dir, deadline_s=max(LEAST_S, left_s / 3), ends_at=time.monotonic() + left_s - TELLS_S
        )
        done = drain(slurm, (node,), reason, site)
    except WorldError as error:
        return Bench("failed", benched=False, text=f"not drained: {error}; {reason}")
    except TimeIsUpError:
        return Bench("failed", benched=False, text=f"not drained: the time was up before Slurm had done it; {reason}")
    result = next((name for name, nodes in outcomes(done) if node in nodes), "failed")
    text = done.text if reason in done.text else f"{done.text}; {reason}"
    return Bench(result, benched=site.slurm.enforce and result in OUT_OF_SERVICE, text=text)


def outcomes(done: "Drained") -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What became of which nodes, by the words of the metric."""
    return (
        ("drained", done.done),
        ("would-drain", done.planned),
        ("kept", done.kept),
        ("foreign", done.foreign),
        ("absent", done.absent),
        ("braked", done.braked),
        ("failed", done.failed),
    )


def is_drained(node: str, site: "Site") -> bool | None:
    """Whether Slurm has the node drained now. None: Slurm gives no answer, or doesn't know the node."""
    from preflight.errors import WorldError
    from preflight.slurm.commands import Slurm

    try:
        found = Slurm(site.slurm.bin_dir, deadline_s=LEAST_S).nodes([node]).get(node)
    except WorldError:
        return None
    return None if found is None else found.drained
