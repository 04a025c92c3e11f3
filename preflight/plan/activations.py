"""Bytes of activations that one layer keeps for the backward pass of one micro-batch.

Symbols: s sequence (of one context-parallel rank), b micro-batch, h hidden size, a heads, k key-value heads, q = a x head size, f MLP width, t tensor-parallel degree.
16-bit elements. Two recipes:

GPT recipe (dropout, GELU, two MLP matrices), Korthikanti et al. 2022, equations 1 to 6: s b h (34 + 5 a s / h) on one GPU; 10 of the 34 (inputs of norms and
of the column-split matrices 8, dropout masks 2) are not divided by tensor parallelism alone, but are with sequence parallelism; 5 a s / h (softmax, its dropout and mask) is
there only where attention isn't fused and not computed again.

Modern decoder (RMSNorm, no dropout, gated MLP), our own derivation: s b h (12 + 4 k / a + 6 f / h) / t with sequence parallelism: norm inputs 4 and outputs 4 (8 not divided
without it), queries 2, keys and values 4 k / a, attention's output 2, MLP up and gate 4 f / h, their product 2 f / h. 33.5 for Llama 3 70B.
"""

from typing import NamedTuple

from preflight.model import Job, ModelShape
from preflight.plan.memory_setup import Setup
from preflight.plan.shape import head_size

ROUTER_BYTES = 8  # of one expert's logit for one token: the logit and its probability in fp32 (Megatron-Core's router)


class Kept(NamedTuple):
    """Bytes per token: what tensor parallelism divides, and what it divides only together with sequence parallelism."""

    split: float
    kept: float

    def of(self, setup: Setup) -> float:
        """Bytes of one micro-batch on one GPU."""
        return setup.tokens * (self.split / setup.tp + self.kept / setup.split)


def full_set(job: Job, setup: Setup, *, moe: bool, fused: bool = True) -> Kept | None:
    """Everything that one layer keeps without recomputation. None: the shape doesn't say enough.

    `fused`: norms and activation functions are kernels of their own that keep their input only. Otherwise (plain PyTorch operations) a norm keeps fp32 copies too
    (2 x 8 h) and the activation function its result (2 f): 57 s b h in place of 34 for Llama 3.1 8B, measured elsewhere as 56.
    """
    model = job.model
    attention = _attention(job, setup)
    if attention is None or model.hidden_size is None:
        return None
    h = model.hidden_size
    mlp = _experts(job, setup) if moe else _mlp(model)
    if mlp is None:
        return None
    norms = 2 + 2  # inputs of both
    inputs = 2 + 2  # their outputs, which the column-split matrices take
    masks = 2 if model.dropout else 0
    if job.training.precision == "fp8" and setup.framework == "megatron":
        inputs = 1 + 1  # kept as fp8 (Transformer Engine); attention's output in both precisions
        attention = Kept(attention.split + _heads(model), attention.kept)
    eager = 0 if fused or model.dropout else 16
    activated = 0 if fused or model.dropout or moe else 2 * (model.ffn_size or 0)
    return Kept(
        attention.split + mlp.split + activated, attention.kept + mlp.kept + (norms + inputs + masks + eager) * h
    )


def kept(job: Job, setup: Setup, *, moe: bool) -> Kept | None:
    """What one layer keeps from its forward to its backward pass, with the job's recomputation. None: the shape doesn't say enough.

    "full": the layer's input, 2 h. "selective": Megatron and DeepSpeed compute attention's core again, which only unfused attention keeps; torchtitan keeps the results of every
    second matrix product and of attention, and computes the rest again.
    """
    recompute, model = job.training.recompute, job.model
    if model.hidden_size is None:
        return None
    if recompute == "full":
        return Kept(0, 2 * model.hidden_size)
    if recompute == "selective" and setup.framework == "torchtitan":
        return _every_second_product(model, setup, moe=moe)
    fused = setup.framework == "megatron" or job.training.compiled
    return full_set(job, setup, moe=moe, fused=fused)


def _heads(model: ModelShape) -> int:
    return (model.attention_heads or 0) * (head_size(model) or 0)


def _attention(job: Job, setup: Setup) -> Kept | None:
    """Queries, keys, values, attention's output; scores where they are kept."""
    model = job.model
    a, d = model.attention_heads, head_size(model)
    if a is None or d is None:
        return None
    scores = 0.0
    if job.training.attention == "unfused" and job.training.recompute != "selective":
        # with dropout: softmax 2, its dropout's result 2 and mask 1; else the softmax alone
        scores = (5 if model.dropout else 2) * a * setup.seq
    if model.kv_lora_rank is not None:
        wide = (model.qk_nope_head_dim or d) + (model.qk_rope_head_dim or 0)
        v = model.v_head_dim or d
        latents = (model.q_lora_rank or 0) + model.kv_lora_rank + (model.qk_rope_head_dim or 0)
        # latents before and after their norm; queries and keys of full width, values, output
        return Kept(2 * a * (2 * wide + v + v) + scores, 4 * latents)
    pairs = 2 * (model.kv_heads or a) * d
    return Kept(2 * (2 * a * d + pairs) + scores, 0)


def _mlp(model: ModelShape) -> Kept | None:
    """Between the two matrices: input and result of the activation function, twice the input if gated."""
    if model.ffn_size is None:
        return None
    return Kept((6 if model.gated_mlp else 4) * model.ffn_size, 0)


def _experts(job: Job, setup: Setup) -> Kept | None:
    """Of one MoE layer, beside its norm: router, tokens sent and returned, the experts' activations, shared experts.

    Each token goes to top-k experts (times the padding of a capacity factor, or the load of the fullest rank): its copy 2 h, up and gate 4 f, product 2 f, with f the width of
    one expert. The experts' results are weighted before the last product and need not be kept.
    """
    model, training = job.model, job.training
    h, width = model.hidden_size, model.expert_ffn_size or model.ffn_size
    if h is None or width is None or model.experts is None:
        return None
    load = training.capacity_factor or training.expert_skew
    routed = (model.experts_per_token or 1) * load  # on average each rank gets as many tokens as it sends
    matrices = 6 if model.gated_mlp else 4
    # ranks that share an expert by etp see each other's tokens: all of them with sequence parallelism, the same ones anyway without it
    gathered, part = (setup.expert_tp, 1) if setup.split > 1 else (1, setup.expert_tp)
    experts = routed * (2 * h * gathered + matrices * width / part)
    shared = matrices * model.shared_ffn_size
    return Kept(shared, experts + ROUTER_BYTES * model.experts)


def _every_second_product(model: ModelShape, setup: Setup, *, moe: bool) -> Kept | None:
    """torchtitan's selective recomputation: block input 2 h; of the products q, k, v, o, gate, up, down the first, third, fifth and seventh; attention's result.

    With tensor parallelism also what is reduced and scattered, 2 x 2 h, and the last product before it is reduced, which no rank shares.
    Experts: their grouped products are kept whole.
    """
    h, a, d = model.hidden_size, model.attention_heads, head_size(model)
    if h is None or a is None or d is None:
        return None
    scattered, partial = (4 * h, 2 * h * setup.tp) if setup.tp > 1 else (0, 2 * h)
    attention = 2 * (2 * a * d + (model.kv_heads or a) * d)
    if moe:
        width = model.expert_ffn_size or model.ffn_size
        if width is None or model.experts is None:
            return None
        matrices = 2 if model.gated_mlp else 1
        routed = (model.experts_per_token or 1) * 2 * (matrices * width + h)
        return Kept(attention + 2 * model.shared_ffn_size, routed + 2 * h + scattered + ROUTER_BYTES * model.experts)
    if model.ffn_size is None:
        return None
    return Kept(attention + 2 * model.ffn_size + partial, 2 * h + scattered)
