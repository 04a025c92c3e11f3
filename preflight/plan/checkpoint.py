"""What saving the job costs: bytes of each rank and in all, seconds to write them, and the time between checkpoints that loses least."""

import math
from collections.abc import Mapping

from preflight.model import Checkpoint, Job
from preflight.plan.defaults import element_bytes, zero_stage
from preflight.plan.ledger_gradients import heaviest_stage
from preflight.plan.memory_setup import FULLY_SHARDED
from preflight.plan.shape import count_parameters

_MOMENTS = {"adam": 8, "muon": 4, "sgd": 4}  # fp32: two moments of Adam, one of Muon, momentum of SGD


def estimate_checkpoint(
    job: Job, degrees: Mapping[str, int], *, world_size: int, nodes: int | None = None
) -> Checkpoint | None:
    """A full checkpoint, weights and optimizer state, each stored once. None if there are no parameters to speak of.

    Weights as they are computed with (2 bytes; torchtitan and FSDP store the fp32 shard, which is the master weight), fp32 master weights (4) and moments (8 for
    Adam). Interval: Young 1974, sqrt(2 x write time x mean time between failures of the job), the latter node_mtbf_s / nodes.
    Worked example: 176e9 weights x 14 bytes = 2.47 TB (BLOOM's were 2.3 TiB); at 40 GB/s 62 s; 48 nodes that fail every 5000 h each: job every 104 h: every 1.9 h.
    """
    weights = count_parameters(job.model) or job.model.parameters
    if weights < 1 or world_size < 1:
        return None
    kept, state = _bytes_per_weight(job)
    total = (kept + state) * weights
    speed, mtbf = job.hardware.checkpoint_bytes_per_s, job.hardware.node_mtbf_s
    write_s = None if speed is None else total / speed
    interval = None
    if write_s is not None and mtbf is not None and nodes:
        interval = math.sqrt(2 * write_s * mtbf / nodes)
    return Checkpoint(
        bytes_per_rank=_of_rank(job, degrees, kept, state),
        total_bytes=total,
        write_s=write_s,
        interval_s=interval,
        formula=f"{weights / 1e9:.4g}e9 weights x ({kept} + {state}) bytes (weights + master weights and moments)",
    )


def _bytes_per_weight(job: Job) -> tuple[int, int]:
    """Bytes of one weight as computed with, and of its optimizer state; no separate master weight where weights are fp32 themselves."""
    training = job.training
    moments = _MOMENTS[training.optimizer] if training.moment_bytes is None else training.moment_bytes
    if training.precision == "fp32" or job.parallel.framework in FULLY_SHARDED:
        return 4, moments
    return element_bytes(job), 4 + moments


def _of_rank(job: Job, degrees: Mapping[str, int], kept: int, state: int) -> int:
    """Bytes that the busiest rank writes. Without sharding one rank of each data-parallel group writes all of its model's part; with a sharded optimizer
    each writes its shard, and one of them the weights besides; with stage 3 everything is a shard.
    """
    dense, expert = heaviest_stage(job, degrees)
    stage = zero_stage(job)
    shards = degrees.get("dp_intra") or degrees.get("fsdp") or degrees.get("dp_cp") or degrees["dp"]
    expert_shards = degrees.get("edp_intra") or degrees.get("efsdp") or degrees.get("edp") or shards

    def written(count: int, parts: int) -> int:
        whole, each = (0, kept + state) if stage == 3 else (kept, state)
        return whole * count + -(-each * count // (parts if stage else 1))

    return written(dense, shards) + written(expert, expert_shards)
