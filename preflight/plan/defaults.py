"""What a framework sends and overlaps where the plan file doesn't say; what it keeps in memory stands in memory_setup.py.

Sources: argument parsers and configurations of Megatron-LM (arguments.py, distributed data parallel), torchtitan (job configuration, FSDP and tensor
parallel plans), DeepSpeed (ZeRO configuration) and torch FSDP2, main branches of August 2026.
"""

from preflight.model import Job
from preflight.plan.memory_setup import sequence_parallel, zero_stage

__all__ = [
    "element_bytes",
    "overlaps_gradients",
    "overlaps_parameters",
    "overlaps_tp",
    "reduced_gradient_bytes",
    "sequence_parallel",
    "zero_stage",
]


def element_bytes(job: Job) -> int:
    """Bytes of one activation or weight as it is computed with and sent. fp8 changes the matrix products, not what is kept between them."""
    return 4 if job.training.precision == "fp32" else 2


def reduced_gradient_bytes(job: Job) -> int:
    """Bytes of one gradient as it is reduced. Megatron: fp32 with bf16 (and fp8) weights, fp16 with fp16 weights; torchtitan reduces in fp32; DeepSpeed
    and FSDP2 in the precision of the weights.
    """
    training = job.training
    if training.gradient_bytes is not None:
        return training.gradient_bytes
    if training.precision == "fp32" or job.parallel.framework == "torchtitan":
        return 4
    if job.parallel.framework == "megatron":
        return 2 if training.precision == "fp16" else 4
    return 2


def overlaps_tp(job: Job) -> bool:
    """Whether backward tensor-parallel collectives run beside the gradients' matrix products. Megatron: yes; the others: no unless asked."""
    given = job.training.overlap_tp
    return job.parallel.framework == "megatron" if given is None else given


def overlaps_gradients(job: Job) -> bool:
    """Whether gradients are reduced while the backward pass still runs. Megatron's overlap-grad-reduce is off unless asked; DeepSpeed's overlap_comm is on
    for stage 3 alone; torchtitan and FSDP: on.
    """
    given = job.training.overlap_gradients
    if given is not None:
        return given
    return job.parallel.framework in {"torchtitan", "fsdp"} or zero_stage(job) == 3


def overlaps_parameters(job: Job) -> bool:
    """Whether updated weights are gathered while the next forward pass runs. Off unless asked (Megatron's overlap-param-gather); with stage 3 weights are
    gathered layer by layer ahead of use.
    """
    given = job.training.overlap_parameters
    return zero_stage(job) == 3 if given is None else given
