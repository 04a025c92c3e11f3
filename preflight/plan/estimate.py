"""The first estimate: memory of the training state, pipeline bubble, collectives, message sizes. Formulas stand beside their sources.

p: pipeline stages, m: micro-batches per replica and step, v: virtual stages (chunks per rank).
"""

from collections.abc import Mapping

from preflight.errors import ConfigError
from preflight.model import Estimate, Job

# bf16 weight 2 + bf16 gradient 2 + fp32 master weight 4 + two fp32 Adam moments 8 (mixed-precision rule of the ZeRO paper)
STATE_BYTES_PER_PARAMETER = 16
BYTES_PER_ELEMENT = 2  # bf16 activations and gradients

# axis -> where its message size comes from; shown with every probe of that size
MESSAGE_SOURCES: dict[str, str] = {
    "tp": "plan: micro_batch_size x seq_length / cp x hidden_size x 2 bytes, the activations of one micro-batch",
    "cp": "plan: micro_batch_size x seq_length / cp x hidden_size x 2 bytes, the order of the keys and values passed on",
    "ep": "plan: micro_batch_size x seq_length x hidden_size x 2 bytes, each token to one expert",
    "dp": "plan: 2 bytes x parameters / (tp x pp), all gradients of a rank in one all-reduce",
    "pp": "plan: micro_batch_size x seq_length / cp x hidden_size x 2 bytes, the activations of one micro-batch",
}


def make_estimate(job: Job, degrees: Mapping[str, int], *, gpu_memory_bytes: int | None) -> Estimate:
    """The estimate of one job with resolved degrees; None where the plan file doesn't say enough.

    Worked example, 70B in 80 layers, tp 8, pp 4, 32 micro-batches, 80e9-byte GPUs: state 16 x 70e9 / 32 = 35.0e9 bytes,
    free 45.0e9, overhead 3/32 = 0.0938, idle share 3/35 = 0.0857, 2 x 80 / 4 = 40 collectives.
    Raises ConfigError where the batch sizes contradict each other or the layout.
    """
    # rounded up: a size that is needed is never shown too small
    state_bytes = -(-STATE_BYTES_PER_PARAMETER * job.model.parameters // (degrees["tp"] * degrees["pp"]))
    micro_batches = count_micro_batches(job, degrees["dp"])
    bubble, work = degrees["pp"] - 1, None
    if micro_batches is not None:
        work = micro_batches * job.parallel.virtual_stages
    elif bubble == 0:
        work = 1  # without a pipeline there is no bubble, however many micro-batches
    return Estimate(
        state_bytes_per_gpu=state_bytes,
        gpu_memory_bytes=gpu_memory_bytes,
        free_bytes_per_gpu=None if gpu_memory_bytes is None else gpu_memory_bytes - state_bytes,
        micro_batches=micro_batches,
        bubble_overhead=None if work is None else bubble / work,
        bubble_idle_share=None if work is None else bubble / (work + bubble),
        # one all-reduce after attention and one after the MLP of each layer (Megatron-LM paper, section 3)
        tp_collectives_per_stage_forward=2 * job.model.layers / degrees["pp"] if degrees["tp"] > 1 else 0.0,
        message_bytes=_message_bytes(job, degrees),
    )


def count_micro_batches(job: Job, dp: int) -> int | None:
    """Micro-batches of one data-parallel replica and step: given, or global_batch_size / (micro_batch_size x dp). None: not said.

    Raises ConfigError if that is no whole number, or if both are given and differ.
    """
    training = job.training
    total, size = training.global_batch_size, training.micro_batch_size
    if total is None or size is None:
        return training.micro_batches
    if total % (size * dp):
        raise ConfigError(
            job.source,
            f"{total} does not divide by micro_batch_size {size} x dp {dp} = {size * dp}",
            key="training.global_batch_size",
            remedy=f"use a multiple of {size * dp}, such as {-(-total // (size * dp)) * size * dp}",
        )
    derived = total // (size * dp)
    if training.micro_batches not in (None, derived):
        raise ConfigError(
            job.source,
            f"{training.micro_batches}, but global_batch_size {total} / (micro_batch_size {size} x dp {dp}) = {derived}",
            key="training.micro_batches",
            remedy="leave one of micro_batches and global_batch_size out",
        )
    return derived


def _message_bytes(job: Job, degrees: Mapping[str, int]) -> dict[str, int]:
    """Axis -> message size in bytes, for axes above degree 1 whose size the plan implies; sources in MESSAGE_SOURCES.

    Worked example: micro-batch 1, 4096 tokens, hidden size 8192: 1 x 4096 x 8192 x 2 = 64 MiB along tp.
    """
    sizes = {"dp": -(-BYTES_PER_ELEMENT * job.model.parameters // (degrees["tp"] * degrees["pp"]))}
    hidden, tokens, batch = job.model.hidden_size, job.training.seq_length, job.training.micro_batch_size
    if hidden is not None and tokens is not None and batch is not None:
        activations = batch * tokens * hidden * BYTES_PER_ELEMENT
        sizes |= dict.fromkeys(("tp", "cp", "pp"), -(-activations // degrees["cp"])) | {"ep": activations}
    return {axis: size for axis, size in sizes.items() if degrees[axis] > 1}
