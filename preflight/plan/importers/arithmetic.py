"""Whole-number arithmetic of the shell, as in $((NNODES * GPUS_PER_NODE)): read, never executed."""

import re
from collections.abc import Callable

from preflight.plan.importers.facts import MAX_DIGITS

MAX_TOKENS, MAX_DEPTH = 200, 20

_TOKEN = re.compile(r"\s*(?:(\d[\d_]*)|\$?\{?([A-Za-z_]\w*)\}?|(\*\*|==|!=|<=|>=|&&|\|\||[-+*/%()<>?:]))")
_PRECEDENCE = {
    "||": 1,
    "&&": 2,
    "==": 3,
    "!=": 3,
    "<": 4,
    ">": 4,
    "<=": 4,
    ">=": 4,
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
    "%": 6,
    "**": 7,
}


class UnknownNumberError(Exception):
    """An expression has no value that the file alone would give."""


def evaluate(text: str, value_of: Callable[[str], str | None]) -> int:
    """The value of an expression. `value_of`: text of a variable, None if unknown. Raises UnknownNumberError.

    >>> evaluate("NODES * 8 / 4", {"NODES": "6"}.get)
    12
    """
    tokens: list[int | str] = []
    position, text = 0, text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or len(tokens) >= MAX_TOKENS:
            raise UnknownNumberError
        number, name, operator = match.groups()
        tokens.append(_number(number or value_of(name)) if operator is None else operator)
        position = match.end()
    value, rest = _expression(tokens, 0, 0, 0)
    if rest != len(tokens):
        raise UnknownNumberError
    return value


def _number(text: str | None) -> int:
    if text is None or not re.fullmatch(rf"-?\d[\d_]{{0,{MAX_DIGITS - 1}}}", text.strip()):
        raise UnknownNumberError
    return int(text.replace("_", ""))


def _expression(tokens: list[int | str], at: int, lowest: int, depth: int) -> tuple[int, int]:
    """Value and end of the expression at `at` whose operators bind at least as strongly as `lowest`; 0 takes a ? b : c too."""
    left, at = _operand(tokens, at, depth)
    while at < len(tokens):
        operator = tokens[at]
        strength = _PRECEDENCE.get(operator, 0) if isinstance(operator, str) else 0
        if operator == "?" and lowest == 0:
            chosen, at = _expression(tokens, at + 1, 0, depth + 1)
            if tokens[at : at + 1] != [":"]:
                raise UnknownNumberError
            other, at = _expression(tokens, at + 1, 0, depth + 1)
            return (chosen if left else other), at
        if strength < lowest or not isinstance(operator, str) or strength == 0:
            break
        right, at = _expression(tokens, at + 1, strength + (operator != "**"), depth + 1)
        left = _apply(operator, left, right)
    return left, at


def _operand(tokens: list[int | str], at: int, depth: int) -> tuple[int, int]:
    if at >= len(tokens) or depth > MAX_DEPTH:
        raise UnknownNumberError
    item = tokens[at]
    if isinstance(item, int):
        return item, at + 1
    if item in {"-", "+"}:
        value, at = _operand(tokens, at + 1, depth + 1)
        return (-value if item == "-" else value), at
    if item != "(":
        raise UnknownNumberError
    value, at = _expression(tokens, at + 1, 0, depth + 1)
    if at >= len(tokens) or tokens[at] != ")":
        raise UnknownNumberError
    return value, at + 1


def _apply(operator: str, a: int, b: int) -> int:
    """As the shell does it: division rounds towards zero, comparisons give 1 or 0."""
    if operator in {"/", "%"}:
        if b == 0:
            raise UnknownNumberError
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return quotient if operator == "/" else a - b * quotient
    if operator == "**":
        if not 0 <= b <= 64:
            raise UnknownNumberError
        value = int(a**b)
    elif operator in {"+", "-", "*"}:
        value = a + b if operator == "+" else a - b if operator == "-" else a * b
    else:
        both = {"==": a == b, "!=": a != b, "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b}
        both |= {"&&": bool(a and b), "||": bool(a or b)}
        value = int(both[operator])
    if abs(value) >= 10**MAX_DIGITS:
        raise UnknownNumberError
    return value
