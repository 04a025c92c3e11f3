"""Measured training steps from tests/plan/rows/step_*.toml, and what the estimate says of each."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from preflight.formats import read_toml
from preflight.model import Hardware, Job, ModelShape, Parallel, StepTime, Training
from preflight.plan.build import build_plan
from preflight.plan.estimate import count_micro_batches
from preflight.plan.ledger import make_ledger
from preflight.plan.profiles import find_profile
from preflight.plan.rates import rates_of
from preflight.plan.shape import count_parameters
from preflight.plan.steptime import estimate_step_time

FOLDER = Path(__file__).parent / "rows"


class StepRow(NamedTuple):
    name: str
    measured_s: float
    predicted: StepTime

    @property
    def error(self) -> float:
        return self.predicted.total_s / self.measured_s - 1


def step_rows(which: str) -> list[StepRow]:
    """Every row of one file: "korthikanti", "sc21", ..."""
    document = read_toml(FOLDER / f"step_{which}.toml")
    return [_row(document, row) for row in document["rows"]]


def mean_absolute_error(rows: list[StepRow]) -> float:
    return sum(abs(row.error) for row in rows) / len(rows)


def table(which: str) -> Iterator[str]:
    """One line for each row, and the mean."""
    rows = step_rows(which)
    for row in rows:
        shares = "  ".join(
            f"{name} {seconds / row.predicted.total_s:.1%}" for name, seconds in row.predicted.terms.items()
        )
        yield f"{row.name:52} {row.measured_s:8.2f} s {row.predicted.total_s:8.2f} s {row.error:+7.1%}  MFU {row.predicted.mfu:.1%}  {shares}"
    mean = sum(row.error for row in rows) / len(rows)
    worst = max(abs(row.error) for row in rows)
    yield f"{which}: {len(rows)} rows, mean absolute error {mean_absolute_error(rows):.2%}, mean {mean:+.2%}, worst {worst:.1%}"


def row_job(document: Mapping[str, Any], row: Mapping[str, Any]) -> Job:
    """The job of one row: the sections of its file, and what the row changes in them."""

    def section(kind: Any, name: str) -> dict[str, Any]:
        names = kind.__struct_fields__
        return {key: value for key, value in {**document.get(name, {}), **row}.items() if key in names}

    shape = ModelShape(parameters=1, **document["models"][row["model"]])
    hardware = section(Hardware, "hardware")
    parallel = section(Parallel, "parallel")
    return Job(
        source=f"row {row['model']}",
        model=msgspec.structs.replace(shape, parameters=count_parameters(shape)),
        parallel=Parallel(
            **{key: tuple(value) if isinstance(value, list) else value for key, value in parallel.items()}
        ),
        training=Training(**section(Training, "training")),
        hardware=Hardware(**hardware, nodes=row["gpus"] // min(hardware["gpus_per_node"], row["gpus"])),
    )


def _row(document: Mapping[str, Any], row: Mapping[str, Any]) -> StepRow:
    job = row_job(document, row)
    plan = build_plan(job)
    assert job.hardware.gpu is not None
    rates = rates_of(job.hardware, find_profile(job.hardware.gpu))
    if "memory_bytes_per_s" in document.get("hardware", {}):
        rates = rates._replace(memory_bytes_per_s=document["hardware"]["memory_bytes_per_s"])
    micro_batches = count_micro_batches(job, plan.degrees["dp"])
    predicted = estimate_step_time(
        job,
        plan.degrees,
        micro_batches=micro_batches,
        ledger=make_ledger(job, plan.degrees, micro_batches, rates),
        footprints=plan.footprints,
        rates=rates,
        world_size=plan.world_size,
    )
    assert predicted is not None
    tokens = (job.training.global_batch_size or 0) * (job.training.seq_length or 0)
    measured = row["measured_s"] if "measured_s" in row else tokens / row["tokens_per_s_per_gpu"] / row["gpus"]
    d = plan.degrees
    name = f"{row['model']} {row['gpus']} GPUs tp{d['tp']} pp{d['pp']} dp{d['dp']} b{job.training.micro_batch_size} {job.training.recompute[:4]}"
    return StepRow(name, measured, predicted)
