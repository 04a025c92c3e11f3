"""What commands print: data to stdout, in the format asked for, never failing on a terminal that can't show a letter."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

import click

from preflight.cli.exit import EXIT_STYLES
from preflight.errors import UsageError
from preflight.model import Report, to_json

Format = Literal["text", "json", "jsonl", "junit", "nagios"]
FORMATS: tuple[Format, ...] = ("text", "json", "jsonl", "junit", "nagios")

F = TypeVar("F", bound=Callable[..., object])


def format_option(command: F) -> F:
    """`--format text|json|jsonl|junit|nagios`, the argument `format_`."""
    return click.option(
        "--format",
        "format_",
        envvar="PREFLIGHT_FORMAT",
        type=click.Choice(FORMATS),
        default="text",
        show_default=True,
        help="How to print: json is the whole report, jsonl one line for each finding and one for the run, nagios one line with figures (a plug-in's exit code: --exit-style nagios).",
    )(command)


def exit_style_option(command: F) -> F:
    """`--exit-style preflight|nagios`, the argument `exit_style`."""
    return click.option(
        "--exit-style",
        type=click.Choice(EXIT_STYLES),
        default="preflight",
        show_default=True,
        help="preflight: 0 go, 10 no-go, 3 undecided. nagios: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.",
    )(command)


def print_report(report: Report, format_: Format) -> None:
    """The report on stdout."""
    if format_ == "json":
        print_text(to_json(report).decode())
    elif format_ == "jsonl":
        print_lines(report)
    elif format_ == "junit":
        from preflight.report.junit import junit_text

        print_text(junit_text(report))
    elif format_ == "nagios":
        from preflight.report.nagios import nagios_text

        print_text(nagios_text(report))
    else:
        from preflight.report.console import report_text

        print_text(report_text(report, width=terminal_width(), color=wants_color()))


def print_text(text: str) -> None:
    """Text on stdout; letters that its encoding lacks are spelled out, since a C locale must not cost the report.

    A reader (head, less) that has gone away has what it wanted: the rest goes nowhere, and the verdict stays. So it does where the disk is full, which is said.
    """
    if not text.isascii():
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    with _while_somebody_reads():
        sys.stdout.write(text)


def print_bytes(data: bytes, *, exact: bool = False) -> bool:
    """UTF-8 text on stdout as it is, past the layer that would decode and encode megabytes of it once more; else as `print_text`. False: it could not be written, for want of room, say.

    `exact`: it is read by programs, so that no letter is spelled out, whatever the terminal shows.
    """
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None or not (exact or data.isascii()):
        print_text(data.decode())
        return True
    with _while_somebody_reads() as failed:
        sys.stdout.flush()
        binary.write(data)
        binary.flush()
    return not failed


def print_lines(report: Report) -> None:
    """The report as JSON lines on stdout, each by one write: with >> several commands may append to one file at a time."""
    from preflight.report.json_lines import json_lines, write_lines

    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # stdout is no file: somebody caught it within this process
        print_text("".join(json_lines(report)))
        return
    with _while_somebody_reads():
        sys.stdout.flush()
        write_lines(descriptor, report)


def refuse_target(option: str, target: Path, *sources: Path) -> None:
    """Raises UsageError: what would be written is what is read, and a measurement can't be had twice."""
    for source in sources:
        for each in (source, source / "report.json", source / "report.json.gz"):
            with contextlib.suppress(OSError, ValueError):  # one of them is not there
                if target.samefile(each) and not target.is_dir():
                    raise UsageError(f"{option} {target}: is what is read; name another file")


@contextlib.contextmanager
def _while_somebody_reads() -> Iterator[list[OSError]]:
    """The list holds why not all could be written; a reader that has gone away is no such reason."""
    failed: list[OSError] = []
    try:
        yield failed
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            failed.append(error)
            with contextlib.suppress(OSError):
                print(f"preflight: the output can't be written: {error.strerror}", file=sys.stderr)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def wants_color() -> bool:
    """Colour only on a terminal, and not where NO_COLOR is set to anything (no-color.org) or the terminal is dumb."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width(widest: int = 160) -> int:
    """Columns of the terminal, from 40 to `widest`, which is what is readable; 100 elsewhere, so that logs can be compared."""
    if not sys.stdout.isatty():
        return 100
    import shutil  # with all its archive formats

    return min(max(shutil.get_terminal_size().columns, 40), widest)
