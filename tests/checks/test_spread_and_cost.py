"""What the other axes cost, leaves and racks, GPU slots; and all placement rules together."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.judge.run import judge as judge_all
from preflight.model import Evidence, Plan, Rule, Settings, Topology, Verdict
from preflight_checks import axis_cost, cp_in_nvlink_domain, ep_in_nvlink_domain, leaf_spread, same_slot
from preflight_checks import tp_in_nvlink_domain as tp
from tests.builders import make_plan
from tests.checks.placements import place, said, with_ledger

RULES = [module.CHECK for module in (tp, cp_in_nvlink_domain, ep_in_nvlink_domain, axis_cost, leaf_spread, same_slot)]


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
    findings, _, answer = judge_all(Evidence(plan=make_plan()), RULES)
    assert answer == "go"
    assert {f.verdict for f in findings} == {Verdict.PASS, Verdict.SKIP}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_layout_placement_or_topology_breaks_a_rule(data):
    nodes, gpus = data.draw(st.integers(1, 6)), data.draw(st.sampled_from([1, 2, 4, 8]))
    world = nodes * gpus
    tp_size = data.draw(st.sampled_from([n for n in range(1, world + 1) if world % n == 0]))
    pp = data.draw(st.sampled_from([n for n in range(1, world // tp_size + 1) if world // tp_size % n == 0]))
    left = world // tp_size // pp
    cp = data.draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0]))
    ep = data.draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0]))
    order = data.draw(st.permutations([rank // gpus for rank in range(world)]))
    name = st.sampled_from(["a", "b", None])
    tiers = {f"node{i}": (tier,) for i in range(nodes) if (tier := data.draw(name))}
    domains = {f"node{i}": domain for i in range(nodes) if (domain := data.draw(name))}
    plan = make_plan(
        nodes=nodes,
        gpus_per_node=gpus,
        placement=place(nodes, gpus, order.__getitem__),
        topology=Topology(switches=tiers, node_domains=domains, racks={k: v[0] for k, v in tiers.items()}, source="t"),
        micro_batches=None,
        tp=tp_size,
        pp=pp,
        cp=cp,
        ep=ep,
        etp=1,
        ep_needs_domain=data.draw(st.booleans()),
    )
    rows = dict.fromkeys(plan.groups, ("all_to_all", 10**9, 0.1, 1.0, True))
    findings, _, _ = judge_all(Evidence(plan=with_ledger(plan, **rows)), RULES)
    assert not [finding for finding in findings if "broke" in finding.observed]
    named = {finding.check for finding in findings if finding.verdict is not Verdict.SKIP}
    assert ("tp_in_nvlink_domain" in named) == (tp_size > 1)
    for finding in findings:
        if finding.verdict in {Verdict.WARN, Verdict.FAIL}:
            assert finding.remedy
            assert finding.blames


def test_severity_fail_makes_refusals_of_leaves_and_slots_too():
    rules = {"leaf_spread": Rule(severity="fail")}
    plan = on_leaves(sorted(range(1, 17), key=str))
    plan = msgspec.structs.replace(plan, job=msgspec.structs.replace(plan.job, rules=rules))
    assert Verdict.FAIL in {f.verdict for f in said(leaf_spread, plan)}


def test_a_rule_lowers_the_refusal_of_tp():
    plan = make_plan(tp=16, pp=2, rules={"tp_in_nvlink_domain": Rule(severity="warn")})
    findings, _, answer = judge_all(Evidence(plan=plan), [tp.CHECK])
    assert (answer, {f.verdict for f in findings}) == ("go", {Verdict.WARN})


@pytest.mark.parametrize(
    ("launch", "key", "how"),
    [
        ({"launcher": "slurm"}, "launch.hosts", "SLURM_HOSTFILE"),
        ({"launcher": "deepspeed", "hostfile": True}, "launch.hostfile", "hostfile"),
        ({"launcher": "torchrun", "rendezvous": "c10d"}, "launch.rendezvous", "--node-rank"),
        ({"launcher": "kubernetes", "rendezvous": "c10d"}, "launch.rendezvous", "static rendezvous"),
    ],
)
def test_what_decides_the_order_of_nodes_is_blamed_for_it(tmp_path, launch, key, how):
    hosts = tuple(f"gpu-{i}" for i in range(1, 17))
    leaves = Topology(switches={host: (f"leaf{i % 4}",) for i, host in enumerate(hosts)})
    if launch.get("hostfile"):
        launch = {**launch, "hostfile": str(tmp_path / "hostfile")}
        (tmp_path / "hostfile").write_text("".join(f"{host} slots=8\n" for host in hosts))
    plan = make_plan(nodes=16, tp=8, pp=4, launch={**launch, "hosts": hosts}, topology=leaves)
    finding = next(f for f in said(leaf_spread, plan) if f.subject.startswith("dp"))
    assert finding.blames is not None
    assert finding.blames.name == key
    assert how in finding.remedy


def test_a_change_of_slots_is_cured_by_what_causes_it():
    """Cyclic over more nodes than a group has ranks; unequal counts; groups that are no whole number of nodes apart."""
    cyclic = make_plan(
        nodes=16,
        tp=8,
        pp=16,
        model={"tied_embeddings": True, "vocab_size": 32000},
        launch={"launcher": "slurm", "distribution": "cyclic"},
    )
    (finding,) = (f for f in said(same_slot, cyclic) if f.verdict is Verdict.WARN)
    assert finding.remedy == "let consecutive ranks fill a node: srun -m block (--distribution=block)"
    uneven = make_plan(
        nodes=None,
        gpus_per_node=None,
        tp=1,
        dp=3,
        pp=8,
        launch={"launcher": "slurm", "hosts": ("a", "b", "c"), "tasks_per_node": "7,8,9"},
    )
    assert all(f.remedy.startswith("give every node the same number") for f in said(same_slot, uneven) if f.remedy)
    odd = make_plan(nodes=3, tp=4, dp=3, pp=2)
    (finding,) = (f for f in said(same_slot, odd) if f.subject.startswith("pp"))
    assert finding.remedy.endswith("now 12, with 8 ranks on a node")
