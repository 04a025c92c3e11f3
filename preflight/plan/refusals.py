"""How what a person wrote is refused: with file, key and value, what was expected, and for a misspelt name the nearest known one."""

from collections.abc import Iterable
from typing import Any

from preflight.errors import ConfigError
from preflight.plan.plankeys import CALLED
from preflight.plan.values import Reader, WrongValueError, show


def read_value(source: str, key: str, reader: Reader, value: object) -> Any:
    """The value as its reader takes it. Raises ConfigError that says what was expected."""
    try:
        return reader(value)
    except WrongValueError as error:
        raise ConfigError(source, f"{show(value)} is not {error.expected}", key=key) from None


def refuse_unknown(source: str, parent: str | None, given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raises ConfigError for the first of the given names that is not known. `what`: what such a name is called, "key"."""
    names = list(known)
    for name in given:
        if name not in names:
            key = f"{parent}.{show_name(name)}" if parent else show_name(name)
            listed = f"known: {', '.join(names)}" if names else f"it has no {what}s"
            raise ConfigError(source, f"unknown {what}{nearest(name, names)}", key=key, remedy=listed)


def show_name(name: str) -> str:
    """A key for a message: as it is if it is a plain name, else quoted and shortened."""
    return name if name.isidentifier() and len(name) <= 60 else show(name)


def nearest(name: str, known: Iterable[str]) -> str:
    """The name that is meant by a framework's word, else the nearest known one, as a question to append; empty if none is near."""
    import difflib

    word = name[:100].replace("-", "_").casefold()
    close = [key for key in known if word == key or word in CALLED.get(key, "").split()]
    close = close or difflib.get_close_matches(name[:100], known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
