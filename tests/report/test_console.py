"""The terminal report: worst first, folded, one remedy, the answer last."""

import re

import pytest

from preflight.judge.run import answer_of
from preflight.model import (
    Coverage,
    Environment,
    Evidence,
    Failure,
    Finding,
    Incident,
    Measurement,
    Part,
    Report,
    Settings,
    Verdict,
)
from preflight.report.console import MAX_SHOWN, findings_text, report_text
from preflight.report.tables import pair_lines, pair_unit
from tests.builders import make_evidence, make_measurement, make_plan, make_probe


def finding(subject="n1", verdict=Verdict.FAIL, check="pair_outlier", **facts) -> Finding:
    return Finding(**{"check": check, "subject": subject, "verdict": verdict, "observed": "40 GB/s", **facts})


def make_report(*findings: Finding, evidence: Evidence | None = None, **facts) -> Report:
    base = {
        "run_id": "20260101-abc",
        "command": "run",
        "started_at_s": 1767225600.0,
        "duration_s": 61.0,
        "answer": answer_of(findings, partial=facts.get("partial", False)),
        "evidence": evidence or Evidence(),
    }
    return Report(**{**base, "findings": findings, **facts})


def measured(num_ranks=8, **plan) -> Evidence:
    pairs = [
        make_measurement((a, b), algbw_bytes_per_s=(10 if (a < 4) != (b < 4) else 100) * 1e9)
        for a in range(num_ranks)
        for b in range(a + 1, num_ranks)
    ]
    groups = [
        make_measurement(
            (0, 1), subject="tp0", axis="tp", collective="all_reduce", mode=mode, algbw_bytes_per_s=rate * 1e9
        )
        for mode, rate in (("alone", 100), ("together", 60))
    ]
    return make_evidence(plan=make_plan(nodes=2, gpus_per_node=4, tp=4, dp=2, **plan), measurements=(*pairs, *groups))


def test_findings_come_worst_first():
    text = findings_text([finding(verdict=v, check=f"c{i}") for i, v in enumerate(reversed(Verdict))])
    assert [line.split()[0] for line in text.splitlines() if line[0] != " "] == [v.value for v in Verdict]


def test_equal_findings_of_many_nodes_are_folded_with_one_remedy():
    nodes = [f"n{i:02d}" for i in range(1, 17)]
    text = findings_text([finding(n, remedy="replace the cable", blames=Part(kind="node", name=n)) for n in nodes])
    assert text.count("replace the cable") == 1
    assert "pair_outlier: n[01-16]" in text
    assert "node n[01-16] (certain)" in text


def test_different_observations_are_not_folded():
    assert findings_text([finding("n1"), finding("n2", observed="41 GB/s")]).count("observed") == 2


def test_passes_and_skips_take_one_line_for_each_check():
    findings = [finding(f"tp{i}", Verdict.PASS, "tp_in_nvlink_domain") for i in range(8)]
    findings += [finding("run", Verdict.SKIP, "gpu_count", observed="nothing to judge")]
    assert findings_text(findings) == ("PASS    tp_in_nvlink_domain: 8: tp[0-7]\nSKIP    gpu_count: nothing to judge\n")


def test_many_pairs_are_counted_not_listed():
    text = findings_text([finding(f"pair 0-{i}", Verdict.PASS) for i in range(1, 100)])
    assert text == "PASS    pair_outlier: 99 pairs\n"


def test_more_findings_than_a_person_reads_are_counted():
    text = findings_text([finding(f"n{i}", observed=f"{i} GB/s") for i in range(40)])
    assert text.count("observed") == MAX_SHOWN
    assert f"and {40 - MAX_SHOWN} more of pair_outlier" in text


def test_an_advisory_finding_says_so():
    assert "(advisory)" in findings_text([finding(verdict=Verdict.UNKNOWN, need="advisory")])
    assert "(advisory)" not in findings_text([finding(verdict=Verdict.FAIL, need="advisory")])


def test_nothing_from_elsewhere_reaches_the_terminal_raw():
    evil = "a\x1b]0;title\x07\r\nb"
    incident = Incident(kind="worker_died", text=evil, phase=evil, at_s=1.0, node=evil, rank=0)
    evidence = Evidence(incidents=(incident,))
    text = report_text(
        make_report(
            finding(evil, observed=evil, expected=evil, remedy=evil, blames=Part(kind="node", name=evil), check=evil),
            evidence=evidence,
            environment=Environment(versions={evil: evil}, variables={evil: evil}),
            phases_s={evil: 1.0},
            run_id=evil,
            command=evil,
            partial=True,
            partial_reason=evil,
        )
    )
    assert re.search(r"[^\n -~]", text) is None


def test_colour_is_added_only_on_request_and_changes_no_letter():
    report = make_report(finding(), finding(verdict=Verdict.PASS, check="b"), partial=True)
    colored = report_text(report, color=True)
    assert "\x1b[1;31m" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == report_text(report)


@pytest.mark.parametrize(
    ("findings", "facts", "last"),
    [
        ((finding(verdict=Verdict.PASS),), {}, "go"),
        ((finding(verdict=Verdict.WARN),), {}, "go: 1 WARN (pair_outlier)"),
        ((finding(), finding("n2")), {}, "no-go: 2 FAIL (pair_outlier)"),
        ((finding(verdict=Verdict.UNKNOWN),), {}, "undecided: 1 UNKNOWN (pair_outlier)"),
        ((finding(verdict=Verdict.PASS),), {"partial": True}, "undecided: the run is partial"),
        ((), {}, "undecided: nothing was checked"),
        (
            (finding(verdict=Verdict.PASS),),
            {"evidence": Evidence(settings=Settings(simulated=True))},
            "go [SIMULATED]",
        ),
    ],
)
def test_the_last_line_is_the_answer_with_its_reason(findings, facts, last):
    assert report_text(make_report(*findings, **facts)).splitlines()[-1] == last


def test_partial_and_simulated_runs_say_so_loudly_above_and_below():
    report = make_report(
        finding(), evidence=Evidence(settings=Settings(simulated=True)), partial=True, partial_reason="interrupted"
    )
    text = report_text(report)
    assert text.count("PARTIAL: interrupted") == 2
    assert text.count("SIMULATED: a modelled cluster") == 2


def test_a_small_cluster_gets_its_matrix():
    text = report_text(make_report(evidence=measured()))
    rows = [line.split() for line in text.splitlines()]
    assert ["0", "node0", ".", "100", "100", "100", "10.0", "10.0", "10.0", "10.0"] in rows
    assert ["7", "node1", "10.0", "10.0", "10.0", "10.0", "100", "100", "100", "."] in rows


@pytest.mark.parametrize(
    ("rates", "unit", "cells"),
    [
        ((47e9, 0.44e9, 25e6), "GB/s", ["47.0", "0.440", "0.025"]),
        ((25e6, 12.34e6, 0.9e6), "MB/s", ["25.0", "12.3", "0.900"]),
    ],
)
def test_the_matrix_is_in_one_unit_and_slow_links_keep_their_digits(rates, unit, cells):
    pairs = ((0, 1), (0, 2), (1, 2))
    found = (make_measurement(pair, algbw_bytes_per_s=rate) for pair, rate in zip(pairs, rates, strict=True))
    evidence = make_evidence(measurements=tuple(found))
    lines = pair_lines(evidence, width=100)
    assert pair_unit(evidence) == unit
    assert lines[1].split()[2:] == [".", *cells[:2]]
    assert lines[2].split()[2:] == [cells[0], ".", cells[2]]
    assert len({len(line) for line in lines[:3]}) == 1


def test_pairs_that_failed_or_were_not_reached_are_told_apart_in_the_matrix():
    failed = Measurement(probe=make_probe((0, 1)), failure=Failure(kind="timed_out", text="no end"))
    evidence = make_evidence(measurements=(failed, make_measurement((0, 2))))
    rows = [line.split() for line in report_text(make_report(evidence=evidence)).splitlines()]
    assert ["0", "node0", ".", "failed", "100"] in rows
    assert ["1", "node0", "failed", ".", "-"] in rows


def test_more_than_16_ranks_become_the_slowest_nodes():
    pairs = tuple(make_measurement((0, b), algbw_bytes_per_s=b * 1e9) for b in range(1, 64))
    text = report_text(make_report(evidence=make_evidence(measurements=pairs)))
    assert "rank  node" not in text
    assert "ranks 0 - 1    node0 - node0  1.00 GB/s" in text
    assert "ranks 0 - 6" not in text
    assert re.search(r"node0 +inside it +1\.00 GB/s +4\.00 GB/s +7", text)
    assert re.search(r"node7 +between nodes +56\.0 GB/s", text)


def test_groups_show_alone_together_and_ratio():
    text = report_text(make_report(evidence=measured()))
    assert re.search(r"tp +tp0 +all_reduce +67\.1 MB +100 GB/s +60\.0 GB/s +0\.60", text)


def test_of_many_groups_those_that_lose_most_are_shown():
    groups = tuple(
        make_measurement(
            (i, i + 1), subject=f"dp{i}", axis="dp", collective="all_reduce", mode=mode, algbw_bytes_per_s=r
        )
        for i in range(40)
        for mode, r in (("alone", 100e9), ("together", (99 - i) * 1e9))
    )
    text = report_text(make_report(evidence=make_evidence(measurements=groups)))
    assert " dp39 " in text
    assert " dp35 " in text
    assert " dp34 " not in text
    assert re.search(r"dp +median of 40 +all_reduce +67\.1 MB +100 GB/s +79\.5 GB/s +0\.80", text)
    assert "of more than 16 groups: the median, and the 5 that lose most" in text


def test_first_calls_coverage_phases_and_versions_are_told():
    text = report_text(
        make_report(
            evidence=measured(),
            coverage=Coverage(pairs_planned=28, pairs_measured=27, groups_planned=2, groups_measured=2),
            phases_s={"start-up": 3.5, "probing": 20.0},
            environment=Environment(versions={"torch": "2.13.0"}, variables={"NCCL_DEBUG": "INFO"}),
        )
    )
    assert "27 of 28 pairs, 2 of 2 groups measured" in text
    assert "start-up 3.50 s, probing 20.0 s" in text
    assert "torch 2.13.0" in text
    assert "NCCL_DEBUG=INFO" in text
    assert re.search(r"tp +median 100 ms +slowest 100 ms", text)


def test_no_line_is_wider_than_the_terminal():
    evidence = measured()
    bad = finding(observed="word " * 80, expected="x" * 300, remedy="do " * 90)
    text = report_text(
        make_report(bad, finding("n2", Verdict.PASS, "b", observed="y " * 200), evidence=evidence), width=90
    )
    assert max(map(len, text.splitlines())) <= 90


def test_a_report_of_a_date_that_no_calendar_has_still_prints():
    assert "no calendar" in report_text(make_report(started_at_s=1e300))


def of_group(subject, **changes):
    numbers = {"observed": f"ranks of {subject} on 8 nodes", "remedy": f"place ranks of {subject} in one domain"}
    part = Part(kind="plan", name="launch.distribution")
    return Finding(
        check="tp",
        subject=subject,
        verdict=Verdict.FAIL,
        expected="one domain",
        **{"blames": part, **numbers, **changes},
    )


def test_groups_that_one_key_of_the_plan_sets_apart_are_shown_once_and_named():
    rolled = of_group("tp[8-31]", remedy="as for tp0: place ranks of tp8 in one domain")
    text = findings_text([*(of_group(f"tp{i}") for i in range(8)), rolled])
    assert text.count("FAIL") == 1
    assert text.count("remedy") == 1
    assert "likewise  tp[1-7],tp[8-31]" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"blames": Part(kind="plan", name="parallel.order")},
        {"blames": Part(kind="gpu", name="n1/gpu0")},
        {"blames": None},
        {"remedy": "something else"},
        {"need": "advisory"},
    ],
)
def test_findings_of_other_causes_stay_whole(changes):
    assert findings_text([of_group("tp0"), of_group("tp1", **changes)]).count("FAIL") == 2
    if changes.get("blames", 0) != Part(kind="plan", name="parallel.order") and "blames" in changes:
        assert findings_text([of_group("tp0", **changes), of_group("tp1", **changes)]).count("FAIL") == 2


def test_passes_about_different_things_show_the_first_in_words():
    findings = [finding("axes that cross", Verdict.PASS, "axis_cost", observed="dp 120 ms per step")]
    findings += [finding(f"dp{i}", Verdict.PASS, "axis_cost", observed="crosses") for i in range(3)]
    assert findings_text(findings) == "PASS    axis_cost: axes that cross: dp 120 ms per step (and 3 more: dp[0-2])\n"


def test_what_passed_is_wrapped_rather_than_cut_and_things_are_set_apart():
    words = " ".join(f"word{i}" for i in range(30))
    text = findings_text([finding("vm", Verdict.PASS, "nic_affinity", observed=words)])
    assert "word29" in text
    assert "..." not in text
    assert max(map(len, text.splitlines())) <= 100
    assert "..." in findings_text([finding("vm", Verdict.PASS, "nic_affinity", observed=words * 9)])
    kinds = [finding(name, Verdict.PASS, "node_uniform", observed="alike") for name in ("CPU model", "VBIOS", "memory")]
    assert "(and 2 more: VBIOS, memory)" in findings_text(kinds)


def test_what_a_part_is_is_said_once():
    nic = finding(blames=Part(kind="nic", name="NIC of n3 GPU 2", confidence="likely"))
    node = finding(blames=Part(kind="node", name="n3", confidence="likely"))
    assert "blames    NIC of n3 GPU 2 (likely)" in findings_text([nic])
    assert "blames    node n3 (likely)" in findings_text([node])


def test_the_messages_of_an_axis_stand_together():
    groups = tuple(
        make_measurement((0, 1), subject=f"{axis}0", axis=axis, collective="all_reduce", size_bytes=size_bytes)
        for axis, size_bytes in (("tp", 2**30), ("dp", 2**30), ("tp", 2**20))
    )
    text = report_text(make_report(evidence=make_evidence(measurements=groups)))
    table = text[text.index("Bandwidth of groups") : text.index("First calls")]
    assert re.findall(r"^  (tp|dp) ", table, re.MULTILINE) == ["tp", "tp", "dp"]


def test_phases_that_took_no_time_are_not_told():
    text = report_text(make_report(phases_s={"probing": 2.0, "reading counters again": 5e-5}))
    assert "time      probing 2.00 s\n" in text


def test_what_is_unknown_of_a_node_that_never_answered_is_one_entry():
    unknown = [finding("n9", Verdict.UNKNOWN, check=check) for check in ("xid", "gpu_count")]
    other = finding("n8", Verdict.UNKNOWN, check="xid")
    lost = Incident(kind="agent_lost", text="no answer", phase="discovery", at_s=1.0, node="n9")
    text = report_text(make_report(*unknown, other, evidence=make_evidence(incidents=(lost,))))
    assert "UNKNOWN xid, gpu_count: n9\n        observed  nothing: its agent did not answer\n" in text
    assert text.count("n9\n") == 1
    assert "UNKNOWN xid: n8\n" in text


def test_what_is_unknown_of_a_node_that_was_lost_later_is_told_as_it_is():
    lost = Incident(kind="agent_lost", text="no answer", phase="probing", at_s=1.0, node="n9")
    evidence = make_evidence(incidents=(lost,))
    text = report_text(make_report(finding("n9", Verdict.UNKNOWN, check="xid"), evidence=evidence))
    assert "its agent did not answer" not in text
