"""The communication ledger of experts: what is sent to them and back, and which group their gradients use."""

import pytest

from tests.builders import make_plan
from tests.plan.test_ledger import MIB, in_layers, ledger_of, rows

MIXTURES = {
    "DeepSeek-V3": (
        64,
        {"hidden_size": 7168, "model": {"experts": 256, "experts_per_token": 8, "expert_ffn_size": 2048}},
    ),
    "Qwen3-235B": (
        32,
        {"hidden_size": 4096, "model": {"experts": 128, "experts_per_token": 8, "expert_ffn_size": 1536}},
    ),
    "Mixtral": (8, {"hidden_size": 4096, "model": {"experts": 8, "experts_per_token": 2, "expert_ffn_size": 14336}}),
}


@pytest.mark.parametrize(
    ("name", "dispatch_bytes", "dispatch_mib", "combine_mib"),
    [
        ("DeepSeek-V3", 1, 220.5, 441),
        ("DeepSeek-V3", None, 441, 441),
        ("Qwen3-235B", None, 248, 248),
        ("Mixtral", None, 56, 56),
    ],
)
def test_experts_receive_and_return_each_token_top_k_times(name, dispatch_bytes, dispatch_mib, combine_mib):
    ep, shape = MIXTURES[name]
    plan = make_plan(**shape, layers=1, micro_batches=1, training={"dispatch_bytes": dispatch_bytes}, ep=ep, tp=1)
    dispatch, rest = rows(ledger_of(plan), "ep")
    assert (dispatch.calls, rest.calls) == (1, 3)
    assert dispatch.wire_bytes / MIB == dispatch_mib
    assert rest.wire_bytes / 3 / MIB == combine_mib


def test_padding_and_skew_make_messages_longer_the_larger_of_both():
    ep, shape = MIXTURES["Mixtral"]

    def message(**training):
        plan = make_plan(**shape, micro_batches=1, training=training, ep=ep, tp=1)
        return rows(ledger_of(plan), "ep")[0].message_bytes

    assert message(capacity_factor=1.5) == 1.5 * message()
    assert message(expert_skew=2.0, capacity_factor=1.5) == 2 * message()


def test_a_token_sent_once_to_each_node_is_told_with_its_copies():
    ep, shape = MIXTURES["Mixtral"]
    plain, once = (
        rows(
            ledger_of(make_plan(**shape, micro_batches=1, training={"dispatch_once_per_node": how}, ep=ep, tp=1)), "ep"
        )
        for how in (False, True)
    )
    assert [row.copies for row in plain] == [0, 0]
    assert [row.copies for row in once] == [2, 2]
    assert [row.wire_bytes for row in plain] == [row.wire_bytes for row in once]


def test_dense_layers_of_a_mixture_send_nothing_to_experts():
    ep, shape = MIXTURES["Mixtral"]
    shape = {**shape, "model": {**shape["model"], "dense_layers": 60}}
    assert rows(ledger_of(make_plan(**shape, micro_batches=1, ep=ep, tp=1)), "ep")[0].calls == 20


def test_experts_gradients_go_over_edp_and_dense_ones_over_dp():
    shape = {
        "attention_heads": 64,
        "kv_heads": 8,
        "vocab_size": 32000,
        "experts": 8,
        "experts_per_token": 2,
        "expert_ffn_size": 14336,
    }
    plan = make_plan(hidden_size=8192, model=shape, tp=1, pp=4, ep=8, etp=1, dp=16)
    ledger = ledger_of(plan)
    (dense,), (expert,) = rows(ledger, "dp"), rows(ledger, "edp")
    assert dense.purpose == "dense gradients"
    assert expert.purpose == "expert gradients"
    assert expert.message_bytes == pytest.approx(
        4 * 20 * 3 * 8192 * 14336, rel=0.001
    )  # one of eight experts, 20 layers


def test_experts_divided_over_etp_gather_and_sum_their_tokens():
    shape = {
        "attention_heads": 64,
        "kv_heads": 8,
        "vocab_size": 32000,
        "experts": 8,
        "experts_per_token": 2,
        "expert_ffn_size": 14336,
    }
    plan = make_plan(hidden_size=8192, model=shape, tp=2, pp=4, ep=4, etp=2, dp=8, sequence_parallel=True)
    gathered, summed = rows(ledger_of(plan), "etp")
    assert (gathered.collective, summed.collective) == ("all_gather", "reduce_scatter")
    assert gathered.message_bytes == 2 * 2 * (4096 // 2) * 2 * 8192  # etp x bytes x tokens x top-k x h
    assert gathered.calls == 2 * 20 * 32


def test_layers_with_experts_have_half_of_the_tensor_parallel_calls():
    shape = {
        "attention_heads": 64,
        "kv_heads": 8,
        "vocab_size": 32000,
        "experts": 8,
        "experts_per_token": 2,
        "expert_ffn_size": 14336,
    }
    parallel = {"tp": 8, "pp": 4, "ep": 2, "etp": 1, "dp": 2, "sequence_parallel": True}
    routed = in_layers(ledger_of(make_plan(model=shape, **parallel)))
    shared = in_layers(ledger_of(make_plan(model={**shape, "shared_ffn_size": 2048}, **parallel)))
    assert sum(row.calls for row in routed) == (2 * 2560 + 1280) / 2
    assert sum(row.calls for row in shared) == 2 * 2560 + 1280


def test_experts_of_one_shard_sum_over_the_replicas():
    shape = {"attention_heads": 64, "vocab_size": 32000, "experts": 8, "experts_per_token": 2, "expert_ffn_size": 4096}
    parallel = {"framework": "torchtitan", "tp": 2, "cp": 2, "pp": 4, "ep": 8, "dp_shard": 2, "dp_replicate": 2}
    plan = make_plan(model=shape, **parallel)
    ledger = ledger_of(plan)
    assert {row.axis for row in ledger} <= set(plan.groups)
    assert rows(ledger, "dp_replicate", "expert")[0].collective == "all_reduce"


MIXTURE = {
    "attention_heads": 64,
    "kv_heads": 8,
    "vocab_size": 32000,
    "experts": 8,
    "experts_per_token": 2,
    "expert_ffn_size": 14336,
}


@pytest.mark.parametrize(
    ("axis", "parallel"),
    [
        ("dp", {"tp": 2, "pp": 4, "dp": 8, "sequence_parallel": True}),
        ("dp_cp", {"cp": 2, "pp": 4, "dp": 8, "zero_stage": 1}),
        ("dp_intra", {"pp": 4, "dp": 16, "zero_stage": 1, "optimizer_instances": 2}),
        ("fsdp", {"framework": "torchtitan", "dp_shard": 8, "dp_replicate": 8}),
        ("dp", {"framework": "deepspeed", "dp": 64, "zero_stage": 3}),
    ],
)
def test_without_expert_parallelism_experts_gradients_go_the_way_of_dense_ones(axis, parallel):
    plan = make_plan(hidden_size=8192, model=MIXTURE, micro_batches=1, **parallel)
    ledger = ledger_of(plan)
    dense, expert = rows(ledger, axis, "dense"), rows(ledger, axis, "expert")
    assert [row.collective for row in expert] == [row.collective for row in dense]
    assert all(row.message_bytes > other.message_bytes for row, other in zip(expert, dense, strict=True))


def test_experts_divided_by_tp_alone_exchange_their_tokens_over_tp():
    # Megatron gathers routed tokens (top-2); torchtitan, like a dense MLP, all tokens once
    shape = {"hidden_size": 8192, "model": MIXTURE, "tp": 2, "pp": 4}
    megatron = ledger_of(make_plan(**shape, sequence_parallel=True))
    (gathered,), (summed,) = rows(megatron, "tp", "routed tokens"), rows(megatron, "tp", "experts' outputs")
    assert gathered.message_bytes == summed.message_bytes == 2 * 2 * (4096 // 2) * 2 * 8192
    assert sum(row.calls for row in rows(megatron, "tp", "forward")) == 2 * 20 * 32
    titan = ledger_of(make_plan(**shape, framework="torchtitan"))
    assert sum(row.calls for row in rows(titan, "tp", "forward")) == 2 * 2 * 20 * 32
    assert not rows(titan, "tp", "routed")
