"""Advice as text: repairs of a placement with what to paste, and layouts as a ranked table with the reason of each place."""

from collections.abc import Sequence

from preflight.model import AXES, Advice, Change, LayoutAdvice, Parallel, Tally, Training
from preflight.model.units import show_bytes, show_seconds
from preflight.report.text import clean, columns

MAX_FILE_LINES = (
    6  # of a file shown in the text: all of it is in the file that --advise-dir writes, and in the document
)
MAX_LEFT = 4


def advice_text(advices: Sequence[Advice]) -> str:
    """Each repair with its verdicts before and after; one line if there is none."""
    if not advices:
        return "Advice\n  none: no other placement, and no change that we try, makes it better; what else to do stands in the findings\n"
    lines = ["Advice, the smallest change first; each was laid out and judged again"]
    for number, advice in enumerate(advices, 1):
        lines += _advice(number, advice)
    return "".join(f"{line}\n" for line in lines)


def layouts_text(layouts: Sequence[LayoutAdvice]) -> str:
    """The ranked list as a table, then why each stands where it stands, then the first one as sections of a plan file."""
    if not layouts:
        return "Layouts\n  none\n"
    axes = [axis for axis in AXES if any(layout.degrees.get(axis, 1) > 1 for layout in layouts) and axis in _SHOWN]
    chunks = any(layout.parallel.virtual_stages > 1 for layout in layouts)
    again = any(layout.training.recompute != "none" for layout in layouts)
    options = [name for name, shown in (("chunks", chunks), ("recompute", again)) if shown]
    figures = ["micro-batch", "batch", "memory", "idle", "step", "tokens/s", "MFU", ""]
    header = ["", *axes, *options, *figures]
    rows = [header] + [
        _row(number, layout, axes, chunks=chunks, again=again) for number, layout in enumerate(layouts, 1)
    ]
    heading = "No layout fits into the GPUs; these come nearest" if layouts[0].fits is False else "Layouts, best first"
    table = columns([row[:-1] for row in rows], left=0)
    lines = [
        heading,
        *(f"{line}  {row[-1]}".rstrip() for line, row in zip(table, rows, strict=True)),
        "",
        "Why the first, and what each has less than the one before it",
    ]
    for number, layout in enumerate(layouts, 1):
        why = layout.strength if number == 1 else layout.why_behind
        lines.append(f"  {number}  {clean(why)}")
    lines += ["", "The first one, for the plan file", *(f"  {line}" for line in _sections(layouts[0]))]
    if layouts[0].paste:
        lines += ["", f"The first one, for {layouts[0].parallel.framework}", f"  {clean(layouts[0].paste)}"]
    return "".join(f"{line.rstrip()}\n" for line in lines)


_SHOWN = {"tp", "cp", "ep", "dp", "pp"}


def _advice(number: int, advice: Advice) -> list[str]:
    label = "" if advice.complete else "PARTIAL: "
    lines = [f"  {number}. {label}{clean(advice.title)}"]
    for change in advice.changes:
        lines += [f"       {clean(line)}" for line in change.paste.splitlines()]
        lines += _file(change)
    keys = {key: value for change in advice.changes for key, value in change.keys.items()}
    if keys:
        shown = ", ".join(
            f"{key} = {_short(value)}" if value is not None else f"no {key}" for key, value in keys.items()
        )
        lines.append(f"     in the plan file: {clean(shown)}")
    lines.append(f"     before: {_tally(advice.before)}; after: {_tally(advice.after)}{_steps(advice)}")
    if advice.left:
        more = len(advice.left) - MAX_LEFT
        shown = "; ".join(advice.left[:MAX_LEFT]) + (f"; and {more} more" if more > 0 else "")
        lines.append(f"     left: {clean(shown)}")
    return lines


def _file(change: Change) -> list[str]:
    if change.filename is None or change.content is None:
        return []
    content = change.content.splitlines()
    lines = [f"       {clean(change.filename)} ({len(content)} lines):"]
    lines += [f"         {clean(line)}" for line in content[:MAX_FILE_LINES]]
    return lines + (["         ..."] if len(content) > MAX_FILE_LINES else [])


def _tally(tally: Tally) -> str:
    split = f", {tally.split_groups} groups apart" if tally.split_groups else ""
    unknown = f", {tally.unknown} UNKNOWN" if tally.unknown else ""
    return f"{tally.fail} FAIL{unknown}, {tally.warn} WARN{split}"


def _steps(advice: Advice) -> str:
    if advice.step_before_s is None or advice.step_after_s is None:
        return ""
    return f"; step {show_seconds(advice.step_before_s)} -> {show_seconds(advice.step_after_s)}"


def _short(value: str) -> str:
    return value if len(value) <= 60 else value[:57] + "..."


def _row(number: int, layout: LayoutAdvice, axes: Sequence[str], *, chunks: bool, again: bool) -> list[str]:
    memory = show_bytes(layout.memory_bytes)
    said = dict.fromkeys(text.partition(":")[0] for text in layout.left)  # "WARN memory_fit", each once
    judged = ", ".join((["does not fit"] if layout.fits is False else []) + [clean(text) for text in said][:MAX_LEFT])
    return [
        str(number),
        *(str(layout.degrees.get(axis, 1)) for axis in axes),
        *([str(layout.parallel.virtual_stages)] if chunks else []),
        *([layout.training.recompute] if again else []),
        f"{layout.micro_batches} x {layout.training.micro_batch_size}",
        str(layout.global_batch_size),
        memory,
        f"{layout.idle_share:.1%}",
        "?" if layout.step_s is None else show_seconds(layout.step_s),
        "?" if layout.tokens_per_s is None else f"{layout.tokens_per_s:.0f}",
        "?" if layout.mfu is None else f"{layout.mfu:.1%}",
        judged,
    ]


def _sections(layout: LayoutAdvice) -> list[str]:
    """What differs from an empty plan file, as TOML."""
    lines = ["[parallel]"]
    lines += [f"{key} = {value}" for key, value in _changed(layout.parallel, Parallel())]
    lines += ["[training]"]
    return lines + [f"{key} = {value}" for key, value in _changed(layout.training, Training())]


def _changed(section: Parallel | Training, empty: Parallel | Training) -> list[tuple[str, str]]:
    found = []
    for key in section.__struct_fields__:
        value = getattr(section, key)
        if value is None or (value == getattr(empty, key) and key != "framework"):
            continue
        found.append((key, _toml(value, key)))
    return found


def _toml(value: object, key: str) -> str:
    """A value as a plan file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f'"{"-".join(value)}"' if key == "order" else f"[{', '.join(str(item) for item in value)}]"
    return f'"{value}"' if isinstance(value, str) else f"{value}"
