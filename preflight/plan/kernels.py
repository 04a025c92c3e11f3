"""Seconds of matrix products, attention and memory-bound kernels on one GPU: a roofline without overlap.

A matrix product takes 2 m n k / (rate of large products) plus the time to move its three matrices through memory once: the second term makes small and
thin products slow, as measured (a product of 2048^3 reaches three quarters of a large one's rate on A100). No constant here is fitted to a training run.
"""

from typing import NamedTuple

from preflight.model import Job, Precision
from preflight.plan.matmuls import Matmul, Work
from preflight.plan.rates import MEMORY_SHARE, Rates

# fused attention, of the bf16 peak, forward and backward together: FlashAttention-2 paper (Dao 2023), A100, causal, head size 128: about
# 190 of 312 TFLOP/s; FlashAttention-3 (Shah et al. 2024) on H100 about 600 of 989
FLASH_SHARE = 0.60
# torch's own attention is FlashAttention-2, which does not use Hopper's instructions: 327.9 TFLOP/s on H100 (8192 tokens, head size 128, Azure's
# published results of ND H100 v5). Megatron takes cuDNN's or FlashAttention-3.
FLASH_2_FLOPS = 328e12
# causal: half of the scores are never computed
_CAUSAL = 0.5
# backward against forward: five products in place of two, since scores are computed again (FlashAttention paper)
_FLASH_BACKWARD = 2.5
# Bytes per element of the attention matrix if it is kept, forward: scores written (2), softmax read and written (4), dropout read and written with its
# mask (5), read by the product with the values (2); backward as much for each of two gradients
_SCORE_BYTES = 13
_FP32_ACCUMULATION_BYTES = 8  # weights' gradients are read, added to and written in fp32 by every micro-batch


class Clock(NamedTuple):
    """Rates of one GPU in use: operations per second of large products in the job's precision and in 16 bits, of attention, bytes of an element, of memory."""

    matmul_flops: float
    attention_flops: float
    half_flops: float
    memory_bytes_per_s: float
    element: int
    accumulation_bytes: int
    fp8: bool

    def matmul_s(self, matmul: Matmul, *, cast: bool = False, extra_bytes: float = 0) -> float:
        """One product. `cast`: its left operand is cast to fp8 first, read in 16 bits and written twice in 8, straight and transposed (weights keep their
        cast for the whole step). `extra_bytes`: read or written besides, per element of the result.
        """
        m, n, k, count = matmul
        operand = 1 if self.fp8 else self.element
        moved = operand * (m * k + k * n) + (self.element + extra_bytes) * m * n
        if cast and self.fp8:
            moved += 4 * m * k
        return matmul.flops / self.matmul_flops + moved * count / self.memory_bytes_per_s

    def moved_s(self, moved_bytes: float) -> float:
        """Kernels that only move memory."""
        return moved_bytes / self.memory_bytes_per_s


def clock_of(job: Job, rates: Rates) -> Clock | None:
    """None where the GPU's peak or memory rate is unknown."""
    precision, framework = job.training.precision, job.parallel.framework
    half: Precision = "fp32" if precision == "fp32" else "bf16"
    matmul, sixteen, memory = rates.matmul(precision), rates.matmul(half), rates.memory_bytes_per_s
    peak = rates.peak_flops.get(half)
    if matmul is None or sixteen is None or memory is None or peak is None:
        return None
    return Clock(
        matmul_flops=matmul,
        attention_flops=peak * FLASH_SHARE if framework == "megatron" else min(peak * FLASH_SHARE, FLASH_2_FLOPS),
        half_flops=sixteen,
        memory_bytes_per_s=memory * MEMORY_SHARE,
        element=4 if precision == "fp32" else 2,
        accumulation_bytes=_FP32_ACCUMULATION_BYTES if framework == "megatron" else 0,
        fp8=precision == "fp8",
    )


class Seconds(NamedTuple):
    """One layer (or the output layer) of one micro-batch. `input_gradients`, `weight_gradients`: matrix products of the backward pass alone, which can hide
    communication. `attention`: both passes, part of `forward` and `backward`. `attention_forward`, `moved_forward`: parts of `forward`.
    """

    forward: float
    backward: float
    input_gradients: float
    weight_gradients: float
    attention_forward: float
    attention_backward: float
    moved_forward: float

    @property
    def attention(self) -> float:
        """Both passes."""
        return self.attention_forward + self.attention_backward

    @property
    def matmuls_forward(self) -> float:
        """Forward without attention and memory-bound kernels."""
        return self.forward - self.attention_forward - self.moved_forward


def seconds_of(work: Work, clock: Clock) -> Seconds:
    """Forward and backward pass of one layer."""
    forward = sum(clock.matmul_s(matmul, cast=True) for matmul in work.matmuls)
    inputs = sum(clock.matmul_s(Matmul(m, k, n, count), cast=True) for m, n, k, count in work.matmuls)
    weights = sum(
        clock.matmul_s(Matmul(n, k, m, count), extra_bytes=clock.accumulation_bytes) for m, n, k, count in work.matmuls
    )
    if work.scores:
        attention = work.attention_flops / clock.half_flops + clock.moved_s(_SCORE_BYTES * work.scores)
        attention_backward = 2 * attention
    else:
        attention = _CAUSAL * work.attention_flops / clock.attention_flops
        attention_backward = _FLASH_BACKWARD * attention
    moved = clock.moved_s(work.moved_bytes)
    return Seconds(
        forward=forward + attention + moved,
        backward=inputs + weights + attention_backward + 2 * moved,
        input_gradients=inputs,
        weight_gradients=weights,
        attention_forward=attention,
        attention_backward=attention_backward,
        moved_forward=moved,
    )


def recomputed_s(job: Job, layer: Seconds) -> float:
    """What is computed again for one layer: all of it; of "selective" the attention's core where it is kept in memory (Megatron), or, in torchtitan, every
    second matrix product and all memory-bound kernels.
    """
    training = job.training
    if training.recompute == "full":
        return layer.forward
    if training.recompute == "none":
        return 0.0
    if job.parallel.framework in {"torchtitan", "fsdp"}:
        return layer.matmuls_forward / 2 + layer.moved_forward
    return layer.attention_forward if training.attention == "unfused" else 0.0


def optimizer_s(job: Job, weights: float, gradient_bytes: int, clock: Clock) -> float:
    """One step over `weights` weights: moments and master weights read and written, gradients read twice (norm, update), weights written.

    Worked example, Adam, fp32 gradients: 2 x 8 + 8 + 8 + 2 = 34 bytes per weight.
    """
    training = job.training
    default = {"adam": 8, "muon": 4, "sgd": 4}[training.optimizer]
    moments = default if training.moment_bytes is None else training.moment_bytes
    return clock.moved_s(weights * (2 * moments + 8 + 2 * gradient_bytes + clock.element))
