"""Groups: with the collectives that the plan implies, at its own message size and a large one; alone, mixed, skewed."""

from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.model import Group, Plan
from preflight.model.ends import ends_of
from preflight.model.localisation import Ends
from preflight.model.units import MIB
from preflight.probe.schedule.axes import collectives_of, messages_of
from preflight.probe.schedule.groups import MOST_ALONE, alone_rounds, group_round, mixed_groups, skewed_split
from tests.builders import make_plan

MOE = {"experts": 8, "experts_per_token": 2, "expert_ffn_size": 4096, "ffn_size": 16384, "attention_heads": 64}


def on_leaves(plan: Plan, size: int) -> Ends:
    ends = ends_of(plan)
    return msgspec.structs.replace(ends, leaves=tuple(f"leaf{node // size}" for node in range(len(ends.nodes))))


@pytest.mark.parametrize(
    ("job", "axis", "collectives"),
    [
        ({"tp": 8, "pp": 4, "dp": 2}, "tp", ["all_reduce"]),
        ({"tp": 8, "pp": 4, "dp": 2}, "dp", ["all_reduce"]),
        ({"tp": 8, "pp": 4, "dp": 2}, "pp", ["send_recv"]),
        ({"tp": 8, "dp": 8, "sequence_parallel": True}, "tp", ["all_gather", "reduce_scatter"]),
        ({"tp": 8, "dp": 8, "zero_stage": 1}, "dp", ["reduce_scatter", "all_gather"]),
        ({"tp": 4, "cp": 2, "dp": 8}, "cp", ["send_recv"]),
        ({"framework": "torchtitan", "tp": 8, "dp_shard": 8}, "tp", ["all_gather", "reduce_scatter"]),
        ({"framework": "deepspeed", "dp": 64, "zero_stage": 3}, "dp", ["all_gather", "reduce_scatter"]),
        ({"tp": 4, "pp": 2, "dp": 8, "ep": 4, "model": MOE}, "ep", ["all_to_all"]),
    ],
)
def test_each_axis_does_what_it_does_in_training(job, axis, collectives):
    assert collectives_of(make_plan(**job), axis) == collectives


@pytest.mark.parametrize(
    ("job", "axis", "collectives"),
    [
        ({"tp": 8, "dp": 8}, "tp", ["all_reduce"]),
        ({"tp": 8, "dp": 8, "sequence_parallel": True}, "tp", ["reduce_scatter", "all_gather"]),
        ({"tp": 8, "dp": 8, "zero_stage": 2}, "dp", ["reduce_scatter", "all_gather"]),
        ({"framework": "torchtitan", "tp": 8, "dp_shard": 8}, "tp", ["reduce_scatter", "all_gather"]),
        ({"framework": "fsdp", "dp": 64}, "dp", ["reduce_scatter", "all_gather"]),
        ({"framework": "torchtitan", "tp": 8, "dp_replicate": 2, "dp_shard": 4}, "dp_replicate", ["all_reduce"]),
        ({"tp": 4, "dp": 16, "ep": 4}, "ep", ["all_to_all"]),
        ({"dp": 64, "ep": 64}, "dp", ["all_reduce", "all_to_all"]),
    ],
)
def test_where_the_plan_file_says_too_little_the_framework_decides(job, axis, collectives):
    plan = make_plan(hidden_size=None, micro_batch_size=None, seq_length=None, micro_batches=None, **job)
    plan = msgspec.structs.replace(plan, estimate=msgspec.structs.replace(plan.estimate, ledger=()))
    assert collectives_of(plan, axis) == collectives


def test_a_small_planned_message_is_timed_besides_a_large_one():
    large, planned = messages_of(make_plan(), "tp", "nccl")
    assert (large.size_bytes, large.size_name) == (1024 * MIB, "")
    assert (planned.size_bytes, planned.size_name) == (64 * MIB, "planned")
    assert planned.size_source.startswith("plan: ")
    assert (
        len(
            {
                probe.key
                for m in (large, planned)
                for probe in group_round([Group(axis="tp", index=0, ranks=(0, 1))], m, "nccl")
            }
        )
        == 2
    )


def test_a_planned_message_that_is_large_is_timed_once():
    (only,) = messages_of(make_plan(), "dp", "nccl")
    assert (only.size_bytes, only.size_name) == (1024 * MIB, "")
    assert "kept within" in only.size_source


def test_one_group_for_each_set_of_nodes_is_timed_first():
    plan = make_plan()
    alone = alone_rounds(plan, ends_of(plan), "dp")
    assert [[group.name for group in groups] for groups in alone.first] == [["dp0"], ["dp8"], ["dp16"], ["dp24"]]
    assert sorted(group.index for groups in (*alone.first, *alone.others) for group in groups) == list(range(32))


def test_groups_that_share_no_way_up_are_timed_at_once():
    plan = make_plan()  # dp joins nodes 0 and 1, 2 and 3, ...; pp 0, 2, 4, 6 and 1, 3, 5, 7
    assert len(alone_rounds(plan, on_leaves(plan, 2), "dp").first) == 1
    assert len(alone_rounds(plan, on_leaves(plan, 1), "dp").first) == 1
    assert len(alone_rounds(plan, on_leaves(plan, 2), "pp").first) == 2
    assert len(alone_rounds(plan, on_leaves(plan, 8), "pp").first) == 1


def test_of_very_many_rounds_some_are_taken_from_all_over():
    plan = make_plan(nodes=128, tp=8, pp=2, dp=64)
    alone = alone_rounds(plan, ends_of(plan), "pp")
    assert len(alone.first) == MOST_ALONE
    assert alone.others == []
    spread = [groups[0].index for groups in alone.first]
    assert spread == sorted(spread)
    assert max(spread) > len(plan.groups["pp"]) * 0.9


@settings(max_examples=40, deadline=None)
@given(
    degrees=st.sampled_from([(8, 4, 2), (4, 4, 4), (2, 8, 4), (16, 2, 2), (1, 8, 8)]),
    leaf=st.none() | st.integers(1, 8),
)
def test_groups_timed_alone_share_no_node_and_no_way_up(degrees, leaf):
    tp, pp, dp = degrees
    plan = make_plan(tp=tp, pp=pp, dp=dp)
    ends = on_leaves(plan, leaf) if leaf else ends_of(plan)
    for axis in plan.timed_axes:
        alone = alone_rounds(plan, ends, axis)
        for groups in (*alone.first, *alone.others):
            for one, other in combinations(groups, 2):
                mine, others = ({ends.node[rank] for rank in group.ranks} for group in (one, other))
                assert not mine & others
                if len(mine) > 1 and len(others) > 1:
                    assert ends.leaves
                    up, ups = ({ends.leaves[node] for node in nodes} for nodes in (mine, others))
                    assert len(up) == 1 or len(ups) == 1 or not up & ups
        assert {len(groups) for groups in alone_rounds(plan, ends, axis, share_machine=True).first} == {1}


@settings(max_examples=60, deadline=None)
@given(degrees=st.sampled_from([(8, 4, 2, 2), (4, 4, 4, 2), (1, 8, 8, 4), (2, 1, 32, 8)]), turn=st.integers(0, 5))
def test_a_mixed_round_has_groups_of_several_axes_and_no_rank_twice(degrees, turn):
    tp, pp, dp, ep = degrees
    plan = make_plan(tp=tp, pp=pp, dp=dp, ep=ep)
    axes = [plan.on_axis(axis) for axis in ("dp", "pp", "ep") if axis in plan.groups]
    chosen = mixed_groups(axes, turn)
    ranks = [rank for group in chosen for rank in group.ranks]
    assert len(ranks) == len(set(ranks))
    assert not chosen or len({group.axis for group in chosen}) > 1
    assert chosen or tp == 1
    assert len({group.name for group in chosen}) == len(chosen)


def test_where_every_group_of_one_axis_meets_every_group_of_the_other_nothing_is_mixed():
    plan = make_plan(tp=1, pp=8, dp=8)
    assert mixed_groups([plan.on_axis("dp"), plan.on_axis("pp")], 0) == []
    assert mixed_groups([], 0) == []


@given(ranks=st.integers(2, 256))
def test_a_skewed_exchange_sends_all_tokens_and_most_of_them_to_one_rank(ranks):
    split = skewed_split(ranks)
    assert len(split) == ranks
    assert sum(split) == pytest.approx(1)
    assert split[0] >= max(0.3, 1.5 / ranks) - 1e-9
    assert split[0] > max(split[1:])


def test_thirty_percent_of_the_tokens_go_to_one_of_eight_ranks():
    assert skewed_split(8) == pytest.approx((0.3, *[0.1] * 7))
