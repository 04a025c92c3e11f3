"""The health program: this node's checks from time to time, without a job. Drains by itself, since Slurm ignores its exit code; resumes only where the site allows it, what a local check of ours drained and that passes now.

Nothing is resumed that somebody else drained or that only a new measurement can clear; nor unless the check that drained it passes, nothing that is needed is unknown, and all GPUs that Slurm counts are seen, twice in a row.
"""

import contextlib
import random
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.errors import WorldError
from preflight.slurm.limits import allow
from preflight.slurm.prolog import safe_node, summary
from preflight.slurm.settled import GO, NO_GO, UNDECIDED, settled
from preflight.slurm.telling import Telling

if TYPE_CHECKING:
    from preflight.config import Site
    from preflight.model import Report
    from preflight.slurm.nodes import SlurmNode

COMMAND = "slurm health"
WELL, WELL_AGE_S = ".well", 3600.0  # the file that says when the node was found well; older ones don't count
JITTER_S = 5.0  # slurmd starts it on all nodes at the same time


def run_health(
    environ: Mapping[str, str],
    *,
    config: str | None = None,
    textfile_dir: str | None = None,
    jitter_s: float = JITTER_S,
    root: Path = Path("/"),
) -> int:
    """The exit code: 0, 10 if the node is drained for a fault that is there now, 3 and 78 if nothing was decided. Never raises an Exception."""
    telling = Telling(COMMAND, safe_node(environ), "health program", textfile_dir=textfile_dir)
    return settled(telling, config, lambda: _run(environ, config, telling, jitter_s, root))


def _run(environ: Mapping[str, str], config: str | None, telling: Telling, jitter_s: float, root: Path) -> int:
    from preflight.config import read_config
    from preflight.slurm.job import read_job
    from preflight.slurm.state import StateFolder

    site = read_config(config)
    telling.textfile_dir = telling.textfile_dir or site.slurm.textfile_dir
    node = read_job(environ).node
    with StateFolder(site.slurm.state_dir) as folder, folder.lock(f"health-{telling.node}.lock") as alone:
        if not alone:
            telling.note("another one is still at work")
            return GO
        wait_s = random.uniform(0, min(jitter_s, site.slurm.health_budget_s / 4))
        allow(wait_s + site.slurm.health_budget_s)
        time.sleep(wait_s)
        return _look(environ, node, site, telling, root)


def _look(environ: Mapping[str, str], node: str | None, site: "Site", telling: Telling, root: Path) -> int:
    from preflight.slurm.benching import bench, guilty_of
    from preflight.slurm.job import SlurmJobContext
    from preflight.slurm.look import judge_node, look, report_of
    from preflight.slurm.remember import remember

    began = time.monotonic()
    budget_s = site.slurm.health_budget_s
    evidence = look(node, environ, budget_s=budget_s / 2, root=root, rules=site.slurm.rules)
    findings = judge_node(evidence, SlurmJobContext(node=node))
    assert evidence.inventory is not None
    name = evidence.inventory.nodes[0].name
    guilty = guilty_of(findings, evidence, name)
    run_id = time.strftime("health-%Y%m%dT%H%M%SZ", time.gmtime(telling.began_s)) if guilty else "health-latest"
    report = report_of(COMMAND, run_id, findings, evidence, began_s=telling.began_s, duration_s=telling.spent_s)
    try:
        telling.keep(report, site.slurm.state_dir)
    except WorldError as error:
        telling.note(f"no report: {error}", "warning")
    left_s = budget_s - (time.monotonic() - began)
    if guilty:
        with contextlib.suppress(WorldError):
            _forget(name, site)
        outcome = bench(node, guilty, run_id, site, measured=False, left_s=left_s)
        telling.result(report, outcome.text, drain=outcome.result)
        remember(report, name, site, telling, guilty=True, drained=outcome.benched, changes_only=True)
        return NO_GO if outcome.benched else GO
    resumed = _resume(node, report, site, left_s) if site.slurm.resume and node is not None else ""
    telling.result(report, f"{summary(findings)}{resumed}")
    remember(report, name, site, telling, guilty=False, changes_only=True)
    return UNDECIDED if report.answer == "undecided" else GO


def _resume(node: str, report: "Report", site: "Site", left_s: float) -> str:
    """Give the node back, if it is ours to give; what was done, in words."""
    from preflight.slurm.commands import Slurm

    slurm = Slurm(site.slurm.bin_dir, deadline_s=max(2.0, left_s / 4))
    try:
        before = slurm.nodes([node]).get(node)
        if before is None or not may_resume(before):
            _forget(node, site)
            return ""
        if not _well_twice(node, site, well=is_well(report, before)):
            return f"; stays drained until two runs in a row find it well: {before.reason}"
        if not site.slurm.enforce:
            return f"; would resume (enforce is off): {before.reason}"
        slurm.update_node(node, state="resume")
        _forget(node, site)
        after = slurm.nodes([node]).get(node)
    except WorldError as error:
        return f"; not resumed: {error}"
    done = after is not None and not after.drained
    return f"; resumed, it was drained for: {before.reason}" if done else f"; Slurm did not resume it: {before.reason}"


def _well_twice(node: str, site: "Site", *, well: bool) -> bool:
    """Whether this run and one not long before it found the node well, and none between them did not. Raises WorldError."""
    from preflight.slurm.state import StateFolder

    name, now_s = f"{node}{WELL}", time.time()
    with StateFolder(site.slurm.state_dir) as folder:
        before = folder.read(name)
        if not well:
            folder.remove(name)
            return False
        if before is not None and before.isdigit() and 0 <= now_s - int(before[:12]) < WELL_AGE_S:
            return True
        folder.write(name, b"%d" % now_s)
    return False


def _forget(node: str, site: "Site") -> None:
    """The node was not found well. Raises WorldError."""
    from preflight.slurm.state import StateFolder

    with StateFolder(site.slurm.state_dir) as folder:
        folder.remove(f"{node}{WELL}")


def is_well(report: "Report", node: "SlurmNode") -> bool:
    """Whether each check that the reason names says of every part that it passes now, no check fails, nothing that is needed is unknown, and as many GPUs are seen as Slurm counts (pure).

    The sick part may be the one of which a check now knows nothing, or warns, while the others pass.
    """
    from preflight.model import Verdict
    from preflight.slurm.reason import checks_of

    named, whole = checks_of(node.reason)
    bad = any(
        finding.verdict is Verdict.FAIL
        or (finding.verdict is Verdict.UNKNOWN and (finding.need == "required" or not whole))
        for finding in report.findings
    )
    said = {name: {finding.verdict for finding in report.findings if finding.check == name} for name in named}
    cleared = bool(said) and all(Verdict.PASS in each <= {Verdict.PASS, Verdict.SKIP} for each in said.values())
    seen = report.evidence.inventory.nodes[0].open_gpus if report.evidence.inventory else ()
    return not bad and cleared and len(seen) == count_gpus(node.gres)


def count_gpus(gres: str | None) -> int:
    """The GPUs in a node's gres, "gpu:h100:8(S:0-1),shard:16" -> 8 (pure)."""
    count = 0
    for part in re.sub(r"\([^)]*\)", "", gres or "").split(","):
        name, *rest = part.split(":")
        if name == "gpu":
            count += int(rest[-1]) if rest and rest[-1].isascii() and rest[-1].isdigit() else 1
    return count


def may_resume(node: "SlurmNode") -> bool:
    """Whether it is drained for a reason of ours that a local check can clear, and by nothing else besides (pure)."""
    from preflight.slurm.nodes import RESERVED
    from preflight.slurm.reason import is_ours, kind_of

    others = node.absent or node.states & (RESERVED | {"fail"})
    return node.drained and not others and is_ours(node.reason) and kind_of(node.reason) == "local"
