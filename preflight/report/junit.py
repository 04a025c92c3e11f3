"""Findings in JUnit's XML, for CI systems: one test case for each finding, and one for the answer.

FAIL is a failure. UNKNOWN of a required check is an error; of an advisory one it is skipped, since it doesn't stop a run.
WARN passes with its text as output.

What readers do with it: GitLab shows the content of failure, error and skipped and not their message, and of test cases with one class and name keeps the first alone (docs.gitlab.com,
"Unit test reports"), so that a name that comes again gets a number. The schema that Ant, Jenkins and pytest's tests use wants type, and properties before cases.
"""

import time
from collections import Counter
from collections.abc import Sequence
from html import escape  # the same five characters as in XML; xml.sax costs 70 ms

from preflight.model import Answer, Finding, Report, Verdict
from preflight.report.text import clean


def junit_text(report: Report) -> str:
    """The report as a JUnit document."""
    names = _names(report.findings)
    cases = [
        (_case(finding.check, name, _body(finding)), _outcome(finding))
        for finding, name in zip(report.findings, names, strict=True)
    ]
    cases.append(_answer_case(report))
    outcomes = [outcome for _, outcome in cases]
    counts = " ".join(
        f'{name}="{count}"'
        for name, count in (
            ("tests", len(cases)),
            ("failures", outcomes.count("failure")),
            ("errors", outcomes.count("error")),
            ("skipped", outcomes.count("skipped")),
        )
    )
    simulated = " simulated" if report.evidence.settings.simulated else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<testsuite name={_attribute(f'preflight {report.command}{simulated}')} {counts}"
        f' time="{max(report.duration_s, 0):.3f}"{_timestamp(report.started_at_s)}>\n'
        + _properties(report)
        + "".join(case for case, _ in cases)
        + "</testsuite>\n"
    )


def _names(findings: Sequence[Finding]) -> list[str]:
    """What each is called within its check: its subject, and where that comes again a number."""
    seen: Counter[tuple[str, str]] = Counter()
    names = []
    for finding in findings:
        key = (clean(finding.check), clean(finding.subject))
        seen[key] += 1
        names.append(key[1] if seen[key] == 1 else f"{key[1]} ({seen[key]})")
    return names


def _timestamp(at_s: float) -> str:
    """In UTC; nothing for a date that no calendar has."""
    try:
        return time.strftime(' timestamp="%Y-%m-%dT%H:%M:%S"', time.gmtime(at_s))
    except (OverflowError, OSError, ValueError):
        return ""


def _properties(report: Report) -> str:
    """The fingerprint of the plan, and that nothing was measured, as properties of the suite."""
    plan = report.evidence.plan
    found = {"fingerprint": plan.fingerprint} if plan is not None and plan.fingerprint else {}
    if report.evidence.settings.simulated:
        found["simulated"] = "true"
    named = "".join(f'<property name="{name}" value={_attribute(value)}/>' for name, value in found.items())
    return f"  <properties>{named}</properties>\n" if named else ""


def _outcome(finding: Finding) -> str:
    if finding.verdict is Verdict.UNKNOWN:
        return "error" if finding.need == "required" else "skipped"
    return {Verdict.FAIL: "failure", Verdict.SKIP: "skipped"}.get(finding.verdict, "passed")


def _body(finding: Finding) -> str:
    outcome = _outcome(finding)
    parts = [("observed", finding.observed), ("expected", finding.expected), ("remedy", finding.remedy)]
    details = "\n".join(f"{name}: {clean(text)}" for name, text in parts if text)
    kind = f"type={_attribute(finding.verdict.value)}"
    if outcome == "skipped":
        text = f"{finding.verdict.value}: {finding.observed}"
        return f"<skipped {kind} message={_attribute(text)}>{escape(clean(text))}</skipped>"
    if outcome != "passed":
        return f"<{outcome} {kind} message={_attribute(finding.observed)}>{escape(details)}</{outcome}>"
    if finding.verdict is Verdict.WARN:
        return f"<system-out>{escape(f'WARN{chr(10)}{details}')}</system-out>"
    return ""


def _answer_case(report: Report) -> tuple[str, str]:
    outcomes: dict[Answer, str] = {"go": "passed", "no-go": "failure", "undecided": "error"}
    outcome = outcomes[report.answer]
    why = f" ({report.partial_reason or 'partial run'})" if report.partial else ""
    text = _attribute(report.answer + why)
    body = f"<{outcome} type={_attribute(report.answer)} message={text}>{text[1:-1]}</{outcome}>"
    body = "" if outcome == "passed" else body
    return _case("answer", "run", body), outcome


def _case(check: str, subject: str, body: str) -> str:
    head = f"  <testcase classname={_attribute(f'preflight.{check}')} name={_attribute(subject)}"
    return f"{head}>{body}</testcase>\n" if body else f"{head}/>\n"


def _attribute(text: str) -> str:
    return f'"{escape(clean(text))}"'
