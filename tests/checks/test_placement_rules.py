"""cp, ep, the cost of the other axes, leaves and slots; and what the rules about NVLink domains say of each group, its cost and its remedy."""

import time

import msgspec
import pytest

from preflight.judge.run import judge as judge_all
from preflight.model import Evidence, Finding, Part, Placement, Plan, Rule, Settings, Topology, Traffic, Verdict
from preflight_checks import axis_cost, cp_in_nvlink_domain, ep_in_nvlink_domain, leaf_spread, same_slot
from preflight_checks import tp_in_nvlink_domain as tp
from tests.builders import make_evidence, make_plan


def place(nodes, gpus, node_of, names=None) -> Placement:
    """A placement as a launcher makes it: `node_of` rank; local ranks in order of rank."""
    node_ranks = [node_of(rank) for rank in range(nodes * gpus)]
    seen = [0] * nodes
    local_ranks = []
    for node in node_ranks:
        local_ranks.append(seen[node])
        seen[node] += 1
    return Placement(
        source="predicted",
        method="test",
        nodes=tuple(names or (f"node{i}" for i in range(nodes))),
        node_ranks=tuple(node_ranks),
        local_ranks=tuple(local_ranks),
    )


def with_ledger(plan: Plan, **axes) -> Plan:
    """The plan with one row per axis: collective, bytes one rank sends, seconds inside, seconds outside, and whether it is exposed."""
    rows = tuple(
        Traffic(
            axis=axis,
            purpose="test",
            collective=collective,
            calls=1,
            message_bytes=sent,
            wire_bytes=sent,
            exposed=exposed,
            inside_s=inside,
            outside_s=outside,
        )
        for axis, (collective, sent, inside, outside, exposed) in axes.items()
    )
    return msgspec.structs.replace(plan, estimate=msgspec.structs.replace(plan.estimate, ledger=rows))


def said(check, plan: Plan, **evidence) -> list[Finding]:
    return list(check.CHECK.judge(make_evidence(plan=plan, **evidence)))


def two_racks(first: int, second: int) -> Topology:
    return Topology(
        node_domains={f"node{i}": "a" if i < first else "b" for i in range(first + second)}, source="racks.txt"
    )


def trays(first: int, second: int, **parallel) -> Plan:
    """A job on trays of four GPUs, `first` of one NVLink domain, then `second` of another."""
    return make_plan(nodes=first + second, gpus_per_node=4, gpu=None, topology=two_racks(first, second), **parallel)


# --- tensor parallelism


def test_the_cyclic_accident_names_hosts_cost_and_the_flag_that_fixes_it():
    plan = make_plan(
        placement=place(8, 8, lambda rank: rank % 8), launch={"launcher": "slurm", "distribution": "cyclic"}
    )
    plan = with_ledger(plan, tp=("all_reduce", 300_647_710_720, 0.81, 6.7, True))
    findings = said(tp, plan)
    assert [f.subject for f in findings] == [f"tp{i}" for i in range(8)]
    assert {f.verdict for f in findings} == {Verdict.FAIL}
    assert findings[0].observed == (
        "ranks 0-7 on 8 nodes, node[0-7]: no NVLink between them (taking each node as one domain); "
        "2.41 TB per step cross between domains; each rank sends 301 GB per step: 6.70 s outside a domain, 810 ms inside"
    )
    assert "srun -m block" in findings[0].remedy
    assert findings[0].blames == Part(kind="plan", name="launch.distribution")
    fixed = make_plan(
        launch={"launcher": "slurm", "distribution": "block"}, placement=place(8, 8, lambda rank: rank // 8)
    )
    assert {f.verdict for f in said(tp, fixed)} == {Verdict.PASS}


def test_two_trays_of_one_domain_hold_a_group_of_eight_and_two_domains_do_not():
    assert {f.verdict for f in said(tp, trays(2, 0, tp=8))} == {Verdict.PASS}
    [finding] = said(tp, trays(1, 1, tp=8))
    assert finding.verdict is Verdict.FAIL
    assert "ranks 0-7 on 2 nodes, node[0-1], in 2 NVLink domains, a (4 ranks) and b (4 ranks)" in finding.observed
    assert "(NVLink domains from racks.txt)" in finding.observed
    assert finding.remedy == "lower tp from 8 to 4, which divides the 4 GPUs of an NVLink domain"


def test_seventeen_and_fifteen_trays_split_one_group_and_segments_of_two_would_not():
    findings = said(tp, trays(17, 15, tp=8))
    assert [(f.subject, f.verdict) for f in findings] == [("tp8", Verdict.FAIL), ("tp[0-7,9-15]", Verdict.PASS)]
    assert "--segment=2" in findings[0].remedy
    assert "2 would be left out" in findings[0].remedy
    assert findings[0].blames == Part(kind="plan", name="launch.segment")
    assert [f.verdict for f in said(tp, trays(16, 16, tp=8))] == [Verdict.PASS]


def test_an_axis_inside_tp_is_a_matter_of_order_not_of_tp():
    [finding, *_] = said(tp, make_plan(tp=8, dp=8, order=("dp", "tp")))
    assert "put tp innermost, order = 'tp-dp" in finding.remedy
    assert finding.blames == Part(kind="plan", name="parallel.order")


def test_nodes_of_a_domain_that_are_scattered_over_the_order_are_to_be_listed_together():
    topology = Topology(node_domains={f"node{i}": "ab"[i % 2] for i in range(4)}, source="t")
    plan = make_plan(nodes=4, gpus_per_node=4, gpu=None, topology=topology, tp=8, launch={"launcher": "torchrun"})
    [finding, _] = said(tp, plan)
    assert finding.verdict is Verdict.FAIL
    assert finding.remedy.startswith("list the nodes of each NVLink domain one after another: static rendezvous")
    assert finding.blames == Part(kind="plan", name="launch.hosts")


def test_nodes_with_different_numbers_of_workers_are_the_fault_where_a_group_would_fit():
    ranks = [0] * 7 + [1] * 8 + [2] * 9
    plan = make_plan(nodes=None, gpus_per_node=None, placement=place(3, 8, ranks.__getitem__), tp=8)
    findings = said(tp, plan)
    assert [f.verdict for f in findings] == [Verdict.FAIL, Verdict.FAIL, Verdict.PASS]
    assert findings[0].remedy == "start the same number of workers on every node, a multiple of 8: now 7 or 8 or 9"


def test_a_node_that_the_topology_file_leaves_out_is_unknown():
    topology = Topology(node_domains={"node0": "a"}, source="t")
    first, second = said(tp, make_plan(nodes=2, tp=8, topology=topology))
    assert (first.verdict, second.verdict) == (Verdict.PASS, Verdict.UNKNOWN)
    assert second.remedy == "complete the topology file: it doesn't tell the domain of node1"


def test_what_a_file_knows_to_be_apart_fails_even_if_a_part_is_unknown():
    topology = Topology(node_domains={"node0": "a", "node1": "b"}, source="t")
    [finding] = said(tp, make_plan(nodes=3, tp=24, topology=topology))
    assert finding.verdict is Verdict.FAIL


def test_an_assumption_of_the_plan_file_is_said_with_every_finding():
    plan = make_plan(nodes=4, gpus_per_node=4, gpu=None, tp=8, hardware={"nodes_per_nvlink_domain": 2})
    findings = said(tp, plan)
    assert {f.verdict for f in findings} == {Verdict.PASS}
    assert all("taking every 2 nodes in their order as one NVLink domain" in f.observed for f in findings)


def test_a_plan_without_footprints_is_judged_by_its_placement():
    plan = msgspec.structs.replace(trays(17, 15, tp=8), footprints={})
    assert [(f.subject, f.verdict) for f in said(tp, plan)] == [("tp8", Verdict.FAIL), ("tp[0-7,9-15]", Verdict.PASS)]


# --- many groups


def test_groups_alike_beyond_the_first_eight_are_one_finding_and_131072_ranks_are_judged_fast():
    world, gpus = 131_072, 8
    nodes = world // gpus
    plan = make_plan(
        nodes=nodes, tp=8, pp=16, placement=place(nodes, gpus, lambda rank: rank % nodes), micro_batches=None
    )
    began = time.perf_counter()
    findings = said(tp, plan)
    elapsed = time.perf_counter() - began
    assert [f.subject for f in findings] == [*(f"tp{i}" for i in range(8)), "tp[8-16383]"]
    assert findings[-1].observed.startswith("16376 more groups of 8 ranks, each on 8 nodes: no NVLink between them")
    assert "as for tp0: place ranks" in findings[-1].remedy
    assert elapsed < 2  # about 0.1 s on an idle core


# --- context parallelism


def test_cp_beyond_the_node_is_a_warning_with_its_cost_and_what_would_fit():
    plan = with_ledger(make_plan(tp=8, cp=2, pp=4), cp=("send_recv", 10**9, 0.01, 0.05, False))
    findings = said(cp_in_nvlink_domain, plan)
    assert {f.verdict for f in findings} == {Verdict.WARN}
    assert "ranks 0,8 on 2 nodes, node[0-1]: no NVLink between them" in findings[0].observed
    # both neighbours of a ring of two are in the other domain
    assert (
        "2.00 GB per step cross between domains; each rank sends 1.00 GB per step: 50.0 ms outside"
        in findings[0].observed
    )
    assert "(beside compute, as far as it fits)" in findings[0].observed
    assert "cp 2 x 8 ranks of tp = 16, but an NVLink domain has 8" in findings[0].remedy


def test_cp_inside_the_node_passes():
    assert {f.verdict for f in said(cp_in_nvlink_domain, make_plan(tp=4, cp=2, pp=4))} == {Verdict.PASS}
    assert said(cp_in_nvlink_domain, make_plan(tp=8, pp=4)) == []


def test_of_hierarchical_cp_the_innermost_level_is_judged():
    plan = make_plan(nodes=4, tp=1, cp=16, hierarchical_cp=(2, 8))
    if "hcp1" not in plan.groups:
        pytest.skip("this layout makes no groups for the levels of cp")
    findings = said(cp_in_nvlink_domain, plan)
    assert {f.verdict for f in findings} == {Verdict.PASS}
    assert findings[0].subject.startswith("hcp1")
    too_wide = make_plan(nodes=4, tp=1, cp=16, hierarchical_cp=(16, 1))
    assert {f.verdict for f in said(cp_in_nvlink_domain, too_wide)} == {Verdict.WARN}


def test_severity_fail_makes_a_refusal_of_the_warning():
    plan = make_plan(tp=8, cp=2, pp=4, rules={"cp_in_nvlink_domain": Rule(severity="fail")})
    assert {f.verdict for f in said(cp_in_nvlink_domain, plan)} == {Verdict.FAIL}


# --- expert parallelism


def experts(**parallel) -> Plan:
    plan = make_plan(nodes=parallel.pop("nodes", 64), **parallel)
    return with_ledger(plan, ep=("all_to_all", 10**10, 0.1, 0.4, True))


def test_etp_left_unset_is_named_where_it_scatters_the_experts():
    findings = said(ep_in_nvlink_domain, experts(tp=8, pp=8, ep=8))
    ep = [f for f in findings if f.subject.startswith("ep")]
    assert {f.verdict for f in ep} == {Verdict.WARN}
    assert "ranks 0,8,16,24,32,40,48,56 on 8 nodes, node[0-7]" in ep[0].observed
    # all-to-all: each rank sends all but nothing of it to other nodes, 8 x 10 GB
    assert "80.0 GB per step cross between domains" in ep[0].observed
    assert ep[0].remedy.startswith("set etp = 1: it is not given and defaults to tp = 8")
    assert "8 consecutive ranks, which one NVLink domain holds" in ep[0].remedy
    assert ep[0].blames == Part(kind="plan", name="parallel.etp")
    # the expert-tensor groups themselves are inside
    assert {f.verdict for f in findings if f.subject.startswith("etp")} == {Verdict.PASS}


def test_a_warning_that_holds_for_every_group_of_an_axis_is_said_once_and_the_rest_together():
    plan = experts(tp=8, pp=8, ep=8)
    ep = [f for f in said(ep_in_nvlink_domain, plan) if f.subject.startswith("ep")]
    assert [f.subject for f in ep] == ["ep0", "ep[1-63]"]
    assert ep[1].observed.startswith("63 more groups of 8 ranks, each on 8 nodes: no NVLink between them")
    assert "80.0 GB per step cross" in ep[1].observed
    refused = experts(tp=8, pp=8, ep=8, ep_needs_domain=True)
    ep = [f for f in said(ep_in_nvlink_domain, refused) if f.subject.startswith("ep")]
    assert [f.subject for f in ep] == [*(f"ep{i}" for i in range(8)), "ep[8-63]"]


def test_etp_one_keeps_the_experts_inside_the_node():
    assert {f.verdict for f in said(ep_in_nvlink_domain, experts(tp=8, pp=8, ep=8, etp=1))} == {Verdict.PASS}


def test_experts_over_many_nodes_are_a_warning_unless_the_dispatcher_needs_one_domain():
    deepseek = experts(nodes=256, tp=1, pp=16, ep=64, etp=1)
    [first, *_] = said(ep_in_nvlink_domain, deepseek)
    assert (first.verdict, first.subject) == (Verdict.WARN, "ep0")
    assert "on 8 nodes, node[0-7]" in first.observed
    assert first.remedy == (
        "lower ep from 64 to 8, which divides the 8 GPUs of an NVLink domain; "
        "or keep it, if the dispatcher sends each token to few nodes"
    )
    needed = experts(nodes=256, tp=1, pp=16, ep=64, etp=1, ep_needs_domain=True)
    findings = said(ep_in_nvlink_domain, needed)
    assert {f.verdict for f in findings} == {Verdict.FAIL}
    assert "use a dispatcher that works over several domains" in findings[0].remedy


@pytest.mark.parametrize(
    ("first", "second", "size", "bad", "segment"),
    [(16, 16, 32, [], None), (18, 14, 32, ["ep2"], 8), (18, 14, 64, ["ep1"], 16), (17, 15, 32, ["ep2"], 8)],
)
def test_experts_on_two_racks(first, second, size, bad, segment):
    findings = said(ep_in_nvlink_domain, trays(first, second, tp=1, ep=size, ep_needs_domain=True))
    failed = [f for f in findings if f.verdict is Verdict.FAIL]
    assert [f.subject for f in failed] == bad
    if segment == 8:
        assert "--segment=8" in failed[0].remedy


# --- what each axis costs


def test_the_axes_that_cross_are_information_with_bytes_and_seconds():
    plan = with_ledger(
        make_plan(),
        tp=("all_reduce", 10**11, 0.3, 2.0, True),
        dp=("reduce_scatter", 68 * 10**8, 0.018, 0.15, False),
        pp=("send_recv", 2 * 2**30, 0.006, 0.05, True),
    )
    by_subject = {f.subject: f for f in said(axis_cost, plan)}
    assert set(by_subject) == {"dp[0-31]", "pp[0-15]", "axes that cross"}
    assert {f.verdict for f in by_subject.values()} == {Verdict.PASS}
    dp = by_subject["dp[0-31]"].observed
    assert dp.startswith("32 of 32 groups leave their NVLink domain, each on 2 nodes (taking each node as one domain)")
    assert "each rank sends 6.80 GB per step: 150 ms outside a domain, 18.0 ms inside (beside compute" in dp
    # four stages on four nodes: three boundaries cross
    assert f"{3 * 2 * 2**30 / 1e9:.2f} GB per step cross" in by_subject["pp[0-15]"].observed
    assert by_subject["axes that cross"].observed == (
        "staying inside one domain would save, before overlap: dp 132 ms per step, beside compute; pp 44.0 ms per step"
    )


def test_an_axis_inside_the_domain_costs_what_it_costs_there():
    plan = with_ledger(make_plan(nodes=1, tp=2, dp=4), dp=("reduce_scatter", 10**9, 0.01, 0.1, False))
    [finding] = said(axis_cost, plan)
    assert finding.observed.startswith("2 of 2 groups inside one NVLink domain")


def test_without_a_ledger_or_with_a_run_without_gpus_nothing_is_said():
    assert said(axis_cost, with_ledger(make_plan())) == []
    plan = with_ledger(make_plan(), dp=("reduce_scatter", 10**9, 0.01, 0.1, False))
    for check in (tp, cp_in_nvlink_domain, ep_in_nvlink_domain, axis_cost, same_slot):
        assert said(check, plan, settings=Settings(cpu_declared=True)) == []


def test_the_other_order_of_pipeline_and_data_is_compared_by_seconds():
    # domains of 16 trays of 4: dp 8 x tp 8 fills one domain and pp crosses; the other way round dp crosses
    plan = make_plan(nodes=64, gpus_per_node=4, gpu=None, tp=8, pp=4, hardware={"nodes_per_nvlink_domain": 16})
    plan = with_ledger(plan, dp=("reduce_scatter", 10**10, 0.02, 0.2, True), pp=("send_recv", 10**9, 0.001, 0.02, True))
    by_subject = {f.subject: f for f in said(axis_cost, plan)}
    assert by_subject["order"].observed == (
        "order tp-cp-ep-dp-pp: dp inside a domain, pp across, 40.0 ms per step; "
        "tp-cp-ep-pp-dp: dp across, pp inside a domain, 201 ms (before overlap)"
    )
    assert "order" not in {
        f.subject for f in said(axis_cost, with_ledger(make_plan(pp=1), dp=("all_reduce", 1, 1, 1, True)))
    }


def test_an_order_that_megatron_refuses_for_experts_is_said_to_be_refused():
    plan = make_plan(
        nodes=64, gpus_per_node=4, gpu=None, tp=8, pp=4, ep=8, etp=2, hardware={"nodes_per_nvlink_domain": 16}
    )
    plan = with_ledger(plan, dp=("reduce_scatter", 10**10, 0.02, 0.2, True), pp=("send_recv", 10**9, 0.001, 0.02, True))
    [finding] = [f for f in said(axis_cost, plan) if f.subject == "order"]
    assert "Megatron refuses it, since etp 2 x ep 8 is not tp 8 x cp 1" in finding.observed


# --- leaves and racks


def on_leaves(numbers, **more) -> Plan:
    """TP 8, PP 4, DP 4 on 16 nodes gpu-1 to gpu-16, listed in this order, four nodes to a leaf by their number."""
    topology = Topology(switches={f"gpu-{n}": (f"leaf{(n - 1) // 4}",) for n in range(1, 17)}, source="t", **more)
    names = [f"gpu-{n}" for n in numbers]
    return make_plan(nodes=None, node_names=names, topology=topology, tp=8, pp=4, dp=4, launch={"launcher": "torchrun"})


def test_names_sorted_as_text_scatter_the_data_parallel_groups_over_leaves():
    findings = said(leaf_spread, on_leaves(sorted(range(1, 17), key=str)))
    assert {f.subject: f.verdict for f in findings if not f.subject.startswith("dp")} == {
        "tp[0-15]": Verdict.PASS,
        "pp[0-31]": Verdict.PASS,
    }
    [finding] = [f for f in findings if f.subject.startswith("dp")]
    assert finding.verdict is Verdict.WARN
    assert (
        "8 groups over 1 leaf, 24 over 2 leaves; with the nodes listed leaf by leaf: 32 groups over 1 leaf"
        in finding.observed
    )
    assert "leaves leaf" in finding.observed
    assert finding.remedy.startswith("list the nodes leaf by leaf: static rendezvous with --node-rank")


def test_nodes_in_the_order_of_their_leaves_pass_and_no_file_says_nothing():
    assert {f.verdict for f in said(leaf_spread, on_leaves(range(1, 17)))} == {Verdict.PASS}
    assert said(leaf_spread, make_plan()) == []


def test_racks_are_judged_as_leaves_are():
    racks = {f"gpu-{n}": f"rack{n % 2}" for n in range(1, 17)}
    findings = said(leaf_spread, on_leaves(range(1, 17), racks=racks))
    scattered = [f for f in findings if f.verdict is Verdict.WARN]
    assert [f.remedy[:31] for f in scattered if f.subject.startswith("dp")] == ["list the nodes rack by rack: st"]


# --- slots


def test_local_ranks_that_are_rotated_change_the_slot():
    plan = make_plan(nodes=2, gpus_per_node=4, tp=4, dp=2)
    rotated = msgspec.structs.replace(plan.placement, local_ranks=(0, 1, 2, 3, 1, 2, 3, 0))
    plan = make_plan(nodes=2, gpus_per_node=4, tp=4, dp=2, placement=rotated)
    [finding] = said(same_slot, plan)
    assert (finding.subject, finding.verdict) == ("dp[0-3]", Verdict.WARN)
    assert "4 of 4 groups with one rank per node change the GPU slot at ranks 4-7" in finding.observed
    assert "dp0: ranks 0,4 on 2 nodes, node[0-1]: rank 0 slot 0, rank 4 slot 1" in finding.observed


def test_equal_slots_pass_and_groups_with_several_ranks_per_node_are_not_judged():
    findings = said(same_slot, make_plan())
    assert {f.subject: f.verdict for f in findings} == {"dp[0-31]": Verdict.PASS, "pp[0-15]": Verdict.PASS}
    assert said(same_slot, make_plan(nodes=2, tp=1, dp=16)) == []


# --- all together


def test_the_reference_job_is_go_with_all_of_these_rules():
    checks = [
        module.CHECK for module in (tp, cp_in_nvlink_domain, ep_in_nvlink_domain, axis_cost, leaf_spread, same_slot)
    ]
    findings, _, answer = judge_all(Evidence(plan=make_plan()), checks)
    assert answer == "go"
    assert {f.verdict for f in findings} == {Verdict.PASS, Verdict.SKIP}


def test_a_rule_lowers_the_refusal_of_tp():
    plan = make_plan(tp=16, pp=2, rules={"tp_in_nvlink_domain": Rule(severity="warn")})
    findings, _, answer = judge_all(Evidence(plan=plan), [tp.CHECK])
    assert (answer, {f.verdict for f in findings}) == ("go", {Verdict.WARN})
