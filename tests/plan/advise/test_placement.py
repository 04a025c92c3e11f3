"""A bad placement gets the smallest change that repairs it, which was judged again before; a good one gets none."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.errors import ConfigError
from preflight.model import Topology
from preflight.plan.advise.placement import advise_placement
from preflight.plan.build import build_plan
from preflight.plan.launchers.seats import parse_counts
from tests.builders import make_job
from tests.plan.advise.judging import answer, applied, by_all_checks, one_per_group
from tests.plan.advise.models import LLAMA_70B, job_for


def advise(job, *, judged=by_all_checks, topology=None):
    return advise_placement(job, build_plan(job, topology=topology), judged, topology=topology)


def names(count, form="gpu-{}"):
    return tuple(form.format(i) for i in range(1, count + 1))


def racks(*sizes, form="n{:02}"):
    """Nodes of racks of these sizes, each an NVLink domain, in this order."""
    hosts = names(sum(sizes), form)
    owners = [f"rack{rack}" for rack, size in enumerate(sizes) for _ in range(size)]
    return hosts, Topology(node_domains=dict(zip(hosts, owners, strict=True)), source="racks.txt")


def nvl72(hosts, topology, *, launch=None, **parallel):
    """A job on nodes of 4 GPUs whose NVLink joins nodes."""
    job = make_job(
        nodes=len(hosts),
        gpus_per_node=4,
        gpu_memory_bytes=10**12,
        launch={"hosts": hosts, **(launch or {})},
        **parallel,
    )
    return job, topology


def test_the_cyclic_accident_is_repaired_by_one_flag(tmp_path):
    job = make_job(launch={"launcher": "slurm", "distribution": "cyclic"})
    assert answer(build_plan(job)) == "no-go"
    first, *_ = advise(job)
    assert first.paste == "srun --distribution=block"
    assert first.complete
    assert (first.before.split_groups, first.after.split_groups, first.after.fail) == (8, 0, 0)
    assert answer(applied(job, first, tmp_path)) == "go"


def test_a_good_placement_gets_no_advice():
    assert advise(make_job(launch={"launcher": "slurm", "distribution": "block"})) == ()
    assert advise(make_job()) == ()


def test_a_group_larger_than_a_domain_gets_other_degrees_since_no_placement_helps(tmp_path):
    job = make_job(tp=16, pp=2, launch={"launcher": "slurm", "distribution": "block"})
    [advice] = advise(job)
    assert advice.paste == "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4"
    assert answer(applied(job, advice, tmp_path)) == "go"


def test_where_nothing_helps_there_is_no_advice():
    """Nodes of one GPU have no NVLink, and 61 layers do not divide into the four stages that tp 1 would need."""
    assert advise(make_job(nodes=4, gpus_per_node=1, tp=4, layers=61, global_batch_size=4, micro_batches=None)) == ()


@pytest.mark.parametrize(
    ("launch", "paste"),
    [
        ({"launcher": "slurm", "distribution": "plane=4"}, "srun --distribution=block"),
        ({"launcher": "mpi", "distribution": "by-node"}, "mpirun --map-by slot"),
    ],
)
def test_each_launcher_has_its_own_flag(launch, paste, tmp_path):
    job = make_job(launch=launch)
    first, *_ = advise(job)
    assert (first.paste, first.complete) == (paste, True)
    assert answer(applied(job, first, tmp_path)) == "go"


def test_expert_tensor_parallelism_of_one_brings_experts_into_a_node(tmp_path):
    job = make_job(tp=2, pp=4, ep=8, ep_needs_domain=True, sequence_parallel=True, model={"experts": 8})
    [etp, *_] = [advice for advice in advise(job, judged=one_per_group("ep")) if advice.kinds == ("etp",)]
    assert etp.paste == "--expert-tensor-parallel-size 1"
    assert "defaults to tp" in etp.title
    assert (etp.before.split_groups > 0, etp.after.split_groups, etp.complete) == (True, 0, True)
    assert set(applied(job, etp, tmp_path).footprints["ep"].domains) == {1}


def test_two_faults_get_two_changes_together(tmp_path):
    """Dealt cyclically, and the experts' groups strided by tp: neither change is enough alone."""
    launch = {"launcher": "slurm", "distribution": "cyclic"}
    job = make_job(tp=2, pp=4, ep=8, ep_needs_domain=True, sequence_parallel=True, model={"experts": 8}, launch=launch)

    def judged(plan):
        return [*one_per_group("ep")(plan), *one_per_group("tp")(plan)]

    first, *rest = advise(job, judged=judged)
    assert first.complete
    assert set(first.kinds) == {"distribution", "etp"}
    assert all(advice.complete for advice in rest), "partial ones are not shown beside a complete one"
    plan = applied(job, first, tmp_path)
    assert set(plan.footprints["ep"].domains) == set(plan.footprints["tp"].domains) == {1}


def seventeen_and_fifteen(**training):
    """TP 8 on pairs of nodes of 4 GPUs, from racks of 17 and 15 nodes that come in turn."""
    hosts, topology = racks(17, 15)
    mixed = tuple(host for pair in zip(hosts[:15], hosts[17:], strict=True) for host in pair) + hosts[15:17]
    return nvl72(mixed, topology, launch={"launcher": "deepspeed"}, tp=8, dp=16, **training)


def test_a_partial_repair_is_labelled_and_says_what_is_left():
    """Whatever their order, one pair of nodes lies in two racks; and the global batch does not divide by 15 replicas, so that no node can go."""
    job, topology = seventeen_and_fifteen(global_batch_size=64, micro_batches=None)
    [advice] = advise(job, judged=one_per_group("tp"), topology=topology)
    assert (advice.kinds, advice.complete, advice.after.split_groups) == (("node_order",), False, 1)
    assert len(advice.left) == 1
    assert advice.left[0].startswith("WARN tp_domains: tp")


def test_nodes_are_left_out_and_the_rest_put_in_order():
    job, topology = seventeen_and_fifteen()
    [advice] = advise(job, judged=one_per_group("tp"), topology=topology)
    assert (set(advice.kinds), advice.complete, advice.after.split_groups) == ({"exclude", "node_order"}, True, 0)
    assert advice.paste == "deepspeed --hostfile=hostfile"
    assert len(advice.files["hostfile"].splitlines()) == 30


@pytest.mark.parametrize(
    ("sizes", "parallel", "axis", "segment", "dropped"),
    [
        ((18, 14), {"ep": 32, "etp": 1, "tp": 1}, "ep", 8, 8),  # three blocks of 8 nodes are whole
        ((17, 15), {"tp": 8}, "tp", 2, 2),  # one node of each rack is left over
    ],
)
def test_racks_that_hold_no_whole_blocks_get_segments_or_lose_nodes(sizes, parallel, axis, segment, dropped):
    hosts, topology = racks(*sizes)
    job, _ = nvl72(
        hosts, topology, launch={"launcher": "slurm"}, model={"experts": 64}, ep_needs_domain=True, **parallel
    )
    advices = advise(job, judged=one_per_group(axis), topology=topology)
    found = {advice.kinds[0]: advice for advice in advices if advice.complete}
    assert found["segment"].paste == f"sbatch --segment={segment}"
    assert found["segment"].changes[0].keys["launch.segment"] == str(segment)
    assert f"--nodes={sum(sizes) - dropped}" in found["exclude"].paste
    assert [advice.kinds for advice in advices].index(("segment",)) < [advice.kinds for advice in advices].index(
        ("exclude",)
    )


def test_sixteen_and_sixteen_nodes_need_nothing():
    hosts, topology = racks(16, 16)
    job, _ = nvl72(hosts, topology, launch={"launcher": "slurm"}, model={"experts": 64}, ep=32, etp=1, tp=1)
    assert advise(job, judged=one_per_group("ep"), topology=topology) == ()


@pytest.mark.parametrize(
    ("launch", "filename", "first_line", "paste"),
    [
        ({"launcher": "slurm"}, "hosts.txt", "n01", "SLURM_HOSTFILE=hosts.txt srun --distribution=arbitrary"),
        ({"launcher": "deepspeed"}, "hostfile", "n01 slots=4", "deepspeed --hostfile=hostfile"),
        ({"launcher": "mpi"}, "rankfile.txt", "rank 0=n01 slot=0", "mpirun --rankfile rankfile.txt"),
        ({"launcher": "torchrun", "rendezvous": "static"}, "node-ranks.txt", "n01 0", "torchrun --rdzv-backend=static"),
        ({}, None, None, "n01,n03"),
    ],
)
def test_nodes_of_two_racks_taken_in_turn_are_put_in_order(launch, filename, first_line, paste, tmp_path):
    """The file that the advice gives, read as the launcher reads it, brings each group into one rack."""
    hosts, topology = racks(8, 8)
    mixed = tuple(host for pair in zip(hosts[:8], hosts[8:], strict=True) for host in pair)
    renamed = dict(zip(mixed, hosts, strict=True))  # so that n01, n03, ... share a rack
    owners = {renamed[host]: (topology.node_domains or {})[host] for host in mixed}
    topology = Topology(node_domains=owners, source="racks.txt")
    job, _ = nvl72(hosts, topology, launch=launch, tp=8, dp=8)
    [advice] = [a for a in advise(job, judged=one_per_group("tp"), topology=topology) if a.kinds == ("node_order",)]
    [change] = advice.changes
    assert advice.complete
    assert change.filename == filename
    assert change.paste.startswith(paste)
    if change.content is not None:
        assert change.content.splitlines()[0] == first_line
    plan = applied(job, advice, tmp_path, topology=topology)
    assert set(plan.footprints["tp"].domains) == {1}
    assert plan.placement.method != "block" or not launch


def test_names_that_were_made_up_get_into_no_file():
    job = make_job(
        nodes=16, gpus_per_node=4, tp=8, launch={"launcher": "slurm"}, hardware={"nodes_per_nvlink_domain": 3}
    )
    kinds = {kind for advice in advise(job, judged=one_per_group("tp")) for kind in advice.kinds}
    assert "node_order" not in kinds
    assert "exclude" not in kinds


def test_text_order_of_names_is_cured_by_static_rendezvous_or_by_padding(tmp_path):
    hosts = names(16)
    owners = {host: f"domain{i // 4}" for i, host in enumerate(hosts)}
    topology = Topology(node_domains=owners, source="domains.txt")
    job, _ = nvl72(hosts, topology, launch={"launcher": "torchrun", "rendezvous": "c10d"}, tp=8, dp=8)
    advices = advise(job, judged=one_per_group("tp"), topology=topology)
    first = advices[0]
    assert first.kinds == ("rendezvous",)
    assert first.files["node-ranks.txt"].splitlines()[9] == "gpu-10 9"
    assert "hostname -s" in first.paste
    assert set(applied(job, first, tmp_path, topology=topology).footprints["tp"].domains) == {1}
    [padding] = [advice for advice in advices if advice.kinds == ("names",)]
    assert padding.files["padded-names.txt"].splitlines()[0] == "gpu-1 gpu-01"


def test_a_mixture_of_experts_whose_order_megatron_fixes_gets_a_permutation_of_nodes(tmp_path):
    """etp x ep is not tp x cp, so the order must end in pp; with the nodes permuted, data-parallel groups still stay under one leaf."""
    hosts = names(16, "n{:02}")
    leaves = Topology(switches={host: (f"leaf{i % 4}",) for i, host in enumerate(hosts)}, source="leaves.txt")
    job = make_job(
        nodes=16, tp=8, pp=4, ep=4, etp=1, sequence_parallel=True, launch={"launcher": "slurm", "hosts": hosts}
    )
    advices = advise(job, judged=one_per_group("dp", what="leaves"), topology=leaves)
    assert "order" not in {kind for advice in advices for kind in advice.kinds}
    [advice] = [advice for advice in advices if advice.kinds == ("node_order",)]
    plan = applied(job, advice, tmp_path, topology=leaves)
    assert set(plan.footprints["dp"].leaves or ()) == {1}


def test_the_mapping_flag_is_offered_where_megatron_takes_it(tmp_path):
    hosts = names(16, "n{:02}")
    leaves = Topology(switches={host: (f"leaf{i // 4}",) for i, host in enumerate(hosts)}, source="leaves.txt")
    job = make_job(nodes=16, tp=8, pp=4, launch={"launcher": "slurm", "hosts": hosts})
    [advice] = [
        a for a in advise(job, judged=one_per_group("pp", what="leaves"), topology=leaves) if a.kinds == ("order",)
    ]
    assert advice.paste == "--use-tp-pp-dp-mapping"
    assert set(applied(job, advice, tmp_path, topology=leaves).footprints["pp"].leaves or ()) == {1}


def test_a_node_with_fewer_workers_is_left_out(tmp_path):
    """7 + 8 + 8 ... workers shift every later group off its node."""
    hosts = names(9, "n{}")
    job = make_job(
        nodes=9,
        tp=8,
        pp=1,
        launch={"launcher": "torchrun", "rendezvous": "static", "hosts": hosts, "tasks_per_node": "4,8(x7),4"},
    )
    advices = advise(job, judged=one_per_group("tp"))
    [advice] = [advice for advice in advices if advice.kinds == ("exclude",)]
    assert "n[1,9]" in advice.title
    assert set(applied(job, advice, tmp_path).footprints["tp"].domains) == {1}


def test_rank_0_and_the_master_are_brought_together():
    job = make_job(
        launch={"launcher": "torchrun", "rendezvous": "static", "hosts": names(8, "n{}"), "master": "n5"},
    )

    def judged(plan):
        from preflight.model import Finding, Verdict

        first = plan.placement.nodes[plan.placement.node_ranks[0]]
        verdict = Verdict.PASS if plan.job.launch.master in {None, first} else Verdict.WARN
        return [Finding(check="master", subject="rank 0", verdict=verdict, observed="")]

    first, *_ = advise(job, judged=judged)
    assert (first.kinds, first.paste) == (("master",), "MASTER_ADDR=n1")


def two_nodes(batch):
    """tp 2, pp 4, dp 2 on two nodes with a slow network: either dp or pp fits into a node."""
    facts = {"tp": 2, "pp": 4, "zero_stage": 1, "sequence_parallel": True, "gpu": "B200-180GB"}
    return job_for(LLAMA_70B | {"layers": 8}, batch=batch, nodes=2, hardware={"nic_bytes_per_s": 10**10}, **facts)


def test_with_many_micro_batches_the_pipeline_costs_more_than_the_gradients_and_belongs_into_the_node(tmp_path):
    job = two_nodes(batch=2048)
    [advice] = advise(job)
    assert advice.paste == "--use-tp-pp-dp-mapping"
    assert advice.complete
    assert advice.step_after_s < 0.9 * advice.step_before_s
    after = applied(job, advice, tmp_path).estimate.step_time
    assert after is not None
    assert after.total_s == pytest.approx(advice.step_after_s)


def test_with_few_micro_batches_the_gradients_cost_more_and_the_order_stays():
    job = two_nodes(batch=64)
    assert not [advice for advice in advise(job) if "order" in advice.kinds]


def test_a_measured_placement_is_repaired_too(tmp_path):
    """Ranks as `preflight ranks` found them, dealt cyclically; the plan file says only that Slurm starts them."""
    cyclic = build_plan(make_job(launch={"launcher": "slurm", "distribution": "cyclic"})).placement
    measured = msgspec.structs.replace(cyclic, source="measured", method="preflight ranks")
    job = make_job(launch={"launcher": "slurm"})
    plan = build_plan(job, placement=measured)
    first, *_ = advise_placement(job, plan, by_all_checks)
    assert (first.paste, first.before.split_groups, first.after.split_groups) == ("srun --distribution=block", 8, 0)


def test_deepspeeds_hostfile_is_put_in_order(tmp_path):
    hosts, topology = racks(4, 4)
    mixed = tuple(host for pair in zip(hosts[:4], hosts[4:], strict=True) for host in pair)
    path = tmp_path / "before"
    path.write_text("".join(f"{host} slots=4\n" for host in mixed))
    job = make_job(
        nodes=8, gpus_per_node=4, tp=8, launch={"launcher": "deepspeed", "hostfile": str(path), "hosts": hosts}
    )
    [advice] = [a for a in advise(job, judged=one_per_group("tp"), topology=topology) if a.kinds == ("node_order",)]
    plan = applied(job, advice, tmp_path, topology=topology)
    assert set(plan.footprints["tp"].domains) == {1}
    assert "hostfile" in plan.placement.method


def test_kubernetes_gets_kueues_slices():
    hosts, topology = racks(18, 14, form="pod-{:02}")
    job, _ = nvl72(hosts, topology, launch={"launcher": "kubernetes"}, model={"experts": 64}, ep=32, etp=1, tp=1)
    [advice] = [a for a in advise(job, judged=one_per_group("ep"), topology=topology) if a.kinds == ("segment",)]
    assert advice.paste.splitlines()[1] == 'kueue.x-k8s.io/podset-slice-size: "8"'


def test_text_order_under_all_rules_becomes_go(tmp_path):
    """The names of 16 nodes without padding: a leaf holds four of them in numeric order."""
    hosts = names(16)
    leaves = Topology(switches={host: (f"leaf{i // 4}",) for i, host in enumerate(hosts)}, source="leaves.txt")
    job = make_job(nodes=16, tp=8, pp=4, launch={"launcher": "torchrun", "rendezvous": "c10d", "hosts": hosts})
    first, *_ = advise(job, topology=leaves)
    assert first.kinds == ("rendezvous",)
    assert first.complete
    plan = applied(job, first, tmp_path, topology=leaves)
    assert set(plan.footprints["dp"].leaves or ()) == {1}
    assert not [f for f in by_all_checks(plan) if f.check == "leaf_spread" and f.verdict.value == "WARN"]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_plan_makes_it_stumble(data):
    """Whatever the degrees, framework and launcher: advice or none, and all that is offered helps."""
    pick = data.draw
    framework = pick(st.sampled_from(["megatron", "torchtitan", "deepspeed", "fsdp"]))
    parallel = {"framework": framework, "tp": pick(st.sampled_from([1, 2, 4, 8, 16]))}
    if framework != "fsdp":
        parallel |= {"pp": pick(st.sampled_from([1, 2, 4])), "ep": pick(st.sampled_from([1, 4, 8]))}
    launcher = pick(st.sampled_from([None, "slurm", "torchrun", "mpi", "kubernetes", "deepspeed"]))
    launch = {"launcher": launcher, "hosts": pick(st.sampled_from([None, names(8), names(8, "n{:02}")]))}
    if launcher in {"torchrun", "kubernetes"}:
        launch["rendezvous"] = pick(st.sampled_from([None, "c10d", "static"]))
    if launcher in {"slurm", "mpi"}:
        kinds = {"slurm": [None, "block", "cyclic", "plane=3"], "mpi": [None, "by-slot", "by-node"]}
        launch["distribution"] = pick(st.sampled_from(kinds[launcher]))
    job = make_job(launch=launch, model={"experts": 8}, ep_needs_domain=pick(st.booleans()), **parallel)
    try:
        plan = build_plan(job)
    except ConfigError:
        return
    for advice in advise_placement(job, plan, by_all_checks):
        assert advice.after != advice.before
        assert (advice.after.fail, advice.after.split_groups) <= (advice.before.fail, advice.before.split_groups)


@pytest.mark.parametrize("counts", ["7,8,9", "8(x2),5,3", "1,2,3,4", "3,8,8,8"])
@pytest.mark.parametrize("launcher", ["slurm", "torchrun", "mpi"])
def test_nodes_with_unequal_workers_are_advised_on_without_stumbling(counts, launcher):
    launch = {"launcher": launcher, "tasks_per_node": counts}
    launch |= {"rendezvous": "static"} if launcher == "torchrun" else {}
    for tp in (1, 2, 8):
        world = sum(parse_counts(counts))
        if world % tp == 0:
            job = make_job(
                tp=tp,
                pp=1,
                launch={**launch, "hosts": names(len(parse_counts(counts)))},
                nodes=None,
                gpus_per_node=None,
            )
            assert all(advice.after.fail <= advice.before.fail for advice in advise(job))


def test_a_hostfile_that_an_advice_proposes_is_looked_for_nowhere_while_it_is_only_proposed(tmp_path):
    """DeepSpeed on four leaves, nodes in turn: the order is put right, and the search goes on from there since memory still fails."""
    hosts = names(16)
    leaves = Topology(switches={host: (f"leaf{i // 4}",) for i, host in enumerate(hosts)}, source="leaves.txt")
    path = tmp_path / "hf"
    path.write_text("".join(f"{host} slots=8\n" for start in range(4) for host in hosts[start::4]))
    job = job_for(
        LLAMA_70B,
        batch=512,
        nodes=16,
        framework="deepspeed",
        tp=8,
        pp=4,
        dp=4,
        launch={"launcher": "deepspeed", "hostfile": str(path)},
    )
    assert any("node_order" in advice.kinds for advice in advise(job, topology=leaves))
