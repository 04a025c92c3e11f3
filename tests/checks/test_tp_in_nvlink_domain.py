"""tp_in_nvlink_domain catches tensor-parallel groups that leave their NVLink domain, and leaves alone those that don't."""

import pytest

from preflight.model import Evidence, Finding, Inventory, Node, Part, Settings, Verdict
from preflight_checks.tp_in_nvlink_domain import CHECK
from tests.builders import make_evidence, make_gpu, make_inventory, make_node, make_plan, uuids_of


def judge(evidence: Evidence) -> list[Finding]:
    return list(CHECK.judge(evidence))


def on(inventory: Inventory, *, gpus: int = 8, **parallel) -> Evidence:
    """The evidence of a job on all nodes of an inventory, its ranks placed on known GPUs."""
    plan = make_plan(
        nodes=None,
        gpus_per_node=gpus,
        node_names=[node.name for node in inventory.nodes],
        gpu_uuids=uuids_of(inventory),
        **parallel,
    )
    return make_evidence(plan=plan, inventory=inventory)


def test_groups_inside_a_node_pass():
    findings = judge(on(make_inventory(8, 8), tp=8, pp=4))
    assert [f.subject for f in findings] == [f"tp{i}" for i in range(8)]
    assert {f.verdict for f in findings} == {Verdict.PASS}


def test_a_group_over_two_nodes_fails_with_its_ranks_nodes_and_the_smallest_fix():
    finding = judge(on(make_inventory(8, 8), tp=16))[1]
    assert (finding.subject, finding.verdict) == ("tp1", Verdict.FAIL)
    assert "ranks 16-31 on 2 nodes, node[2-3]" in finding.observed
    assert finding.remedy == "lower tp from 16 to 8, which divides the 8 GPUs of an NVLink domain"
    assert finding.blames == Part(kind="plan", name="parallel.tp")


def test_a_domain_that_joins_nodes_lets_a_group_span_them():
    inventory = make_inventory(4, 4, domains=["rack.1"] * 4)
    assert {f.verdict for f in judge(on(inventory, gpus=4, tp=8))} == {Verdict.PASS}


def test_one_group_split_over_two_racks_fails_and_the_others_pass():
    inventory = make_inventory(32, 4, domains=["a.1"] * 17 + ["b.1"] * 15)
    findings = judge(on(inventory, gpus=4, tp=8))
    assert [f.subject for f in findings if f.verdict is Verdict.FAIL] == ["tp8"]
    assert {f.verdict for f in findings if f.subject != "tp8"} == {Verdict.PASS}


def test_ranks_dealt_round_the_nodes_fail_with_a_placement_as_remedy():
    # dp innermost: each tensor-parallel group has one rank on each node
    findings = judge(on(make_inventory(8, 8), tp=8, dp=8, order=("dp", "tp")))
    assert {f.verdict for f in findings} == {Verdict.FAIL}
    assert findings[0].remedy.startswith("place ranks 0,8,16,24,32,40,48,56 in one NVLink domain")
    assert "8 nodes, node[0-7]" in findings[0].observed


@pytest.mark.parametrize(("gpus", "nodes", "tp", "lower"), [(6, 4, 8, 2), (8, 3, 12, 4)])
def test_the_lower_tp_divides_the_gpus_of_a_domain(gpus, nodes, tp, lower):
    findings = judge(on(make_inventory(nodes, gpus), gpus=gpus, tp=tp))
    assert f"lower tp from {tp} to {lower}," in next(f for f in findings if f.verdict is Verdict.FAIL).remedy


def test_an_unknown_domain_is_unknown_not_pass():
    inventory = make_inventory(2, 8, domains=["node0", None])
    verdicts = {f.subject: f.verdict for f in judge(on(inventory, tp=8))}
    assert verdicts == {"tp0": Verdict.PASS, "tp1": Verdict.UNKNOWN}


def test_gpus_that_could_not_be_found_out_are_unknown():
    inventory = Inventory(nodes=(make_node("node0"), make_node("node1", gpus=None)))
    [first, second] = judge(on(inventory, tp=8))
    assert (first.verdict, second.verdict) == (Verdict.PASS, Verdict.UNKNOWN)
    assert "not known on node1" in second.observed


def test_what_is_known_to_be_apart_fails_even_if_a_part_is_unknown():
    inventory = make_inventory(3, 8, domains=["node0", "node1", None])
    [finding] = judge(on(inventory, tp=24))
    assert finding.verdict is Verdict.FAIL


def test_gpus_without_nvlink_inside_one_node_are_a_warning():
    inventory = make_inventory(1, 8, domains=["none"])
    [finding] = judge(on(inventory, tp=8))
    assert (finding.verdict, finding.blames) == (Verdict.WARN, None)
    assert "PCIe" in finding.observed


def test_gpus_without_nvlink_on_two_nodes_fail():
    [finding] = judge(on(make_inventory(2, 8, domains=["none", "none"]), tp=16))
    assert finding.verdict is Verdict.FAIL


def test_one_gpu_that_lost_nvlink_is_a_warning_for_its_group():
    gpus = tuple(make_gpu("node0", i, nvlink_domain="none" if i == 3 else "node0") for i in range(8))
    verdicts = [f.verdict for f in judge(on(Inventory(nodes=(Node(name="node0", gpus=gpus),)), tp=4))]
    assert verdicts == [Verdict.WARN, Verdict.PASS]


def test_without_uuids_a_node_speaks_for_its_gpus_only_if_they_agree():
    alike = make_evidence(plan=make_plan(nodes=1, tp=4), inventory=make_inventory(1, 8))
    assert {f.verdict for f in judge(alike)} == {Verdict.PASS}
    gpus = tuple(make_gpu("node0", i, nvlink_domain=f"pair{i // 2}") for i in range(8))
    mixed = Inventory(nodes=(Node(name="node0", gpus=gpus),))
    assert {f.verdict for f in judge(make_evidence(plan=make_plan(nodes=1, tp=4), inventory=mixed))} == {
        Verdict.UNKNOWN
    }


def test_without_an_inventory_a_node_counts_as_a_domain_and_the_finding_says_so():
    good, bad = (judge(make_evidence(plan=make_plan(tp=tp))) for tp in (8, 16))
    assert {f.verdict for f in good} == {Verdict.PASS}
    assert {f.verdict for f in bad} == {Verdict.FAIL}
    assert all("taking each node as one domain" in f.observed for f in good + bad)


def test_nothing_is_judged_where_a_run_without_gpus_is_meant_or_tp_is_one():
    assert judge(make_evidence(plan=make_plan(tp=16), settings=Settings(cpu_declared=True))) == []
    assert judge(make_evidence(plan=make_plan(tp=1))) == []
