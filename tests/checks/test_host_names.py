"""host_names catches names that c10d sorts otherwise than meant, and leaves alone padded names and other launchers."""

import pytest

from preflight.model import Finding, Part, Verdict
from preflight_checks.host_names import CHECK
from tests.builders import make_evidence, make_inventory, make_plan


def judge(hosts, *, launcher: str = "torchrun", rendezvous: str | None = "c10d", **given) -> list[Finding]:
    launch = {"launcher": launcher, "rendezvous": rendezvous, "hosts": tuple(hosts)}
    return list(CHECK.judge(make_evidence(plan=make_plan(nodes=None, tp=8, launch=launch), **given)))


def test_unpadded_names_are_a_warning_with_both_orders():
    [finding] = judge(f"gpu-{i}" for i in range(1, 17))
    assert (finding.verdict, finding.blames) == (Verdict.WARN, Part(kind="plan", name="launch.rendezvous"))
    assert "sorted as text: gpu-1, gpu-10, gpu-11, gpu-12, ...; numbers in the names are not padded" in finding.observed
    assert (
        "node rank 1 is gpu-10 in place of gpu-2, and 15 of 16 nodes have another rank than meant" in finding.observed
    )
    assert finding.expected == "the order meant: gpu-1, gpu-2, gpu-3, gpu-4, ..."
    assert finding.remedy.startswith("pad the numbers in host names or in --local-addr (gpu-02), or use static")
    assert "--master-addr=gpu-1 --node-rank=0 there, 1 on gpu-2" in finding.remedy


def test_padded_names_pass():
    [finding] = judge(f"gpu-{i:02d}" for i in range(1, 17))
    assert (finding.verdict, finding.remedy, finding.blames) == (Verdict.PASS, "", None)


def test_nine_nodes_need_no_padding():
    [finding] = judge(f"gpu-{i}" for i in range(1, 10))
    assert finding.verdict is Verdict.PASS


def test_an_allocation_in_another_order_is_ignored_by_c10d_however_padded():
    [finding] = judge(["rack2-01", "rack2-02", "rack1-01"])
    assert finding.verdict is Verdict.WARN
    assert (
        "c10d ignores the order of the allocation, so node rank 0 is rack1-01 in place of rack2-01" in finding.observed
    )
    assert finding.remedy.startswith("use static rendezvous")


def test_pods_under_c10d_are_judged_alike():
    [finding] = judge((f"pod-{i}" for i in range(11)), launcher="kubernetes")
    assert "node rank 2 is pod-10 in place of pod-2" in finding.observed


@pytest.mark.parametrize(
    ("launcher", "rendezvous"), [("torchrun", "static"), ("torchrun", None), ("kubernetes", None), ("slurm", None)]
)
def test_launchers_that_do_not_sort_names_are_left_alone(launcher, rendezvous):
    assert judge((f"gpu-{i}" for i in range(1, 17)), launcher=launcher, rendezvous=rendezvous) == []


def test_names_that_nobody_told_are_not_judged():
    plan = make_plan(nodes=16, tp=8, launch={"launcher": "torchrun", "rendezvous": "c10d"})
    assert list(CHECK.judge(make_evidence(plan=plan))) == []


def test_discovered_names_are_judged():
    inventory = make_inventory(11)
    names = [node.name for node in inventory.nodes]
    plan = make_plan(nodes=None, tp=8, node_names=names, launch={"launcher": "torchrun", "rendezvous": "c10d"})
    [finding] = CHECK.judge(make_evidence(plan=plan, inventory=inventory))
    assert "node rank 2 is node10 in place of node2" in finding.observed


def test_a_single_node_has_no_order():
    assert judge(["gpu-1"]) == []
