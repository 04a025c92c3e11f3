"""A layout in the words of its framework: arguments of Megatron-LM and torchtitan, keys of DeepSpeed's configuration. The others are set up in Python."""

import json

from preflight.model import Parallel, Training
from preflight.plan.advise.flags import MAPPING


def framework_words(parallel: Parallel, training: Training, micro_batches: int, dp: int) -> str:
    """What to type or to write into the framework's configuration; empty where it has none that we know."""
    if parallel.framework == "megatron":
        return _megatron(parallel, training, micro_batches, dp)
    if parallel.framework == "deepspeed":
        return _deepspeed(parallel, training, micro_batches)
    if parallel.framework == "torchtitan":
        return _torchtitan(parallel, training, micro_batches, dp)
    return ""


def _megatron(parallel: Parallel, training: Training, micro_batches: int, dp: int) -> str:
    """Arguments of Megatron-LM (arguments.py)."""
    size = training.micro_batch_size or 1
    numbers = {
        "tensor-model-parallel-size": parallel.tp,
        "pipeline-model-parallel-size": parallel.pp,
        "context-parallel-size": parallel.cp,
        "expert-model-parallel-size": parallel.ep,
        "num-virtual-stages-per-pipeline-rank": parallel.virtual_stages,
    }
    words = [f"--{name} {value}" for name, value in numbers.items() if value > 1]
    if parallel.etp is not None:
        words.append(f"--expert-tensor-parallel-size {parallel.etp}")
    if parallel.sequence_parallel:
        words.append("--sequence-parallel")
    if parallel.zero_stage == 1:
        words.append("--use-distributed-optimizer")
    if parallel.order == MAPPING:
        words.append("--use-tp-pp-dp-mapping")
    if training.recompute == "full":
        words.append("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    elif training.recompute == "selective":
        words.append("--recompute-activations")
    words += [f"--micro-batch-size {size}", f"--global-batch-size {size * micro_batches * dp}"]
    return " ".join(words)


def _deepspeed(parallel: Parallel, training: Training, micro_batches: int) -> str:
    """DeepSpeed's JSON. The pipeline is made in Python (PipelineModule, num_stages), so it has no key."""
    document: dict[str, object] = {
        "train_micro_batch_size_per_gpu": training.micro_batch_size or 1,
        "gradient_accumulation_steps": micro_batches,
        "zero_optimization": {"stage": parallel.zero_stage or 0},
    }
    if parallel.tp > 1:
        document["tensor_parallel"] = {"autotp_size": parallel.tp}
    return json.dumps(document)


def _torchtitan(parallel: Parallel, training: Training, micro_batches: int, dp: int) -> str:
    """Arguments of torchtitan (config/job_config.py). With a pipeline the local batch is all micro-batches of a step, without one it is one of them.

    Empty for more than the two stages per rank that its interleaved schedule makes by itself.
    """
    if parallel.virtual_stages > 2:
        return ""
    size = training.micro_batch_size or 1
    degrees = {
        "data_parallel_replicate": parallel.dp_replicate or 1,
        "data_parallel_shard": parallel.dp_shard or -1,
        "tensor_parallel": parallel.tp,
        "context_parallel": parallel.cp,
        "pipeline_parallel": parallel.pp,
        "expert_parallel": parallel.ep,
    }
    words = [f"--parallelism.{name}_degree {degree}" for name, degree in degrees.items() if degree != 1]
    if parallel.pp > 1:
        schedule = "Interleaved1F1B" if parallel.virtual_stages == 2 else "1F1B"
        words.append(f"--parallelism.pipeline_parallel_schedule {schedule}")
        words.append(f"--parallelism.pipeline_parallel_microbatch_size {size}")
    words.append(f"--training.local_batch_size {size * micro_batches if parallel.pp > 1 else size}")
    words.append(f"--training.global_batch_size {size * micro_batches * dp}")
    return " ".join([*words, f"--activation_checkpoint.mode {training.recompute}"])
