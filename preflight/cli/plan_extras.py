"""What `preflight plan` adds on request: origins of an import, advice, layouts, comparisons. As parts of the document and as text."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from preflight.errors import ConfigError, WorldError

if TYPE_CHECKING:
    from preflight.cli.plan_judge import PlanJudge
    from preflight.model import Advice, Job, Report
    from preflight.plan.importers import Imported


SHAPE = "the model's shape (hidden_size, ffn_size, attention_heads, vocab_size), micro_batch_size, seq_length and the number of micro-batches"


class Extras:
    """Parts of the document by key, and the same as text, in order."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}
        self.texts: list[str] = []

    def add(self, key: str, value: object, text: str) -> None:
        """One more part."""
        self.document[key] = msgspec.to_builtins(value)
        self.texts.append(text)


def add_origins(extras: Extras, imported: "Imported", save: Path | None) -> None:
    """Where each imported value comes from; with `save`, the plan file is written."""
    from preflight.formats import write_atomically
    from preflight.plan.importers import plan_toml
    from preflight.report.origins import origins_text
    from preflight.report.text import clean

    text = origins_text(imported.document, imported.origins, imported.notes)
    if save is not None:
        write_atomically(save, plan_toml(imported.document))
        text += f"written: {clean(str(save))}\n"
    extras.add("imported", {"origins": imported.origins, "notes": imported.notes}, text)


def add_advice(extras: Extras, report: "Report", judge: "PlanJudge", folder: Path | None) -> None:
    """The smallest changes that mend what the findings refuse."""
    from preflight.plan.advise import advise_placement
    from preflight.report.advice import advice_text

    plan = report.evidence.plan
    assert plan is not None
    advices = advise_placement(plan.job, plan, judge.findings, topology=judge.topology)
    text = advice_text(advices)
    if folder is not None:
        text += _write_files(advices, folder)
    extras.add("advice", advices, text)


def _write_files(advices: "tuple[Advice, ...]", folder: Path) -> str:
    """The files that the best advice consists of; says what was written."""
    from preflight.formats import write_atomically
    from preflight.report.text import clean

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorldError(f"{folder}: can't be created: {error.strerror}") from error
    lines = []
    for name, content in advices[0].files.items() if advices else ():
        write_atomically(folder / name, content)
        lines.append(f"written: {clean(str(folder / name))}\n")
    return "".join(lines)


def add_layouts(extras: Extras, job: "Job", judge: "PlanJudge") -> "Report":
    """Layouts for a job without degrees, the best one judged as if it had been given. Raises ConfigError if there is none."""
    from preflight.plan.advise import advise_layouts
    from preflight.report.advice import layouts_text

    layouts = advise_layouts(job, judge.findings, topology=judge.topology)
    if not layouts:
        raise ConfigError(
            job.source,
            "no layout of this model on these GPUs obeys every rule",
            remedy="give more nodes or a smaller batch",
        )
    extras.add("layouts", layouts, layouts_text(layouts))
    return judge.report(msgspec.structs.replace(job, parallel=layouts[0].parallel, training=layouts[0].training))


def add_comparison(extras: Extras, report: "Report", judge: "PlanJudge", other: Path) -> None:
    """The speed-up from another plan to this one, and the term that eats the difference."""
    from preflight.plan.compare import compare
    from preflight.plan.planfile import read_job
    from preflight.report.compare import comparison_text

    plan, baseline = report.evidence.plan, judge.report(read_job(other)).evidence.plan
    assert plan is not None
    assert baseline is not None
    comparison = compare(baseline, plan)
    extras.add("comparison", comparison, comparison_text(comparison))


def add_measured(extras: Extras, report: "Report", memory: str | None, step_time: str | None) -> None:
    """The estimate beside what a run reported, and which term would explain the gap."""
    from preflight.cli.plan_input import parse_duration, parse_measured_memory
    from preflight.report.compare import measured_memory_text, measured_step_text

    plan = report.evidence.plan
    assert plan is not None
    if memory is not None:
        from preflight.plan.measured_memory import compare_memory

        measured = parse_measured_memory(memory)
        if plan.estimate.memory is None:
            raise ConfigError(
                plan.job.source, "doesn't say enough to estimate memory line by line", remedy=f"it needs {SHAPE}"
            )
        rows = compare_memory(plan.estimate.memory, measured)
        extras.add("measured_memory", rows, measured_memory_text(rows))
    if step_time is not None:
        from preflight.plan.measured_step import explain

        measured_s = parse_duration("--measured-step-time", step_time)
        if plan.estimate.step_time is None:
            raise ConfigError(
                plan.job.source,
                "doesn't say enough to predict the time of a step",
                remedy=f"it needs {SHAPE}, and a known gpu",
            )
        gap = explain(plan.estimate.step_time, measured_s, ledger=plan.estimate.ledger, footprints=plan.footprints)
        extras.add("measured_step_time", gap, measured_step_text(gap))
