"""Bytes of weights, gradients and optimizer per weight: what each framework keeps."""

import pytest

from preflight.plan.memory import stage_memory
from preflight.plan.state import state_of
from tests.plan.memory_cases import gpt, make_degrees, make_memory_job, make_setup

MIB, GIB = 2**20, 2**30


def shares(*, dp: int = 8, training=None, **parallel) -> str:
    degrees = make_degrees(dp=dp)
    job = make_memory_job("llama3-8b", training=dict(training or {}), dp=dp, **parallel)
    return str(state_of(job, make_setup(job, degrees)).total)


@pytest.mark.parametrize(
    ("training", "parallel", "expected"),
    [
        ({}, {}, "18"),
        ({}, {"zero_stage": 1}, "6 + 12/d"),
        ({"precision": "fp16"}, {}, "20"),
        ({"precision": "fp16"}, {"zero_stage": 1}, "4 + 16/d"),
        ({"precision": "fp32"}, {}, "16"),
        ({"precision": "fp32"}, {"zero_stage": 1}, "8 + 8/d"),
        ({"gradient_bytes": 2}, {}, "16"),
        ({"optimizer": "muon"}, {"zero_stage": 1}, "6 + 8/d"),
        ({"moment_bytes": 4}, {"zero_stage": 1}, "6 + 8/d"),
        ({}, {"zero_stage": 2}, "2 + 16/d"),
        ({}, {"zero_stage": 3}, "18/d"),
        ({"offload_optimizer": True}, {"zero_stage": 1}, "6"),
        ({}, {"framework": "torchtitan"}, "16/d"),
        ({}, {"framework": "fsdp"}, "16/d"),
        ({"precision": "fp16"}, {"framework": "deepspeed", "zero_stage": 1}, "4 + 16/d"),
        ({"precision": "fp16"}, {"framework": "deepspeed", "zero_stage": 2}, "2 + 18/d"),
        ({"precision": "fp16"}, {"framework": "deepspeed", "zero_stage": 3}, "18/d"),
        ({}, {"framework": "deepspeed"}, "8 + 12/d"),  # its BF16 optimizer, which shards its own state
        ({"gradient_bytes": 4}, {"framework": "deepspeed", "zero_stage": 1}, "8 + 12/d"),
        ({}, {"framework": "deepspeed", "zero_stage": 1}, "4 + 16/d"),
        ({"precision": "fp16"}, {"framework": "deepspeed"}, "24"),
    ],
)
def test_bytes_per_weight_by_framework_precision_optimizer_and_sharding(training, parallel, expected):
    assert shares(training=training, **parallel) == expected


# DeepSpeed's documentation and code for its estimators: 2851 million weights, the largest layer 32 million, on 8 GPUs
@pytest.mark.parametrize(
    ("stage", "offload", "gib"), [(2, False, 11.28), (2, True, 5.31), (3, False, 6.10 - 0.12), (3, True, 0.79 - 0.12)]
)
def test_deepspeeds_own_estimates_of_its_state_are_met(stage, offload, gib):
    training = {"offload_optimizer": offload, "precision": "fp16"}
    job = make_memory_job("llama3-8b", training=training, framework="deepspeed", zero_stage=stage, dp=8)
    state = state_of(job, make_setup(job, make_degrees(dp=8)))
    assert state.total.of(2851 * 10**6, 8) / GIB == pytest.approx(gib, abs=0.01)


def test_gradients_are_shared_along_context_parallelism_too():
    job = make_memory_job("llama3-8b", zero_stage=1, cp=2, dp=4)
    assert make_setup(job, make_degrees(cp=2, dp=4)).dense_shards == 8
    deepspeed = make_memory_job("llama3-8b", framework="deepspeed", zero_stage=1, dp=4)
    assert make_setup(deepspeed, make_degrees(dp=4)).dense_shards == 4


def test_optimizer_instances_share_among_themselves():
    job = make_memory_job("llama3-8b", zero_stage=1, dp=8, optimizer_instances=2)
    assert make_setup(job, make_degrees(dp=8)).dense_shards == 4


def test_replicas_of_hsdp_share_nothing():
    job = make_memory_job("llama3-8b", framework="fsdp", dp=16, dp_replicate=2, dp_shard=8)
    assert make_setup(job, make_degrees(dp=16, dp_replicate=2, dp_shard=8)).dense_shards == 8
    replicated = make_memory_job("llama3-8b", framework="torchtitan", dp=16, dp_replicate=16)
    assert make_setup(replicated, make_degrees(dp=16, dp_replicate=16)).dense_shards == 1


# MiB by Megatron-LM's own script, run alone; weights of the fullest shard times bytes
@pytest.mark.parametrize(
    ("shape", "degrees", "zero_stage", "mib"),
    [
        ("gpt3-175b", {"tp": 8, "pp": 8}, 0, 48_016),
        ("gpt3-175b", {"tp": 8, "pp": 8, "dp": 8}, 1, 20_007),
        ("llama3-70b", {"tp": 8, "pp": 4, "dp": 2}, 1, 25_987),
        ("llama3-70b", {"tp": 8, "pp": 4, "dp": 2}, 0, 38_980),
        ("mixtral-8x7b", {"tp": 2, "ep": 4, "etp": 1, "dp": 8, "edp": 4}, 1, 102_515),
    ],
)
def test_megatrons_own_estimate_of_the_state_is_met(shape, degrees, zero_stage, mib):
    parallel = {key: value for key, value in degrees.items() if key != "edp"}
    job, layout = make_memory_job(shape, zero_stage=zero_stage, **parallel), make_degrees(**degrees)
    memory = stage_memory(job, layout, make_setup(job, layout), 0)
    assert memory is not None
    assert memory.state_bytes / MIB == pytest.approx(
        mib, rel=0.002
    )  # it leaves out norms and positions, and pads the vocabulary


def test_the_published_states_of_the_gpt_recipe_are_met():
    # Korthikanti et al.: 18 bytes per weight, 12 L h^2 weights
    for h, a, layers, p, gib in (
        (6144, 64, 48, 1, 45.5625),
        (12288, 96, 96, 8, 45.5625),
        (25600, 160, 128, 64, 32.9590),
    ):
        job, layout = make_memory_job(gpt(h, a, layers), tp=8, pp=p), make_degrees(tp=8, pp=p)
        memory = stage_memory(job, layout, make_setup(job, layout), 0)
        assert memory is not None
        assert memory.state_bytes / GIB == pytest.approx(gib, rel=0.001)
