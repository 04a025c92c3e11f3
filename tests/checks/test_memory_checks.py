"""ecc_errors, row_remap, retired_pages, recovery_action: what memory and driver say of a GPU."""

import pytest

from preflight.model import Ecc, Node, Part, Problem, RetiredPages, RowRemap, Verdict
from preflight_checks import ecc_errors, recovery_action, retired_pages, row_remap
from tests.builders import make_gpu
from tests.checks.nodes import blamed, judged, node_with, only, verdicts

GPU_0 = "node1 GPU 0 (GPU-node1-0)"


def remap(*, pending: bool = False, failed: bool = False, uncorrectable: int = 0) -> RowRemap:
    return RowRemap(correctable=0, uncorrectable=uncorrectable, pending=pending, failed=failed)


# Case 11 of the incidents: gpud pull requests 80 and 108
def test_a_pending_row_fails_with_reset_or_reboot():
    finding = only(
        judged(row_remap.CHECK, node_with(remap(pending=True, uncorrectable=4), field="row_remap")), Verdict.FAIL
    )
    assert "pending yes, failed no" in finding.observed
    assert "uncorrectable errors 4" in finding.observed
    assert "reset GPU 0 or reboot" in finding.remedy
    assert "replace" not in finding.remedy.replace("replaces", "")
    assert blamed(finding) == Part(kind="gpu", name=GPU_0)


@pytest.mark.parametrize("pending", [False, True])
def test_a_failed_remapping_is_to_be_replaced_and_not_reset(pending):
    node = node_with(remap(failed=True, pending=pending, uncorrectable=8), field="row_remap")
    finding = only(judged(row_remap.CHECK, node), Verdict.FAIL)
    assert "failed yes" in finding.observed
    assert "replaced; a reset doesn't help" in finding.remedy


def test_rows_that_were_replaced_are_healthy_and_told():
    finding = only(judged(row_remap.CHECK, node_with(remap(uncorrectable=4), remap(), field="row_remap")), Verdict.PASS)
    assert "GPU 0: rows replaced for uncorrectable errors 4, for correctable ones 0" in finding.observed


def test_the_other_gpus_of_a_sick_node_pass():
    findings = judged(row_remap.CHECK, node_with(remap(pending=True), remap(), remap(), field="row_remap"))
    assert verdicts(findings) == [(GPU_0, Verdict.FAIL), ("node1", Verdict.PASS)]
    assert findings[1].observed.startswith("2 GPUs")


def test_uncorrected_errors_since_the_driver_was_loaded_fail_their_gpu():
    ecc = Ecc(uncorrected_volatile=2, uncorrected_aggregate=6)
    finding = only(judged(ecc_errors.CHECK, node_with(ecc, Ecc(uncorrected_volatile=0), field="ecc")), Verdict.FAIL)
    assert finding.observed == "uncorrected memory errors since the driver was loaded: 2, 6 over its life"
    assert blamed(finding) == Part(kind="gpu", name=GPU_0)


def test_errors_of_earlier_times_pass_and_are_told():
    ecc = Ecc(uncorrected_volatile=0, uncorrected_aggregate=4)
    finding = only(judged(ecc_errors.CHECK, node_with(ecc, field="ecc")), Verdict.PASS)
    assert "GPU 0: 4 uncorrected over its life, none since the driver was loaded" in finding.observed


# DCGM issue 313
def test_however_many_corrected_errors_never_fail():
    ecc = Ecc(corrected_volatile=9_600_000_000, corrected_aggregate=54_731_746_511, uncorrected_volatile=0)
    finding = only(judged(ecc_errors.CHECK, node_with(ecc, field="ecc")), Verdict.PASS)
    assert "9600000000 corrected" in finding.observed


def test_a_gpu_over_the_sram_threshold_is_to_be_replaced():
    ecc = Ecc(uncorrected_volatile=0, sram_threshold_exceeded=True)
    finding = only(judged(ecc_errors.CHECK, node_with(ecc, field="ecc")), Verdict.FAIL)
    assert "SRAM" in finding.observed
    assert "replaced" in finding.remedy


def test_uncorrected_errors_that_could_not_be_read_are_unknown():
    problem = Problem(source="nvml", text="Unknown Error", field="ecc")
    node = node_with(Ecc(corrected_volatile=0), field="ecc", problems=(problem,))
    finding = only(judged(ecc_errors.CHECK, node), Verdict.UNKNOWN)
    assert "Unknown Error" in finding.observed


def test_a_gpu_in_mig_mode_tells_no_errors_of_the_whole_and_is_skipped():
    node = node_with(Ecc(uncorrected_aggregate=0), field="ecc", mig_enabled=True)
    assert "MIG mode" in only(judged(ecc_errors.CHECK, node), Verdict.SKIP).observed


def test_ecc_off_on_some_gpus_of_a_product_is_a_warning_about_the_setting():
    facts = {"ecc_enabled": False, "unsupported": ("ecc",)}
    on = make_gpu("node1", 0, ecc=Ecc(uncorrected_volatile=0))
    node = Node(name="node1", gpus=(on, make_gpu("node1", 1, **facts)))
    findings = judged(ecc_errors.CHECK, node)
    warning = only(findings, Verdict.WARN)
    assert warning.subject == "node1 GPU 1 (GPU-node1-1)"
    assert blamed(warning) == Part(kind="environment", name="ECC mode of node1")
    assert only(findings, Verdict.PASS).observed.startswith("1 GPU:")


def test_ecc_off_everywhere_is_skipped_and_said():
    node = node_with(None, None, field="ecc", ecc_enabled=False, unsupported=("ecc",))
    finding = only(judged(ecc_errors.CHECK, node), Verdict.SKIP)
    assert "ECC is switched off" in finding.observed


def test_pages_that_wait_fail():
    pages = RetiredPages(single_bit=1, double_bit=1, pending=True)
    finding = only(judged(retired_pages.CHECK, node_with(pages, field="retired_pages")), Verdict.FAIL)
    assert "wait to be retired; 2 pages retired, 1 of them for double-bit errors" in finding.observed
    assert "reset GPU 0 or reboot" in finding.remedy


@pytest.mark.parametrize(
    ("single", "double", "verdict"),
    [(0, 0, Verdict.PASS), (8, 2, Verdict.PASS), (8, 3, Verdict.WARN), (40, 19, Verdict.WARN), (40, 20, Verdict.FAIL)],
)
def test_many_retired_pages_warn_and_nearly_all_fail(single, double, verdict):
    pages = RetiredPages(single_bit=single, double_bit=double, pending=False)
    assert [f.verdict for f in judged(retired_pages.CHECK, node_with(pages, field="retired_pages"))] == [verdict]


@pytest.mark.parametrize(
    "pages", [RetiredPages(single_bit=0, double_bit=0), RetiredPages(single_bit=0, pending=False), RetiredPages()]
)
def test_retired_pages_of_which_half_is_unknown_are_unknown(pages):
    assert [f.verdict for f in judged(retired_pages.CHECK, node_with(pages, field="retired_pages"))] == [
        Verdict.UNKNOWN
    ]


@pytest.mark.parametrize(
    ("action", "remedy"),
    [
        ("reset", "nvidia-smi --gpu-reset -i 0"),
        ("reboot", "reboot it"),
        ("drain p2p", "reach GPU 0 of node1"),
        ("drain and reset", "let the work on GPU 0 end"),
        ("bus reset", "PCI bus"),
        ("system reboot", "whole system"),
    ],
)
def test_what_the_driver_asks_for_fails_with_it_as_the_remedy(action, remedy):
    finding = only(judged(recovery_action.CHECK, node_with(action, "none", field="recovery_action")), Verdict.FAIL)
    assert finding.observed == f'the driver asks for "{action}"'
    assert remedy in finding.remedy
    assert blamed(finding).name == GPU_0


def test_a_broken_imex_domain_blames_no_gpu():
    finding = only(judged(recovery_action.CHECK, node_with("IMEX domain", field="recovery_action")), Verdict.FAIL)
    assert blamed(finding).kind == "environment"
    assert "IMEX service" in finding.remedy
