"""What a job means for memory once its framework's defaults are filled in: the one place where those defaults stand.

Defaults and their sources: Megatron-LM arguments.py (no distributed optimizer, no sequence parallelism, fp32 gradients with bf16 weights unless told),
torchtitan (fully sharded, sequence parallelism with tensor parallelism, fp32 weights and gradients, parameters not resharded after the forward pass with a
pipeline), DeepSpeed engine and config (stage 0; bf16 without ZeRO means its BF16 optimizer, which accumulates in fp32 and shards its own state).
"""

from collections.abc import Mapping
from typing import NamedTuple

from preflight.model import Framework, Job
from preflight.model.pipeline import in_flight, schedule_of
from preflight.plan.shape import expert_tp

FULLY_SHARDED: tuple[Framework, ...] = ("torchtitan", "fsdp")


class Setup(NamedTuple):
    """A resolved job. `tokens`: of one micro-batch on one context-parallel rank, s b / c. `dense_shards`, `expert_shards`: how many ranks share the
    state of one dense weight, of one expert's weight; `expert_tp`: how many share an expert's matrices. `keeps_unsharded`: a fully sharded stage stays gathered from its first micro-batch to its last.
    """

    framework: Framework
    tp: int
    expert_tp: int
    pp: int
    virtual: int
    tokens: int
    seq: int
    micro_batches: int
    zero_stage: int
    gradient_bytes: int
    dense_shards: int
    expert_shards: int
    sequence_parallel: bool
    keeps_unsharded: bool
    bf16_optimizer: bool

    @property
    def split(self) -> int:
        """Ranks that share what tensor parallelism alone would replicate: tp with sequence parallelism."""
        return self.tp if self.sequence_parallel else 1


def resolve(job: Job, degrees: Mapping[str, int], micro_batches: int | None) -> Setup | None:
    """The setup of a job; None where batch or sequence length are not given. Micro-batches not given: as many as fill the pipeline."""
    training, parallel = job.training, job.parallel
    if training.micro_batch_size is None or training.seq_length is None:
        return None
    framework, tp, pp, cp = parallel.framework, degrees["tp"], degrees["pp"], degrees["cp"]
    zero = zero_stage(job)
    gradients = gradient_bytes(job)
    shard = degrees.get("dp_shard") or degrees["dp"] // degrees.get("dp_replicate", 1)
    dense = degrees["dp"] if framework == "deepspeed" else shard * cp
    expert = degrees.get("efsdp") or degrees.get("edp") or dense
    reshards = parallel.reshard_after_forward
    if reshards is None:
        reshards = not (framework in FULLY_SHARDED and pp > 1)
    m = 2 * pp if micro_batches is None else micro_batches
    return Setup(
        framework=framework,
        tp=tp,
        expert_tp=expert_tp(degrees),
        pp=pp,
        virtual=parallel.virtual_stages,
        tokens=-(-training.seq_length * training.micro_batch_size // cp),
        seq=-(-training.seq_length // cp),
        micro_batches=m,
        zero_stage=zero,
        gradient_bytes=gradients,
        dense_shards=max(1, dense // parallel.optimizer_instances),
        expert_shards=max(1, expert // parallel.optimizer_instances),
        sequence_parallel=sequence_parallel(job, tp),
        keeps_unsharded=zero == 3 and not reshards,
        bf16_optimizer=framework == "deepspeed"
        and training.precision in {"bf16", "fp8"}
        and zero < 2
        and gradients == 4,
    )


def sequence_parallel(job: Job, tp: int) -> bool:
    """Whether activations between the tensor-parallel regions are split along the sequence. Off without tensor parallelism; torchtitan has it on, the
    others off unless asked.
    """
    if tp == 1:
        return False
    if job.parallel.sequence_parallel is not None:
        return job.parallel.sequence_parallel
    return job.parallel.framework == "torchtitan"


def zero_stage(job: Job) -> int:
    """As given, else the framework's default: 3 for torchtitan and FSDP, 0 for Megatron and DeepSpeed."""
    if job.parallel.zero_stage is not None:
        return job.parallel.zero_stage
    return 3 if job.parallel.framework in FULLY_SHARDED else 0


def gradient_bytes(job: Job) -> int:
    """Bytes of one gradient as it is accumulated: as given, else the framework's default.

    Megatron: fp32 with bf16 weights (it turns accumulate-allreduce-grads-in-fp32 on), 2 with fp16. torchtitan, FSDP: the fp32 shard. DeepSpeed: fp32 for bf16
    without ZeRO, else as the weights.
    """
    training, framework = job.training, job.parallel.framework
    if training.gradient_bytes is not None:
        return training.gradient_bytes
    if training.precision == "fp32" or framework in FULLY_SHARDED:
        return 4
    if training.precision == "fp16":
        return 2
    return 2 if framework == "deepspeed" and zero_stage(job) > 0 else 4


def held_micro_batches(job: Job, setup: Setup, stage: int) -> float:
    """Micro-batches whose activations the stage keeps at its peak, counted through the whole stage."""
    schedule = schedule_of(job)
    return in_flight(schedule, p=setup.pp, m=setup.micro_batches, v=setup.virtual, stage=stage)
