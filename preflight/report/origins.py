"""An imported plan with the place where each value was said."""

from collections.abc import Mapping, Sequence
from typing import Any

from preflight.report.text import clean, columns


def origins_text(
    document: Mapping[str, Mapping[str, Any]], origins: Mapping[str, str], notes: Sequence[str] = ()
) -> str:
    """One line for each value: key, value, origin; then the notes.

    `document`: section -> key -> value. `origins`: "section.key" -> "file:line what it said"; a key without one was not imported.
    """
    rows = [["key", "value", "said by"]]
    for section, values in document.items():
        for key, value in values.items():
            name = f"{section}.{key}"
            rows.append([clean(name), clean(_show(value)), clean(origins.get(name, "-"))])
    lines = columns(rows, left=3) if len(rows) > 1 else ["nothing was found in these files"]
    if notes:
        lines += ["", "Seen, and not taken as said:", *(f"  {clean(note)}" for note in notes)]
    return "\n".join(lines) + "\n"


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_show, value)) + "]"
    return str(value)
