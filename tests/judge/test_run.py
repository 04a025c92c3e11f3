"""The harness: a check can't hurt the run, rules are applied, order and answer are as promised."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.judge.run import answer_of, judge, judge_again, run_checks
from preflight.model import Check, Evidence, Finding, Inventory, Report, Rule, Verdict
from preflight.model.hostlist import natural_key
from tests.builders import make_evidence, make_plan


def finding(check: str = "c", subject: str = "s", verdict: Verdict = Verdict.PASS, **facts) -> Finding:
    return Finding(check=check, subject=subject, verdict=verdict, observed="o", **facts)


def check(*items, name: str = "c", uses=(), error: BaseException | None = None, **facts) -> Check:
    def judge_(evidence):
        yield from items
        if error:
            raise error

    return Check(name=name, claim="c", why="w", uses=uses, judge=judge_, **facts)


def one(a_check: Check, evidence: Evidence | None = None) -> Finding:
    [only] = run_checks([a_check], evidence or Evidence())[0]
    return only


def ruled(severity=None, need=None, *, verdict=Verdict.FAIL) -> Finding:
    plan = make_plan(rules={"c": Rule(severity=severity, need=need)})
    return one(check(finding(verdict=verdict)), make_evidence(plan=plan))


def test_what_a_check_yields_is_kept_and_its_run_recorded():
    findings, runs = run_checks([check(finding(subject="a"), finding(subject="b"))], Evidence())
    assert [f.subject for f in findings] == ["a", "b"]
    assert (runs[0].check, runs[0].num_findings) == ("c", 2)
    assert runs[0].duration_s >= 0


def test_silence_is_skip():
    assert (one(check()).verdict, one(check()).observed) == (Verdict.SKIP, "nothing to judge")


def test_a_check_whose_facts_this_command_does_not_gather_is_skipped_and_not_run():
    findings, runs = run_checks([check(uses=("plan", "measurements"), error=AssertionError("was run"))], Evidence())
    assert findings[0].verdict is Verdict.SKIP
    assert "plan" in findings[0].observed
    assert "measurements" in findings[0].observed
    assert runs == ()


def test_an_exception_is_unknown_with_its_type_and_text_and_earlier_findings_are_kept():
    findings, _ = run_checks([check(finding(), error=ZeroDivisionError("by zero"))], Evidence())
    assert [f.verdict for f in findings] == [Verdict.UNKNOWN, Verdict.PASS]
    assert "ZeroDivisionError: by zero" in findings[0].observed


def test_a_judge_that_is_no_generator_and_raises_at_once_is_unknown_too():
    def broken(evidence):
        raise RuntimeError("no")

    assert one(Check(name="c", claim="", why="", uses=(), judge=broken)).verdict is Verdict.UNKNOWN


def test_an_interrupt_is_never_swallowed():
    with pytest.raises(KeyboardInterrupt):
        run_checks([check(error=KeyboardInterrupt())], Evidence())


@pytest.mark.parametrize(
    "item",
    [
        "FAIL",
        None,
        finding(check="another"),
        Finding(check="c", subject="s", verdict="PASS", observed=None),  # type: ignore[arg-type]
        Finding(check="c", subject="s", verdict=object(), observed="o"),  # type: ignore[arg-type]
    ],
)
def test_what_breaks_the_contract_is_unknown(item):
    got = one(check(item))
    assert got.verdict is Verdict.UNKNOWN
    assert got.check == "c"


def test_severity_warn_lowers_fail_and_makes_the_check_advisory():
    got = ruled("warn")
    assert (got.verdict, got.need) == (Verdict.WARN, "advisory")
    assert "lowered by the rules" in got.observed
    assert ruled("warn", "required", verdict=Verdict.UNKNOWN).need == "required"


def test_severity_off_skips_without_running():
    plan = make_plan(rules={"c": Rule(severity="off")})
    got = one(check(error=AssertionError("was run")), make_evidence(plan=plan))
    assert (got.verdict, got.observed) == (Verdict.SKIP, "switched off in the rules")


def test_severity_fail_does_not_turn_a_warning_into_a_failure():
    assert ruled("fail", verdict=Verdict.WARN).verdict is Verdict.WARN
    assert ruled("fail").verdict is Verdict.FAIL


def test_need_comes_from_the_check_unless_a_rule_says_otherwise():
    assert one(check(finding(), need="advisory")).need == "advisory"
    assert ruled(need="advisory").need == "advisory"


def test_findings_are_worst_first_then_by_check_then_by_subject_counted():
    a = check(finding("a", "tp10"), finding("a", "tp2"), finding("a", "x", Verdict.WARN), name="a")
    b = check(finding("b", "n", Verdict.FAIL), finding("b", "m", Verdict.SKIP), finding("b", "m"), name="b")
    got = [(f.check, f.subject) for f in run_checks([a, b], Evidence())[0]]
    assert got == [("b", "n"), ("a", "x"), ("a", "tp2"), ("a", "tp10"), ("b", "m"), ("b", "m")]


@given(st.text(), st.text())
@settings(max_examples=60)
def test_any_two_subjects_can_be_ordered(a, b):
    assert isinstance(natural_key(a) < natural_key(b), bool)


@pytest.mark.parametrize(
    ("findings", "answer"),
    [
        ([], "undecided"),
        ([finding(verdict=Verdict.SKIP)], "undecided"),
        ([finding()], "go"),
        ([finding(verdict=Verdict.WARN)], "go"),
        ([finding(), finding(verdict=Verdict.UNKNOWN)], "undecided"),
        ([finding(), finding(verdict=Verdict.UNKNOWN, need="advisory")], "go"),
        ([finding(verdict=Verdict.UNKNOWN, need="advisory")], "undecided"),
        ([finding(verdict=Verdict.UNKNOWN), finding(verdict=Verdict.FAIL)], "no-go"),
        ([finding(verdict=Verdict.FAIL, need="advisory")], "no-go"),
    ],
)
def test_the_answer_follows_from_the_findings(findings, answer):
    assert answer_of(findings) == answer


def test_a_partial_run_is_never_go_but_a_failure_stays_one():
    assert judge(Evidence(), [check(finding())])[2] == "go"
    assert judge(Evidence(), [check(finding())], partial=True)[2] == "undecided"
    assert judge(Evidence(), [check(finding(verdict=Verdict.FAIL))], partial=True)[2] == "no-go"


verdicts = st.sampled_from(list(Verdict))


@given(st.lists(st.tuples(verdicts, st.sampled_from(["required", "advisory"]))))
@settings(max_examples=50)
def test_go_always_means_evidence_was_seen_and_nothing_required_is_missing(drawn):
    findings = [finding(verdict=verdict, need=need) for verdict, need in drawn]
    if answer_of(findings) == "go":
        assert any(f.verdict in {Verdict.PASS, Verdict.WARN} for f in findings)
        assert all(f.verdict is not Verdict.FAIL for f in findings)
        assert all(f.need == "advisory" for f in findings if f.verdict is Verdict.UNKNOWN)


def saved(*findings: Finding, **facts) -> Report:
    base = {"run_id": "r", "command": "run", "started_at_s": 0.0, "duration_s": 1.0, "answer": "go"}
    return Report(**{**base, "findings": findings, "evidence": Evidence(inventory=Inventory(nodes=())), **facts})


def test_judging_again_gives_the_same_findings_from_the_same_evidence():
    checks = [check(finding(subject="a"), finding(subject="b", verdict=Verdict.WARN))]
    findings, runs, answer = judge(Evidence(), checks)
    again = judge_again(saved(*findings, answer=answer, evidence=Evidence(), checks=runs), checks)
    assert (again.findings, again.answer) == (findings, "go")


def test_judging_again_keeps_the_findings_of_a_check_that_is_not_installed_here():
    site = finding("site_rule", verdict=Verdict.FAIL)
    again = judge_again(saved(finding(), site), [check(finding())])
    assert again.findings[0] == site
    assert again.answer == "no-go"


def test_judging_a_partial_report_again_is_not_go():
    assert judge_again(saved(finding(), partial=True), [check(finding())]).answer == "undecided"
