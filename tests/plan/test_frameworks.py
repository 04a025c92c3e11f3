"""Which ranks form which group under torchtitan, FSDP and DeepSpeed, and what each of them refuses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.errors import ConfigError
from preflight.plan.layout import lay_out
from preflight.plan.planfile import job_of
from tests.builders import make_job


def laid_out(world: int, framework: str, **parallel):
    job = make_job(framework=framework, **parallel)
    return lay_out(job, nodes=world, gpus_per_node=1, world_size=world)


def groups_of(world: int, framework: str, **parallel):
    return laid_out(world, framework, **parallel).groups


def of_rank(rank: int, groups):
    return {axis: next(group for group in some if rank in group) for axis, some in groups.items()}


def ranks(text: str):
    """((0, 2), (1, 3)) from "0,2 1,3"."""
    return tuple(tuple(map(int, group.split(","))) for group in text.split())


PAIRS = ranks("0,1 2,3 4,5 6,7 8,9 10,11 12,13 14,15")
EVEN_AND_ODD = (tuple(range(0, 16, 2)), tuple(range(1, 16, 2)))


def test_torchtitan_shards_weights_over_dp_shard_and_cp_and_borrows_experts_from_them_and_tp():
    layout = laid_out(16, "torchtitan", pp=2, dp_shard=2, cp=2, tp=2, ep=4)
    assert of_rank(5, layout.groups) == {
        "tp": (4, 5),
        "cp": (5, 7),
        "dp": (1, 5),
        "dp_shard": (1, 5),
        "fsdp": (1, 3, 5, 7),
        "pp": (5, 13),
        "ep": (4, 5, 6, 7),
        "efsdp": (1, 5),
    }
    assert layout.degrees == {
        **dict.fromkeys(("tp", "cp", "dp", "pp", "dp_shard", "edp", "efsdp"), 2),
        **dict.fromkeys(("ep", "fsdp"), 4),
        **dict.fromkeys(("dp_replicate", "etp"), 1),
    }


def test_torchtitan_replicates_outside_shards():
    groups = groups_of(16, "torchtitan", dp_replicate=2, dp_shard=4, tp=2)
    assert of_rank(0, groups) == {
        "tp": (0, 1),
        "dp": (0, 2, 4, 6, 8, 10, 12, 14),
        "dp_shard": (0, 2, 4, 6),
        "dp_replicate": (0, 8),
        "fsdp": (0, 2, 4, 6),
    }


def test_torchtitan_shards_over_what_is_left_unless_told_otherwise():
    assert laid_out(64, "torchtitan", tp=2, pp=4).degrees["dp_shard"] == 8
    assert laid_out(64, "torchtitan", tp=2, pp=4, dp=8).degrees["dp_shard"] == 8
    given_one = laid_out(64, "torchtitan", tp=2, pp=4, dp=8, dp_shard=2).degrees
    assert (given_one["dp_shard"], given_one["dp_replicate"]) == (2, 4)


def test_experts_of_torchtitan_stay_inside_a_copy_of_the_weights():
    layout = laid_out(16, "torchtitan", dp_replicate=2, dp_shard=8, ep=4)
    assert layout.groups["ep"] == ranks("0,1,2,3 4,5,6,7 8,9,10,11 12,13,14,15")
    assert layout.groups["efsdp"] == ranks("0,4 1,5 2,6 3,7 8,12 9,13 10,14 11,15")
    assert (layout.degrees["efsdp"], layout.degrees["edp"]) == (2, 4)


def test_an_older_torchtitan_splits_each_expert_over_tp():
    groups = groups_of(16, "torchtitan", tp=2, ep=4, etp=2)
    assert groups["etp"] == groups["tp"] == PAIRS
    assert groups["ep"][:2] == ((0, 2, 4, 6), (1, 3, 5, 7))


@pytest.mark.parametrize(
    ("parallel", "key", "text"),
    [
        ({"dp_shard": 8, "dp_replicate": 4}, "parallel", "the world size is tp x cp x dp_shard x dp_replicate x pp"),
        ({"tp": 2, "ep": 16, "dp_replicate": 2}, "parallel.ep", r"ep must divide dp_shard x cp x tp"),
        ({"tp": 4, "ep": 2, "etp": 2}, "parallel.etp", "1 or the tensor parallel degree"),
        ({"dp": 16, "dp_shard": 4, "dp_replicate": 2}, "parallel.dp", r"dp = dp_replicate x dp_shard"),
        ({"dp": 16, "dp_shard": 3}, "parallel.dp", r"dp_shard 3 = 3"),
        ({"optimizer_instances": 2}, "parallel.optimizer_instances", "only megatron has it"),
        ({"tp": 2, "pp": 2, "ep": 2, "order": ("tp", "pp", "cp", "dp")}, "parallel.order", "tears tp, cp and dp_shard"),
        ({"order": ("dp", "dp_shard")}, "parallel.order", "each at most once"),
    ],
)
def test_torchtitan_refuses(parallel, key, text):
    with pytest.raises(ConfigError, match=text) as refused:
        laid_out(16, "torchtitan", **parallel)
    assert refused.value.key == key


def test_an_order_of_torchtitan_may_say_dp_for_both_its_parts():
    layout = laid_out(16, "torchtitan", tp=2, pp=2, dp_replicate=2, order=("tp", "cp", "pp", "dp"))
    assert layout.order == ("tp", "cp", "pp", "dp_shard", "dp_replicate")
    assert (layout.groups["pp"][0], layout.groups["dp_shard"][0]) == ((0, 2), (0, 4))


def test_experts_of_torchtitan_follow_a_changed_order():
    groups = groups_of(16, "torchtitan", tp=2, pp=2, ep=2, order=("pp", "tp", "dp"))
    assert (groups["pp"][0], groups["ep"][0], groups["efsdp"][0]) == ((0, 1), (0, 2), (0, 4, 8, 12))


def test_fsdp_shards_over_the_whole_world_and_hsdp_over_a_part_of_it():
    assert groups_of(8, "fsdp")["fsdp"] == (tuple(range(8)),)
    groups = groups_of(8, "fsdp", dp_replicate=2)
    assert groups["fsdp"] == groups["dp_shard"] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert groups["dp_replicate"] == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_fsdp_with_context_parallelism_shards_over_both():
    layout = laid_out(16, "fsdp", tp=2, cp=2)
    assert layout.groups["fsdp"][0] == (0, 2, 4, 6, 8, 10, 12, 14)
    assert layout.groups["dp_shard"][0] == (0, 4, 8, 12)
    assert layout.composites["dp_cp"] == layout.groups["fsdp"]
    assert layout.order == ("tp", "cp", "dp_shard", "dp_replicate")


@pytest.mark.parametrize(
    ("parallel", "text"),
    [
        ({"pp": 2}, "has no pipeline"),
        ({"ep": 2}, "has no expert parallelism"),
        ({"tp": 2, "dp_replicate": 8, "dp_shard": 1}, "cannot be used with pure data parallelism"),
        ({"dp_shard": 3}, "the world size is tp x cp x dp_shard x dp_replicate"),
    ],
)
def test_fsdp_refuses(parallel, text):
    with pytest.raises(ConfigError, match=text):
        laid_out(16, "fsdp", **parallel)


def test_copies_alone_are_fine_without_tensor_parallelism():
    assert groups_of(8, "fsdp", dp_replicate=8)["dp_replicate"] == (tuple(range(8)),)


def test_the_pipeline_topology_of_deepspeed_has_model_innermost_and_pipe_outermost():
    groups = groups_of(8, "deepspeed", tp=2, dp=2, pp=2)
    assert groups == {
        "tp": ranks("0,1 2,3 4,5 6,7"),
        "dp": ranks("0,2 1,3 4,6 5,7"),
        "pp": ranks("0,4 1,5 2,6 3,7"),
    }


def test_experts_of_deepspeed_without_tensor_parallelism_are_neighbours():
    groups = groups_of(16, "deepspeed", ep=2)
    assert groups == {"dp": (tuple(range(16)),), "ep": PAIRS, "edp": EVEN_AND_ODD}


def test_data_before_expert_swaps_experts_and_their_replicas():
    groups = groups_of(16, "deepspeed", ep=2, data_before_expert=True)
    assert groups["edp"] == (tuple(range(8)), tuple(range(8, 16)))
    assert groups["ep"][:2] == ((0, 8), (1, 9))


@pytest.mark.parametrize("parallel", [{}, {"etp": 2}])
def test_experts_of_deepspeed_with_tensor_parallelism_lie_tp_apart(parallel):
    layout = laid_out(16, "deepspeed", tp=2, ep=4, **parallel)
    assert layout.groups["tp"] == layout.groups["etp"] == PAIRS
    assert layout.groups["dp"] == EVEN_AND_ODD
    assert set(layout.groups["ep"]) == set(ranks("0,2,4,6 8,10,12,14 1,3,5,7 9,11,13,15"))
    assert set(layout.groups["edp"]) == set(ranks("0,8 2,10 4,12 6,14 1,9 3,11 5,13 7,15"))
    assert layout.degrees["edp"] == 2


def test_data_before_expert_swaps_them_inside_each_data_parallel_group_too():
    groups = groups_of(16, "deepspeed", tp=2, ep=4, etp=2, data_before_expert=True)
    assert groups["edp"][:2] == ((0, 2), (1, 3))
    assert groups["ep"][0] == (0, 4, 8, 12)


def test_the_moe_layer_alone_puts_experts_on_consecutive_ranks_of_a_stage():
    layout = laid_out(16, "deepspeed", tp=2, pp=2, ep=4, auto_ep=False)
    assert layout.groups["ep"] == ranks("0,1,2,3 4,5,6,7 8,9,10,11 12,13,14,15")
    assert layout.groups["edp"][:2] == ((0, 4), (1, 5))
    assert layout.degrees["etp"] == 1


def test_auto_ep_takes_experts_lane_by_lane_and_their_replicas_across_lanes():
    layout = laid_out(16, "deepspeed", tp=2, ep=4, auto_ep=True)
    assert set(layout.groups["ep"]) == set(ranks("0,2,4,6 8,10,12,14 1,3,5,7 9,11,13,15"))
    assert layout.groups["edp"] == ranks("0,1,8,9 2,3,10,11 4,5,12,13 6,7,14,15")
    wide = laid_out(8, "deepspeed", tp=2, ep=8, auto_ep=True)
    assert wide.groups["ep"] == (tuple(range(8)),)


@pytest.mark.parametrize(
    ("parallel", "key", "text"),
    [
        ({"cp": 2}, "parallel.cp", "no place for context parallelism"),
        ({"dp": 3}, "parallel", "the world size is tp x dp x pp"),
        ({"ep": 3}, "parallel.ep", "16 is not divisible by 3"),
        ({"tp": 4, "ep": 8}, "parallel.ep", "ep 8 does not divide dp 4 = 4"),
        ({"tp": 4, "ep": 2, "etp": 2}, "parallel.etp", "all of tp, or none"),
        ({"tp": 2, "ep": 2, "etp": 1}, "parallel.etp", "AutoEP on ranks 2 apart"),
        ({"tp": 2, "ep": 2, "etp": 2, "auto_ep": True}, "parallel.etp", "no expert tensor parallelism yet"),
        ({"tp": 2, "ep": 2, "pp": 2, "auto_ep": True}, "parallel", "supports pp 1 only"),
        ({"tp": 2, "ep": 2, "auto_ep": True, "data_before_expert": True}, "parallel", "not supported by AutoEP"),
        ({"tp": 2, "ep": 2, "auto_ep": True, "zero_stage": 3}, "parallel", "ZeRO stage 0, 1 or 2"),
        ({"tp": 2, "ep": 2, "order": ("dp", "tp")}, "parallel.order", "as if tp were innermost"),
    ],
)
def test_deepspeed_refuses(parallel, key, text):
    with pytest.raises(ConfigError, match=text) as refused:
        laid_out(16, "deepspeed", **parallel)
    assert refused.value.key == key


def test_a_topology_of_ones_own_is_laid_out_without_experts():
    assert groups_of(8, "deepspeed", tp=2, dp=2, pp=2, order=("dp", "tp", "pp"))["dp"][0] == (0, 1)


def read(framework: str, **parallel):
    model = {"parameters": "7B", "layers": 32}
    return job_of({"model": model, "parallel": {"framework": framework, **parallel}}, "job.toml").parallel


@pytest.mark.parametrize(
    ("framework", "order"),
    [
        ("megatron", "tp-cp-pp-dp"),
        ("megatron", "tp-cp-dp-pp-ep"),
        ("torchtitan", "tp-cp-pp-dp_shard-dp_replicate"),
        ("torchtitan", "tp-cp-pp-dp"),
        ("deepspeed", "dp-tp-pp"),
        ("fsdp", "dp_shard-tp"),
    ],
)
def test_a_plan_file_may_order_the_axes_that_its_framework_has(framework, order):
    assert read(framework, order=order).order == tuple(order.split("-"))


@pytest.mark.parametrize(
    ("framework", "order", "example"),
    [
        ("megatron", "tp-dp_shard", "tp-cp-ep-dp-pp"),
        ("torchtitan", "tp-efsdp-pp", "tp-cp-dp_shard-dp_replicate-pp"),
        ("deepspeed", "tp-cp-dp-pp", "tp-dp-pp"),
        ("fsdp", "tp-dp-pp", "tp-cp-dp_shard-dp_replicate"),
    ],
)
def test_a_plan_file_may_not_order_axes_of_another_framework(framework, order, example):
    with pytest.raises(ConfigError, match="each at most once") as refused:
        read(framework, order=order)
    assert (refused.value.key, example in refused.value.remedy) == ("parallel.order", True)


def test_a_plan_file_says_who_lays_experts_of_deepspeed_out():
    assert read("deepspeed", auto_ep=True).auto_ep is True
    assert read("deepspeed").auto_ep is None


small = st.sampled_from([1, 2, 3, 4])


@settings(max_examples=60, deadline=None)
@given(tp=small, replicate=small, shard=small, ep=small, framework=st.sampled_from(["torchtitan", "fsdp", "deepspeed"]))
def test_every_axis_of_every_framework_divides_all_ranks_into_groups_of_its_degree(tp, replicate, shard, ep, framework):
    world = tp * replicate * shard
    split = {} if framework == "deepspeed" else {"dp_replicate": replicate, "dp_shard": shard}
    room = {"torchtitan": shard * tp, "deepspeed": replicate * shard, "fsdp": 1}[framework]
    if room % ep or (framework == "fsdp" and tp > 1 and replicate > 1 and shard == 1):
        with pytest.raises(ConfigError):
            laid_out(world, framework, tp=tp, ep=ep, **split)
        return
    layout = laid_out(world, framework, tp=tp, ep=ep, **split)
    for axis, some in layout.groups.items():
        assert all(len(group) == layout.degrees[axis] and list(group) == sorted(group) for group in some)
        assert sorted(rank for group in some for rank in group) == list(range(world))
        assert [group[0] for group in some] == sorted(group[0] for group in some)
