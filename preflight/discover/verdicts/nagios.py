"""Output of Nagios plug-ins, saved with their exit code. Three forms:

- lines "<exit code> <text>", one for each plug-in: `echo "$? $output"`; "#" begins a comment;
- a plug-in's whole output, and its exit code alone on the last line: `(check_disk -w 10%; echo $?) > disk.txt`;
- a plug-in's output alone: the exit code is given beside it, or else the word in its first line (OK, WARNING, CRITICAL, UNKNOWN) counts.

What follows a "|" is performance data and is left out. Source: Monitoring Plugins, "Development Guidelines" (output and return codes).
"""

import re

from preflight.discover.verdicts.words import one_line, verdict_of, verdict_of_code
from preflight.errors import ConfigError
from preflight.model import OutsideVerdict

_CODED = re.compile(r"^(\d{1,3})\s+(\S.*)$")
_ALONE = re.compile(r"^\d{1,3}$")
_WORD = re.compile(r"^(.{0,40}?)\b(OK|WARNING|WARN|CRITICAL|CRIT|UNKNOWN)\b")
MAX_LINES = 5000


def read_nagios(text: str, name: str, source: str, exit_code: int | None = None) -> tuple[OutsideVerdict, ...]:
    """The verdicts in such a file. `name`: of the file, for verdicts whose text names nothing. Raises ConfigError if it has none of the forms."""
    lines = [line.strip() for line in text.splitlines()[:MAX_LINES]]
    lines = [line for line in lines if line and not line.startswith("#")]
    if exit_code is not None:
        return (of_output(lines[0] if lines else "", exit_code, name),)
    if len(lines) > 1 and _ALONE.match(lines[-1]):
        return (of_output(lines[0], int(lines[-1]), name),)
    coded = [_CODED.match(line) for line in lines]
    if lines and all(coded):
        return tuple(of_output(match[2], int(match[1]), name) for match in coded if match)
    first = _WORD.match(lines[0]) if lines else None
    verdict = verdict_of(first[2]) if first else None
    if verdict is None:
        raise ConfigError(
            source,
            "is no output of a Nagios plug-in: no exit code, and no OK, WARNING, CRITICAL or UNKNOWN in its first line",
            remedy='write lines "<exit code> <text>", or the plug-in\'s output and its exit code on the last line',
        )
    return (OutsideVerdict(origin=name, name=_title(lines[0]) or name, verdict=verdict, text=_said(lines[0])),)


def of_output(line: str, code: int, name: str) -> OutsideVerdict:
    """The verdict of one plug-in: its first line of output, and its exit code."""
    text = _said(line)
    if code not in range(4):
        text = f"exit code {code}" + (f": {text}" if text else "")
    return OutsideVerdict(origin=name, name=_title(line) or name, verdict=verdict_of_code(code), text=text)


def _said(line: str) -> str:
    return one_line(line.partition("|")[0])


def _title(line: str) -> str:
    """What stands before the word, as in "DISK CRITICAL - 2 % free"."""
    match = _WORD.match(line)
    return one_line(match[1]).strip(" -:[") if match else ""
