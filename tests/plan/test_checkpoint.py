"""What a checkpoint weighs, how long it takes, and how often to write one."""

import math

import pytest

from preflight.model import Checkpoint
from preflight.plan.checkpoint import estimate_checkpoint
from tests.builders import make_plan
from tests.plan.test_ledger import LLAMA_70B

BLOOM = {
    "ffn_size": 4 * 14336,
    "attention_heads": 112,
    "vocab_size": 250880,
    "gated_mlp": False,
    "dropout": True,
    "tied_embeddings": True,
}


def checkpoint_of(*, on: int | None = 8, **job) -> Checkpoint:
    plan = make_plan(**{"model": LLAMA_70B, **job})
    found = estimate_checkpoint(plan.job, plan.degrees, world_size=plan.world_size, nodes=on)
    assert found is not None
    return found


def test_bloom_s_checkpoints_weighed_2_3_tib_as_published():
    plan = {"nodes": 48, "layers": 70, "hidden_size": 14336, "model": BLOOM, "tp": 4, "pp": 12, "dp": 8}
    assert checkpoint_of(**plan).total_bytes / 2**40 == pytest.approx(2.3, rel=0.03)


@pytest.mark.parametrize(
    ("parallel", "training", "each"),
    [
        ({}, {}, 14),  # bf16 weights, fp32 master weights and two moments
        ({}, {"precision": "fp32"}, 12),
        ({}, {"optimizer": "muon"}, 10),
        ({}, {"moment_bytes": 4}, 10),
        ({"framework": "torchtitan"}, {}, 12),  # the fp32 shard is the master weight
    ],
)
def test_bytes_per_weight(parallel, training, each):
    found = checkpoint_of(training=training, **{"tp": 8, "pp": 4, **parallel})
    assert found.total_bytes == pytest.approx(each * 70.55e9, rel=1e-3)


def test_a_rank_writes_its_shard():
    def rank(**parallel):
        return checkpoint_of(**parallel).bytes_per_rank

    fullest = 2.2711e9  # the first pipeline stage, with the embedding
    assert rank(tp=8, pp=4, dp=2) == pytest.approx(14 * fullest, rel=1e-3)
    assert rank(tp=8, pp=4, dp=2, zero_stage=1) == pytest.approx((2 + 12 / 2) * fullest, rel=1e-3)
    assert rank(framework="fsdp", dp=64) == pytest.approx(12 * 70.55e9 / 64, rel=1e-3)


def test_experts_are_sharded_over_their_own_data_parallel_ranks():
    shape = {
        "attention_heads": 64,
        "kv_heads": 8,
        "vocab_size": 32000,
        "experts": 8,
        "experts_per_token": 2,
        "expert_ffn_size": 14336,
    }
    found = checkpoint_of(hidden_size=8192, model=shape, tp=1, pp=1, ep=8, etp=1, dp=64, zero_stage=1)
    expert = 80 * 3 * 8192 * 14336
    dense = found.bytes_per_rank - (2 + 12 / 8) * expert
    attention, both_ends = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024), 2 * 32000 * 8192
    assert dense == pytest.approx((2 + 12 / 64) * (attention + both_ends), rel=1e-3)


def test_writing_and_the_interval_need_a_rate_and_a_failure_rate():
    assert (checkpoint_of().write_s, checkpoint_of().interval_s) == (None, None)
    only_rate = checkpoint_of(hardware={"checkpoint_bytes_per_s": 10 * 10**9})
    assert only_rate.write_s == pytest.approx(14 * 70.55 / 10, rel=1e-3)
    assert only_rate.interval_s is None


def test_the_interval_is_young_s():
    found = checkpoint_of(hardware={"checkpoint_bytes_per_s": 10 * 10**9, "node_mtbf_s": 8e6})
    assert found.write_s is not None
    assert found.interval_s == pytest.approx(math.sqrt(2 * found.write_s * 8e6 / 8))
    assert checkpoint_of(on=None, hardware={"checkpoint_bytes_per_s": 10**10, "node_mtbf_s": 8e6}).interval_s is None


def test_the_interval_is_near_the_one_that_loses_least():
    found = checkpoint_of(hardware={"checkpoint_bytes_per_s": 10 * 10**9, "node_mtbf_s": 8e6})
    assert found.write_s is not None
    assert found.interval_s is not None
    write, mean = found.write_s, 8e6 / 8

    def lost(interval: float) -> float:
        """Share of time lost with failures at random: expected seconds per interval of work, less the work itself."""
        return mean * math.expm1((interval + write) / mean) / interval - 1

    best = min((lost(interval), interval) for interval in range(1000, 40000, 50))[1]
    assert found.interval_s == pytest.approx(best, rel=0.1)
    assert lost(found.interval_s) < 1.01 * lost(best)


def test_a_fully_sharded_mixture_of_experts_without_expert_parallelism_is_written_in_shards():
    experts = {**LLAMA_70B, "experts": 8, "experts_per_token": 2, "expert_ffn_size": 28672}
    found = checkpoint_of(model=experts, framework="fsdp", tp=1, pp=1, dp_shard=8, dp_replicate=8)
    assert found.bytes_per_rank == pytest.approx(found.total_bytes / 8, rel=1e-6)
