"""Memory that comes and goes within a step: the loss, the layer at work, gathered weights, buckets; and what lies outside the allocator.

Symbols as in plan/activations.py; V vocabulary. Constants that were fitted to measured rows say so and name the rows (tests/plan/rows).
"""

from collections.abc import Mapping

from preflight.model import Job
from preflight.model.units import GIB, MIB, show_bytes
from preflight.plan.activations import full_set
from preflight.plan.memory_setup import FULLY_SHARDED, Setup
from preflight.plan.shape import embedding_parameters, expert_shards, layer_of

# Bytes per element of the logits while the loss is computed, by what the framework's code keeps at once.
# Megatron's vocabulary-parallel loss: 16-bit logits 2, fp32 copy 4, turned into probabilities and then gradients in place
MEGATRON_LOSS_BYTES = 2 + 4
# plain cross entropy on fp32 logits: 16-bit logits 2 (freed, but in front of what follows), log-probabilities 4, two gradients 4 + 4
PLAIN_LOSS_BYTES = 2 + 4 + 4 + 4
# torch's loss on logits split along the vocabulary: log-probabilities, gradient, exponential, sum and product are separate fp32 tensors
SPLIT_LOSS_BYTES = 2 + 4 + 4 + 4 + 4
# inside torch.compile: 16-bit logits and their 16-bit gradient
COMPILED_LOSS_BYTES = 2 + 2
# with a chunked or fused loss the logits are never whole: 1/8 of the sequence at a time (Liger's and torchtitan's chunks are of that order)
FUSED_LOSS_SHARE = 1 / 8

BUCKET_ELEMENTS = 5 * 10**8  # DeepSpeed: allgather_bucket_size and reduce_bucket_size, default of both
LIVE_PARAMETERS = 10**9  # DeepSpeed: stage3_max_live_parameters, default

# CUDA context and kernels: 1573 MiB on an A100 (nvidia-smi, BigScience's notes of February 2022)
CONTEXT_BYTES = 1573 * MIB
NCCL_BYTES = (
    9 * GIB // 10
)  # per axis above degree 1: NCCL's channel buffers and its own context; fitted, see HOLES_FIXED in plan/memory.py


def loss_bytes_per_logit(job: Job, setup: Setup) -> float:
    """Bytes per element of the logits at the peak of the loss."""
    if job.training.fused_loss:
        return PLAIN_LOSS_BYTES * FUSED_LOSS_SHARE
    if setup.framework in {"megatron", "deepspeed"}:
        return MEGATRON_LOSS_BYTES
    compiled = job.training.compiled if job.training.compiled_loss is None else job.training.compiled_loss
    if compiled:
        return COMPILED_LOSS_BYTES
    return SPLIT_LOSS_BYTES if setup.tp > 1 and setup.framework == "torchtitan" else PLAIN_LOSS_BYTES


def loss_bytes(job: Job, setup: Setup) -> float:
    """Logits and loss of one micro-batch on the last stage, and the final hidden states that go with it (norm's input and result, 4 h)."""
    model = job.model
    h, vocab = model.hidden_size or 0, model.vocab_size or 0
    gathered = 2 * h * setup.tokens if setup.split > 1 else 0
    outputs = 0
    if setup.framework == "torchtitan" and setup.pp > 1:
        outputs = 2 * (
            setup.micro_batches - 1
        )  # its pipeline keeps the logits of all micro-batches until the step ends
    logits = (loss_bytes_per_logit(job, setup) + outputs) * setup.tokens * vocab / setup.tp
    return logits + 4 * h * setup.tokens / setup.split + gathered


def working_bytes(job: Job, setup: Setup, *, moe: bool) -> float:
    """The layer at work in the backward pass: its values where they are computed again, and gathered inputs. Its gradients take the place of values already used."""
    recomputed = job.training.recompute == "full" or (
        job.training.recompute == "selective" and setup.framework == "torchtitan"
    )
    fused = setup.framework in {"megatron", "deepspeed"} or job.training.compiled
    values = full_set(job, setup, moe=moe, fused=fused)
    if values is None:
        return 0
    gathered = 0.0
    if setup.split > 1:
        # with sequence parallelism: inputs of attention and MLP and the gradients of both; Megatron has one of each at a time
        gathered = (2 if setup.framework == "megatron" else 4) * 2 * (job.model.hidden_size or 0) * setup.tokens
    return (values.of(setup) if recomputed else 0) + gathered


def buffer_bytes(job: Job, degrees: Mapping[str, int], setup: Setup, weights: int) -> tuple[float, str]:
    """Gathered weights, buckets, messages between stages; and how that came about. `weights`: all of the stage on this GPU."""
    messages = 0.0
    if setup.pp > 1:
        messages = (
            4 * 2 * (job.model.hidden_size or 0) * setup.tokens / setup.split
        )  # sent and received, both directions
    if setup.framework in FULLY_SHARDED and setup.zero_stage >= 2:
        gathered, words = _gathered(job, degrees, setup, weights)
    elif setup.framework == "deepspeed":
        gathered, words = _buckets(setup, weights)
    elif setup.zero_stage == 3:
        gathered, words = _gathered(job, degrees, setup, weights)
    else:
        gathered, words = 0.0, "gradients are reduced where they lie"
    return gathered + messages, words + (f"; between stages {show_bytes(messages)}" if messages else "")


def outside_bytes(degrees: Mapping[str, int]) -> int:
    """CUDA context and NCCL, which the framework's allocator does not count."""
    axes = sum(degrees.get(axis, 1) > 1 for axis in ("tp", "cp", "ep", "dp", "pp"))
    return CONTEXT_BYTES + axes * NCCL_BYTES


def _gathered(job: Job, degrees: Mapping[str, int], setup: Setup, weights: int) -> tuple[float, str]:
    """Weights as they are used, in 16 bits, and gradients on their way to be reduced."""
    layer = layer_of(job.model, moe=bool(job.model.experts)) or layer_of(job.model, moe=False)
    one = 0.0 if layer is None else (layer.split / setup.tp + layer.kept + layer.experts / expert_shards(degrees))
    # one layer's gradients: 16 bits as computed, 4 bytes as reduced
    if setup.keeps_unsharded or setup.zero_stage == 2:
        return (
            2 * weights + 6 * one,
            f"2 x {weights / 1e9:.2f}e9 weights stay gathered, 6 x {one / 1e9:.2f}e9 of one layer's gradients",
        )
    ends = (1 if job.model.tied_embeddings else 2) * (embedding_parameters(job.model) or 0) / setup.tp
    # embedding and head stay gathered (they end the forward pass and begin the backward pass); of the layers one is used and the next one on its way
    return 2 * ends + (
        2 * 2 + 6
    ) * one, f"2 x {ends / 1e9:.2f}e9 of embedding and head, (4 + 6) x {one / 1e9:.2f}e9 of layers at work"


def _buckets(setup: Setup, weights: int) -> tuple[float, str]:
    bucket = min(BUCKET_ELEMENTS, weights)
    if setup.zero_stage == 3:
        live = min(LIVE_PARAMETERS, weights * setup.dense_shards)
        return 2 * live + 2 * bucket, f"2 x {live / 1e9:.2f}e9 live weights, 2 x {bucket / 1e9:.2f}e9 in a bucket"
    if setup.zero_stage == 0 or setup.bf16_optimizer:
        return 2 * bucket, f"2 x {bucket / 1e9:.2f}e9 in a bucket"
    return 4 * bucket, f"(2 + 2) x {bucket / 1e9:.2f}e9 in buckets to gather and to reduce"
