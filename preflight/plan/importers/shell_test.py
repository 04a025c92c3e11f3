"""What [ ... ], [[ ... ]] and test would answer, as far as the words say: True, False, or None where that can't be known."""

import re
from collections.abc import Callable, Sequence

from preflight.plan.importers.shell_expand import marks

MAX_TERMS = 40

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}


def is_test(words: Sequence[str]) -> bool:
    """Whether a command is a test."""
    return bool(words) and words[0] in {"[", "[[", "test"}


def answer(words: Sequence[str], unset: Callable[[str], bool]) -> bool | None:
    """The answer of a test. `unset`: told the name of a variable that the file never sets, says whether to take it as not set."""
    terms = [word for word in words[1:] if word not in {"]", "]]"}]
    if len(terms) > MAX_TERMS:
        return None
    if terms[:1] == ["!"]:
        inner = answer(["[", *terms[1:]], unset)
        return None if inner is None else not inner
    for joint, decides in (("||", True), ("-o", True), ("&&", False), ("-a", False)):
        if joint in terms[1:]:
            at = terms.index(joint, 1)
            both = answer(["[", *terms[:at]], unset), answer(["[", *terms[at + 1 :]], unset)
            return decides if decides in both else None if None in both else not decides
    if len(terms) == 3:
        return _comparison(*terms)
    if len(terms) == 1 or (len(terms) == 2 and terms[0] in {"-z", "-n"}):
        return _emptiness(terms[-1], unset, wanted=terms[0] == "-z" and len(terms) == 2)
    return None


def _emptiness(text: str, unset: Callable[[str], bool], *, wanted: bool) -> bool | None:
    """Whether a text is empty (`wanted` True) or not empty (False)."""
    unknown = marks(text)
    if not unknown:
        return (text == "") == wanted
    alone = (
        len(unknown) == 1
        and text.startswith("\0")
        and text.endswith("\0")
        and re.fullmatch(r"\$[A-Za-z_]\w*", unknown[0])
    )
    return wanted if alone and unset(unknown[0][1:]) else None


def _comparison(left: str, operator: str, right: str) -> bool | None:
    if marks(left + right):
        return None
    if operator in _NUMBERS:
        if not all(re.fullmatch(r"\s*-?\d{1,18}\s*", text) for text in (left, right)):
            return None
        return _NUMBERS[operator](int(left), int(right))
    if set("*?[") & set(right):
        return None  # a pattern
    if operator in {"=", "=="}:
        return left == right
    return left != right if operator == "!=" else None
