"""Open if, case and loops of a shell script, and whether what stands in them runs: True, False, or None where that can't be known."""

from collections.abc import Sequence
from typing import NamedTuple

from preflight.plan.importers.shell_expand import marks

OPENING = frozenset({"if", "while", "until"})
BRANCHING = frozenset({"then", "do", "elif", "else", "fi", "done", "esac"})


class _Block(NamedTuple):
    """`around`: whether the block is reached at all. `active`: whether its commands run then. `decided`: a branch of it has run. `word`: that
    of case. Kinds: if, while, until, for, case (commands), case? (before a pattern), case| (between the alternatives of one).
    """

    kind: str
    around: bool | None
    active: bool | None
    decided: bool | None = False
    word: str = ""


class Blocks:
    """The stack of open blocks."""

    def __init__(self) -> None:
        self._stack: list[_Block] = []

    @property
    def state(self) -> bool | None:
        """Whether commands here run."""
        return both(self._stack[-1].around, self._stack[-1].active) if self._stack else True

    @property
    def awaits_pattern(self) -> bool:
        """Whether a pattern of case comes next."""
        return bool(self._stack) and self._stack[-1].kind in {"case?", "case|"}

    @property
    def in_case(self) -> bool:
        """Whether commands of case come next."""
        return bool(self._stack) and self._stack[-1].kind == "case"

    def open(self, keyword: str, *, active: bool | None = True, word: str = "") -> None:
        """A block begins; what comes first is its condition, or for case its patterns."""
        kind = "case?" if keyword == "case" else keyword
        self._stack.append(_Block(kind, around=self.state, active=active, word=word))

    def branch(self, keyword: str, condition: bool | None) -> None:
        """then, do, elif and else open a branch of the last block, `condition` being what its condition answered; fi, done and esac close it."""
        if not self._stack:
            return
        block = self._stack[-1]
        if keyword in {"fi", "done", "esac"}:
            self._stack.pop()
        elif block.kind in {"while", "until"}:
            never = condition is (block.kind == "until")  # a body that runs runs an unknown number of times
            self._stack[-1] = block._replace(active=False if never else None)
        elif keyword == "then":
            active = both(condition, _not(block.decided))
            self._stack[-1] = block._replace(active=active, decided=_either(block.decided, condition))
        elif keyword == "elif":
            self._stack[-1] = block._replace(active=not block.decided)
        elif keyword == "else":
            self._stack[-1] = block._replace(active=_not(block.decided))

    def pattern(self, patterns: Sequence[str], end: str) -> None:
        """One alternative of a pattern of case, as in 70B|70b). `end`: the operator after it."""
        block = self._stack[-1]
        matched: bool | None = None
        if list(patterns) == ["*"]:
            matched = True
        elif not marks(block.word) and not any(set("*?[") & set(pattern) for pattern in patterns):
            matched = block.word in patterns
        if block.kind == "case|":
            matched = _either(block.active, matched)
        if end == "|":
            self._stack[-1] = block._replace(kind="case|", active=matched)
        elif end == ")":
            active = both(matched, _not(block.decided))
            self._stack[-1] = block._replace(kind="case", active=active, decided=_either(block.decided, matched))

    def next_case(self) -> None:
        """Commands of one pattern of case have ended."""
        self._stack[-1] = self._stack[-1]._replace(kind="case?")


def both(a: bool | None, b: bool | None) -> bool | None:
    """a and b."""
    return False if a is False or b is False else None if a is None or b is None else True


def _either(a: bool | None, b: bool | None) -> bool | None:
    return True if a or b else None if a is None or b is None else False


def _not(a: bool | None) -> bool | None:
    return None if a is None else not a
