"""Runs the checks over the evidence, puts their findings in order, and gives the answer.

A check can't hurt the run: what it raises becomes UNKNOWN, what it yields against the contract becomes UNKNOWN, and its
silence becomes SKIP. `[rules]` of the plan file are applied here, so that no check knows of them.

What a rule does: severity "off" skips the check; "warn" turns its FAIL into WARN and makes it advisory, since missing
evidence must not weigh more than bad evidence; "fail" lets it say FAIL, which is the default. "fail" doesn't raise WARN to
FAIL: a WARN may mean "too noisy to judge". Placement rules whose WARN is certain (cp_in_nvlink_domain, leaf_spread, ...) raise it themselves. `need` overrides the check's own.
"""

import time
from collections.abc import Iterator, Sequence

import msgspec

from preflight.model import Answer, Check, CheckRun, Ends, Evidence, Finding, Localisation, Report, Rule, Verdict
from preflight.model.hostlist import natural_key
from preflight.model.job import Need

BROKE = "the localiser broke"
WHOLE_RUN = "run"  # the subject of a finding that is about the check itself, not about a part of the cluster

_GATHERED_BY = {
    "inventory": "discovery (preflight node, preflight run)",
    "health": "a node itself (preflight node, preflight run); the text of a topology doesn't tell it",
    "before": "an earlier snapshot (preflight node --since)",
    "plan": "a plan file (preflight plan, preflight run)",
    "measurements": "probing (preflight run)",
}


def judge(
    evidence: Evidence, checks: Sequence[Check], *, partial: bool = False
) -> tuple[tuple[Finding, ...], tuple[CheckRun, ...], Answer]:
    """Findings worst first, what each check cost, and the answer. A partial run is never "go": it didn't see everything."""
    findings, runs = run_checks(checks, localised(evidence))
    return findings, runs, answer_of(findings, partial=partial)


def localised(evidence: Evidence) -> Evidence:
    """The evidence with what its pairs say of the fabric: what it has already, else inferred now. A localiser that breaks is told of in `unjudged`."""
    if evidence.localisation is not None or evidence.plan is None or not evidence.measurements:
        return evidence
    from preflight.judge.localise import localise_evidence

    try:
        found = localise_evidence(evidence)
    except Exception as error:  # noqa: BLE001 - what was measured must not be lost with it
        nobody = Ends(nodes=(), node=(), slot=())
        found = Localisation(ends=nobody, unjudged=f"{BROKE}: {type(error).__name__}: {error}")
    return msgspec.structs.replace(evidence, localisation=found)


def judge_again(report: Report, checks: Sequence[Check]) -> Report:
    """The same run, judged by these checks. The findings of a check that isn't among them stay as they were saved.

    A check that the saved command didn't run and couldn't, for want of facts, is no news and left out.
    """
    said = {finding.check for finding in report.findings}
    evidence = report.evidence
    if evidence.plan is not None:  # inferred anew, as the checks judge anew; without a plan it can't be
        evidence = localised(msgspec.structs.replace(evidence, localisation=None))
    able = [check for check in checks if check.name in said or not _missing(check, evidence)]
    findings, runs = run_checks(able, evidence)
    absent = absent_checks(report, checks)
    kept = [finding for finding in report.findings if finding.check in absent]
    everything = tuple(sorted([*findings, *kept], key=lambda finding: finding.verdict.rank))
    answer = answer_of(everything, partial=report.partial)
    return msgspec.structs.replace(report, evidence=evidence, findings=everything, checks=runs, answer=answer)


def absent_checks(report: Report, checks: Sequence[Check]) -> frozenset[str]:
    """Names of checks with findings in the report that are not among these."""
    return frozenset(finding.check for finding in report.findings) - {check.name for check in checks}


def run_checks(checks: Sequence[Check], evidence: Evidence) -> tuple[tuple[Finding, ...], tuple[CheckRun, ...]]:
    """The findings of all checks: worst first, then in the order of the checks, then by subject (tp2 before tp10).

    A check that was skipped without being asked has no CheckRun. Nothing is raised for an Exception inside a check.
    """
    found: list[tuple[int, Finding]] = []
    runs: list[CheckRun] = []
    for position, check in enumerate(checks):
        rule = evidence.rule(check.name)
        reason = _why_skipped(check, rule, evidence)
        if reason:
            findings = [_about_check(check, Verdict.SKIP, reason)]
        else:
            began = time.perf_counter()
            findings = list(_findings(check, evidence)) or [_about_check(check, Verdict.SKIP, "nothing to judge")]
            duration_s = time.perf_counter() - began
            runs.append(CheckRun(check=check.name, duration_s=duration_s, num_findings=len(findings)))
        found += [(position, _ruled(finding, rule, check.need)) for finding in findings]
    found.sort(key=lambda item: (item[1].verdict.rank, item[0], natural_key(item[1].subject)))
    return tuple(finding for _, finding in found), tuple(runs)


def answer_of(findings: Sequence[Finding], *, partial: bool = False) -> Answer:
    """The answer that these findings give.

    Any FAIL, advisory or not: "no-go". Else a required check that is UNKNOWN, nothing checked at all, or a partial run:
    "undecided". Else "go".
    """
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        return "no-go"
    if any(finding.verdict is Verdict.UNKNOWN and finding.need == "required" for finding in findings):
        return "undecided"
    checked = any(finding.verdict in {Verdict.PASS, Verdict.WARN} for finding in findings)
    return "go" if checked and not partial else "undecided"


def _why_skipped(check: Check, rule: Rule, evidence: Evidence) -> str | None:
    if rule.severity == "off":
        return "switched off in the rules"
    missing = _missing(check, evidence)
    if missing:
        return "this command does not gather: " + "; ".join(f"{fact}, from {_GATHERED_BY[fact]}" for fact in missing)
    return None


def _missing(check: Check, evidence: Evidence) -> list[str]:
    return [fact for fact in check.uses if getattr(evidence, fact) is None]


def _findings(check: Check, evidence: Evidence) -> Iterator[Finding]:
    """What the check yields, kept up to the point where it breaks."""
    try:
        for item in check.judge(evidence):
            yield _verified(check, item)
    except Exception as error:  # noqa: BLE001 - a broken check is a finding, not the end of the run
        yield _about_check(
            check,
            Verdict.UNKNOWN,
            f"the check broke: {type(error).__name__}: {error}",
            remedy=f'report it to the author of the check, with the saved run; until then [rules] {check.name} = "off"',
        )


def _verified(check: Check, item: object) -> Finding:
    """The finding, or an UNKNOWN that says how it breaks the contract. Types are verified, so that every report can be loaded."""
    if not isinstance(item, Finding):
        return _about_check(check, Verdict.UNKNOWN, f"the check broke: it yielded {type(item).__name__}, not a Finding")
    if item.check != check.name:
        return _about_check(check, Verdict.UNKNOWN, f"the check broke: it yielded a finding of {item.check!r}")
    try:
        return msgspec.convert(msgspec.to_builtins(item), Finding)
    except (msgspec.ValidationError, TypeError) as error:
        return _about_check(check, Verdict.UNKNOWN, f"the check broke: it yielded a malformed Finding: {error}")


def _about_check(check: Check, verdict: Verdict, observed: str, remedy: str = "") -> Finding:
    return Finding(check=check.name, subject=WHOLE_RUN, verdict=verdict, observed=observed, remedy=remedy)


def _ruled(finding: Finding, rule: Rule, default: Need) -> Finding:
    """The finding as `[rules]` want it."""
    need = rule.need or ("advisory" if rule.severity == "warn" else default)
    if rule.severity == "warn" and finding.verdict is Verdict.FAIL:
        observed = f"{finding.observed} (FAIL, lowered by the rules)"
        return msgspec.structs.replace(finding, need=need, verdict=Verdict.WARN, observed=observed)
    return msgspec.structs.replace(finding, need=need)
