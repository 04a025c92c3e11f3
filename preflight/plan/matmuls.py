"""What one GPU computes for one micro-batch, layer by layer: matrix products, attention, and kernels that only move memory.

Symbols: T = b s / c tokens of one micro-batch on one rank, h hidden size, a heads of size d, k key-value heads, f MLP width, V vocabulary, t tensor-parallel
degree. Everything is of the forward pass; a backward pass takes each matrix product twice (gradient of inputs, gradient of weights).
"""

from collections.abc import Mapping
from typing import NamedTuple

from preflight.model import Job, ModelShape
from preflight.plan.defaults import element_bytes, sequence_parallel
from preflight.plan.shape import head_size

# Elements read or written per element of a routed token: sorted by rank before it is sent, by expert after it came, and both undone on the way back
_PERMUTATION_PASSES = 8


class Matmul(NamedTuple):
    """`times` products of a (rows, inner) with an (inner, columns) matrix on one GPU."""

    rows: float
    columns: float
    inner: float
    times: float = 1

    @property
    def flops(self) -> float:
        """One multiplication and one addition per element."""
        return 2 * self.rows * self.columns * self.inner * self.times


class Work(NamedTuple):
    """Forward pass of one layer on one GPU. `attention_flops`: scores and their product with the values, nothing skipped. `scores`: elements of the
    attention matrix as far as it is kept in memory, 0 if fused. `moved_bytes`: read and written by all other kernels.
    """

    matmuls: tuple[Matmul, ...]
    attention_flops: float = 0
    scores: float = 0
    moved_bytes: float = 0


def tokens_per_rank(job: Job, degrees: Mapping[str, int]) -> int | None:
    """T = b s / c: tokens of one micro-batch on one rank; None where micro-batch size or sequence length are not given."""
    size, length = job.training.micro_batch_size, job.training.seq_length
    return None if size is None or length is None else -(-size * length // degrees["cp"])


def knows_shape(model: ModelShape) -> bool:
    """Whether the shape says enough to count operations."""
    known = model.hidden_size is not None and model.attention_heads is not None and model.vocab_size is not None
    if model.experts is not None and (model.expert_ffn_size is None or model.experts_per_token is None):
        return False
    dense = model.experts is None or model.dense_layers > 0
    return known and (model.ffn_size is not None or not dense)


def expert_layers(model: ModelShape) -> int:
    """Layers with experts."""
    return 0 if model.experts is None else model.layers - model.dense_layers


def _head_size(model: ModelShape) -> int:
    """The shape's, which is known where matrix products are counted."""
    size = head_size(model)
    assert size is not None
    return size


def key_value_width(model: ModelShape) -> int | None:
    """Elements of one token's keys and values together, as context parallelism passes them on: 2 k d, or all heads of latent attention. None: not known."""
    if model.attention_heads is None or model.hidden_size is None:
        return None if model.hidden_size is None else 2 * model.hidden_size
    if model.kv_lora_rank is not None and model.qk_nope_head_dim and model.v_head_dim:
        return model.attention_heads * (model.qk_nope_head_dim + (model.qk_rope_head_dim or 0) + model.v_head_dim)
    return 2 * (model.kv_heads or model.attention_heads) * _head_size(model)


def _attention_matmuls(model: ModelShape, rows: float, tp: int) -> tuple[tuple[Matmul, ...], int, int]:
    """Projections of one attention block; width of one query-key product and of one value, over all heads."""
    h, a = model.hidden_size, model.attention_heads
    assert h is not None
    assert a is not None
    if model.kv_lora_rank is None:
        d = _head_size(model)
        q, kv = a * d, 2 * (model.kv_heads or a) * d
        return (Matmul(rows, (q + kv) / tp, h), Matmul(rows, h, q / tp)), q, q
    # multi-head latent attention (DeepSeek-V2 paper, section 2.1): down-projections are not split by tensor parallelism
    nope, rope, v = model.qk_nope_head_dim or 128, model.qk_rope_head_dim or 64, model.v_head_dim or 128
    latent = model.kv_lora_rank
    queries = (
        (Matmul(rows, a * (nope + rope) / tp, h),)
        if model.q_lora_rank is None
        else (Matmul(rows, model.q_lora_rank, h), Matmul(rows, a * (nope + rope) / tp, model.q_lora_rank))
    )
    keys = (Matmul(rows, latent + rope, h), Matmul(rows, a * (nope + v) / tp, latent))
    return (*queries, *keys, Matmul(rows, h, a * v / tp)), a * (nope + rope), a * v


def layer_work(job: Job, degrees: Mapping[str, int], *, with_experts: bool = False) -> Work:
    """One layer. Worked example, GPT, t = 1: matrix products 24 b s h^2, attention 4 b s^2 h floating-point operations."""
    model, training, t = job.model, job.training, degrees["tp"]
    rows = tokens_per_rank(job, degrees)
    assert rows is not None
    assert model.hidden_size is not None
    assert training.seq_length is not None
    h = model.hidden_size
    projections, qk, v = _attention_matmuls(model, rows, t)
    mlp, mlp_width, routed = _experts(job, degrees, rows) if with_experts else (*_mlp(model, rows, t), 0.0)
    scores = rows * training.seq_length * (model.attention_heads or 0) / t
    size = element_bytes(job)
    split = t if sequence_parallel(job, t) else 1  # norms and residuals are split along the sequence, or repeated
    return Work(
        matmuls=(*projections, *mlp),
        attention_flops=2 * rows * training.seq_length * (qk + v) / t,
        scores=0 if training.attention == "flash" else scores,
        moved_bytes=size * (rows * h * _residual_passes(job) / split + mlp_width * _mlp_passes(job))
        + size * routed * h * _PERMUTATION_PASSES
        + (0 if model.dropout else size * rows * (qk + v) / t * _rope_passes(job)),
    )


def output_work(job: Job, degrees: Mapping[str, int]) -> Work:
    """Output layer and loss of one micro-batch, which the last pipeline stage has. Cross entropy in fp32: logits converted (2 + 4 bytes), maximum (4), exponent
    and sum (4 + 4), and the gradient (4 + 2); fused, one reading and one writing in 16 bits for each pass (2 x 4).
    """
    rows, model, t = tokens_per_rank(job, degrees), job.model, degrees["tp"]
    assert rows is not None
    assert model.hidden_size is not None
    assert model.vocab_size is not None
    moved = 8 if job.training.fused_loss or job.training.compiled else 24
    vocab = model.vocab_size / t
    return Work(matmuls=(Matmul(rows, vocab, model.hidden_size),), moved_bytes=moved * rows * vocab)


def _mlp(model: ModelShape, rows: float, tp: int) -> tuple[tuple[Matmul, ...], float]:
    """Products of a dense MLP, and the elements of its widened activations."""
    f, h = model.ffn_size, model.hidden_size
    assert f is not None
    assert h is not None
    return (Matmul(rows, f * (2 if model.gated_mlp else 1) / tp, h), Matmul(rows, h, f / tp)), rows * f / tp


def _experts(job: Job, degrees: Mapping[str, int], rows: float) -> tuple[tuple[Matmul, ...], float, float]:
    """Products of the routed and shared experts on the most loaded rank (expert_skew, capacity_factor), the elements of their widened activations, and
    the tokens it gets.

    A rank sends its tokens (1/t of them under sequence parallelism) to top-k experts and gets as many back, times etp, each GPU holding
    1/etp of every one of its experts.
    """
    model, t = job.model, degrees["tp"]
    h, f, top, experts = model.hidden_size, model.expert_ffn_size, model.experts_per_token, model.experts
    assert h is not None
    assert f is not None
    assert top is not None
    assert experts is not None
    etp = degrees.get("etp", t)
    padded = max(job.training.capacity_factor or 1, job.training.expert_skew)
    routed = rows / t * top * etp * padded
    local = max(1, experts // degrees["ep"])
    wide = 2 if model.gated_mlp else 1
    matmuls = [
        Matmul(rows / t, experts, h),
        Matmul(routed / local, f * wide / etp, h, local),
        Matmul(routed / local, h, f / etp, local),
    ]
    width = routed * f / etp
    if model.shared_ffn_size:
        shared = model.shared_ffn_size / t
        matmuls += [Matmul(rows, shared * wide, h), Matmul(rows, h, shared)]
        width += rows * shared
    return tuple(matmuls), width, routed


def _fused(job: Job) -> bool:
    """Whether norms, rotary embedding and activation functions are one kernel each: Megatron's and DeepSpeed's own, or compiled."""
    return job.parallel.framework in {"megatron", "deepspeed"} or job.training.compiled


def _residual_passes(job: Job) -> float:
    """Elements read or written per element of the hidden state, both halves of a layer together.

    GPT recipe: norm 2, bias-dropout-add 3 and half a mask (one byte), each twice: 11. RMSNorm and residual, fused: 2 + 3, twice: 10. As separate torch
    kernels in fp32, a norm converts, squares, averages, scales, converts and multiplies: about 12 elements of 16 bits: (12 + 3) x 2 = 30.
    """
    if job.model.dropout:
        return 11
    return 10 if _fused(job) else 30


def _mlp_passes(job: Job) -> float:
    """Elements read or written per element of the widened activations: bias and GeLU 2; gated 3, as two kernels 5."""
    if not job.model.gated_mlp:
        return 2
    return 3 if _fused(job) else 5


def _rope_passes(job: Job) -> float:
    """Elements read or written per element of queries and keys by the rotary embedding: 2; in complex fp32 numbers, as separate kernels, 10."""
    return 2 if _fused(job) else 10
