"""What all checks of GPU health have in common: unknown, not supported, not allowed, more than one node, GPUs that can't be opened, no GPUs."""

from typing import Any

import pytest

from preflight.model import (
    Check,
    Clocks,
    Ecc,
    Link,
    Node,
    Power,
    Problem,
    RetiredPages,
    RowRemap,
    Temperature,
    Verdict,
)
from preflight_checks import (
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
from tests.checks.nodes import judged, lost_gpu, node_with, verdicts

GOOD_LINKS = tuple(
    Link(index=index, active=True, counters={"replay": 0, "recovery": 0, "crc": 0}) for index in range(18)
)
CASES: list[tuple[Check, str, Any, str]] = [
    (ecc_errors.CHECK, "ecc", Ecc(uncorrected_volatile=0), "required"),
    (row_remap.CHECK, "row_remap", RowRemap(correctable=0, uncorrectable=0, pending=False, failed=False), "required"),
    (retired_pages.CHECK, "retired_pages", RetiredPages(single_bit=0, double_bit=0, pending=False), "advisory"),
    (recovery_action.CHECK, "recovery_action", "none", "required"),
    (throttle.CHECK, "clocks", Clocks(throttle_reasons=("idle",)), "advisory"),
    (power_limit.CHECK, "power", Power(enforced_limit_w=700.0, default_limit_w=700.0), "advisory"),
    (temperature.CHECK, "temperature", Temperature(gpu_c=30, margin_c=57), "advisory"),
    (persistence.CHECK, "persistence", True, "advisory"),
    (mig_mode.CHECK, "mig_enabled", False, "required"),
    (nvlink_errors.CHECK, "links", GOOD_LINKS, "advisory"),
]
of_each = pytest.mark.parametrize(("check", "field", "good", "need"), CASES, ids=[case[0].name for case in CASES])


@of_each
def test_a_healthy_node_is_one_pass(check, field, good, need):
    findings = judged(check, node_with(*(good,) * 8, field=field))
    assert verdicts(findings) == [("node1", Verdict.PASS)]
    assert findings[0].observed.startswith("8 GPUs")


@of_each
def test_what_the_product_does_not_have_is_skipped_and_not_zero(check, field, good, need):
    node = node_with(None, None, field=field, unsupported=(field,))
    assert verdicts(judged(check, node)) == [("node1", Verdict.SKIP)]


@of_each
@pytest.mark.parametrize("text", ["Unknown Error", "Insufficient Permissions"])
def test_a_failed_read_is_unknown_with_the_reason_and_blames_nothing(check, field, good, need, text):
    problem = Problem(source="nvml", text=text, field=field)
    bad = node_with(None, field=field, problems=(problem,)).gpus
    node = node_with(None, good, field=field)
    assert bad is not None
    assert node.gpus is not None
    findings = judged(check, Node(name="node1", gpus=(bad[0], node.gpus[1]), hcas=()))
    assert verdicts(findings) == [("node1 GPU 0 (GPU-node1-0)", Verdict.UNKNOWN), ("node1", Verdict.PASS)]
    assert text in findings[0].observed
    assert findings[0].blames is None


@of_each
def test_a_snapshot_that_does_not_tell_is_unknown(check, field, good, need):
    assert [f.verdict for f in judged(check, node_with(None, field=field))] == [Verdict.UNKNOWN]


@of_each
def test_each_node_is_judged_by_itself(check, field, good, need):
    findings = judged(check, node_with(good, field=field), node_with(None, field=field, name="node2"))
    assert [f.verdict for f in findings] == [Verdict.PASS, Verdict.UNKNOWN]
    assert findings[0].subject == "node1"
    assert findings[1].subject.startswith("node2")


@of_each
def test_nothing_is_said_of_gpus_that_cannot_be_opened(check, field, good, need):
    assert judged(check, Node(name="node1", gpus=(lost_gpu(),))) == []


@of_each
def test_nothing_is_said_without_gpus(check, field, good, need):
    assert judged(check, Node(name="node1", gpus=()), Node(name="node2", gpus=None)) == []
    assert judged(check, node_with(None, field=field), cpu_declared=True) == []


@of_each
def test_the_check_explains_itself(check, field, good, need):
    assert check.need == need
    assert check.uses == ("health",)
    for text in (check.claim, check.why, check.source, check.remedy):
        assert len(text) > 40
        assert text.endswith(".")
