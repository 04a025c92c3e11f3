"""What the controller prolog measured goes into the history of its machine, after all is told. Whatever happens here changes nothing, and costs a second at most."""

from preflight.config import Site
from preflight.errors import PreflightError, WorldError
from preflight.model import Report
from preflight.model.finding import Verdict
from preflight.slurm.beside import in_child
from preflight.slurm.controller_record import Decision
from preflight.slurm.limits import EndedError, TimeIsUpError, allow
from preflight.slurm.logline import joined
from preflight.slurm.remember import AFTER_S
from preflight.slurm.telling import Telling

WITHIN_S = 1.0
HARD_S = 5.0  # working out the rows of a large job takes some seconds


def remember_run(report: Report, decision: Decision, site: Site, telling: Telling, *, drained: bool) -> None:
    """Append the run with a verdict of each node: FAIL of those that the decision calls guilty. Never raises, whatever ends it."""
    try:
        try:
            allow(HARD_S)
            in_child(lambda: _append(report, decision, site, drained=drained))
        finally:
            allow(AFTER_S)  # what is left is to give the exit code, which no alarm of ours may change
    except (TimeIsUpError, EndedError, KeyboardInterrupt):
        telling.note("not in the history: it took too long", "warning")
    except PreflightError as error:
        telling.note(f"not in the history: {joined(str(error))}", "warning")
    except Exception as error:  # noqa: BLE001 - all is told
        telling.note(f"not in the history: {type(error).__name__}: {error}", "warning")


def _append(report: Report, decision: Decision, site: Site, *, drained: bool) -> None:
    """Raises PreflightError."""
    import msgspec

    from preflight.fleet.history import History
    from preflight.plan.fingerprint import fingerprint
    from preflight.slurm.guilty import guilty_node, known_nodes
    from preflight.slurm.scan_verdicts import verdicts_of

    if not site.history_file.parent.is_dir():
        raise WorldError(f"there is no folder {site.history_file.parent}")
    known = known_nodes(report.evidence)
    nodes_of = {i: node for i, each in enumerate(report.findings) if (node := guilty_node(each, known))}
    blamed = {
        node: tuple(f for i, f in enumerate(report.findings) if nodes_of.get(i) == node and f.verdict is Verdict.FAIL)
        for node in decision.guilty
    }
    guilty = {node: found for node, found in blamed.items() if found}
    verdicts = verdicts_of(report, guilty, None, decision.guilty)
    marked = [msgspec.structs.replace(v, drained=drained) if v.node in guilty else v for v in verdicts]
    plan = report.evidence.plan
    history = History(site.history_file, keep_s=site.keep_history_s, within_s=WITHIN_S)
    history.add(report, plan=fingerprint(plan) if plan else None, verdicts=marked, nodes_of=nodes_of)
