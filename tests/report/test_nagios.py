"""The Nagios line: a status that agrees with the exit code, one bar, figures that the format allows."""

import re

import pytest

from preflight.cli.exit import exit_code
from preflight.model import Coverage, Evidence, Failure, Finding, Measurement, Report, Settings, Verdict
from preflight.report.nagios import MAX_TEXT, WORDS, nagios_text, status_word
from tests.builders import make_evidence, make_measurement, make_probe

# the guidelines' 'label'=value[UOM];[warn];[crit];[min];[max], with labels that need no quotes
FIGURE = r"[a-z_]+=(-?[0-9.]+(s|%|B|c)?|U)(;[0-9.]*){0,4}"
HOSTILE = "a|b='c'\x1b[31m\u202e\r\n|evil=1;2;3 節"


def make_report(*findings, answer="no-go", **facts):
    base = {"run_id": "r1", "command": "run", "started_at_s": 1.5, "duration_s": 2.0, "evidence": Evidence()}
    return Report(**{**base, "answer": answer, "findings": findings, **facts})


def finding(verdict=Verdict.FAIL, **facts):
    return Finding(**{"check": "xid", "subject": "n1", "verdict": verdict, "observed": "Xid 79", **facts})


def figures(report):
    return dict(figure.split("=") for figure in nagios_text(report).split(" | ")[1].split())


@pytest.mark.parametrize(
    ("answer", "verdict", "word"),
    [
        ("go", Verdict.PASS, "OK"),
        ("go", Verdict.WARN, "WARNING"),
        ("no-go", Verdict.FAIL, "CRITICAL"),
        ("undecided", Verdict.UNKNOWN, "UNKNOWN"),
    ],
)
def test_the_word_agrees_with_the_exit_code_of_that_style(answer, verdict, word):
    report = make_report(finding(verdict), answer=answer)
    assert nagios_text(report).startswith(f"PREFLIGHT {word} - {answer}")
    assert WORDS[exit_code(answer, report.findings, "nagios")] == word == status_word(report)


def test_the_worst_finding_is_named_and_the_numbers_follow_the_bar():
    text = nagios_text(
        make_report(finding(), finding(Verdict.PASS), coverage=Coverage(pairs_planned=9, pairs_measured=7))
    )
    assert text.startswith("PREFLIGHT CRITICAL - no-go: 1 FAIL (xid): n1: Xid 79 | fail=1;;;0 ")
    assert " pass=1;;;0 " in text
    assert text.endswith(" pairs_measured=7;;;0;9\n")


def test_figures_of_pairs_are_there_where_pairs_were_measured_and_u_where_none_gave_one():
    rates = (make_measurement((0, 1), algbw_bytes_per_s=4e9), make_measurement((0, 2), algbw_bytes_per_s=2e9))
    told = figures(make_report(evidence=make_evidence(measurements=rates)))
    assert (told["pair_min_bytes_per_second"], told["pair_median_bytes_per_second"]) == (
        "2000000000;;;0",
        "3000000000;;;0",
    )
    failed = Measurement(probe=make_probe(), failure=Failure(kind="timed_out", text="no end"))
    assert figures(make_report(evidence=make_evidence(measurements=(failed,))))["pair_min_bytes_per_second"] == "U;;;0"
    assert "pair_min_bytes_per_second" not in figures(make_report())


def test_contention_is_the_worst_groups():
    groups = tuple(
        make_measurement((0, 1), subject="tp0", axis="tp", collective="all_reduce", mode=mode, algbw_bytes_per_s=rate)
        for mode, rate in (("alone", 4e9), ("together", 1e9))
    )
    assert figures(make_report(evidence=make_evidence(measurements=groups)))["group_contention_min"] == "0.250;;;0"


def test_a_simulated_run_says_so_in_text_and_figures():
    report = make_report(evidence=Evidence(settings=Settings(simulated=True)))
    assert "[SIMULATED]" in nagios_text(report).split("|")[0]
    assert figures(report)["simulated"] == "1"


@pytest.mark.parametrize("text", [HOSTILE, HOSTILE * 300, "|" * 50, "\n"])
def test_no_text_becomes_a_figure_or_a_second_line(text):
    report = make_report(finding(check=text, subject=text, observed=text), command=text, run_id=text)
    line = nagios_text(report)
    assert line.isascii()
    assert line.count("\n") == 1
    assert line.count("|") == 1
    before, after = line.rstrip("\n").split(" | ")
    assert before.isprintable()
    assert len(before) <= len("PREFLIGHT ") + 3 * MAX_TEXT
    assert all(re.fullmatch(FIGURE, figure) for figure in after.split(" ")), after
