"""Matrix products, attention and memory-bound kernels: against published measurements of single kernels, and against each other."""

import pytest

from preflight.model import Hardware
from preflight.plan.defaults import reduced_gradient_bytes
from preflight.plan.kernels import Clock, clock_of, optimizer_s, recomputed_s, seconds_of
from preflight.plan.matmuls import Matmul, layer_work, output_work
from preflight.plan.profiles import find_profile
from preflight.plan.rates import rates_of
from tests.builders import make_job
from tests.plan.test_ledger import LLAMA_70B

ONE = {"tp": 1, "cp": 1, "ep": 1, "dp": 1, "pp": 1}


def clock(gpu: str = "A100-80GB", **training) -> Clock:
    found = clock_of(make_job(training=training), rates_of(Hardware(), find_profile(gpu)))
    assert found is not None
    return found


def job(**changes):
    return make_job(model=LLAMA_70B, tp=8, **changes)


# Azure's published results of ND A100 v4 (cuBLASLt, fp16, random data): TFLOP/s of square products
@pytest.mark.parametrize(("size", "tflops"), [(2048, 221.8), (4096, 228.0), (8192, 253.7), (16384, 256.5)])
def test_square_products_on_a100_are_met_within_5_percent(size, tflops):
    matmul = Matmul(size, size, size)
    assert matmul.flops / clock().matmul_s(matmul) == pytest.approx(tflops * 1e12, rel=0.05)


# the same of ND H100 v5 (fp8)
@pytest.mark.parametrize(("size", "tflops"), [(2048, 1011.3), (4096, 1216.9), (8192, 1290.1), (16384, 1377.3)])
def test_square_products_in_fp8_on_h100_are_met_within_10_percent(size, tflops):
    matmul = Matmul(size, size, size)
    assert matmul.flops / clock("H100-80GB", precision="fp8").matmul_s(matmul) == pytest.approx(tflops * 1e12, rel=0.1)


def test_thin_products_are_slower_per_operation():
    wide, thin = Matmul(8192, 8192, 8192), Matmul(8192, 8192, 128)
    assert clock().matmul_s(thin) / thin.flops > 2 * clock().matmul_s(wide) / wide.flops


def test_a_backward_pass_takes_about_twice_the_forward_pass():
    layer = seconds_of(layer_work(job(), {**ONE, "tp": 8}), clock())
    assert layer.backward == pytest.approx(2 * layer.forward, rel=0.15)


def test_tensor_parallelism_divides_a_layer_but_not_evenly():
    whole = seconds_of(layer_work(job(), ONE), clock()).forward
    eighth = seconds_of(layer_work(job(), {**ONE, "tp": 8}), clock()).forward
    assert whole / 8 < eighth < whole / 4


def test_sequence_parallelism_divides_norms_too():
    plain = layer_work(job(), {**ONE, "tp": 8}).moved_bytes
    divided = layer_work(make_job(model=LLAMA_70B, tp=8, sequence_parallel=True), {**ONE, "tp": 8}).moved_bytes
    assert plain - divided == pytest.approx(7 / 8 * 2 * 4096 * 8192 * 10)


def test_attention_that_is_kept_in_memory_is_slower_than_fused():
    fused, kept = (
        seconds_of(layer_work(job(training={"attention": how}), {**ONE, "tp": 8}), clock()).attention
        for how in ("flash", "unfused")
    )
    assert kept > 2 * fused


def test_torch_s_own_attention_does_not_use_hopper_s_instructions():
    def attention(framework: str) -> float:
        plan = make_job(model=LLAMA_70B, framework=framework, gpu="H100-80GB")
        found = clock_of(plan, rates_of(Hardware(), find_profile("H100-80GB")))
        assert found is not None
        return seconds_of(layer_work(plan, ONE), found).attention

    assert attention("torchtitan") == pytest.approx(attention("megatron") * 0.6 * 989 / 328, rel=0.001)


def test_selective_recomputation_repeats_the_attention_that_is_kept_and_nothing_of_fused_attention():
    for how, nothing in (("flash", True), ("unfused", False)):
        told = job(training={"attention": how, "recompute": "selective"})
        layer = seconds_of(layer_work(told, {**ONE, "tp": 8}), clock())
        assert recomputed_s(told, layer) == (0 if nothing else layer.attention_forward)
    everything = job(training={"recompute": "full"})
    assert recomputed_s(everything, layer) == layer.forward


def test_torchtitan_s_selective_recomputation_repeats_every_second_product():
    told = make_job(model=LLAMA_70B, framework="torchtitan", training={"recompute": "selective"})
    layer = seconds_of(layer_work(told, ONE), clock())
    assert 0.4 * layer.forward < recomputed_s(told, layer) < 0.75 * layer.forward


def test_compiling_and_fused_kernels_move_fewer_bytes():
    eager, compiled = (
        layer_work(make_job(model=LLAMA_70B, framework="torchtitan", training={"compiled": how}), ONE).moved_bytes
        for how in (False, True)
    )
    assert eager > 2 * compiled
    assert compiled == layer_work(make_job(model=LLAMA_70B, tp=1), ONE).moved_bytes


def test_a_fused_loss_moves_a_third():
    whole, fused = (output_work(job(training={"fused_loss": how}), ONE).moved_bytes for how in (False, True))
    assert whole == 3 * fused


def test_latent_attention_has_its_own_products():
    shape = {
        "ffn_size": 18432,
        "attention_heads": 128,
        "vocab_size": 129280,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    work = layer_work(make_job(hidden_size=7168, model=shape, tp=1), ONE)
    weights = sum(matmul.columns * matmul.inner for matmul in work.matmuls[:-2])
    # DeepSeek-V3: q 7168 x 1536 + 1536 x 128 x 192, kv 7168 x 576 + 512 x 128 x 256, output 128 x 128 x 7168
    assert weights == 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    assert work.attention_flops == 2 * 4096 * 4096 * 128 * (192 + 128)


def test_experts_are_divided_over_ep_and_get_the_tokens_of_all_its_ranks():
    shape = {"attention_heads": 64, "vocab_size": 32000, "experts": 64, "experts_per_token": 4, "expert_ffn_size": 2048}
    told = make_job(model=shape, tp=1, ep=8)
    *_, up, down = layer_work(told, {**ONE, "ep": 8, "etp": 1}, with_experts=True).matmuls
    assert (up.rows, up.columns, up.inner, up.times) == (4096 * 4 / 8, 2 * 2048, 8192, 8)
    assert (down.rows, down.columns, down.inner, down.times) == (4096 * 4 / 8, 8192, 2048, 8)


@pytest.mark.parametrize(
    ("training", "each"),
    [({}, 34), ({"precision": "fp16"}, 30), ({"optimizer": "muon"}, 26), ({"moment_bytes": 4}, 26)],
)
def test_the_optimizer_moves_its_state_twice_and_gradients_twice(training, each):
    told = job(training=training)
    found = clock(**training)
    assert optimizer_s(told, 10**9, reduced_gradient_bytes(told), found) == pytest.approx(each * 10**9 / (0.8 * 2039e9))


def test_there_is_no_clock_without_a_peak():
    assert clock_of(make_job(training={"precision": "fp8"}), rates_of(Hardware(), find_profile("A100-80GB"))) is None
    assert clock_of(make_job(), rates_of(Hardware(), None)) is None
