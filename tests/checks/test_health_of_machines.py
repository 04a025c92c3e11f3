"""All checks of GPU health over healthy machines of every kind, as the driver's library tells them: none is blamed, and none passes for what it doesn't have."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from preflight.discover.nvml import read_gpus
from preflight.model import Check, Evidence, Inventory, Node, Verdict
from preflight_checks import (
    counter_growth,
    ecc_errors,
    mig_mode,
    nvlink_errors,
    persistence,
    power_limit,
    recovery_action,
    retired_pages,
    row_remap,
    temperature,
    throttle,
)
from tests import fake_gpus
from tests.fakes import FakeGpu, FakeNvml

CHECKS = (
    ecc_errors.CHECK,
    row_remap.CHECK,
    retired_pages.CHECK,
    recovery_action.CHECK,
    throttle.CHECK,
    power_limit.CHECK,
    temperature.CHECK,
    persistence.CHECK,
    mig_mode.CHECK,
    nvlink_errors.CHECK,
    counter_growth.CHECK,
)
ALL = {check.name for check in CHECKS}
OLDER_DRIVER = {"retired_pages", "recovery_action"}
# what each machine doesn't have
WITHOUT: dict[str, tuple[Callable[[], list[FakeGpu]], set[str]]] = {
    "HGX H100": (fake_gpus.h100_sxm, {"retired_pages"}),
    "HGX B200": (fake_gpus.b200_sxm, {"retired_pages"}),
    "GB200 tray": (fake_gpus.gb200_tray, {"retired_pages"}),
    "HGX A100": (fake_gpus.a100_sxm, OLDER_DRIVER),
    "A100 PCIe with bridges": (fake_gpus.a100_pcie_bridged, OLDER_DRIVER),
    "A100 PCIe without bridges": (fake_gpus.a100_pcie_unbridged, {*OLDER_DRIVER, "nvlink_errors"}),
    "GeForce": (fake_gpus.geforce, {*OLDER_DRIVER, "ecc_errors", "row_remap", "mig_mode", "nvlink_errors"}),
}


def verdict_of(check: Check, evidence: Evidence) -> set[Verdict]:
    return {finding.verdict for finding in check.judge(evidence)}


@pytest.mark.parametrize("machine", list(WITHOUT))
def test_a_healthy_machine_passes_all_that_it_has_and_skips_the_rest(monkeypatch, machine):
    gpus, without = WITHOUT[machine]
    FakeNvml(gpus()).install(monkeypatch)
    node = Node(name="node1", gpus=read_gpus().gpus, taken_at_s=0.0)
    evidence = Evidence(inventory=Inventory(nodes=(replace(node, taken_at_s=60.0),)), before=Inventory(nodes=(node,)))
    found = {check.name: verdict_of(check, evidence) for check in CHECKS}
    assert {name for name, verdicts in found.items() if verdicts == {Verdict.PASS}} == ALL - without
    assert {name for name, verdicts in found.items() if verdicts == {Verdict.SKIP}} == without


def test_a_gpu_in_mig_mode_is_a_warning_and_no_fault(monkeypatch):
    FakeNvml([fake_gpus.with_mig(fake_gpus.h100_sxm(1)[0])]).install(monkeypatch)
    evidence = Evidence(inventory=Inventory(nodes=(Node(name="node1", gpus=read_gpus().gpus),)))
    found = {check.name: verdict_of(check, evidence) for check in CHECKS if "before" not in check.uses}
    assert {name for name, verdicts in found.items() if verdicts - {Verdict.PASS, Verdict.SKIP}} == {"mig_mode"}
    assert found["mig_mode"] == {Verdict.WARN}


def test_a_lost_gpu_is_judged_by_none_of_them(monkeypatch):
    FakeNvml([fake_gpus.lost(fake_gpus.h100_sxm(1)[0])]).install(monkeypatch)
    node = Node(name="node1", gpus=read_gpus().gpus)
    evidence = Evidence(inventory=Inventory(nodes=(node,)), before=Inventory(nodes=(node,)))
    assert [finding for check in CHECKS for finding in check.judge(evidence)] == []
