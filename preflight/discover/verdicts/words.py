"""The words of other tools for our verdicts."""

from typing import Literal

OurVerdict = Literal["FAIL", "UNKNOWN", "WARN", "PASS", "SKIP"]

_WORDS: dict[str, OurVerdict] = {
    **dict.fromkeys(("pass", "passed", "ok", "healthy"), "PASS"),
    **dict.fromkeys(("warn", "warning"), "WARN"),
    **dict.fromkeys(("fail", "failed", "critical", "crit", "unhealthy"), "FAIL"),
    **dict.fromkeys(("skip", "skipped"), "SKIP"),
    "unknown": "UNKNOWN",
}
# Monitoring Plugins, "Development Guidelines", plug-in return codes
_CODES: dict[int, OurVerdict] = {0: "PASS", 1: "WARN", 2: "FAIL", 3: "UNKNOWN"}


def verdict_of(word: str) -> OurVerdict | None:
    """Our verdict for a tool's word, in any case; None if it is none."""
    return _WORDS.get(word.strip().casefold())


def verdict_of_code(code: int) -> OurVerdict:
    """Our verdict for the exit code of a plug-in: codes without a meaning are unknown."""
    return _CODES.get(code, "UNKNOWN")


def one_line(text: str, limit: int = 300) -> str:
    """A text as one printable line, cut at the limit."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
