"""Text for people: made safe, wrapped, set in columns, coloured on request."""

from collections.abc import Collection, Sequence

from preflight.model import AXES, Verdict

_COLOR = {
    Verdict.FAIL: "1;31",  # bold red
    Verdict.UNKNOWN: "35",  # magenta
    Verdict.WARN: "33",  # yellow
    Verdict.PASS: "32",  # green
    Verdict.SKIP: "2",  # faint
}


def clean(text: str) -> str:
    """Text from elsewhere (drivers, workers, files) on one line, with nothing in it that steers a terminal or hides text.

    A line break becomes a space; what doesn't print is spelled out, an escape as its Python escape sequence.
    """
    if text.isprintable():
        return text
    spaced = " ".join(text.splitlines())
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in spaced)


def paint(text: str, verdict: Verdict, *, color: bool) -> str:
    """The text in the verdict's colour, if colour is wanted."""
    return f"\x1b[{_COLOR[verdict]}m{text}\x1b[0m" if color else text


def hang(label: str, text: str, *, width: int, indent: int = 0) -> list[str]:
    """Lines of a wrapped paragraph behind its label; further lines stand under the first word of the text."""
    import textwrap

    first = " " * indent + label
    return textwrap.wrap(
        clean(text) or "-",
        # a terminal of a few columns gets long lines rather than one letter per line
        width=max(width, len(first) + 20),
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_on_hyphens=False,
    )


def columns(rows: Sequence[Sequence[str]], *, left: int = 1, indent: int = 2) -> list[str]:
    """Rows as aligned lines: the first `left` columns to the left, the others, numbers, to the right."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        " " * indent
        + "  ".join(cell.ljust(widths[i]) if i < left else cell.rjust(widths[i]) for i, cell in enumerate(row)).rstrip()
        for row in rows
    ]


def shorten(text: str, width: int) -> str:
    """At most `width` characters, the cut marked."""
    return text if len(text) <= width else text[: max(width - 3, 1)] + "..."


def in_reading_order(axes: Collection[str]) -> list[str]:
    """The axes as people read them: tp first; one that has no place in that order comes last."""
    return [*(axis for axis in AXES if axis in axes), *sorted(set(axes) - set(AXES))]
