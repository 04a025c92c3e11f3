"""What keeps an agent's judgements of its own node in the history of its machine. Light: an agent stays on its node for months."""

from collections.abc import Callable

import msgspec

from preflight.config import Site
from preflight.model import Inventory, Report
from preflight.model.history import node_verdict
from preflight.report.history_disk import log_is_safe

AGENT = "agent"
WITHIN_S = 2.0  # nobody waits for it, and it waits for nobody long
MAX_ROWS = 200_000  # as of a node's other programs


def keeper_of_judgements(site: Site, node: str) -> Callable[[Report], bool] | None:
    """Keeps what an agent says of its own node, where that changed or a day has passed; False: it was not needed. None: the site wants none, or there is no local disk for it.

    `node`: as the agent calls it. The keeper raises PreflightError: the history can't be written.
    """
    path = site.history_file
    if not site.history.node_results or not path.parent.is_dir() or not log_is_safe(path.parent):
        return None

    def keep(report: Report) -> bool:
        from preflight.report.history_append import Limits, append_if_changed, entry_of
        from preflight.report.history_file import writing

        named = agents_own(report, node)
        numbers = range(len(named.findings))
        entry = entry_of(named, verdicts=[node_verdict(named, node)], nodes_of=dict.fromkeys(numbers, node))
        with writing(path, within_s=WITHIN_S) as db:
            return append_if_changed(db, entry, Limits(site.keep_history_s, MAX_ROWS, MAX_ROWS // 100))

    return keep


def agents_own(report: Report, node: str) -> Report:
    """A report of `preflight node` as the agent's own: under its command and its name of the node, with a name of its own among the runs."""
    evidence, inventory = report.evidence, report.evidence.inventory
    if inventory is not None and len(inventory.nodes) == 1:
        renamed = Inventory(nodes=(msgspec.structs.replace(inventory.nodes[0], name=node),))
        evidence = msgspec.structs.replace(evidence, inventory=renamed)
    run_id = f"{AGENT}-{node}@{report.started_at_s:.3f}"
    return msgspec.structs.replace(report, run_id=run_id, command=AGENT, evidence=evidence)
