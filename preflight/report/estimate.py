"""The estimate of a plan, as tables for a person: memory, communication, step time, checkpoints. All of it is predicted, nothing measured."""

from collections.abc import Sequence

from preflight.model import Checkpoint, Estimate, Memory, Plan, StepTime, Traffic
from preflight.model.units import show_bytes, show_seconds
from preflight.report.text import clean, columns, hang, in_reading_order


def estimate_lines(plan: Plan, *, width: int) -> list[str]:
    """Every table whose figures are known."""
    estimate = plan.estimate
    lines = ["Estimate", *columns(_first_rows(plan), left=2)]
    if estimate.memory is not None:
        lines += ["", *_memory_lines(estimate.memory, estimate.gpu_memory_bytes, width=width)]
    if estimate.ledger:
        lines += ["", *_ledger_lines(plan, estimate.ledger)]
    if estimate.step_time is not None:
        lines += ["", *_step_lines(estimate.step_time, width=width)]
    if estimate.checkpoint is not None:
        lines += ["", *_checkpoint_lines(estimate.checkpoint, width=width)]
    return lines


def _first_rows(plan: Plan) -> list[list[str]]:
    """What is known, a row each: name, figure with its formula."""
    estimate, degrees = plan.estimate, plan.degrees
    rows = []
    if estimate.state_bytes_per_gpu is not None:
        how = estimate.state_formula or "16 bytes x parameters / (tp x pp), nothing sharded"
        rows.append(["training state", f"{show_bytes(estimate.state_bytes_per_gpu)} per GPU ({how})"])
    if estimate.gpu_memory_bytes is not None and estimate.free_bytes_per_gpu is not None:
        free = f"{show_bytes(estimate.free_bytes_per_gpu)} of {show_bytes(estimate.gpu_memory_bytes)}"
        rows.append(["left for the rest", free])
    else:
        rows.append(["left for the rest", "unknown: the plan file doesn't tell the memory of a GPU"])
    if degrees["pp"] > 1:
        rows.append(["pipeline bubble", _bubble(estimate)])
    if degrees["tp"] > 1 and estimate.tp_collectives_per_stage_forward is not None:
        number = f"{estimate.tp_collectives_per_stage_forward:g} per stage and forward pass of a micro-batch"
        rows.append(["tp collectives", number])
    sizes = estimate.message_bytes
    rows += [[f"{axis} message", show_bytes(sizes[axis])] for axis in in_reading_order(sizes)]
    return rows


def _bubble(estimate: Estimate) -> str:
    idle, overhead = estimate.bubble_idle_share, estimate.bubble_overhead
    if idle is None or overhead is None:
        return "unknown: the number of micro-batches is not given"
    return f"{idle:.1%} of the time idle, {overhead:.1%} over the ideal time ({estimate.micro_batches} micro-batches)"


def _memory_lines(memory: Memory, capacity: int | None, *, width: int) -> list[str]:
    rows = [[line.part, show_bytes(line.size_bytes), clean(line.formula)] for line in memory.lines]
    low, high = (show_bytes(memory.total_bytes * (1 + sign * memory.error_share)) for sign in (-1, 1))
    band = f"{low} to {high} ({memory.error_share:.0%} either way: {clean(memory.error_source)})"
    of = "" if capacity is None else f" of {show_bytes(capacity)}"
    rows.append(["total", show_bytes(memory.total_bytes), f"{of.strip()}{': ' if of else ''}{band}"])
    lines = [f"Memory of the most loaded GPU (pipeline stage {memory.stage})", *_left_right_left(rows)]
    if memory.not_modelled:
        lines += hang("not modelled  ", "; ".join(memory.not_modelled), width=width, indent=2)
    return lines


def _left_right_left(rows: Sequence[Sequence[str]]) -> list[str]:
    """Three columns: name, number, text."""
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    return [f"  {row[0].ljust(first)}  {row[1].rjust(second)}  {row[2]}".rstrip() for row in rows]


def _ledger_lines(plan: Plan, ledger: Sequence[Traffic]) -> list[str]:
    rows = [["axis", "for", "collective", "calls", "message", "sent", "in a domain", "across", "leaves it", "waits"]]
    for row in ledger:
        footprint = plan.footprints.get(row.axis)
        crosses = "?" if footprint is None else "yes" if max(footprint.domains) > 1 else "no"
        rows.append(
            [
                clean(row.axis),
                clean(row.purpose),
                clean(row.collective),
                f"{row.calls:g}",
                show_bytes(row.message_bytes),
                show_bytes(row.wire_bytes),
                _seconds(row.inside_s),
                _seconds(row.outside_s),
                crosses,
                "yes" if row.exposed else "overlaps",
            ]
        )
    return ["Communication of one GPU in one step (predicted)", *columns(rows, left=3)]


def _seconds(seconds: float | None) -> str:
    return "?" if seconds is None else show_seconds(seconds)


def _step_lines(step: StepTime, *, width: int) -> list[str]:
    rows = [
        [clean(name), show_seconds(value), f"{value / step.total_s:.1%}"]
        for name, value in sorted(step.terms.items(), key=lambda item: -item[1])
        if value > 0
    ]
    rows.append(["total", show_seconds(step.total_s), ""])
    lines = ["Time of one step (predicted)", *columns(rows)]
    low, high = show_seconds(step.low_s), show_seconds(step.high_s)
    lines += hang("expect   ", f"{low} to {high}: {step.range_source}", width=width, indent=2)
    mfu = f"MFU {step.mfu:.1%}, HFU {step.hfu:.1%} of {step.peak_flops_per_gpu / 1e12:.0f} TFLOP/s per GPU"
    lines += hang("", f"{mfu}; FLOPs counted as {step.convention}", width=width, indent=2)
    for assumption in step.assumptions:
        lines += hang("assumes  ", assumption, width=width, indent=2)
    return lines


def _checkpoint_lines(checkpoint: Checkpoint, *, width: int) -> list[str]:
    rows = [["bytes per rank", show_bytes(checkpoint.bytes_per_rank)], ["total", show_bytes(checkpoint.total_bytes)]]
    if checkpoint.write_s is not None:
        rows.append(["time to write", show_seconds(checkpoint.write_s)])
    if checkpoint.interval_s is not None:
        rows.append(["best interval", f"{show_seconds(checkpoint.interval_s)} (Young/Daly)"])
    lines = ["Checkpoint", *columns(rows, left=2)]
    if checkpoint.formula:
        lines += hang("", checkpoint.formula, width=width, indent=2)
    return lines
