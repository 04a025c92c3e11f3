"""FLOP conventions: each reproduces the utilisation that its authors published."""

import pytest

from preflight.model import ModelShape
from preflight.plan.flops import (
    CONVENTIONS,
    eight_n_flops,
    gpt_flops,
    hardware_flops,
    model_flops,
    sc21_flops,
    six_n_flops,
    torchtitan_flops,
)
from preflight.plan.shape import count_parameters
from tests.builders import make_job

A100, H100 = 312e12, 989e12
LLAMA = {
    "8B": {
        "layers": 32,
        "hidden_size": 4096,
        "ffn_size": 14336,
        "attention_heads": 32,
        "kv_heads": 8,
        "vocab_size": 128256,
    },
    "70B": {
        "layers": 80,
        "hidden_size": 8192,
        "ffn_size": 28672,
        "attention_heads": 64,
        "kv_heads": 8,
        "vocab_size": 128256,
    },
    "405B": {
        "layers": 126,
        "hidden_size": 16384,
        "ffn_size": 53248,
        "attention_heads": 128,
        "kv_heads": 8,
        "vocab_size": 128256,
    },
}


def gpt(h: int, a: int, layers: int, vocab: int = 51200) -> ModelShape:
    return ModelShape(
        parameters=12 * layers * h * h,
        layers=layers,
        hidden_size=h,
        ffn_size=4 * h,
        attention_heads=a,
        vocab_size=vocab,
        gated_mlp=False,
        dropout=True,
    )


def llama(name: str) -> ModelShape:
    shape = ModelShape(parameters=1, **LLAMA[name])
    return ModelShape(parameters=count_parameters(shape) or 0, **LLAMA[name])


def gpt_job(**training: object):
    return make_job(
        parameters=22 * 10**9,
        layers=48,
        hidden_size=6144,
        model={"ffn_size": 24576, "attention_heads": 64, "vocab_size": 51200, "gated_mlp": False, "dropout": True},
        micro_batch_size=4,
        seq_length=2048,
        training=training,
        tp=8,
    )


def test_korthikanti_s_22b_has_the_published_mfu_and_hfu():
    job = gpt_job(recompute="selective", attention="unfused")
    assert round(100 * model_flops(job, 4) / 1.10 / 8 / A100, 1) == 41.7
    assert round(100 * hardware_flops(job, 4) / 1.10 / 8 / A100, 1) == 43.8


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_counting_matrix_products_gives_the_closed_formula_of_gpt(recompute):
    job = gpt_job(recompute=recompute, attention="unfused")
    formula = gpt_flops(job.model, sequences=4, seq_length=2048, recompute=recompute)
    assert hardware_flops(job, 4) == pytest.approx(formula, rel=1e-12)


def test_fused_attention_recomputes_nothing_selectively():
    job = gpt_job(recompute="selective", attention="flash")
    assert hardware_flops(job, 4) == model_flops(job, 4)


@pytest.mark.parametrize(
    ("gpus", "batch", "seconds", "mfu"), [(256, 768, 40.0, 53.0), (3072, 6144, 29.02, 48.7), (12288, 6144, 8.57, 41.2)]
)
def test_megascale_s_baseline_has_the_published_mfu(gpus, batch, seconds, mfu):
    flops = gpt_flops(gpt(12288, 128, 96), sequences=batch, seq_length=2048, recompute="none")
    assert round(100 * flops / seconds / gpus / A100, 1) == mfu


@pytest.mark.parametrize(
    ("shape", "gpus", "batch", "seconds", "tflops"),
    [
        ((2304, 24, 24), 32, 512, 3.53, 137),
        ((12288, 96, 80), 1536, 2304, 24.82, 148),
        ((25600, 160, 128), 3072, 3072, 102.63, 163),
    ],
)
def test_sc21_s_rows_agree_with_their_own_convention(shape, gpus, batch, seconds, tflops):
    flops = sc21_flops(gpt(*shape), sequences=batch, seq_length=2048)
    assert flops / seconds / gpus == pytest.approx(tflops * 1e12, rel=0.005)


def test_bigscience_s_logs_follow_sc21_s_convention_and_8n_is_near_it():
    shape = gpt(14336, 112, 72, vocab=250880)
    flops = sc21_flops(shape, sequences=2048, seq_length=2048)
    assert flops / 110.48 / 384 == pytest.approx(145.9e12, rel=0.001)
    assert eight_n_flops(shape, sequences=2048, seq_length=2048) == pytest.approx(flops, rel=0.05)


@pytest.mark.parametrize(
    ("name", "tokens_per_s", "mfu"),
    [
        ("8B", 5762, 33.7),
        ("8B", 6667, 39.0),
        ("8B", 5605, 32.8),
        ("8B", 6514, 38.1),
        ("70B", 597.3, 29.1),
        ("405B", 100, 26.5),
        ("405B", 128, 34.0),
    ],
)
def test_torchtitan_s_runs_have_the_published_mfu(name, tokens_per_s, mfu):
    per_token = torchtitan_flops(llama(name), sequences=1, seq_length=8192) / 8192
    assert round(100 * per_token * tokens_per_s / H100, 1) == pytest.approx(mfu, abs=0.1)


def test_6n_of_a_mixture_counts_what_a_token_meets():
    mixtral = ModelShape(
        parameters=46_700_000_000,
        layers=32,
        hidden_size=4096,
        attention_heads=32,
        kv_heads=8,
        vocab_size=32000,
        experts=8,
        experts_per_token=2,
        expert_ffn_size=14336,
    )
    dense_part = 12 * 32 * 4096 * 4096
    assert six_n_flops(mixtral, sequences=1, seq_length=4096) / 4096 == pytest.approx(
        6 * 12.88e9 + dense_part, rel=0.001
    )


def test_a_mixture_costs_its_active_experts_whatever_the_layout():
    experts = {"experts": 8, "experts_per_token": 2, "expert_ffn_size": 14336}
    shape = {"attention_heads": 32, "kv_heads": 8, "vocab_size": 32000, **experts}
    sparse = make_job(
        layers=32, hidden_size=4096, model=shape, seq_length=4096, training={"expert_skew": 3.0}, tp=1, ep=8
    )
    both = {**shape, "experts": None, "ffn_size": 2 * 14336}
    dense = make_job(layers=32, hidden_size=4096, model=both, seq_length=4096, tp=1)
    router = 6 * 4096 * 4096 * 8 * 32  # 3 x 2 x tokens x h x experts, each layer
    assert model_flops(sparse, 1) == pytest.approx(model_flops(dense, 1) + router, rel=1e-9)


def test_conventions_differ_so_each_carries_its_name():
    figures = {name: count(gpt(12288, 96, 96), sequences=1, seq_length=2048) for name, count in CONVENTIONS.items()}
    assert len({round(value, -12) for value in figures.values()}) == len(CONVENTIONS)
    assert max(figures.values()) > 1.25 * min(figures.values())
