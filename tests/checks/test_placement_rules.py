"""tp, cp and ep inside NVLink domains: what the rules say of each group, its cost and its remedy; and many groups at once."""

import time

import msgspec
import pytest

from preflight.model import Part, Plan, Rule, Topology, Verdict
from preflight_checks import cp_in_nvlink_domain, ep_in_nvlink_domain
from preflight_checks import tp_in_nvlink_domain as tp
from tests.builders import make_plan
from tests.checks.placements import place, said, trays, with_ledger

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


@pytest.mark.parametrize(("gpus_per_node", "told"), [(4, True), (8, False)])
def test_trays_whose_rack_nobody_told_of_are_asked_for_it(gpus_per_node, told):
    """Only nodes as small as a tray may be joined by NVLink; and where domains are known, nobody is asked."""
    findings = said(tp, make_plan(nodes=8, gpus_per_node=gpus_per_node, tp=2 * gpus_per_node))
    assert all(("nodes_per_nvlink_domain" in finding.remedy) is told for finding in findings)
    known = make_plan(nodes=8, gpus_per_node=4, tp=32, hardware={"nodes_per_nvlink_domain": 2})
    assert all("nodes_per_nvlink_domain" not in finding.remedy for finding in said(tp, known))


def test_trays_of_a_product_whose_nvlink_joins_nodes_are_unknown_until_somebody_says_which():
    unknown = said(tp, make_plan(nodes=4, gpus_per_node=4, gpu="GB200-186GB", tp=8))
    assert {finding.verdict for finding in unknown} == {Verdict.UNKNOWN}
    assert "whether NVLink joins them is not known" in unknown[0].observed
    assert "nodes_per_nvlink_domain" in unknown[0].remedy
    alone = said(tp, make_plan(nodes=4, gpus_per_node=4, gpu="GB200-186GB", tp=4))
    assert {finding.verdict for finding in alone} == {Verdict.PASS}
    for per_domain, verdict in ((1, Verdict.FAIL), (2, Verdict.PASS)):
        told = make_plan(
            nodes=4, gpus_per_node=4, gpu="GB200-186GB", tp=8, hardware={"nodes_per_nvlink_domain": per_domain}
        )
        assert {finding.verdict for finding in said(tp, told)} == {verdict}


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


def test_cp_that_fits_but_meets_the_border_of_two_domains_needs_segments():
    findings = said(cp_in_nvlink_domain, trays(9, 7, tp=4, cp=2))
    assert {f.subject: f.verdict for f in findings}["cp16"] is Verdict.WARN
    assert "--segment=2" in findings[0].remedy
    assert findings[0].blames == Part(kind="plan", name="launch.segment")


def test_cp_inside_the_node_passes():
    assert {f.verdict for f in said(cp_in_nvlink_domain, make_plan(tp=4, cp=2, pp=4))} == {Verdict.PASS}
    assert said(cp_in_nvlink_domain, make_plan(tp=8, pp=4)) == []


def test_of_hierarchical_cp_the_innermost_level_is_judged():
    plan = make_plan(nodes=4, tp=1, cp=16, hierarchical_cp=(2, 8))
    assert "hcp1" in plan.groups
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


def test_etp_written_out_is_named_too_where_one_would_bring_the_experts_together():
    """An import writes the default out; where etp x ep fits a domain, the order of nodes is to blame instead."""
    scattered = said(ep_in_nvlink_domain, experts(tp=8, pp=8, ep=8, etp=8))
    assert scattered[0].remedy.startswith("set etp = 1: it is 8")
    assert scattered[0].blames == Part(kind="plan", name="parallel.etp")
    racks = Topology(node_domains={f"node{i}": f"rack{i % 2}" for i in range(8)})
    mixed = make_plan(nodes=8, gpus_per_node=4, tp=2, pp=1, ep=4, etp=2, topology=racks)
    remedies = [f.remedy for f in said(ep_in_nvlink_domain, mixed) if f.subject.startswith("ep")]
    assert all(text.startswith("list the nodes of each NVLink domain one after another") for text in remedies)


def test_a_lower_degree_says_what_else_it_needs():
    """Ranks dealt round the nodes, tp not innermost, tp ranks inside a group of experts: the lower degree alone would leave all of them apart."""
    dealt = make_plan(nodes=8, tp=16, pp=1, launch={"launcher": "slurm", "distribution": "cyclic"})
    assert said(tp, dealt)[0].remedy.startswith(
        "lower tp from 16 to 8, which divides the 8 GPUs of an NVLink domain, and let consecutive"
    )
    outer = make_plan(nodes=8, tp=16, pp=1, cp=2, order=("cp", "tp", "dp", "pp"))
    assert "and put tp innermost" in said(tp, outer)[0].remedy
    wide = [
        f
        for f in said(ep_in_nvlink_domain, make_plan(nodes=8, framework="deepspeed", tp=2, pp=1, ep=16))
        if f.subject == "ep0"
    ]
    assert wide[0].remedy.startswith("lower ep from 16 to 4")


def test_etp_one_is_not_proposed_where_another_axis_strides_the_experts():
    plan = make_plan(nodes=4, tp=8, cp=2, pp=1, ep=4, order=("dp", "tp", "cp", "ep", "pp"))
    assert all("set etp = 1" not in f.remedy for f in said(ep_in_nvlink_domain, plan))


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
