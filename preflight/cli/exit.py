"""Exit codes: one for each answer. 1 is never a verdict of ours; Nagios' convention is there for those who ask for it."""

from collections.abc import Sequence
from typing import Literal

from preflight.model import Answer, Finding, Verdict

ExitStyle = Literal["preflight", "nagios"]
EXIT_STYLES: tuple[ExitStyle, ...] = ("preflight", "nagios")

_BY_ANSWER: dict[Answer, int] = {"go": 0, "no-go": 10, "undecided": 3}
_NAGIOS: dict[Answer, int] = {"go": 0, "no-go": 2, "undecided": 3}  # OK, CRITICAL, UNKNOWN


def exit_code(answer: Answer, findings: Sequence[Finding] = (), style: ExitStyle = "preflight") -> int:
    """go 0, no-go 10, undecided 3; Nagios: OK 0, WARNING 1 (go, with a WARN among the findings), CRITICAL 2, UNKNOWN 3."""
    if style == "preflight":
        return _BY_ANSWER[answer]
    if answer == "go" and any(finding.verdict is Verdict.WARN for finding in findings):
        return 1
    return _NAGIOS[answer]
