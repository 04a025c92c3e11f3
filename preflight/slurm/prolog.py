"""The node prolog: this node's checks on the job's GPUs and the cached verdict of the last sweep, within a few seconds. Asks Slurm nothing unless the node is to be drained.

A fault of ours, of the site's set-up or of the job's wording is told and lets the job start. Imports nothing at module level that may be missing.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.errors import WorldError
from preflight.slurm.limits import allow
from preflight.slurm.settled import GO, NO_GO, UNDECIDED, settled
from preflight.slurm.telling import Telling

if TYPE_CHECKING:
    from preflight.config import Site
    from preflight.model import Evidence, Finding, Node
    from preflight.slurm.benching import Bench
    from preflight.slurm.directive import Directive
    from preflight.slurm.job import SlurmJobContext
    from preflight.slurm.verdicts import NodeVerdict

COMMAND = "slurm prolog"
CACHED = "cached_verdict"  # what a sweep found stands in the report under this name
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def run_prolog(
    environ: Mapping[str, str], *, config: str | None = None, textfile_dir: str | None = None, root: Path = Path("/")
) -> int:
    """The exit code: 10 if the node is drained now, 0 if the job is to start, 3 and 78 if nothing was decided (the wrapper lets the job start). Never raises an Exception."""
    telling = Telling(COMMAND, safe_node(environ), about_of(environ), textfile_dir=textfile_dir)
    return settled(telling, config, lambda: _run(environ, config, telling, root))


def _run(environ: Mapping[str, str], config: str | None, telling: Telling, root: Path) -> int:
    from preflight.config import read_config
    from preflight.slurm.directive import read_directive
    from preflight.slurm.job import read_job

    site = read_config(config)
    telling.textfile_dir = telling.textfile_dir or site.slurm.textfile_dir
    allow(site.slurm.budget_s)
    job = read_job(environ)
    directive = read_directive(job.comment, job.extra, job.constraints)
    if directive.problem:
        telling.note(f"the job's directive: {directive.problem}", "warning")
    if not acts(site, directive):
        telling.note("not asked for: nothing was looked at")
        return GO
    from preflight.slurm.look import look

    evidence = look(job.node, environ, budget_s=site.slurm.budget_s, root=root, rules=site.slurm.rules)
    return _judge(evidence, job, site, telling)


def _judge(evidence: "Evidence", job: "SlurmJobContext", site: "Site", telling: Telling) -> int:
    from preflight.slurm.benching import bench, guilty_of
    from preflight.slurm.look import judge_node, report_of, worst_first
    from preflight.slurm.remember import remember

    assert evidence.inventory is not None
    node, run_id = evidence.inventory.nodes[0], f"node-{job.attempt}"
    findings = (*judge_node(evidence, job), *_unseen(node, job))
    verdict, told = _cached(site, job, node.boot_id, telling)
    measured = cached_findings(verdict, time.time()) if verdict is not None else ()
    guilty = (*guilty_of(findings, evidence, node.name), *measured)
    findings = worst_first([*findings, *map(_as_told, measured)])
    report = report_of(COMMAND, run_id, findings, evidence, began_s=telling.began_s, duration_s=telling.spent_s)
    try:
        telling.keep(report, site.slurm.state_dir)
    except WorldError as error:
        findings = worst_first([*findings, _unwritten(node.name, str(error))])
        report = report_of(COMMAND, run_id, findings, evidence, began_s=telling.began_s, duration_s=telling.spent_s)
    outcome: Bench | None = None
    if guilty:
        outcome = bench(
            job.node, guilty, run_id, site, measured=bool(measured), left_s=site.slurm.budget_s - telling.spent_s
        )
        if verdict is not None and outcome.benched:
            _mark(site, verdict, telling)
    told = outcome.text if outcome is not None else summary(findings) + told
    telling.result(report, told, drain=outcome.result if outcome is not None else None)
    benched = outcome is not None and outcome.benched
    remember(report, node.name, site, telling, guilty=bool(guilty), drained=benched)
    if benched:
        return NO_GO
    return UNDECIDED if report.answer == "undecided" else GO


def _cached(
    site: "Site", job: "SlurmJobContext", boot_id: str | None, telling: Telling
) -> "tuple[NodeVerdict | None, str]":
    """The verdict that counts before this job, if it is a FAIL; and what is to be said of one that is there, in words.

    One for which the node was drained no longer counts once the node is not drained any more: an operator resumed it.
    """
    from preflight.model import Verdict
    from preflight.slurm.benching import is_drained
    from preflight.slurm.verdicts import drop_verdict, read_verdict

    if job.node is None:
        return None, ""
    verdict, why = read_verdict(site.slurm.state_dir, job.node, boot_id=boot_id, now_s=time.time())
    if why:
        telling.note(f"cached verdict: {why}")
    if verdict is None:
        return None, ""
    drained = is_drained(job.node, site) if verdict.drained else True
    if drained is None:
        return None, f"; {verdict.run_id}: whether the node is still drained for it can't be found out"
    if not drained:
        drop_verdict(site.slurm.state_dir, job.node)
        telling.note(f"the verdict of {verdict.run_id} is dropped: the node was drained for it, and was resumed")
        return None, ""
    if verdict.verdict is not Verdict.FAIL:
        return None, f"; {verdict.run_id}: {verdict.verdict.value}"
    return verdict, ""


def _mark(site: "Site", verdict: "NodeVerdict", telling: Telling) -> None:
    from preflight.slurm.verdicts import mark_drained

    try:
        mark_drained(site.slurm.state_dir, verdict, now_s=time.time())
    except WorldError as error:
        telling.note(f"the verdict of {verdict.run_id} can't be marked as acted upon: {error}", "warning")


def cached_findings(verdict: "NodeVerdict", now_s: float) -> "tuple[Finding, ...]":
    """What a sweep found against this node, with its age; one that tells no finding is one by itself."""
    import msgspec

    from preflight.model import Finding, Part, Verdict

    age = f"{max(0.0, now_s - verdict.written_at_s) / 3600:.1f} h ago, {verdict.run_id}"
    bad = [finding for finding in verdict.findings if finding.verdict is Verdict.FAIL]
    told = tuple(msgspec.structs.replace(each, observed=f"{each.observed} ({age})") for each in bad)
    nothing = Finding(
        check=CACHED,
        subject=verdict.node,
        verdict=Verdict.FAIL,
        observed=f"found bad {age}",
        remedy=f"look at the report of {verdict.run_id}",
        blames=Part(kind="node", name=verdict.node),
    )
    return told or ((nothing,) if verdict.verdict is Verdict.FAIL else ())


def _as_told(finding: "Finding") -> "Finding":
    """As it stands in the report: by a name of its own, since nothing here could judge it again."""
    import msgspec

    told = finding.observed if finding.check == CACHED else f"{finding.check}: {finding.observed}"
    return msgspec.structs.replace(finding, check=CACHED, observed=told)


def acts(site: "Site", directive: "Directive") -> bool:
    """Whether the site wants this job looked at."""
    if site.slurm.when == "never":
        return False
    return directive.on is True if site.slurm.when == "opt-in" else directive.on is not False


def summary(findings: "tuple[Finding, ...]") -> str:
    """How many of each verdict, and the worst that is no PASS: "31 PASS, 1 WARN (clock_sync n1: not synchronised)"."""
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.verdict.value] = counts.get(finding.verdict.value, 0) + 1
    shown = ", ".join(f"{number} {verdict}" for verdict, number in counts.items() if verdict != "SKIP")
    worst = next((finding for finding in findings if finding.verdict.value in {"FAIL", "UNKNOWN"}), None)
    return shown + (f"; {worst.verdict.value} {worst.check} {worst.subject}: {worst.observed}" if worst else "")


def _unseen(node: "Node", job: "SlurmJobContext") -> "tuple[Finding, ...]":
    """Slurm gave the job GPUs, and there is no trace of one here: that is no node without GPUs."""
    from preflight.model import Finding, Verdict
    from preflight.model.hostlist import fold_numbers

    if not job.gpus or node.gpus is None or node.gpus:
        return ()
    observed = f"the job has GPUs {fold_numbers(job.gpus)} here, and none is seen: {node.gpu_note or 'no reason given'}"
    remedy = "make the driver's library known to the loader (ldconfig), or gres.conf true"
    return (
        Finding(check="slurm_prolog", subject=node.name, verdict=Verdict.UNKNOWN, observed=observed, remedy=remedy),
    )


def _unwritten(node: str, text: str) -> "Finding":
    """The state folder as a finding: it judges nothing."""
    from preflight.model import Finding, Verdict

    remedy = "make the state folder root's and writable ([slurm] state_dir)"
    return Finding(check="slurm_prolog", subject=node, verdict=Verdict.UNKNOWN, observed=text, remedy=remedy)


def safe_node(environ: Mapping[str, str]) -> str:
    """This node's name in Slurm, else the host's, whatever the environment holds."""
    name = environ.get("SLURMD_NODENAME", "")
    plain = name.isascii() and 0 < len(name) < 256 and all(letter.isalnum() or letter in "._-" for letter in name)
    return name if plain else os.uname().nodename


def about_of(environ: Mapping[str, str]) -> str:
    """What the log line begins with."""
    job = environ.get("SLURM_JOB_ID", "")
    number = job if job.isascii() and job.isdigit() and len(job) <= 10 else "unknown"
    return f"prolog of job {number}"
