"""Which ranks form which group under Megatron-Core: worked examples computed with its own rank generator, and the rules that refuse a layout."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.errors import ConfigError
from preflight.plan.layout import MAX_WORLD_SIZE, lay_out
from tests.builders import make_job, make_plan


def laid_out(world: int, *, nodes: int | None = None, model=None, **parallel):
    nodes = nodes or world
    return lay_out(make_job(model=model, **parallel), nodes=nodes, gpus_per_node=world // nodes, world_size=world)


def groups_of(world: int, **parallel):
    return laid_out(world, **parallel).groups


def ranks(text: str):
    """((0, 2), (1, 3)) from "0,2 1,3"."""
    return tuple(tuple(map(int, group.split(","))) for group in text.split())


PAIRS = ranks("0,1 2,3 4,5 6,7 8,9 10,11 12,13 14,15")
STEP_2 = ranks("0,2 1,3 4,6 5,7 8,10 9,11 12,14 13,15")
STEP_4 = ranks("0,4 1,5 2,6 3,7 8,12 9,13 10,14 11,15")
STEP_8 = ranks("0,8 1,9 2,10 3,11 4,12 5,13 6,14 7,15")
FOURS = ranks("0,1,2,3 4,5,6,7 8,9,10,11 12,13,14,15")
FOURS_STEP_2 = ranks("0,2,4,6 1,3,5,7 8,10,12,14 9,11,13,15")
HALVES = ranks("0,1,2,3,4,5,6,7 8,9,10,11,12,13,14,15")


def test_a_dense_job_in_the_default_order():
    layout = laid_out(16, tp=2, cp=2, dp=2, pp=2)
    assert layout.order == ("tp", "cp", "ep", "dp", "pp")
    assert layout.degrees == {"tp": 2, "cp": 2, "ep": 1, "dp": 2, "pp": 2, "dp_cp": 4}
    assert layout.groups == {"tp": PAIRS, "cp": STEP_2, "dp": STEP_4, "dp_cp": FOURS_STEP_2, "pp": STEP_8}
    assert layout.composites == {
        "tp_cp": FOURS,
        "tp_pp": ranks("0,1,8,9 2,3,10,11 4,5,12,13 6,7,14,15"),
        "tp_dp": ranks("0,1,4,5 2,3,6,7 8,9,12,13 10,11,14,15"),
        "tp_dp_cp": HALVES,
    }


def test_a_dense_job_with_data_parallelism_outermost():
    layout = laid_out(16, tp=2, cp=2, dp=2, pp=2, order=("tp", "cp", "ep", "pp", "dp"))
    dp_cp = ranks("0,2,8,10 1,3,9,11 4,6,12,14 5,7,13,15")
    assert layout.groups == {"tp": PAIRS, "cp": STEP_2, "dp": STEP_8, "dp_cp": dp_cp, "pp": STEP_4}
    assert layout.composites["tp_cp"] == FOURS
    assert layout.composites["tp_pp"] == ranks("0,1,4,5 2,3,6,7 8,9,12,13 10,11,14,15")


def test_two_optimizer_instances_halve_each_gradient_group_and_pair_the_halves():
    layout = laid_out(16, tp=2, cp=2, dp=2, pp=2, optimizer_instances=2)
    assert layout.groups["dp_intra"] == ranks("0,2 1,3 4,6 5,7 8,10 9,11 12,14 13,15")
    assert layout.groups["dp_inter"] == ranks("0,4 1,5 2,6 3,7 8,12 9,13 10,14 11,15")
    assert (layout.degrees["dp_intra"], layout.degrees["dp_inter"]) == (2, 2)


def test_experts_have_optimizer_instances_of_their_own():
    groups = groups_of(16, tp=2, ep=2, etp=1, optimizer_instances=2)
    assert groups["edp"][0] == (0, 2, 4, 6, 8, 10, 12, 14)
    assert groups["edp_intra"][:3] == ((0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14))
    assert groups["edp_inter"][:2] == ((0, 8), (1, 9))


def test_tied_embeddings_join_the_first_and_the_last_stage():
    tied = groups_of(16, tp=2, pp=4, model={"tied_embeddings": True})
    assert tied["embedding"] == ranks("0,12 1,13 2,14 3,15")
    assert "embedding" not in groups_of(16, tp=2, pp=4)
    assert "embedding" not in groups_of(16, tp=2, model={"tied_embeddings": True})


def test_hierarchical_context_parallelism_has_a_group_for_each_level():
    groups = groups_of(16, tp=1, cp=16, hierarchical_cp=(2, 2, 4))
    assert (groups["hcp1"], groups["hcp2"]) == (PAIRS, STEP_2)
    assert groups["hcp3"] == ranks("0,4,8,12 1,5,9,13 2,6,10,14 3,7,11,15")
    assert groups["cp"] == (tuple(range(16)),)


def test_levels_of_context_parallelism_lie_within_each_of_its_groups():
    groups = groups_of(16, tp=2, cp=4, hierarchical_cp=(2, 2))
    assert (groups["hcp1"], groups["hcp2"]) == (STEP_2, STEP_4)


@pytest.mark.parametrize(
    ("experts", "expected"),
    [
        pytest.param({"ep": 2}, {"etp": PAIRS, "ep": STEP_2, "edp": STEP_4}, id="etp is tp where it is not given"),
        pytest.param({"ep": 4, "etp": 1}, {"ep": FOURS, "edp": STEP_4}, id="etp 1 puts experts side by side"),
        pytest.param({"ep": 4, "etp": 2}, {"etp": PAIRS, "ep": FOURS_STEP_2}, id="no expert replicas"),
    ],
)
def test_experts_are_laid_out_over_the_same_ranks(experts, expected):
    dense = {"tp": PAIRS, "dp": FOURS_STEP_2, "pp": STEP_8}
    assert groups_of(16, tp=2, pp=2, **experts) == {**dense, **expected}


def test_experts_may_exceed_data_parallelism_by_folding_into_context_parallelism():
    groups = groups_of(16, tp=2, cp=2, pp=2, ep=4, etp=1)
    assert (groups["ep"], groups["edp"], groups["dp"]) == (FOURS, STEP_4, STEP_4)
    of_rank_5 = {axis: next(group for group in some if 5 in group) for axis, some in groups.items()}
    expected = {"tp": (4, 5), "cp": (5, 7), "dp": (1, 5), "pp": (5, 13), "ep": (4, 5, 6, 7), "edp": (1, 5)}
    assert of_rank_5 == {**expected, "dp_cp": (1, 3, 5, 7)}


def test_experts_have_composite_groups_of_their_own():
    composites = laid_out(16, tp=2, pp=2, ep=2).composites
    assert composites["tp_ep"] == FOURS
    assert composites["tp_ep_pp"][0] == (0, 1, 2, 3, 8, 9, 10, 11)
    assert "tp_ep" not in laid_out(16, tp=2, pp=2, ep=4, etp=1).composites  # that is the ep group itself


@pytest.mark.parametrize(
    ("world", "parallel"),
    [
        (8, {"tp": 2, "ep": 8, "etp": 1}),
        (8, {"tp": 4, "ep": 8, "etp": 1}),
        (8, {"tp": 2, "cp": 4, "ep": 8, "etp": 1}),
        (16, {"pp": 2, "tp": 2, "cp": 1, "ep": 8, "etp": 1}),
        (8, {"tp": 2, "ep": 4, "etp": 2}),
    ],
)
def test_the_smallest_world_is_not_the_product_of_all_degrees(world, parallel):
    assert groups_of(world, **parallel)
    with pytest.raises(ConfigError):
        groups_of(world // 2, **parallel)


def test_an_axis_of_degree_one_has_no_groups():
    assert groups_of(8, tp=8) == {"tp": (tuple(range(8)),)}


def test_data_parallelism_takes_the_rest_of_the_world():
    assert laid_out(64, tp=8, pp=4).degrees["dp"] == 2


def test_equal_groups_are_kept_once():
    groups = groups_of(16, tp=2, pp=2, ep=2)
    assert groups["etp"] is groups["tp"]


def test_a_product_unlike_the_world_size_is_refused_with_every_factor():
    with pytest.raises(ConfigError) as refused:
        laid_out(64, nodes=8, tp=8, pp=4, dp=3)
    text = str(refused.value)
    assert "tp 8 x cp 1 x dp 3 x pp 4 = 96 ranks, but 8 nodes x 8 GPUs = 64" in text
    assert "set dp = 2 or leave dp out, or use 12 nodes" in text


def test_a_world_that_no_dp_fills_is_refused_with_every_factor():
    with pytest.raises(
        ConfigError, match=r"tp 8 x cp 1 x pp 3 = 24 ranks, which does not divide 8 nodes x 8 GPUs = 64"
    ):
        laid_out(64, nodes=8, tp=8, pp=3)


def test_nodes_with_unequal_counts_are_refused_by_their_sum():
    with pytest.raises(ConfigError, match=r"does not divide 7 ranks on 4 nodes, so no dp fits"):
        lay_out(make_job(tp=2), nodes=4, gpus_per_node=2, world_size=7)


def test_experts_that_do_not_fit_a_stage_are_refused_with_the_arithmetic_and_the_default():
    with pytest.raises(ConfigError) as refused:
        laid_out(64, nodes=8, tp=8, pp=4, ep=8)
    text = str(refused.value)
    assert "etp 8 x ep 8 = 64 does not divide tp 8 x cp 1 x dp 2 = 16" in text
    assert "etp is not given and defaults to tp" in text
    assert "64 does not divide by 256" in text
    assert "etp = 1 would fit" in text


def test_an_order_in_which_dense_and_expert_pipelines_differ_is_refused():
    with pytest.raises(ConfigError, match="4 ranks apart in dense layers and 8 in expert layers") as refused:
        groups_of(32, tp=4, pp=2, ep=8, etp=1, order=("tp", "cp", "ep", "pp", "dp"))
    assert "edp 2, dp 4" in str(refused.value)
    assert "let pp be the outermost axis" in str(refused.value)


def test_an_order_that_does_not_end_in_pp_is_accepted_where_experts_fill_tp_and_cp():
    groups = groups_of(32, tp=4, pp=2, ep=4, etp=1, order=("tp", "cp", "ep", "pp", "dp"))
    assert (groups["pp"][0], groups["edp"]) == ((0, 4), groups["dp"])


def test_the_order_of_nanotron_is_accepted_without_experts_and_refused_with_its_own_fault_otherwise():
    order = ("tp", "cp", "dp", "pp", "ep")
    assert groups_of(16, tp=2, pp=2, order=order)["pp"] == STEP_8
    with pytest.raises(ConfigError, match="nanotron, whose order has ep outermost, checks a world size without ep"):
        groups_of(16, tp=2, pp=2, ep=2, order=order)


def test_the_order_of_llama_3_puts_data_parallelism_outermost():
    assert groups_of(16, tp=2, cp=2, pp=2, order=("tp", "cp", "pp", "dp"))["dp"] == STEP_8


def test_an_order_that_leaves_out_a_used_axis_is_refused():
    with pytest.raises(ConfigError, match="leaves out dp, whose degree is 2"):
        groups_of(16, tp=8, order=("tp", "pp"))


@pytest.mark.parametrize("order", [("tp", "tp", "dp"), ("tp", "dp", "sp")])
def test_an_order_with_a_strange_or_repeated_axis_is_refused(order):
    with pytest.raises(ConfigError, match="is not a list of axes, each at most once"):
        groups_of(16, tp=8, order=order)


def test_an_order_may_leave_out_unused_axes():
    assert groups_of(16, tp=8, dp=2, order=("dp", "tp"))["dp"] == PAIRS


@pytest.mark.parametrize(
    ("parallel", "text"),
    [
        ({"cp": 4, "hierarchical_cp": (2, 4)}, "multiplies to 8, but cp is 4"),
        ({"tp": 2, "optimizer_instances": 3}, "3 instances, but dp 8 x cp 1 = 8 does not divide by it"),
        ({"tp": 2, "ep": 8, "etp": 1, "optimizer_instances": 4}, "edp 2 = 2 does not divide by it"),
    ],
)
def test_cuts_that_do_not_come_out_even_are_refused(parallel, text):
    with pytest.raises(ConfigError, match=text):
        groups_of(16, **parallel)


@pytest.mark.parametrize(
    "parallel", [{"dp_shard": 2}, {"dp_replicate": 2}, {"data_before_expert": True}, {"auto_ep": True}]
)
def test_keys_of_another_framework_are_refused_rather_than_ignored(parallel):
    [key] = parallel
    with pytest.raises(ConfigError, match="means nothing to megatron") as refused:
        groups_of(16, **parallel)
    assert refused.value.key == f"parallel.{key}"


def test_a_world_above_the_bound_is_refused_before_anything_is_laid_out():
    with pytest.raises(ConfigError, match="the most we lay out"):
        lay_out(make_job(tp=1), nodes=MAX_WORLD_SIZE, gpus_per_node=2, world_size=2 * MAX_WORLD_SIZE)


small = st.sampled_from([1, 2, 3, 4])
AXES = ("tp", "cp", "dp", "pp")


@settings(max_examples=60, deadline=None)
@given(tp=small, cp=small, dp=small, pp=small, order=st.permutations(["tp", "cp", "ep", "dp", "pp"]))
def test_each_axis_divides_all_ranks_into_groups_of_its_degree(tp, cp, dp, pp, order):
    world = tp * cp * dp * pp
    layout = laid_out(world, tp=tp, cp=cp, dp=dp, pp=pp, order=tuple(order))
    for axis, degree in layout.degrees.items():
        some = layout.groups.get(axis, ())
        assert (degree == 1) == (axis not in layout.groups)
        assert all(len(group) == degree and list(group) == sorted(group) for group in some)
        assert not some or sorted(rank for group in some for rank in group) == list(range(world))
        assert [group[0] for group in some] == sorted(group[0] for group in some)


@settings(max_examples=60, deadline=None)
@given(tp=small, cp=small, dp=small, pp=small)
def test_two_groups_of_different_axes_share_at_most_one_rank(tp, cp, dp, pp):
    groups = groups_of(tp * cp * dp * pp, tp=tp, cp=cp, dp=dp, pp=pp)
    through_rank_0 = [set(some[0]) for axis, some in groups.items() if axis in AXES]
    assert math.prod(map(len, through_rank_0)) == tp * cp * dp * pp
    assert all(a & b == {0} for i, a in enumerate(through_rank_0) for b in through_rank_0[i + 1 :])


@pytest.mark.parametrize(
    ("nodes", "parallel", "touched"),
    [
        (8, {"tp": 8, "pp": 4}, {"tp": 1, "dp": 2, "pp": 4}),
        (8, {"tp": 8, "pp": 4, "ep": 8, "etp": 1}, {"tp": 1, "ep": 1, "dp": 2, "pp": 4}),
        (8, {"tp": 2, "pp": 4, "ep": 8, "etp": 2}, {"tp": 1, "ep": 2, "dp": 2, "pp": 4}),
        (64, {"tp": 8, "pp": 8, "ep": 8, "etp": 8}, {"tp": 1, "ep": 8, "dp": 8, "pp": 8}),
        (64, {"tp": 8, "pp": 8, "ep": 8, "etp": 1}, {"tp": 1, "ep": 1, "dp": 8, "pp": 8}),
        (256, {"tp": 1, "pp": 16, "ep": 64, "etp": 1}, {"ep": 8, "dp": 16, "pp": 16}),
        (8, {"tp": 8, "cp": 2, "pp": 4}, {"tp": 1, "cp": 2, "pp": 4}),
        (8, {"tp": 4, "cp": 2, "pp": 4}, {"tp": 1, "cp": 1, "dp": 2, "pp": 4}),
    ],
)
def test_nodes_that_each_group_touches_with_eight_ranks_to_a_node(nodes, parallel, touched):
    groups = groups_of(nodes * 8, **parallel)
    for axis, expected in touched.items():
        assert {len({rank // 8 for rank in group}) for group in groups[axis]} == {expected}


@pytest.mark.parametrize("framework", ["fsdp", "torchtitan"])
def test_a_shard_group_smaller_than_the_world_is_offered_hybrid_sharding(framework):
    with pytest.raises(ConfigError) as refused:
        make_plan(framework=framework, tp=1, dp_shard=8, nodes=16)
    assert "dp_replicate = 16" in str(refused.value)
    assert "use 1 node" in str(refused.value)
    assert "use 1 nodes" not in str(refused.value)
