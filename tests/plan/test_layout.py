"""Which ranks form which group: worked examples computed with Megatron-Core's own rank generator, and the rules that refuse a layout."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.errors import ConfigError
from preflight.plan.layout import MAX_WORLD_SIZE, all_groups, axis_order, resolve_degrees
from tests.builders import make_job


def groups_of(world: int, **parallel):
    job = make_job(**parallel)
    degrees = resolve_degrees(job, nodes=world, gpus_per_node=1)
    return all_groups(degrees, axis_order(job, degrees))


def ranks(text: str):
    """((0, 2), (1, 3)) from "0,2 1,3"."""
    return tuple(tuple(map(int, group.split(","))) for group in text.split())


PAIRS = ranks("0,1 2,3 4,5 6,7 8,9 10,11 12,13 14,15")
STEP_2 = ranks("0,2 1,3 4,6 5,7 8,10 9,11 12,14 13,15")
STEP_4 = ranks("0,4 1,5 2,6 3,7 8,12 9,13 10,14 11,15")
STEP_8 = ranks("0,8 1,9 2,10 3,11 4,12 5,13 6,14 7,15")
FOURS = ranks("0,1,2,3 4,5,6,7 8,9,10,11 12,13,14,15")
FOURS_STEP_2 = ranks("0,2,4,6 1,3,5,7 8,10,12,14 9,11,13,15")


def test_a_dense_job_in_the_default_order():
    groups = groups_of(16, tp=2, cp=2, dp=2, pp=2)
    assert groups == {"tp": PAIRS, "cp": STEP_2, "dp": STEP_4, "pp": STEP_8}


def test_a_dense_job_with_data_parallelism_outermost():
    groups = groups_of(16, tp=2, cp=2, dp=2, pp=2, order=("tp", "cp", "ep", "pp", "dp"))
    assert groups == {"tp": PAIRS, "cp": STEP_2, "dp": STEP_8, "pp": STEP_4}


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
    assert of_rank_5 == expected


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
    assert resolve_degrees(make_job(tp=8, pp=4), nodes=8, gpus_per_node=8)["dp"] == 2


def test_a_product_unlike_the_world_size_is_refused_with_every_factor():
    with pytest.raises(ConfigError) as refused:
        resolve_degrees(make_job(tp=8, pp=4, dp=3), nodes=8, gpus_per_node=8)
    text = str(refused.value)
    assert "tp 8 x cp 1 x dp 3 x pp 4 = 96 ranks, but 8 nodes x 8 GPUs = 64" in text
    assert "set dp = 2 or leave dp out, or use 12 nodes" in text


def test_a_world_that_no_dp_fills_is_refused_with_every_factor():
    with pytest.raises(
        ConfigError, match=r"tp 8 x cp 1 x pp 3 = 24 ranks, which does not divide 8 nodes x 8 GPUs = 64"
    ):
        resolve_degrees(make_job(tp=8, pp=3), nodes=8, gpus_per_node=8)


def test_experts_that_do_not_fit_a_stage_are_refused_with_the_arithmetic_and_the_default():
    with pytest.raises(ConfigError) as refused:
        resolve_degrees(make_job(tp=8, pp=4, ep=8), nodes=8, gpus_per_node=8)
    text = str(refused.value)
    assert "etp 8 x ep 8 = 64 does not divide tp 8 x cp 1 x dp 2 = 16" in text
    assert "etp is not given and defaults to tp" in text
    assert "etp = 1 would fit" in text


def test_an_order_in_which_dense_and_expert_pipelines_differ_is_refused():
    with pytest.raises(ConfigError, match="4 ranks apart in dense layers and 8 in expert layers"):
        groups_of(32, tp=4, pp=2, ep=8, etp=1, order=("tp", "cp", "ep", "pp", "dp"))


def test_an_order_that_leaves_out_a_used_axis_is_refused():
    with pytest.raises(ConfigError, match="leaves out dp, whose degree is 2"):
        groups_of(16, tp=8, order=("tp", "pp"))


def test_an_order_may_leave_out_unused_axes():
    assert groups_of(16, tp=8, dp=2, order=("dp", "tp"))["dp"] == PAIRS


def test_a_world_above_the_bound_is_refused_before_anything_is_laid_out():
    with pytest.raises(ConfigError, match="the most we lay out"):
        resolve_degrees(make_job(tp=1), nodes=MAX_WORLD_SIZE, gpus_per_node=2)


small = st.sampled_from([1, 2, 3, 4])


@settings(max_examples=60, deadline=None)
@given(tp=small, cp=small, dp=small, pp=small, order=st.permutations(["tp", "cp", "ep", "dp", "pp"]))
def test_each_axis_divides_all_ranks_into_groups_of_its_degree(tp, cp, dp, pp, order):
    world = tp * cp * dp * pp
    groups = groups_of(world, tp=tp, cp=cp, dp=dp, pp=pp, order=tuple(order))
    for axis, degree in {"tp": tp, "cp": cp, "dp": dp, "pp": pp}.items():
        some = groups.get(axis, ())
        assert (degree == 1) == (axis not in groups)
        assert all(len(group) == degree and list(group) == sorted(group) for group in some)
        assert not some or sorted(rank for group in some for rank in group) == list(range(world))
        assert [group[0] for group in some] == sorted(group[0] for group in some)


@settings(max_examples=60, deadline=None)
@given(tp=small, cp=small, dp=small, pp=small)
def test_two_groups_of_different_axes_share_at_most_one_rank(tp, cp, dp, pp):
    groups = groups_of(tp * cp * dp * pp, tp=tp, cp=cp, dp=dp, pp=pp)
    through_rank_0 = [set(some[0]) for some in groups.values()]
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
