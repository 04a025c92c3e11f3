"""What a value of a plan file may be: each reader takes what TOML gave and returns what we use, or says what it expected."""

from collections.abc import Callable
from typing import Any

from preflight.model.units import parse_bytes, parse_count

Reader = Callable[[object], Any]


class WrongValueError(Exception):
    """A value is not what a key expects. `expected` completes the sentence "... is not ..."."""

    def __init__(self, expected: str) -> None:
        self.expected = expected
        super().__init__(expected)


def whole(high: int) -> Reader:
    """A whole number from 1 to `high`."""

    def read(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= high:
            return value
        raise WrongValueError(f"a whole number from 1 to {high}")

    return read


def count(high: int) -> Reader:
    """A whole number from 1 to `high`, also as 70e9, or a text such as "70B"."""
    read = _number_or_text(parse_count, high, 'a whole number from 1 to {high}, or a text such as "70B" or "1.5T"')
    return lambda value: read(int(value) if isinstance(value, float) and value.is_integer() else value)


def size(high: int, low: int = 1) -> Reader:
    """Bytes: a whole number from `low` to `high`, or a text such as "80GB". 80 alone is 80 bytes, which nobody means."""
    read_any = _number_or_text(parse_bytes, high, 'a size up to {high} bytes, such as "80GB" or "64MiB"')

    def read(value: object) -> Any:
        number = read_any(value)
        if number < low:
            raise WrongValueError(f'a size from {low} to {high} bytes, such as "80GB"')
        return number

    return read


def rate(high: int) -> Reader:
    """Bytes per second: a text such as "450GB/s" or a whole number. Gb/s are none: ports are sold in bits, and eight times too much would be expected of each."""
    example = 'such as "450GB/s"'
    read_size = _number_or_text(parse_bytes, high, f"a rate up to {{high}} bytes per second, {example}")

    def read(value: object) -> Any:
        unit = value.strip().removesuffix("/s").rstrip() if isinstance(value, str) else ""
        if unit.endswith("b"):
            raise WrongValueError(f'a rate in bytes, {example}: a b is a bit, and "400Gb/s" are "50GB/s"')
        return read_size(unit if isinstance(value, str) else value)

    return read


def from_zero(high: int) -> Reader:
    """A whole number from 0 to `high`."""

    def read(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= high:
            return value
        raise WrongValueError(f"a whole number from 0 to {high}")

    return read


def decimal(low: float, high: float) -> Reader:
    """A number from `low` to `high`."""

    def read(value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            return float(value)
        raise WrongValueError(f"a number from {low:g} to {high:g}")

    return read


def flag(value: object) -> bool:
    """true or false."""
    if isinstance(value, bool):
        return value
    raise WrongValueError("true or false")


def wholes(high: int) -> Reader:
    """A list of whole numbers from 1 to `high`, as a tuple."""
    read_one = whole(high)

    def read(value: object) -> tuple[int, ...]:
        if not isinstance(value, list) or not value:
            raise WrongValueError(f"a list of whole numbers from 1 to {high}, such as [2, 4]")
        return tuple(read_one(item) for item in value)

    return read


def one_of(*words: str, other: str | None = None) -> Reader:
    """One of a few words. `other`: what else the caller would take, for the message."""

    def read(value: object) -> str:
        if isinstance(value, str) and value in words:
            return value
        raise WrongValueError(f"one of {', '.join(words)}" + (f", or {other}" if other else ""))

    return read


def text(value: object) -> str:
    """A text with something in it, on one line, of at most 200 characters."""
    if isinstance(value, str) and value.strip() and value.isprintable() and len(value) <= 200:
        return value
    raise WrongValueError("a text of one line (1 to 200 characters)")


def show(value: object) -> str:
    """A value for a message: short, on one line, whatever it is."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"  # Python refuses to print very long ones
    shown = repr(value[:200] if isinstance(value, str) else value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _number_or_text(parse: Callable[[str], int], high: int, expected: str) -> Reader:
    def read(value: object) -> int:
        number = value
        if isinstance(value, str):
            try:
                number = parse(value)
            except (ValueError, OverflowError):
                number = None
        if isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= high:
            return number
        raise WrongValueError(expected.format(high=high))

    return read
