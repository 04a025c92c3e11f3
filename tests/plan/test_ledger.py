"""The communication ledger: calls, messages and bytes on the wire of worked examples, and which groups carry which gradients."""

import pytest

from preflight.model import Plan, Traffic
from preflight.plan.ledger import make_ledger, message_sizes
from preflight.plan.rates import Rates
from tests.builders import make_plan

LLAMA_70B = {"ffn_size": 28672, "attention_heads": 64, "kv_heads": 8, "vocab_size": 128256}
GIB, MIB = 2**30, 2**20


def ledger_of(plan: Plan, rates: Rates | None = None) -> tuple[Traffic, ...]:
    return make_ledger(plan.job, plan.degrees, plan.estimate.micro_batches, rates)


def rows(ledger: tuple[Traffic, ...], axis: str, *words: str) -> list[Traffic]:
    return [row for row in ledger if row.axis == axis and all(word in row.purpose for word in words)]


def in_layers(ledger: tuple[Traffic, ...]) -> list[Traffic]:
    """Rows of tensor parallelism that belong to layers, not to vocabulary or norms."""
    return [row for row in rows(ledger, "tp") if row.message_bytes == 64 * MIB and "output layer" not in row.purpose]


def reference(**training: object) -> tuple[Traffic, ...]:
    parallel = {"tp": 8, "pp": 4, "dp": 2, "sequence_parallel": training.pop("sequence_parallel", False)}
    return ledger_of(make_plan(model=LLAMA_70B, training=training, **parallel))


def test_tensor_parallelism_of_the_reference_job_sends_64_mib_2560_times():
    layers = in_layers(reference())
    assert {row.collective for row in layers} == {"all_reduce"}
    assert sum(row.calls for row in layers) == 2560
    assert sum(row.wire_bytes for row in layers) == 280 * GIB


def test_full_recomputation_reduces_once_more():
    layers = in_layers(reference(recompute="full"))
    assert sum(row.calls for row in layers) == 3840
    assert sum(row.wire_bytes for row in layers) == 420 * GIB


def test_sequence_parallelism_halves_each_call_and_gathers_inputs_again():
    layers = in_layers(reference(sequence_parallel=True))
    assert {row.collective for row in layers} == {"all_gather", "reduce_scatter"}
    assert sum(row.calls for row in layers) == 2 * 2560 + 1280
    assert sum(row.wire_bytes for row in layers) == 350 * GIB
    assert sum(row.wire_bytes for row in layers if "again" not in row.purpose) == 280 * GIB


@pytest.mark.parametrize(("rate", "seconds"), [(370e9, 0.81), (45e9, 6.7), (3e9, 100)])
def test_the_same_traffic_takes_a_hundred_seconds_over_sockets(rate, seconds):
    plan = make_plan(model=LLAMA_70B)
    ledger = make_ledger(plan.job, plan.degrees, 32, Rates(nvlink_bytes_per_s=rate, nic_bytes_per_s=rate))
    assert sum(row.inside_s or 0 for row in in_layers(ledger)) == pytest.approx(seconds, rel=0.01)
    assert sum(row.outside_s or 0 for row in in_layers(ledger)) == pytest.approx(seconds, rel=0.01)


def test_without_rates_there_are_no_seconds():
    assert {(row.inside_s, row.outside_s) for row in reference()} == {(None, None)}


def test_a_pipeline_sends_2_gib_each_way_and_an_eighth_if_the_sequence_is_divided():
    whole = rows(reference(), "pp")
    assert [(row.calls, row.message_bytes, row.wire_bytes) for row in whole] == [(32, 64 * MIB, 2 * GIB)] * 2
    divided = rows(reference(sequence_parallel=True), "pp")
    assert [(row.message_bytes, row.wire_bytes) for row in divided] == [(8 * MIB, GIB // 4)] * 2


def test_scatter_gather_divides_pipeline_messages_without_sequence_parallelism():
    plan = make_plan(model=LLAMA_70B, tp=8, pp=4, dp=2, scatter_gather=True)
    assert {row.message_bytes for row in rows(ledger_of(plan), "pp")} == {8 * MIB}


def test_virtual_stages_multiply_pipeline_messages_which_then_overlap():
    plain = rows(reference(), "pp")
    chunked = rows(ledger_of(make_plan(model=LLAMA_70B, tp=8, pp=4, dp=2, virtual_stages=5)), "pp")
    assert [row.calls for row in chunked] == [5 * row.calls for row in plain]
    assert [row.exposed for row in (*plain, *chunked)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("training", "parallel", "gigabytes"),
    [
        ({}, {}, 9.1),  # Megatron, bf16: fp32 gradients in one all-reduce
        ({"gradient_bytes": 2}, {}, 4.5),
        ({}, {"zero_stage": 1}, 6.8),  # reduce-scatter in fp32, all-gather in bf16
    ],
)
def test_data_parallelism_of_the_reference_job(training, parallel, gigabytes):
    plan = make_plan(model=LLAMA_70B, training=training, tp=8, pp=4, dp=2, **parallel)
    sent = sum(row.wire_bytes for row in rows(ledger_of(plan), "dp"))
    assert round(sent / 1e9, 1) == gigabytes


def test_fsdp_sends_half_as_much_again_as_an_all_reduce():
    def sent(**changes):
        parallel = {"framework": "fsdp", "dp": 64, **changes.pop("parallel", {})}
        plan = make_plan(model=LLAMA_70B, micro_batches=1, training=changes, **parallel)
        return round(sum(row.wire_bytes for row in ledger_of(plan)) / 1e9)

    assert sent() == 417
    assert sent(gradient_bytes=4) == 556
    assert sent(parallel={"zero_stage": 0}) == 278


def test_fsdp_sends_with_every_micro_batch_and_a_layer_at_a_time():
    one, four = (
        rows(ledger_of(make_plan(model=LLAMA_70B, micro_batches=m, framework="fsdp", dp=64)), "fsdp") for m in (1, 4)
    )
    assert [row.wire_bytes for row in four] == pytest.approx([4 * row.wire_bytes for row in one])
    assert [row.calls for row in one] == [80, 80, 80]
    assert not any(row.exposed for row in one)


def test_weights_that_stay_gathered_are_gathered_once():
    plan = make_plan(model=LLAMA_70B, micro_batches=1, framework="fsdp", dp=64, reshard_after_forward=False)
    assert [row.collective for row in rows(ledger_of(plan), "fsdp")] == ["all_gather", "reduce_scatter"]


def test_under_a_pipeline_torchtitan_gathers_and_reduces_once_per_step():
    plan = make_plan(model=LLAMA_70B, framework="torchtitan", tp=8, pp=4, dp_shard=2)
    fsdp = rows(ledger_of(plan), "fsdp")
    assert [(row.collective, row.calls) for row in fsdp] == [("all_gather", 20), ("reduce_scatter", 20)]


def test_hsdp_adds_an_all_reduce_of_the_shard_over_the_replicas():
    plan = make_plan(model=LLAMA_70B, micro_batches=1, framework="fsdp", dp_replicate=8, dp_shard=8)
    (across,) = rows(ledger_of(plan), "dp_replicate")
    assert across.collective == "all_reduce"
    assert across.message_bytes == pytest.approx(2 * 70.55e9 / 8, rel=0.01)
    assert sum(row.message_bytes * row.calls for row in rows(ledger_of(plan), "fsdp")) == pytest.approx(
        6 * 70.55e9, rel=0.01
    )


def test_with_context_parallelism_gradients_go_over_dp_and_cp_together():
    plan = make_plan(model=LLAMA_70B, tp=4, cp=2, pp=4, dp=2)
    ledger = ledger_of(plan)
    assert rows(ledger, "dp") == []
    assert rows(ledger, "dp_cp", "gradients")[0].collective == "all_reduce"
    assert {row.axis for row in ledger} <= set(plan.groups)


def test_keys_and_values_go_around_the_ring_three_times():
    (row,) = rows(ledger_of(make_plan(model=LLAMA_70B, tp=2, cp=4, pp=4, dp=2)), "cp")
    # per hop: keys and values, 2 x 2 bytes x 1024 tokens x 8 heads of 128 / tp 2
    assert row.message_bytes == 4 * 1024 * 8 * 128 // 2
    assert row.calls == 3 * 3 * 20 * 32
    assert row.hides_behind == "attention"


@pytest.mark.parametrize("framework", ["torchtitan", "deepspeed"])
def test_tied_embeddings_are_left_out_where_the_framework_has_no_group_for_them(framework):
    plan = make_plan(model={**LLAMA_70B, "tied_embeddings": True}, framework=framework, tp=4, pp=4)
    assert {row.axis for row in ledger_of(plan)} <= set(plan.groups)


def test_tied_embeddings_are_summed_between_first_and_last_stage():
    plan = make_plan(model={**LLAMA_70B, "tied_embeddings": True})
    (row,) = rows(ledger_of(plan), "embedding")
    assert row.message_bytes == 4 * 128256 * 8192 // 8
    assert rows(reference(), "embedding") == []


def test_norms_are_summed_over_tp_only_under_sequence_parallelism():
    assert rows(reference(), "tp", "norms") == []
    (row,) = rows(reference(sequence_parallel=True), "tp", "norms")
    assert (row.calls, row.message_bytes) == (1, 4 * 2 * 8192 * 20)


def test_the_divided_loss_needs_three_small_reductions_per_micro_batch():
    (row,) = rows(reference(), "tp", "loss")
    assert (row.calls, row.message_bytes) == (96, 4 * 4096)


def test_overlap_is_what_the_framework_does_unless_the_plan_says_otherwise():
    (megatron,) = rows(reference(), "tp", "gradients of inputs")
    assert megatron.hides_behind == "weight_gradients"
    (told,) = rows(reference(overlap_tp=False), "tp", "gradients of inputs")
    assert told.exposed
    (reduced,) = rows(reference(), "dp")
    assert reduced.exposed
    (hidden,) = rows(reference(overlap_gradients=True), "dp")
    assert hidden.hides_behind == "last_backward"


def test_optimizer_instances_scatter_inside_and_reduce_shards_across():
    plan = make_plan(model=LLAMA_70B, tp=8, dp=8, optimizer_instances=2, zero_stage=1)
    ledger = ledger_of(plan)
    assert {row.collective for row in rows(ledger, "dp_intra")} == {"reduce_scatter", "all_gather"}
    (across,) = rows(ledger, "dp_inter")
    assert across.message_bytes == pytest.approx(rows(ledger, "dp_intra")[0].message_bytes / 4)


@pytest.mark.parametrize("missing", ["hidden_size", "seq_length", "micro_batch_size", "micro_batches"])
def test_what_the_plan_file_does_not_tell_is_left_out(missing):
    ledger = ledger_of(make_plan(**{missing: None}))
    assert {row.axis for row in ledger} == {"dp"}


def test_a_single_gpu_sends_nothing():
    assert ledger_of(make_plan(nodes=1, gpus_per_node=1, tp=1)) == ()


def test_probes_take_the_message_of_the_row_that_sends_most():
    sizes = message_sizes(ledger_of(make_plan()))
    assert sizes.message_bytes == {"tp": 64 * MIB, "pp": 64 * MIB, "dp": 8_750_000_000}
    assert sizes.sources["tp"].endswith("1 x 4096 tokens x 8192 x 2 bytes")


@pytest.mark.parametrize(
    "parallel",
    [
        {"tp": 8, "pp": 4, "dp": 2, "virtual_stages": 2},
        {"tp": 4, "cp": 2, "pp": 2, "dp": 4, "zero_stage": 1},
        {"framework": "torchtitan", "tp": 4, "cp": 2, "dp_shard": 4, "dp_replicate": 2},
        {"framework": "fsdp", "dp_shard": 8, "dp_replicate": 8},
        {"framework": "deepspeed", "tp": 4, "pp": 2, "dp": 8, "zero_stage": 1},
        {"tp": 8, "dp": 8, "optimizer_instances": 2, "zero_stage": 1},
    ],
)
def test_every_row_belongs_to_groups_of_the_plan(parallel):
    plan = make_plan(model=LLAMA_70B, **parallel)
    ledger = ledger_of(plan)
    assert ledger
    assert {row.axis for row in ledger} <= set(plan.groups)
    assert all(row.formula for row in ledger)


@pytest.mark.parametrize("framework", ["torchtitan", "fsdp"])
def test_replicas_alone_sum_their_gradients_and_gather_nothing(framework):
    (summed,) = ledger_of(make_plan(model=LLAMA_70B, framework=framework, dp_replicate=64, dp_shard=1))
    assert (summed.axis, summed.collective) == ("dp", "all_reduce")


def test_hsdp_sums_over_its_replicas_as_often_as_it_scatters():
    plan = make_plan(model=LLAMA_70B, micro_batches=4, framework="torchtitan", dp_replicate=8, dp_shard=8)
    (across,) = rows(ledger_of(plan), "dp_replicate")
    assert across.calls == 4
