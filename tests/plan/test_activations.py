"""Activations per layer: published formulas, and what each setting changes."""

import pytest

from preflight.plan.activations import full_set, kept
from preflight.plan.memory_setup import held_micro_batches
from tests.plan.memory_cases import gpt, make_degrees, make_memory_job, make_setup

GIB = 2**30
SBH_70B = 4096 * 8192  # s b h of one micro-batch


def of_layer(job, degrees, *, moe: bool = False) -> float:
    found = kept(job, make_setup(job, degrees), moe=moe)
    assert found is not None
    return found.of(make_setup(job, degrees))


# model, h, a, L, b, p, v -> GiB without anything, with sequence parallelism only, with selective recomputation only, with both, with full recomputation:
# Korthikanti et al. 2022, figures 1 and 7, sequence 2048, tp 8
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ((6144, 64, 48, 4, 1, 1), (59.2500, 39.5625, 29.2500, 9.5625, 4.5000)),
        ((12288, 96, 96, 1, 8, 3), (66.8438, 41.4141, 37.7812, 12.3516, 5.8125)),
        ((20480, 128, 105, 1, 35, 3), (114.0234, 66.5137, 70.5859, 23.0762, 10.8594)),
        ((25600, 160, 128, 1, 64, 1), (131.2500, 76.5625, 81.2500, 26.5625, 12.5000)),
    ],
)
def test_the_published_table_is_met_to_the_last_digit(model, expected):
    h, a, layers, b, p, v = model
    found = []
    for recompute, sequence_parallel in (
        ("none", False),
        ("none", True),
        ("selective", False),
        ("selective", True),
        ("full", False),
    ):
        training = {"recompute": recompute, "attention": "unfused", "micro_batch_size": b, "seq_length": 2048}
        parallel = {"tp": 8, "pp": p, "virtual_stages": v, "sequence_parallel": sequence_parallel}
        job, degrees = make_memory_job(gpt(h, a, layers), training=training, **parallel), make_degrees(tp=8, pp=p)
        setup = make_setup(job, degrees, micro_batches=8 * p)
        layer = kept(job, setup, moe=False)
        assert layer is not None
        found.append(round(layer.of(setup) * layers / p * held_micro_batches(job, setup, 0) / GIB, 4))
    assert tuple(found) == expected


def test_on_one_gpu_the_gpt_recipe_keeps_34_and_the_scores():
    job = make_memory_job(gpt(4096, 32, 32), training={"attention": "unfused"})
    assert of_layer(job, make_degrees()) == 4096 * 4096 * (34 + 5 * 32 * 4096 / 4096)


def test_a_modern_decoder_keeps_12_and_what_its_heads_and_mlp_add():
    job = make_memory_job("llama3-70b", tp=8, sequence_parallel=True)
    assert of_layer(job, make_degrees(tp=8)) == SBH_70B * (12 + 4 / 8 + 6 * 3.5) / 8  # 33.5 / t
    assert of_layer(make_memory_job("llama3-8b"), make_degrees()) == 4096 * 4096 * (12 + 4 / 4 + 6 * 3.5)  # 34


def test_without_sequence_parallelism_norms_and_their_results_are_not_divided():
    job = make_memory_job("llama3-70b", tp=8)
    assert of_layer(job, make_degrees(tp=8)) == SBH_70B * (8 + 25.5 / 8)


def test_plain_operations_keep_more_than_fused_ones():
    # 28 copies of the hidden state (56 bytes) were measured for Llama 3.1 8B in plain PyTorch
    job = make_memory_job("llama3-8b", framework="fsdp", tp=1)
    assert of_layer(job, make_degrees()) == 4096 * 4096 * 57
    compiled = make_memory_job("llama3-8b", framework="fsdp", tp=1, training={"compiled": True})
    assert of_layer(compiled, make_degrees()) == 4096 * 4096 * 34


def test_selective_recomputation_saves_nothing_where_attention_is_fused():
    none, selective = (make_memory_job("llama3-70b", training={"recompute": mode}) for mode in ("none", "selective"))
    assert of_layer(none, make_degrees()) == of_layer(selective, make_degrees())


def test_selective_recomputation_saves_the_scores_where_attention_is_not_fused():
    training = {"attention": "unfused"}
    none = make_memory_job("llama3-70b", training={**training})
    selective = make_memory_job("llama3-70b", training={**training, "recompute": "selective"})
    saved = of_layer(none, make_degrees()) - of_layer(selective, make_degrees())
    assert saved == 2 * 64 * 4096 * 4096


def test_torchtitan_keeps_every_second_product_and_attention():
    job = make_memory_job("llama3-8b", framework="torchtitan", tp=1, training={"recompute": "selective"})
    h, f, kv = 4096, 14336, 1024
    assert of_layer(job, make_degrees()) == 4096 * 2 * (h + h + kv + f + h + h)  # input, q, v, gate, down, attention


def test_full_recomputation_keeps_the_input_alone_and_sequence_parallelism_divides_it():
    full = make_memory_job("llama3-70b", tp=8, training={"recompute": "full"})
    assert of_layer(full, make_degrees(tp=8)) == 2 * SBH_70B
    divided = make_memory_job("llama3-70b", tp=8, sequence_parallel=True, training={"recompute": "full"})
    assert of_layer(divided, make_degrees(tp=8)) == 2 * SBH_70B / 8


def test_context_parallelism_divides_the_sequence():
    whole, halved = make_memory_job("llama3-70b"), make_memory_job("llama3-70b", cp=2)
    assert of_layer(halved, make_degrees(cp=2)) == of_layer(whole, make_degrees()) / 2


def test_experts_keep_what_their_tokens_need():
    job, h, width = make_memory_job("qwen3-30b-a3b", ep=8, etp=1), 2048, 768
    attention = 2 * (2 * 4096 + 2 * 512) + 8 * h  # queries and output, keys and values; norms and their results
    experts = 8 * (2 * h + 6 * width) + 8 * 128  # eight of them; the router's 128 logits
    assert of_layer(job, make_degrees(ep=8, etp=1, edp=1, dp=8), moe=True) == 4096 * (attention + experts)


@pytest.mark.parametrize("setting", [{"capacity_factor": 1.5}, {"expert_skew": 1.5}])
def test_padding_and_uneven_load_of_experts_cost_activations(setting):
    degrees, h, width = make_degrees(ep=8, etp=1, edp=1, dp=8), 2048, 768
    even = of_layer(make_memory_job("qwen3-30b-a3b", ep=8, etp=1), degrees, moe=True)
    more = of_layer(make_memory_job("qwen3-30b-a3b", ep=8, etp=1, training=dict(setting)), degrees, moe=True)
    assert more - even == 4096 * 8 * 0.5 * (2 * h + 6 * width)


def test_latent_attention_keeps_its_wide_heads():
    job = make_memory_job("deepseek-v3")
    found = full_set(job, make_setup(job, make_degrees()), moe=False)
    assert found is not None
    wide = 2 * 128 * (2 * 192 + 128 + 128)  # queries and keys of 192, values and output of 128
    assert found.split == wide + 6 * 18432


def test_a_shape_that_says_too_little_has_no_activations():
    job = make_memory_job({"layers": 80, "hidden_size": 8192})
    assert kept(job, make_setup(job, make_degrees()), moe=False) is None
