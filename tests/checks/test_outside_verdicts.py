"""Verdicts of other tools as findings: their origin is told, failures stay failures, and the right GPU is meant."""

import pytest

from preflight.judge.run import run_checks
from preflight.model import Evidence, Inventory, OutsideVerdict, Rule, Settings, Verdict
from preflight_checks import outside_verdicts as check
from tests.builders import make_node


def said(verdict, gpu=None, **changes):
    return OutsideVerdict(
        **{"origin": "dcgmi diag", "name": "memory", "verdict": verdict, "text": "bad cell", "gpu": gpu, **changes}
    )


def evidence(*verdicts, rules=None, gpus=8, **more):
    return Evidence(inventory=Inventory(nodes=(make_node(gpus=gpus, verdicts=verdicts),)), rules=rules or {}, **more)


def only(*verdicts, **more):
    (finding,) = check.judge(evidence(*verdicts, **more))
    return finding


def test_a_failure_is_a_failure_of_that_gpu_with_its_origin():
    finding = only(said("FAIL", "3"))
    assert (finding.verdict, finding.origin) == (Verdict.FAIL, "dcgmi diag")
    assert finding.subject == "node0 GPU 3 (GPU-node0-3)"
    assert finding.observed == "memory: bad cell"
    assert finding.blames is not None
    assert (finding.blames.kind, finding.blames.name) == ("gpu", finding.subject)
    assert "dcgmi diag" in finding.remedy


@pytest.mark.parametrize("gpu", ["3", "GPU-node0-3", "gpu-NODE0-3", "0000:13:00.0", "00000000:13:00.0", "13:00.0"])
def test_a_gpu_is_known_by_index_uuid_and_pci_id(gpu):
    assert only(said("FAIL", gpu)).subject == "node0 GPU 3 (GPU-node0-3)"


@pytest.mark.parametrize("gpu", ["42", "GPU-", "GPU-node0-", "0000:99:00.0", "nonsense"])
def test_a_gpu_that_is_not_known_keeps_the_tools_name(gpu):
    finding = only(said("FAIL", gpu))
    assert finding.subject == f"node0 GPU {gpu}"
    assert finding.blames is not None


def test_a_failure_of_no_gpu_is_the_nodes():
    finding = only(said("FAIL"))
    assert finding.blames is not None
    assert (finding.subject, finding.blames.kind) == ("node0", "node")


@pytest.mark.parametrize("verdict", ["PASS", "WARN", "UNKNOWN", "SKIP"])
def test_other_verdicts_blame_nobody(verdict):
    finding = only(said(verdict, "3"))
    assert finding.verdict is Verdict(verdict)
    assert finding.blames is None


def test_a_site_can_lower_the_failures_of_others():
    rules = {"outside_verdicts": Rule(severity="warn")}
    findings, _ = run_checks((check.CHECK,), evidence(said("FAIL", "3"), rules=rules))
    assert [finding.verdict for finding in findings] == [Verdict.WARN]


def test_an_answer_that_is_missing_does_not_stop_the_run():
    findings, _ = run_checks((check.CHECK,), evidence(said("UNKNOWN")))
    assert [(finding.verdict, finding.need) for finding in findings] == [(Verdict.UNKNOWN, "advisory")]


def test_verdicts_count_without_gpus_too():
    assert only(said("FAIL"), gpus=0, settings=Settings(cpu_declared=True)).verdict is Verdict.FAIL


def test_nothing_where_nobody_was_asked():
    assert list(check.judge(evidence())) == []


def test_a_plug_ins_words_are_not_preceded_by_their_own_name_and_silence_is_told():
    named = only(said("FAIL", name="DISK", text="DISK CRITICAL - 3% free", origin="nagios"))
    assert named.observed == "DISK CRITICAL - 3% free"
    silent = only(said("WARN", name="check_x", text="", origin="check_x"))
    assert silent.observed == "check_x: WARN, without a word"
    assert silent.remedy == "follow what check_x says, then run it on node0 again"
