"""JUnit: well-formed whatever the texts, and the right outcome for each verdict."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.model import Evidence, Finding, Report, Settings, Verdict
from preflight.report.junit import junit_text
from tests.builders import make_plan


def make_report(*findings: Finding, answer="go", **facts) -> Report:
    base = {"run_id": "r", "command": "run", "started_at_s": 0.0, "duration_s": 1.0, "evidence": Evidence()}
    return Report(**{**base, "findings": findings, "answer": answer, **facts})


def finding(verdict=Verdict.FAIL, **facts) -> Finding:
    return Finding(**{"check": "c", "subject": "s", "verdict": verdict, "observed": "o", **facts})


@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        (finding(Verdict.FAIL, remedy="do x"), "failure"),
        (finding(Verdict.UNKNOWN), "error"),
        (finding(Verdict.UNKNOWN, need="advisory"), "skipped"),
        (finding(Verdict.SKIP), "skipped"),
        (finding(Verdict.WARN), "system-out"),
        (finding(Verdict.PASS), None),
    ],
)
def test_each_verdict_has_its_outcome(case, outcome):
    suite = ET.fromstring(junit_text(make_report(case)))
    children = [child.tag for child in suite[0]]
    assert children == ([outcome] if outcome else [])


def test_the_fingerprint_of_the_plan_is_a_property():
    plan = make_plan()
    suite = ET.fromstring(junit_text(make_report(evidence=Evidence(plan=plan))))
    assert [(one.get("name"), one.get("value")) for one in suite.iter("property")] == [
        ("fingerprint", plan.fingerprint)
    ]


def test_counts_agree_with_the_cases():
    findings = [finding(), finding(Verdict.UNKNOWN), finding(Verdict.SKIP), finding(Verdict.PASS)]
    suite = ET.fromstring(junit_text(make_report(*findings, answer="no-go")))
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5",
        "failures": "2",
        "errors": "1",
        "skipped": "1",
    }


def test_a_partial_run_is_an_error_although_no_finding_is():
    suite = ET.fromstring(junit_text(make_report(finding(Verdict.PASS), answer="undecided", partial=True)))
    assert suite.get("errors") == "1"
    assert "partial" in suite[-1][0].get("message", "")


def test_a_simulated_run_says_so():
    report = make_report(evidence=Evidence(settings=Settings(simulated=True)))
    assert "simulated" in ET.fromstring(junit_text(report)).get("name", "")


@given(st.text(), st.text(), st.sampled_from(list(Verdict)))
@settings(max_examples=50, deadline=None)
def test_any_text_gives_well_formed_xml(subject, observed, verdict):
    suite = ET.fromstring(
        junit_text(make_report(finding(verdict, subject=subject, observed=observed, remedy=observed)))
    )
    assert len(suite) == 2


def test_findings_of_one_name_keep_apart_where_a_reader_takes_the_first_of_a_name():
    suite = ET.fromstring(junit_text(make_report(finding(), finding(observed="p"), finding(check="d"), finding())))
    names = [(case.get("classname"), case.get("name")) for case in suite.iter("testcase")]
    assert names[:4] == [("preflight.c", "s"), ("preflight.c", "s (2)"), ("preflight.d", "s"), ("preflight.c", "s (3)")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.UNKNOWN, Verdict.SKIP])
def test_what_a_message_says_is_content_too_and_has_a_type(verdict):
    case = ET.fromstring(junit_text(make_report(finding(verdict, observed="seen"))))[0][0]
    assert "seen" in case.get("message")
    assert "seen" in case.text
    assert case.get("type") == verdict.value


def test_the_counts_are_those_of_the_cases():
    verdicts = [*Verdict, *Verdict]
    suite = ET.fromstring(junit_text(make_report(*map(finding, verdicts), answer="undecided")))
    assert int(suite.get("tests")) == len(list(suite.iter("testcase"))) == 11
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.get(name)) == len(list(suite.iter(tag)))


def test_the_suite_has_the_time_of_the_run_where_a_calendar_has_it():
    suite = ET.fromstring(junit_text(make_report(started_at_s=1767225600.0)))
    assert suite.get("timestamp") == "2026-01-01T00:00:00"
    assert ET.fromstring(junit_text(make_report(started_at_s=1e300))).get("timestamp") is None
