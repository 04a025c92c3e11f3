"""The communication ledger: what one rank sends along each axis in one step, for which purpose, and whether compute can hide it.

Symbols: T = b s / c tokens of one micro-batch on one rank, h hidden size, L/p layers of a stage, m micro-batches, v chunks, t, c, p, d the degrees of tp, cp, pp and
dp. Messages are counted as nccl-tests do; bytes on the wire are those of ring algorithms: all-reduce 2(n-1)/n, all-gather, reduce-scatter and
all-to-all (n-1)/n, send-recv 1. Sources: SC'21, section 3 (TP, PP), Korthikanti et al. 2022 (sequence parallelism), ZeRO and FSDP papers,
Megatron-Core's and torchtitan's code for what is overlapped.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from preflight.model import Job, Traffic
from preflight.plan.ledger_activations import activation_rows
from preflight.plan.ledger_gradients import gradient_rows
from preflight.plan.ledger_row import Row
from preflight.plan.rates import Rates


def make_ledger(
    job: Job, degrees: Mapping[str, int], micro_batches: int | None, rates: Rates | None = None
) -> tuple[Traffic, ...]:
    """All rows of the busiest rank, axis by axis; what the plan file doesn't say enough for is left out. `rates`: for inside_s and outside_s.

    Worked example, 70B, tp 8, pp 4, dp 2, 32 micro-batches of 4096 tokens, h 8192: 2560 all-reduces of 64 MiB along tp (2 x 20 layers x 32, forward and
    backward), 2 x 7/8 x 64 MiB each on the wire: 280 GiB.
    """
    rows = [*_activation_rows(job, degrees, micro_batches), *gradient_rows(job, degrees, micro_batches)]
    return tuple(_timed(row, rates) for row in rows if row.size > 1 and row.calls > 0)


def _activation_rows(job: Job, degrees: Mapping[str, int], micro_batches: int | None) -> Iterator[Row]:
    training = job.training
    if micro_batches is None or training.micro_batch_size is None or training.seq_length is None:
        return
    if job.model.hidden_size is not None:
        yield from activation_rows(job, degrees, micro_batches)


def _timed(row: Row, rates: Rates | None) -> Traffic:
    """The row as a noun, with its seconds at plain bandwidth: every message at the full rate."""
    wire = row.wire_bytes
    nvlink = None if rates is None else rates.nvlink_bytes_per_s
    nic = None if rates is None else rates.nic_bytes_per_s
    return Traffic(
        axis=row.axis,
        purpose=row.purpose,
        collective=row.collective,
        calls=row.calls,
        message_bytes=round(row.message_bytes),
        wire_bytes=round(wire),
        exposed=not row.hides_behind,
        hides_behind=row.hides_behind,
        formula=row.formula,
        copies=row.copies,
        inside_s=None if nvlink is None else wire / nvlink,
        outside_s=None if nic is None else wire / nic,
    )


class Sizes(NamedTuple):
    """Axis -> bytes of the message that dominates it; axis -> how that came about."""

    message_bytes: dict[str, int]
    sources: dict[str, str]


def message_sizes(ledger: tuple[Traffic, ...]) -> Sizes:
    """For each axis the message of the row that sends most: what a probe of that axis should send.

    Worked example: tp of the reference job 64 MiB, 1 x 4096 tokens x 8192 x 2 bytes.
    """
    most: dict[str, Traffic] = {}
    for row in ledger:
        if row.axis not in most or row.wire_bytes > most[row.axis].wire_bytes:
            most[row.axis] = row
    return Sizes(
        {axis: row.message_bytes for axis, row in most.items()},
        {axis: f"plan: {row.purpose}: {row.formula}" for axis, row in most.items()},
    )
