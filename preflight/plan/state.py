"""Bytes of weights, gradients and optimizer state of one GPU, by framework, precision, optimizer and what is sharded.

Worked examples, bytes per local weight with d ranks sharing: Megatron bf16 18, with its distributed optimizer 6 + 12/d; Megatron fp16 20, distributed 4 + 16/d;
fp32 16, distributed 8 + 8/d; DeepSpeed fp16 ZeRO-1 4 + 16/d, ZeRO-2 2 + 18/d, ZeRO-3 18/d; DeepSpeed's BF16 optimizer 8 + 12/d; torchtitan 16/d.
"""

from typing import NamedTuple

from preflight.model import Job, Training
from preflight.plan.memory_setup import FULLY_SHARDED, Setup

MASTER_BYTES = 4  # fp32 copy of a weight (mixed-precision training, Micikevicius et al. 2018)
MOMENT_BYTES = {"adam": 8, "sgd": 4, "muon": 4}  # fp32: two moments; momentum; momentum


class Shares(NamedTuple):
    """Bytes per local weight: what every rank keeps, and what d ranks share."""

    whole: float
    shared: float

    def of(self, weights: int, ranks: int) -> float:
        """Bytes on one GPU."""
        return weights * (self.whole + self.shared / ranks)

    def __str__(self) -> str:
        """As in "2 + 12/d"."""
        parts = [f"{self.whole:g}"] * (self.whole > 0) + [f"{self.shared:g}/d"] * (self.shared > 0)
        return " + ".join(parts) or "0"


class State(NamedTuple):
    """Bytes per local weight of each kind."""

    parameters: Shares
    gradients: Shares
    optimizer: Shares

    @property
    def total(self) -> Shares:
        """Of all three."""
        return Shares(sum(part.whole for part in self), sum(part.shared for part in self))


def state_of(job: Job, setup: Setup) -> State:
    """Bytes per local weight, before it is known how many ranks share them (dense weights and experts differ in that)."""
    training, zero = job.training, setup.zero_stage
    moments = MOMENT_BYTES[training.optimizer] if training.moment_bytes is None else training.moment_bytes
    if setup.framework in FULLY_SHARDED:
        state = _fully_sharded(setup, moments)
    elif setup.framework == "deepspeed":
        state = _deepspeed(training, setup, moments)
    else:
        state = _megatron(training, setup, moments)
    if not training.offload_optimizer:
        return state
    # gradients move to host memory with the optimizer (ZeRO-Offload, stages 1 and 2; ZeRO-Infinity, stage 3)
    gradients = Shares(0, 0) if zero >= 2 and setup.framework == "deepspeed" else state.gradients
    return State(state.parameters, gradients, Shares(0, 0))


def _megatron(training: Training, setup: Setup, moments: int) -> State:
    """Weights in the precision of the matrices, gradients in a buffer of their own, fp32 master weights unless the weights are fp32.

    fp16 gradients are copied to fp32 for the update: 4 bytes of optimizer.
    """
    wide = training.precision == "fp32"
    weights, gradients = 4 if wide else 2, setup.gradient_bytes
    copied = 4 if training.precision == "fp16" and gradients == 2 else 0
    optimizer = moments if wide else MASTER_BYTES + copied + moments
    zero = setup.zero_stage
    return State(
        Shares(0, weights) if zero >= 3 else Shares(weights, 0),
        Shares(0, gradients) if zero >= 2 else Shares(gradients, 0),
        Shares(0, optimizer) if zero >= 1 else Shares(optimizer, 0),
    )


def _deepspeed(training: Training, setup: Setup, moments: int) -> State:
    """ZeRO keeps an fp32 partition of the gradients beside those of the weights' precision.

    Stage 0, fp16: during the update two fp32 copies of all gradients exist, one per tensor and one flat, 8 bytes. BF16 optimizer (stage 0 or 1 with fp32
    accumulation): gradients in both precisions, its own state always sharded.
    """
    if training.precision == "fp32":
        return _megatron(training, setup, moments)
    master = MASTER_BYTES + moments
    if setup.bf16_optimizer:
        return State(Shares(2, 0), Shares(2 + 4, 0), Shares(0, master))
    if setup.zero_stage == 0:
        return State(Shares(2, 0), Shares(2 + 8, 0), Shares(master, 0))
    if setup.zero_stage == 1:
        return State(Shares(2, 0), Shares(2, 4), Shares(0, master))
    if setup.zero_stage == 2:
        return State(Shares(2, 0), Shares(0, 2 + 4), Shares(0, master))
    return State(Shares(0, 2), Shares(0, 4), Shares(0, master))


def _fully_sharded(setup: Setup, moments: int) -> State:
    """Weights, gradients and moments in fp32 shards; what is gathered for use counts as a buffer (stage 2 or lower: the weights are not sharded)."""
    zero = setup.zero_stage
    weights = Shares(0, 4) if zero >= 3 else Shares(4, 0)
    gradients = Shares(0, setup.gradient_bytes) if zero >= 2 else Shares(setup.gradient_bytes, 0)
    if setup.keeps_unsharded and setup.micro_batches > 1:
        # accumulated unsharded in fp32 until the last micro-batch, then reduced (torch FSDP2 without gradient sync)
        gradients = Shares(4, 0)
    return State(weights, gradients, Shares(0, moments) if zero >= 1 else Shares(moments, 0))
