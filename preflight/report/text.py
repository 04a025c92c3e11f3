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


_BLANK = "\u115f\u1160\u2800\u3164\uffa0"  # letters and signs that show as nothing
_HALF = "\ue000"  # stands for the second column of a wide letter while lines are broken; no clean text has it
_LEAST = 20  # columns of text behind a label


def clean(text: str) -> str:
    """Text from elsewhere (drivers, workers, files) on one line, with nothing in it that steers a terminal or hides text.

    A line break becomes a space; what doesn't print is spelled out, an escape as its Python escape sequence. So are marks that pile up on other letters, letters that show nothing, and those that
    run from right to left: in a table they would move the figures beside them.
    """
    if text.isascii() and text.isprintable():
        return text
    import unicodedata

    spaced = unicodedata.normalize("NFC", " ".join(text.splitlines()))
    return "".join(
        char
        if char.isprintable()
        and (
            char < "\u0300"
            or not (
                char in _BLANK
                or unicodedata.category(char) in {"Mn", "Me"}
                or unicodedata.bidirectional(char) in {"R", "AL", "AN"}
            )
        )
        else ascii(char)[1:-1]
        for char in spaced
    )


def cells(text: str) -> int:
    """How many columns a terminal gives to a clean text: two for a wide letter."""
    if text.isascii():
        return len(text)
    from unicodedata import east_asian_width

    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text with blanks behind it, or before it, up to so many columns."""
    blanks = " " * max(width - cells(text), 0)
    return blanks + text if right else text + blanks


def paint(text: str, verdict: Verdict, *, color: bool) -> str:
    """The text in the verdict's colour, if colour is wanted."""
    return f"\x1b[{_COLOR[verdict]}m{text}\x1b[0m" if color else text


def hang(label: str, text: str, *, width: int, indent: int = 0) -> list[str]:
    """Lines of a wrapped paragraph behind its label; further lines stand under the first word of the text."""
    import textwrap

    first = " " * indent + label
    shown = clean(text)
    shown = shown if shown.strip() else "-"
    if not shown.isascii():
        shown = "".join(_HALF + char if cells(char) == 2 else char for char in shown)
    lines = textwrap.wrap(
        shown,
        # a terminal of a few columns gets long lines rather than one letter per line
        width=max(width, len(first) + _LEAST),
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_on_hyphens=False,
    )
    return lines if shown.isascii() else [line.replace(_HALF, "") for line in lines]


def columns(rows: Sequence[Sequence[str]], *, left: int = 1, indent: int = 2) -> list[str]:
    """Rows as aligned lines: the first `left` columns to the left, the others, numbers, to the right."""
    if not rows:
        return []
    widths = [max(cells(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        " " * indent + "  ".join(pad(cell, widths[i], right=i >= left) for i, cell in enumerate(row)).rstrip()
        for row in rows
    ]


def table(rows: Sequence[Sequence[str]], *, width: int, left: int = 1, indent: int = 2) -> list[str]:
    """Rows under a heading as aligned lines; where those are wider than the terminal, each row as a paragraph: its names, then "heading figure" one after the other. Nothing is left out."""
    lines = columns(rows, left=left, indent=indent)
    if not lines or max(map(cells, lines)) <= width:
        return lines
    heads = rows[0]
    lines = []
    for row in rows[1:]:
        name = clean(" ".join(cell for cell in row[:left] if cell))
        figures = ", ".join(
            f"{head} {cell}".strip() for head, cell in zip(heads[left:], row[left:], strict=True) if cell
        )
        lines += hang("", f"{name}: {figures}", width=width, indent=indent)
    return lines


def shorten(text: str, width: int) -> str:
    """At most `width` columns, the cut marked."""
    if cells(text) <= width:
        return text
    kept = text[: max(width - 3, 1)]
    while len(kept) > 1 and cells(kept) > width - 3:
        kept = kept[:-1]
    return kept + "..."


def in_reading_order(axes: Collection[str]) -> list[str]:
    """The axes as people read them: tp first; one that has no place in that order comes last."""
    return [*(axis for axis in AXES if axis in axes), *sorted(set(axes) - set(AXES))]
