"""What a job of the scan says of each of its nodes, and when it has been said often enough to drain one."""

import msgspec
import pytest

from preflight.config import Brake, ScanSite, Site, SlurmSite
from preflight.fleet.history import History
from preflight.model import Finding, Localisation, Part, Report, Verdict
from preflight.model.ends import ends_of
from preflight.model.history import NodeVerdict
from preflight.slurm import scan_results
from preflight.slurm.commands import Slurm
from preflight.slurm.drain import Drained
from preflight.slurm.guilty import guilty_nodes
from preflight.slurm.scan_metrics import scan_metrics
from preflight.slurm.scan_results import Results
from preflight.slurm.scan_verdicts import agreeing, suspects, verdicts_of
from tests.slurm.standin_run import report_of

NODES = ("n1", "n2", "n3", "n4")
DAY_S = 86400.0


def finding(verdict: Verdict = Verdict.FAIL, part: Part | None = None, **changes: object) -> Finding:
    return Finding(
        **{"check": "slow_part", "subject": "s", "verdict": verdict, "observed": "slow", "blames": part, **changes}
    )


def said(report: Report) -> dict[str, tuple[Verdict, bool]]:
    guilty = guilty_nodes(report.findings, report.evidence)
    return {v.node: (v.verdict, v.doubt) for v in verdicts_of(report, guilty, "sweep")}


def test_the_guilty_node_fails_and_the_others_pass():
    found = verdicts_of(report_of(NODES, ["n3"]), {"n3": report_of(NODES, ["n3"]).findings}, "sweep")
    report = report_of(NODES, ["n3"])
    assert said(report) == {
        "n1": (Verdict.PASS, False),
        "n2": (Verdict.PASS, False),
        "n3": (Verdict.FAIL, False),
        "n4": (Verdict.PASS, False),
    }
    (verdict,) = [v for v in found if v.node == "n3"]
    assert verdict.partners == ("n1", "n2", "n4")
    assert verdict.checks == ("slow_part",)


@pytest.mark.parametrize(
    ("loose", "verdict", "doubt"),
    [
        (finding(part=Part(kind="path", name="leaf1 to leaf2")), Verdict.UNKNOWN, True),
        (finding(part=None), Verdict.UNKNOWN, True),
        (finding(part=Part(kind="node", name="n1", confidence="possible")), Verdict.UNKNOWN, True),
        (finding(Verdict.UNKNOWN), Verdict.UNKNOWN, False),
        (finding(Verdict.UNKNOWN, need="advisory"), Verdict.PASS, False),
        (finding(Verdict.WARN), Verdict.PASS, False),
    ],
)
def test_what_no_node_is_guilty_of_leaves_all_unknown_and_what_need_not_be_known_does_not(loose, verdict, doubt):
    report = msgspec.structs.replace(report_of(NODES, []), findings=(loose,))
    assert said(report) == dict.fromkeys(NODES, (verdict, doubt))


def test_a_run_that_ended_early_or_did_not_measure_a_node_clears_nobody():
    partial = msgspec.structs.replace(report_of(NODES, []), partial=True)
    assert said(partial) == dict.fromkeys(NODES, (Verdict.UNKNOWN, False))
    report = report_of(NODES, [])
    few = tuple(m for m in report.evidence.measurements or () if 3 not in m.probe.ranks)
    report = msgspec.structs.replace(report, evidence=msgspec.structs.replace(report.evidence, measurements=few))
    assert said(report)["n4"] == (Verdict.UNKNOWN, False)
    assert said(report)["n1"] == (Verdict.PASS, False)


def test_a_run_that_judges_no_rate_clears_nobody_and_what_it_did_see_still_counts():
    report = report_of(NODES, [])
    found = Localisation(ends=ends_of(report.evidence.plan), unjudged="too noisy: 9 repeats differ by 30%")
    evidence = msgspec.structs.replace(report.evidence, localisation=found)
    report = msgspec.structs.replace(report, evidence=evidence)
    assert report.answer == "go"
    assert said(report) == dict.fromkeys(NODES, (Verdict.UNKNOWN, False))
    assert verdicts_of(report, {}, None)[0].text == "no rate was judged: too noisy: 9 repeats differ by 30%"
    ecc = finding(part=Part(kind="gpu", name="n3 GPU 1"))
    assert {v.node: v.verdict for v in verdicts_of(report, {"n3": (ecc,)}, None)}["n3"] is Verdict.FAIL


def test_all_of_four_nodes_alike_are_the_environment():
    assert said(report_of(NODES, list(NODES))) == dict.fromkeys(NODES, (Verdict.UNKNOWN, True))


# --- repeats -------------------------------------------------------------------------------------------------------------


def verdict(at_s: float, kind: Verdict = Verdict.FAIL, sweep: str | None = "s", **changes: object) -> NodeVerdict:
    facts = {
        "node": "n1",
        "verdict": kind,
        "at_s": at_s,
        "run_id": f"r{at_s}",
        "checks": ("slow_part",),
        "sweep": sweep,
    }
    return NodeVerdict(**{**facts, **changes})


def agreed(*verdicts: NodeVerdict, since_s: float = 0, boot_s: float | None = None) -> list[float]:
    """When they were said, newest first."""
    ordered = sorted(verdicts, key=lambda each: -each.at_s)
    return [each.at_s for each in agreeing(ordered, since_s=since_s, boot_s=boot_s)]


def test_two_sweeps_that_agree_are_two_and_one_job_is_one_however_often_it_is_told():
    assert agreed(verdict(1, sweep="a"), verdict(2, sweep="b")) == [2, 1]
    assert agreed(verdict(1), verdict(2)) == [2]
    assert agreed(verdict(1, partners=("n2",)), verdict(2, partners=("n3",))) == [2, 1]


def test_what_came_before_a_pass_a_drain_a_boot_or_too_long_ago_does_not_count():
    old, new = verdict(1, sweep="a"), verdict(3, sweep="c")
    assert agreed(old, verdict(2, Verdict.PASS), new) == [3]
    assert agreed(old, verdict(2, sweep="b", drained=True), new) == [3]
    assert agreed(old, new, boot_s=2) == [3]
    assert agreed(old, new, since_s=2) == [3]
    assert agreed(verdict(1, Verdict.PASS)) == []


def test_another_fault_or_another_run_than_a_sweep_is_no_repeat_and_unknown_says_nothing():
    new = verdict(3, sweep="c")
    assert agreed(verdict(1, sweep="a", checks=("xid",)), new) == [3]
    assert agreed(verdict(1, sweep=None), new) == [3]
    assert agreed(verdict(1, sweep="a"), verdict(2, Verdict.UNKNOWN, sweep="b"), new) == [3, 1]


def test_suspects_are_blamed_or_in_doubt_and_were_not_measured_often_enough_in_this_sweep():
    last = {
        "n1": verdict(1, partners=("n2",)),
        "n2": verdict(1, Verdict.UNKNOWN, doubt=True),
        "n3": verdict(1, Verdict.UNKNOWN),
        "n4": verdict(1, Verdict.PASS),
        "n5": verdict(1, drained=True),
        "n6": verdict(1),
    }
    assert suspects(last, {"n6": 2, "n1": 1}, 2) == {"n1": frozenset({"n2"}), "n2": frozenset()}


# --- taking reports ------------------------------------------------------------------------------------------------------


def results(tmp_path, *, missing: bool = True, **scan: object) -> tuple[Results, list[str]]:
    """With a Slurm that can't be found, so that whatever asks it fails."""
    lines: list[str] = []
    site = Site(slurm=SlurmSite(enforce=True), scan=ScanSite(**scan), brake=Brake(jitter_s=0, settle_s=0))
    slurm = Slurm(str(tmp_path / "nowhere"))
    history = History(tmp_path / "history.sqlite")
    return Results(slurm, site, history, "sweep", lambda text, _: lines.append(text)), lines


def test_a_first_suspicion_asks_nothing_of_slurm_and_is_kept(tmp_path):
    taking, lines = results(tmp_path)
    taking.take(report_of(NODES, ["n3"]), {}, "all")
    assert any("n3 is suspected, and waits for a repeat" in line for line in lines)
    assert not any("scontrol" in line for line in lines)
    assert taking.history.last_verdicts()["n3"].verdict is Verdict.FAIL


def test_a_job_that_was_cancelled_says_nothing_against_anybody_and_its_figures_are_kept(tmp_path):
    taking, lines = results(tmp_path, repeats=1)
    taking.take(report_of(NODES, ["n3"]), {}, "all", cut=True)
    assert {v.verdict for v in taking.verdicts.values()} == {Verdict.UNKNOWN}
    assert not any(v.doubt for v in taking.verdicts.values())
    assert len(taking.history.covered()) == 6
    assert lines == []


def test_a_result_that_the_history_does_not_take_drains_nobody(tmp_path):
    taking, lines = results(tmp_path, repeats=1)
    taking.history.path.write_text("no database at all\n" * 200)
    taking.take(report_of(NODES, ["n3"]), {}, "all")
    assert any("is not in the history, and nothing is drained for it" in line for line in lines)
    assert (taking.drained, taking.lost) == ([], 1)
    assert taking.verdicts["n3"].verdict is Verdict.FAIL


def test_a_slurm_that_does_not_answer_costs_the_drain_and_not_the_result(tmp_path):
    taking, lines = results(tmp_path, repeats=1)
    taking.take(report_of(NODES, ["n3"]), {}, "all")
    assert any("n3 not drained: no scontrol in" in line for line in lines)
    assert taking.drained == []
    assert not taking.history.verdicts("n3")[0].drained


def test_a_node_that_is_drained_by_us_already_counts_as_drained_for_what_was_found_since(tmp_path, monkeypatch):
    """Who resumes it has read the reason: nothing that was found before may drain it again."""
    taking, _ = results(tmp_path, repeats=1)
    told = {}
    monkeypatch.setattr(scan_results, "drain", lambda _, names, *__, **___: Drained(kept=tuple(names), text="kept"))
    monkeypatch.setattr(scan_results, "tell_agents", lambda verdicts, *_: told.update(verdicts) or {})
    taking.take(report_of(NODES, ["n3"]), {}, "all")
    assert told["n3"].drained
    assert taking.history.verdicts("n3")[0].drained
    assert taking.drained == []


def test_metrics_are_what_a_collector_reads():
    from prometheus_client.parser import text_string_to_metric_families

    text = scan_metrics(
        ended_s=10.0,
        duration_s=2.5,
        coverage=0.5,
        jobs={"measured": 2},
        last=[verdict(1), verdict(1, Verdict.PASS)],
        drained=1,
        failed=False,
    )
    told = {
        (s.name, *s.labels.values()): s.value for family in text_string_to_metric_families(text) for s in family.samples
    }
    assert told["preflight_scan_coverage_ratio",] == 0.5
    assert told["preflight_scan_jobs", "measured"] == 2
    assert told["preflight_scan_jobs", "no report"] == 0
    assert told["preflight_scan_nodes", "FAIL"] == 1
    nothing = scan_metrics(ended_s=1, duration_s=1, coverage=None, jobs={}, last=[], drained=0, failed=True)
    assert "coverage" not in nothing


def test_a_mistake_of_ours_in_the_judging_accuses_nobody_and_costs_no_figure(tmp_path, monkeypatch):
    def breaks(*_, **__):
        raise KeyError("n9")

    monkeypatch.setattr("preflight.slurm.scan_results.guilty_nodes", breaks)
    taking, lines = results(tmp_path, repeats=1)
    taking.take(report_of(NODES, ["n3"]), {}, "all")
    assert any("who is to blame could not be told: KeyError" in line for line in lines)
    assert taking.drained == []
    assert len(taking.history.covered()) == 6
