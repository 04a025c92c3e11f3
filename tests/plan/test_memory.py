"""The six lines: the reference case, and what each setting changes."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.model import Memory
from preflight.plan.memory import activations_of, estimate_memory, stage_memory, stage_weights
from preflight.plan.memory_setup import held_micro_batches
from preflight.plan.transient import loss_bytes_per_logit, outside_bytes
from tests.builders import make_job
from tests.plan.memory_cases import make_degrees, make_memory_job, make_setup
from tests.plan.shapes import SHAPES

MIB, GIB = 2**20, 2**30
PARTS = ("parameters", "gradients", "optimizer", "activations", "buffers", "reserve")
REFERENCE = {"tp": 8, "pp": 4, "dp": 2}


def estimate(shape, *, training=None, **parallel) -> Memory:
    degrees = make_degrees(
        **{key: value for key, value in parallel.items() if key in {"tp", "cp", "ep", "dp", "pp", "etp"}}
    )
    if "etp" in degrees:
        degrees["edp"] = degrees["tp"] * degrees["cp"] * degrees["dp"] // (degrees["etp"] * degrees["ep"])
    memory = estimate_memory(make_memory_job(shape, training=dict(training or {}), **parallel), degrees, 32)
    assert memory is not None
    return memory


def size(memory: Memory, part: str) -> float:
    """GiB of one line."""
    [line] = [line for line in memory.lines if line.part == part]
    return line.size_bytes / GIB


def test_there_are_six_lines_and_each_shows_its_numbers():
    memory = estimate("llama3-70b", zero_stage=1, sequence_parallel=True, **REFERENCE)
    assert tuple(line.part for line in memory.lines) == PARTS
    assert all(any(letter.isdigit() for letter in line.formula) for line in memory.lines if line.part != "buffers")
    assert memory.lines[2].formula == "(12/d) x 2.271e9 weights, d = 2"
    assert "4 micro-batches in flight x 20 layers" in memory.lines[3].formula
    assert memory.total_bytes == sum(line.size_bytes for line in memory.lines)


# TP8 PP4 DP2: GiB of state, and of activations kept at 4096 and 8192 tokens
def test_the_reference_case_is_comfortable_or_impossible_depending_on_two_flags():
    with_both = estimate("llama3-70b", zero_stage=1, sequence_parallel=True, **REFERENCE)
    assert with_both.state_bytes / GIB == pytest.approx(25.4, abs=0.1)
    assert estimate("llama3-70b", **REFERENCE).state_bytes / GIB == pytest.approx(38.1, abs=0.1)
    kept = {}
    for tokens, sequence_parallel in ((4096, True), (8192, True), (8192, False)):
        training = {"seq_length": tokens, "attention": "unfused"}
        if sequence_parallel:
            training["recompute"] = "selective"
        job = make_memory_job("llama3-70b", training=training, sequence_parallel=sequence_parallel, **REFERENCE)
        setup = make_setup(job, make_degrees(**REFERENCE))
        found = activations_of(job, make_degrees(**REFERENCE), setup, 0)
        assert found is not None
        kept[tokens, sequence_parallel] = found.held / GIB
    # 33.5 s b h / t per layer in place of the 32 that Megatron-LM's script counts (10.0 and 20.0)
    assert kept[4096, True] == pytest.approx(10.0 * 33.5 / 32, abs=0.05)
    assert kept[8192, True] == pytest.approx(20.0 * 33.5 / 32, abs=0.05)
    assert kept[8192, False] > 3 * kept[8192, True]


def test_megatrons_own_activations_of_gpt3_are_met():
    training = {"micro_batch_size": 1, "seq_length": 2048, "recompute": "selective"}
    job = make_memory_job("gpt3-175b", training=training, tp=8, pp=8, virtual_stages=3, sequence_parallel=True)
    found = activations_of(job, make_degrees(tp=8, pp=8), make_setup(job, make_degrees(tp=8, pp=8)), 0)
    assert found is not None
    assert found.held / MIB == pytest.approx(12_679, abs=1)


def test_the_fullest_stage_is_the_first_one_in_1f1b_which_keeps_most_micro_batches():
    assert estimate("llama3-70b", sequence_parallel=True, **REFERENCE).stage == 0


def test_the_last_stage_is_the_fullest_where_logits_outweigh_what_others_keep():
    memory = estimate("llama3-8b", training={"recompute": "full"}, tp=1, pp=4, framework="torchtitan")
    assert memory.stage == 3
    assert "loss" in memory.lines[3].formula


def test_every_stage_can_be_asked_for():
    job, degrees = make_memory_job("llama3-70b", sequence_parallel=True, **REFERENCE), make_degrees(**REFERENCE)
    setup = make_setup(job, degrees)
    totals = [stage_memory(job, degrees, setup, stage).total_bytes for stage in range(4)]  # type: ignore[union-attr]
    assert max(totals) == estimate_memory(job, degrees, 32).total_bytes  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("better", "part", "at_most"),
    [
        ({"zero_stage": 1}, "optimizer", 0.51),
        ({"zero_stage": 3}, "parameters", 0.51),
        ({"sequence_parallel": True}, "activations", 0.5),
        ({"training": {"recompute": "full"}}, "activations", 0.6),
        ({"training": {"gradient_bytes": 2}}, "gradients", 0.51),
        ({"training": {"moment_bytes": 4}}, "optimizer", 0.67),
        ({"training": {"offload_optimizer": True}}, "optimizer", 0.0),
    ],
)
def test_each_saving_saves_where_it_should(better, part, at_most):
    base = estimate("llama3-70b", **REFERENCE)
    saved = estimate("llama3-70b", **{**REFERENCE, **better})
    assert size(saved, part) <= at_most * size(base, part)
    assert saved.total_bytes < base.total_bytes


def test_schedules_keep_as_many_micro_batches_as_they_have_in_flight():
    held = {}
    for schedule in ("gpipe", "1f1b", "zb-h1", "zb-h2", "zbv", "dualpipe"):
        job = make_memory_job("llama3-70b", schedule=schedule, **REFERENCE)
        held[schedule] = held_micro_batches(job, make_setup(job, make_degrees(**REFERENCE)), 0)
    assert held == {"gpipe": 32, "1f1b": 4, "zb-h1": 4, "zb-h2": 7, "zbv": 4, "dualpipe": 5}


def test_dualpipe_keeps_two_stages_and_zbv_brings_the_head_to_the_first():
    degrees = make_degrees(**REFERENCE)
    plain, dual, folded = (
        make_memory_job("llama3-70b", schedule=schedule, **REFERENCE) for schedule in ("1f1b", "dualpipe", "zbv")
    )
    one = stage_weights(plain, degrees, 0).dense
    assert stage_weights(dual, degrees, 0).dense == one + stage_weights(plain, degrees, 3).dense
    assert stage_weights(folded, degrees, 0).dense == one + 128256 * 8192 // 8


def test_the_loss_depends_on_who_computes_it():
    def per_logit(training=None, **parallel) -> float:
        job = make_memory_job("llama3-8b", training=dict(training or {}), **parallel)
        return loss_bytes_per_logit(job, make_setup(job, make_degrees(tp=parallel.get("tp", 1))))

    assert per_logit(framework="megatron", tp=1) == 6
    assert per_logit(framework="torchtitan", tp=1) == 14
    assert per_logit(framework="torchtitan", tp=8) == 18
    assert per_logit({"compiled": True}, framework="torchtitan", tp=8) == 4
    assert per_logit({"compiled": True, "compiled_loss": False}, framework="torchtitan", tp=1) == 14
    assert per_logit({"fused_loss": True}, framework="torchtitan", tp=1) < 2


def test_a_fully_sharded_stage_of_a_pipeline_stays_gathered():
    # torchtitan does not reshard after the forward pass with a pipeline, so weights and accumulated gradients are whole
    training = {"recompute": "full", "compiled": True}
    kept = estimate("llama3-405b", training=training, framework="torchtitan", tp=8, pp=8, dp=8)
    resharded = estimate(
        "llama3-405b", training=training, framework="torchtitan", tp=8, pp=8, dp=8, reshard_after_forward=True
    )
    assert size(kept, "gradients") == pytest.approx(8 * size(resharded, "gradients"), rel=0.01)
    assert size(kept, "buffers") > 2 * size(resharded, "buffers")


def test_experts_are_shared_by_fewer_ranks_than_the_rest():
    memory = estimate("mixtral-8x7b", zero_stage=1, tp=2, ep=4, etp=1, dp=8)
    assert memory.lines[2].formula == "(12/d) x 0.803e9 weights, d = 8 + (12/d) x 11.274e9 of experts, d = 4"
    assert any("expert" in term for term in memory.not_modelled)
    assert not any("expert" in term for term in estimate("llama3-70b", **REFERENCE).not_modelled)


def test_deepspeeds_buckets_and_live_weights_are_counted():
    plain = estimate("llama3-8b", framework="deepspeed", zero_stage=1, dp=8)
    assert size(plain, "buffers") == pytest.approx(4 * 5e8 / GIB, rel=0.01)
    whole = estimate("llama3-8b", framework="deepspeed", zero_stage=3, dp=8)
    assert size(whole, "buffers") == pytest.approx((2 * 1e9 + 2 * 5e8) / GIB, rel=0.01)


def test_context_and_communicators_lie_outside_the_allocator():
    assert outside_bytes(make_degrees()) == 1573 * MIB
    assert outside_bytes(make_degrees(tp=8, pp=4, dp=2)) > outside_bytes(make_degrees(tp=8))


def test_nothing_is_estimated_where_shape_batch_or_sequence_are_unknown():
    degrees = make_degrees(**REFERENCE)
    assert estimate_memory(make_job(), degrees, 32) is None  # hidden size alone
    job = make_memory_job("llama3-70b", **REFERENCE)
    for missing in ("micro_batch_size", "seq_length"):
        training = msgspec.structs.replace(job.training, **{missing: None})
        assert estimate_memory(msgspec.structs.replace(job, training=training), degrees, 32) is None


def test_micro_batches_that_are_not_given_fill_the_pipeline():
    job, degrees = make_memory_job("llama3-70b", **REFERENCE), make_degrees(**REFERENCE)
    assert estimate_memory(job, degrees, None) == estimate_memory(job, degrees, 8)


def test_fewer_micro_batches_than_stages_keep_less():
    job, degrees = make_memory_job("llama3-70b", **REFERENCE), make_degrees(**REFERENCE)
    few, many = estimate_memory(job, degrees, 2), estimate_memory(job, degrees, 8)
    assert few is not None
    assert many is not None
    assert few.total_bytes < many.total_bytes


def test_without_a_vocabulary_the_loss_is_unknown_and_so_is_the_whole():
    job = make_memory_job({**SHAPES["llama3-70b"], "vocab_size": None}, **REFERENCE)
    assert estimate_memory(job, make_degrees(**REFERENCE), 32) is None


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from(sorted(SHAPES)),
    framework=st.sampled_from(["megatron", "torchtitan", "deepspeed", "fsdp"]),
    precision=st.sampled_from(["bf16", "fp16", "fp32", "fp8"]),
    zero_stage=st.sampled_from([None, 0, 1, 2, 3]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    schedule=st.sampled_from([None, "gpipe", "zb-h2", "zbv", "dualpipe"]),
    sizes=st.tuples(*(st.sampled_from([1, 2, 4, 8]) for _ in range(4))),
)
def test_any_job_has_an_estimate_that_grows_with_the_micro_batch(
    *, shape, framework, precision, zero_stage, recompute, schedule, sizes
):
    tp, cp, dp, pp = sizes
    totals = []
    for micro_batch_size in (1, 2):
        training = {"precision": precision, "recompute": recompute, "micro_batch_size": micro_batch_size}
        parallel = {
            "tp": tp,
            "cp": cp,
            "dp": dp,
            "pp": pp,
            "framework": framework,
            "zero_stage": zero_stage,
            "schedule": schedule,
        }
        memory = estimate_memory(
            make_memory_job(shape, training=training, **parallel), make_degrees(tp=tp, cp=cp, dp=dp, pp=pp), 32
        )
        assert memory is not None
        assert all(line.size_bytes >= 0 for line in memory.lines)
        totals.append(memory.total_bytes)
    assert totals[1] > totals[0]
