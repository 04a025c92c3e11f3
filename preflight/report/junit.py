"""Findings in JUnit's XML, for CI systems: one test case for each finding, and one for the answer.

FAIL is a failure. UNKNOWN of a required check is an error; of an advisory one it is skipped, since it doesn't stop a run.
WARN passes with its text as output.
"""

from html import escape  # the same five characters as in XML; xml.sax costs 70 ms

from preflight.model import Answer, Finding, Report, Verdict
from preflight.report.text import clean


def junit_text(report: Report) -> str:
    """The report as a JUnit document."""
    cases = [(_case(finding.check, finding.subject, _body(finding)), _outcome(finding)) for finding in report.findings]
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
        f' time="{max(report.duration_s, 0):.3f}">\n'
        + _properties(report)
        + "".join(case for case, _ in cases)
        + "</testsuite>\n"
    )


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
    if outcome == "skipped":
        return f"<skipped message={_attribute(f'{finding.verdict.value}: {finding.observed}')}/>"
    if outcome != "passed":
        return f"<{outcome} message={_attribute(finding.observed)}>{escape(details)}</{outcome}>"
    if finding.verdict is Verdict.WARN:
        return f"<system-out>{escape(f'WARN{chr(10)}{details}')}</system-out>"
    return ""


def _answer_case(report: Report) -> tuple[str, str]:
    outcomes: dict[Answer, str] = {"go": "passed", "no-go": "failure", "undecided": "error"}
    outcome = outcomes[report.answer]
    why = f" ({report.partial_reason or 'partial run'})" if report.partial else ""
    body = "" if outcome == "passed" else f"<{outcome} message={_attribute(report.answer + why)}/>"
    return _case("answer", "run", body), outcome


def _case(check: str, subject: str, body: str) -> str:
    head = f"  <testcase classname={_attribute(f'preflight.{check}')} name={_attribute(subject)}"
    return f"{head}>{body}</testcase>\n" if body else f"{head}/>\n"


def _attribute(text: str) -> str:
    return f'"{escape(clean(text))}"'
