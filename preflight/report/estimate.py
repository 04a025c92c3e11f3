"""The estimate of a plan, as tables for a person: memory, communication, step time, checkpoints. All of it is predicted, nothing measured."""

from collections.abc import Sequence

from preflight.model import Checkpoint, Estimate, Memory, Plan, StepTime, Traffic
from preflight.model.units import GIB, show_bytes, show_seconds
from preflight.report.text import clean, columns, hang, in_reading_order

_LEDGER_NEEDS = (
    "hidden_size",
    "experts_per_token",
    "micro_batch_size",
    "seq_length",
    "micro_batches or global_batch_size",
)
_LEGEND = "time if the groups lie in one NVLink domain each, and if they don't; leaves: whether one does; waits: whether compute waits for it"


def estimate_lines(plan: Plan, *, width: int) -> list[str]:
    """The answers first, a row each; then every table whose figures are known."""
    estimate = plan.estimate
    lines = ["Estimate (predicted)"]
    rows = _answers(plan)
    label = max(len(name) for name, _ in rows) + 2
    for name, text in rows:
        lines += hang(name.ljust(label), text, width=width, indent=2)
    if estimate.memory is not None:
        lines += ["", *_memory_lines(estimate.memory, estimate.gpu_memory_bytes, width=width)]
    if estimate.ledger:
        lines += ["", *_ledger_lines(plan, estimate.ledger, width=width)]
    if estimate.step_time is not None:
        lines += ["", *_step_lines(estimate.step_time, width=width)]
    if estimate.checkpoint is not None:
        lines += ["", *_checkpoint_lines(estimate.checkpoint, width=width)]
    return lines


def _answers(plan: Plan) -> list[tuple[str, str]]:
    """Name and text: what the tables below come to, and what is not estimated with what it would need."""
    estimate, memory, step = plan.estimate, plan.estimate.memory, plan.estimate.step_time
    of = "" if estimate.gpu_memory_bytes is None else f" of {show_bytes(estimate.gpu_memory_bytes)}"
    if memory is not None:
        low, high = _band(memory)
        rows = [("memory", f"{show_bytes(memory.total_bytes)}{of} per GPU, expect {low} to {high}")]
    else:
        rows = _state(estimate)
        rows.append(("memory", _not_estimated([*_missing_shape(plan), *_missing_batch(plan)])))
    if step is not None:
        text = f"{show_seconds(step.total_s)}, expect {show_seconds(step.low_s)} to {show_seconds(step.high_s)}; MFU {step.mfu:.1%}"
        rows.append(("step time", text))
    else:
        rows.append(("step time", _not_estimated(_missing_for_step(plan))))
    if plan.degrees["pp"] > 1:
        rows.append(("pipeline bubble", _bubble(estimate)))
    if (
        plan.degrees["tp"] > 1
        and not any(row.axis == "tp" for row in estimate.ledger)
        and estimate.tp_collectives_per_stage_forward is not None
    ):
        number = f"{estimate.tp_collectives_per_stage_forward:g} per stage and forward pass of a micro-batch"
        rows.append(("tp collectives", number))
    sizes = {} if estimate.ledger else estimate.message_bytes
    return rows + [(f"{axis} message", show_bytes(sizes[axis])) for axis in in_reading_order(sizes)]


def _state(estimate: Estimate) -> list[tuple[str, str]]:
    """Training state and what it leaves, where there is no more than that."""
    state, capacity = estimate.state_bytes_per_gpu, estimate.gpu_memory_bytes
    if state is None:
        return []
    how = estimate.state_formula or "16 bytes x parameters / (tp x pp), nothing sharded"
    if capacity is None:
        left = "unknown: the plan file doesn't tell the memory of a GPU"
    elif state > capacity:
        left = f"nothing: {show_bytes(state - capacity)} more than the {show_bytes(capacity)} of a GPU"
    else:
        left = f"{show_bytes(capacity - state)} of {show_bytes(capacity)}"
    return [("training state", f"{show_bytes(state)} per GPU ({how})"), ("left for the rest", left)]


def _not_estimated(missing: Sequence[str]) -> str:
    return (
        f"not estimated: needs {', '.join(missing)}" if missing else "not estimated: the plan file doesn't say enough"
    )


def _missing_shape(plan: Plan) -> list[str]:
    """Keys of [model] that memory and step time need and that the plan file leaves out."""
    model = plan.job.model
    keys = ["hidden_size", "ffn_size", "attention_heads", "vocab_size"]
    if model.experts is not None:
        keys += ["experts_per_token", "expert_ffn_size"]
        if model.expert_ffn_size is not None and not model.dense_layers:
            keys.remove("ffn_size")
    return [key for key in keys if getattr(model, key) is None]


def _missing_batch(plan: Plan) -> list[str]:
    return [key for key in ("micro_batch_size", "seq_length") if getattr(plan.job.training, key) is None]


def _missing_for_step(plan: Plan) -> list[str]:
    missing = [*_missing_shape(plan), *_missing_batch(plan)]
    if plan.estimate.micro_batches is None:
        missing.append("micro_batches or global_batch_size")
    if plan.job.hardware.gpu is None:
        missing.append("[hardware] gpu")
    elif not missing:
        missing.append("a profile of the GPU that says how fast it computes in this precision, and no offloading")
    return missing


def _bubble(estimate: Estimate) -> str:
    idle, overhead = estimate.bubble_idle_share, estimate.bubble_overhead
    if idle is None or overhead is None:
        return "unknown: the number of micro-batches is not given"
    many = f"{estimate.micro_batches} micro-batch{'' if estimate.micro_batches == 1 else 'es'}"
    return f"{idle:.1%} of the time idle, {overhead:.1%} over the ideal time ({many})"


def _band(memory: Memory) -> tuple[str, str]:
    low, high = (show_bytes(memory.total_bytes * (1 + sign * memory.error_share)) for sign in (-1, 1))
    return low, high


def _memory_lines(memory: Memory, capacity: int | None, *, width: int) -> list[str]:
    """The total in GiB too: PyTorch and nvidia-smi count in powers of two."""
    rows = [[line.part, show_bytes(line.size_bytes), clean(line.formula)] for line in memory.lines]
    of = "" if capacity is None else f", of {show_bytes(capacity)}"
    rows.append(["total", show_bytes(memory.total_bytes), f"= {memory.total_bytes / GIB:.1f} GiB{of}"])
    lines = [f"Memory of the most loaded GPU (pipeline stage {memory.stage})", *_left_right_left(rows)]
    low, high = _band(memory)
    expect = f"{low} to {high}, {memory.error_share:.0%} either way: {memory.error_source}"
    lines += hang("expect        ", expect, width=width, indent=2)
    if memory.not_modelled:
        lines += hang("not modelled  ", "; ".join(memory.not_modelled), width=width, indent=2)
    return lines


def _left_right_left(rows: Sequence[Sequence[str]]) -> list[str]:
    """Three columns: name, number, text."""
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    return [f"  {row[0].ljust(first)}  {row[1].rjust(second)}  {row[2]}".rstrip() for row in rows]


def _ledger_lines(plan: Plan, ledger: Sequence[Traffic], *, width: int) -> list[str]:
    rows = [["axis", "for", "collective", "calls", "message", "sent", "inside", "outside", "leaves", "waits"]]
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
    uncounted = [
        axis for axis in ("tp", "cp", "ep", "pp") if plan.degrees[axis] > 1 and all(row.axis != axis for row in ledger)
    ]
    legend = hang("inside, outside: ", _LEGEND, width=width, indent=2)
    if uncounted:
        missing = [key for key in _missing_for_step(plan) if key in _LEDGER_NEEDS]
        why = f": needs {', '.join(missing)}" if missing else ""
        legend += hang("not counted: ", f"{', '.join(uncounted)}{why}", width=width, indent=2)
    return ["Communication of one GPU in one step", *columns(rows, left=3), *legend]


def _seconds(seconds: float | None) -> str:
    return "?" if seconds is None else show_seconds(seconds)


def _step_lines(step: StepTime, *, width: int) -> list[str]:
    rows = [
        [clean(name), show_seconds(value), f"{value / step.total_s:.1%}"]
        for name, value in sorted(step.terms.items(), key=lambda item: -item[1])
        if value > 0
    ]
    rows.append(["total", show_seconds(step.total_s), ""])
    lines = ["Time of one step", *columns(rows)]
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
