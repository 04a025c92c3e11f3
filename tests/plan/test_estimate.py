"""The first estimate: the formulas, on cases computed by hand."""

from typing import Any

import pytest

from preflight.errors import ConfigError
from preflight.plan.estimate import count_micro_batches
from tests.builders import make_job, make_plan
from tests.plan.test_ledger import LLAMA_70B


def test_the_reference_job():  # gradients of 4 bytes: Megatron keeps and reduces them in fp32 unless told otherwise
    estimate = make_plan().estimate
    assert estimate.state_bytes_per_gpu == 35_000_000_000
    assert estimate.gpu_memory_bytes == 80_000_000_000
    assert estimate.free_bytes_per_gpu == 45_000_000_000
    assert estimate.bubble_overhead == pytest.approx(3 / 32)
    assert estimate.bubble_idle_share == pytest.approx(3 / 35)
    assert estimate.tp_collectives_per_stage_forward == 40
    assert estimate.message_bytes == {"tp": 64 * 2**20, "pp": 64 * 2**20, "dp": 8_750_000_000}


def test_the_bubble_is_that_of_the_schedule():  # all vectors: test_bubble.py
    for chunks, overhead, idle in ((1, 0.2344, 0.1899), (4, 0.0586, 0.0554)):
        plan = make_plan(nodes=16, pp=16, tp=8, micro_batches=64, virtual_stages=chunks)
        assert round(plan.estimate.bubble_overhead, 4) == overhead
        assert round(plan.estimate.bubble_idle_share, 4) == idle


def test_without_a_pipeline_there_is_no_bubble_whatever_the_micro_batches():
    estimate = make_plan(tp=8, micro_batches=None).estimate
    assert (estimate.bubble_overhead, estimate.bubble_idle_share, estimate.micro_batches) == (0.0, 0.0, None)


def test_the_bubble_is_unknown_where_the_micro_batches_are():
    estimate = make_plan(tp=8, pp=4, micro_batches=None).estimate
    assert (estimate.bubble_overhead, estimate.bubble_idle_share) == (None, None)


def test_memory_is_unknown_for_a_gpu_that_no_profile_knows():
    estimate = make_plan(gpu="NVIDIA H500").estimate
    assert (estimate.gpu_memory_bytes, estimate.free_bytes_per_gpu) == (None, None)
    assert estimate.state_bytes_per_gpu == 35_000_000_000


def test_memory_that_the_plan_file_gives_goes_before_the_profile():
    assert make_plan(gpu_memory_bytes=94 * 10**9).estimate.free_bytes_per_gpu == 59_000_000_000


def test_without_tensor_parallelism_there_are_no_tensor_parallel_collectives():
    assert make_plan(tp=1, pp=4).estimate.tp_collectives_per_stage_forward == 0


def test_message_sizes_need_hidden_size_sequence_and_micro_batch_except_for_gradients():
    for missing in ("hidden_size", "seq_length", "micro_batch_size"):
        assert make_plan(**{missing: None}).estimate.message_bytes == {"dp": 8_750_000_000}


def test_context_parallelism_divides_activations():
    sizes = make_plan(tp=4, cp=2, pp=4).estimate.message_bytes
    assert (sizes["tp"], sizes["pp"]) == (2**25, 2**25)


def test_each_message_size_has_its_source():
    estimate = make_plan().estimate
    assert set(estimate.message_sources) == set(estimate.message_bytes) == {"tp", "dp", "pp"}
    assert "4 bytes" in estimate.message_sources["dp"]


def test_micro_batches_follow_from_the_global_batch():
    job = make_job(micro_batches=None, global_batch_size=64, micro_batch_size=2)
    assert count_micro_batches(job, dp=4) == 8


def test_a_global_batch_that_does_not_divide_is_refused_with_the_next_that_does():
    job = make_job(micro_batches=None, global_batch_size=63, micro_batch_size=2)
    with pytest.raises(ConfigError) as refused:
        count_micro_batches(job, dp=4)
    assert "training.global_batch_size: 63 does not divide by micro_batch_size 2 x dp 4 = 8" in str(refused.value)
    assert "such as 64" in str(refused.value)


def test_both_ways_of_giving_the_batch_may_agree_but_not_contradict():
    assert count_micro_batches(make_job(micro_batches=32, global_batch_size=64), dp=2) == 32
    with pytest.raises(ConfigError, match=r"training.micro_batches: 8, but global_batch_size 64"):
        count_micro_batches(make_job(micro_batches=8, global_batch_size=64), dp=2)


NO_BATCH: dict[str, Any] = {"micro_batches": None, "micro_batch_size": None, "seq_length": None}


@pytest.mark.parametrize(
    ("job", "each"),
    [
        # bytes of each local weight, with d ranks that share them: Megatron's 18 and 6 + 12/d, DeepSpeed's 4 + 16/d, torchtitan's 16/d
        ({"framework": "torchtitan", "tp": 8, "dp_shard": 8}, 16 / 8),
        ({"framework": "torchtitan", "tp": 8, "dp_shard": 4, "dp_replicate": 2}, 16 / 4),
        ({"framework": "fsdp", "tp": 1, "dp_shard": 16, "dp_replicate": 4}, 16 / 16),
        ({"framework": "fsdp", "tp": 1}, 16 / 64),
        ({"tp": 8, "zero_stage": 0}, 18),
        ({"tp": 8, "zero_stage": 1}, 6 + 12 / 8),
        ({"framework": "deepspeed", "tp": 8, "zero_stage": 3}, 16 / 8 + 2 / 8),
    ],
)
def test_the_state_counts_what_is_sharded_without_shape_and_batch(job, each):
    estimate = make_plan(**NO_BATCH, **job).estimate
    assert estimate.memory is None
    assert estimate.state_formula is not None
    assert estimate.state_bytes_per_gpu == pytest.approx(each * 70e9 / job["tp"], rel=1e-6)


def test_the_state_is_the_same_with_a_batch_and_without():
    for parallel in (
        {"tp": 8, "pp": 4, "zero_stage": 1},
        {"framework": "torchtitan", "tp": 8, "dp_shard": 8},
        {"tp": 4, "pp": 2},
    ):
        without, with_batch = (
            make_plan(model=LLAMA_70B, **NO_BATCH, **parallel).estimate,
            make_plan(model=LLAMA_70B, **parallel).estimate,
        )
        assert (without.memory is None, with_batch.memory is None) == (True, False)
        assert without.state_bytes_per_gpu == pytest.approx(with_batch.state_bytes_per_gpu, rel=1e-4)


def test_the_rule_of_thumb_stays_where_nobody_says_what_is_sharded_or_how_much_is_experts():
    for job in ({"tp": 8, "pp": 4}, {"tp": 8, "pp": 2, "ep": 4, "etp": 1, "zero_stage": 1}):
        estimate = make_plan(**NO_BATCH, **job).estimate
        assert estimate.state_formula is None
        assert estimate.state_bytes_per_gpu == 16 * 70 * 10**9 // (job["tp"] * job["pp"])
