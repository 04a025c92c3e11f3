"""mig_mode: slices are somebody's choice, and stop a job only if a rank is to run there."""

from typing import Any

import pytest

from preflight.model import Mask, Node, Part, Placement, Plan, Rank, Verdict
from preflight_checks.mig_mode import CHECK
from tests.builders import make_gpu, make_plan
from tests.checks.nodes import blamed, judged, node_with, only, verdicts


def plan_on(*ranks: tuple[str, str | None], name: str = "node1") -> Plan:
    placed = [Rank(rank=i, node=node, node_rank=0, local_rank=i, gpu_uuid=uuid) for i, (node, uuid) in enumerate(ranks)]
    placement = Placement.of(placed, source="measured", method="ranks")
    return make_plan(nodes=1, gpus_per_node=len(ranks), tp=len(ranks), pp=1, dp=1, placement=placement)


def node_of(*mig: bool, mask: Mask | None = None, **others: Any) -> Node:
    gpus = tuple(make_gpu("node1", index, mig_enabled=on, **others) for index, on in enumerate(mig))
    return Node(name="node1", gpus=gpus, mask=mask)


def test_mig_without_a_plan_is_one_warning_about_the_setting():
    finding = only(
        judged(CHECK, node_with(True, True, field="mig_enabled", mig_devices=("MIG-1", "MIG-2"))), Verdict.WARN
    )
    assert finding.subject == "node1"
    assert finding.observed == "in MIG mode with 2 MIG devices"
    assert blamed(finding) == Part(kind="environment", name="MIG mode of node1")


def test_a_rank_on_a_gpu_in_mig_mode_fails_and_other_gpus_of_the_node_pass():
    plan = plan_on(("node1", "GPU-node1-0"), ("node1", "GPU-node1-1"))
    findings = judged(CHECK, node_of(False, True, True), plan=plan)
    assert verdicts(findings) == [
        ("node1 GPU 1 (GPU-node1-1)", Verdict.FAIL),
        ("node1 GPU 2 (GPU-node1-2)", Verdict.WARN),
        ("node1", Verdict.PASS),
    ]
    assert "the job has a rank on it" in findings[0].observed
    assert blamed(findings[0]).kind == "environment"


def test_a_rank_on_a_mig_device_is_on_its_gpu():
    plan = plan_on(("node1", "MIG-1"), ("node1", "GPU-node1-1"))
    node = Node(
        name="node1",
        gpus=(make_gpu("node1", 0, mig_enabled=True, mig_devices=("MIG-1",)), make_gpu("node1", 1, mig_enabled=False)),
    )
    assert verdicts(judged(CHECK, node, plan=plan))[0] == ("node1 GPU 0 (GPU-node1-0)", Verdict.FAIL)


@pytest.mark.parametrize(
    ("masked", "verdict"),
    [(("GPU-node1-1",), Verdict.WARN), (("GPU-node1-0",), Verdict.FAIL), (("MIG-1",), Verdict.FAIL)],
)
def test_the_mask_says_which_gpus_the_job_uses(masked, verdict):
    plan = plan_on(("node1", None))
    node = Node(
        name="node1",
        gpus=(make_gpu("node1", 0, mig_enabled=True, mig_devices=("MIG-1",)), make_gpu("node1", 1, mig_enabled=False)),
        mask=Mask(gpu_uuids=masked),
    )
    assert judged(CHECK, node, plan=plan)[0].verdict is verdict


def test_without_names_a_gpu_is_used_if_the_job_needs_more_than_the_others():
    assert judged(CHECK, node_of(True, False), plan=plan_on(("node1", None)))[0].verdict is Verdict.WARN
    assert (
        judged(CHECK, node_of(True, False), plan=plan_on(("node1", None), ("node1", None)))[0].verdict is Verdict.FAIL
    )


def test_a_node_that_the_plan_does_not_use_is_only_warned_about():
    assert judged(CHECK, node_of(True), plan=plan_on(("node9", None)))[0].verdict is Verdict.WARN


def test_a_change_that_waits_for_a_reset_is_a_warning():
    coming = only(judged(CHECK, node_of(False, mig_pending=True)), Verdict.WARN)
    assert "comes on with the next reset" in coming.observed
    going = only(judged(CHECK, node_of(True, mig_pending=False)), Verdict.WARN)
    assert "reset it" in going.remedy


def test_mig_off_with_nothing_waiting_passes():
    assert [f.verdict for f in judged(CHECK, node_of(False, False, mig_pending=False))] == [Verdict.PASS]
