"""Measured memory of published runs (tests/plan/rows), and what our estimate says of each."""

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from preflight.formats import read_toml
from preflight.model import Job, Memory, ModelShape, Parallel, Training
from preflight.model.units import GIB
from preflight.plan.estimate import count_micro_batches
from preflight.plan.memory import estimate_memory, stage_memory
from preflight.plan.memory_setup import resolve
from preflight.plan.shape import count_parameters
from preflight.plan.transient import outside_bytes
from tests.plan.shapes import SHAPES

FOLDER = Path(__file__).parent / "rows" / "memory"


class Row(NamedTuple):
    """One measured row. `measured_gib` None: it ran out of memory. `kind`: "allocated" or "reserved" by torch, or all of the "device". `stage`: "fullest" or "last", whose GPUs were read."""

    table: str
    name: str
    use: str
    kind: str
    stage: str
    capacity_gib: float
    measured_gib: float | None
    job: Job
    degrees: dict[str, int]

    @property
    def memory(self) -> Memory:
        """Our estimate."""
        micro_batches = count_micro_batches(self.job, self.degrees["dp"])
        if self.stage == "last":
            setup = resolve(self.job, self.degrees, micro_batches)
            assert setup is not None
            memory = stage_memory(self.job, self.degrees, setup, self.degrees["pp"] - 1)
        else:
            memory = estimate_memory(self.job, self.degrees, micro_batches)
        assert memory is not None
        return memory

    @property
    def estimated_gib(self) -> float:
        """Of what was measured: without reserve for "allocated", without what lies outside the allocator for "reserved"."""
        memory = self.memory
        [reserve] = [line.size_bytes for line in memory.lines if line.part == "reserve"]
        left_out = {"allocated": reserve, "reserved": outside_bytes(self.degrees), "device": 0}[self.kind]
        return (memory.total_bytes - left_out) / GIB

    @property
    def error(self) -> float:
        """Of the estimate, as a share of what was measured."""
        assert self.measured_gib is not None
        return self.estimated_gib / self.measured_gib - 1


def read_rows() -> list[Row]:
    """All rows of all tables."""
    return [
        _row(path.stem, document, row)
        for path in sorted(FOLDER.glob("*.toml"))
        for document in [read_toml(path)]
        for row in document["rows"]
    ]


def _row(table: str, document: dict[str, Any], row: dict[str, Any]) -> Row:
    given = {key: value for key, value in row.items() if key not in {"name", "use", "note", "measured", "shape"}}
    sections = {name: dict(document.get("job", {}).get(name, {})) for name in ("model", "parallel", "training")}
    sections["model"] |= SHAPES[row["shape"]] if "shape" in row else {"ffn_size": 4 * row["hidden_size"]}
    for key, value in given.items():
        owner = next(
            name
            for name, noun in (("model", ModelShape), ("parallel", Parallel), ("training", Training))
            if key in noun.__struct_fields__
        )
        sections[owner][key] = value
    model = ModelShape(parameters=1, **sections["model"])
    model = msgspec.structs.replace(model, parameters=count_parameters(model) or 0)
    parallel, training = Parallel(**sections["parallel"]), Training(**sections["training"])
    shard = parallel.dp_shard or parallel.dp or 1
    degrees = {"tp": parallel.tp, "cp": parallel.cp, "ep": parallel.ep, "dp": shard, "pp": parallel.pp}
    if parallel.dp_shard is not None:
        degrees["dp_shard"] = shard
    if parallel.ep > 1:
        etp = parallel.etp or parallel.tp
        degrees |= {"etp": etp, "edp": parallel.tp * parallel.cp * shard // (etp * parallel.ep)}
    measured = None if row["measured"] == "OOM" else float(row["measured"])
    name = row.get("name") or (
        f"h {model.hidden_size} L {model.layers} a {model.attention_heads}, {shard}/{parallel.tp}/{parallel.pp}, MBS {training.micro_batch_size}, {training.precision} ZeRO-{parallel.zero_stage}"
    )
    return Row(
        table=table,
        name=name,
        use=row["use"],
        kind=document["kind"],
        stage=document["stage"],
        capacity_gib=document["gpu_memory_gib"],
        measured_gib=measured,
        job=Job(source=f"{table}.toml", model=model, parallel=parallel, training=training),
        degrees=degrees,
    )
