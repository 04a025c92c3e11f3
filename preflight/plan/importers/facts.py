"""What files say about a job: each value with its origin, two files that disagree refused, and what was not understood as notes."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from preflight.errors import ConfigError
from preflight.plan.values import show

MAX_DIGITS = 18  # of a number: above any size of a model or a cluster, and far below what int() takes long for
MAX_NOTES = 200  # a file of a million strange lines must not become a million notes
MAX_SHOWN = 100  # characters of an option's value in its origin


class Imported(NamedTuple):
    """What `import_files` found. `document`: sections of a plan file, as `planfile.job_of` takes them. `origins`: "section.key" -> "file:line
    what it said". `notes`: what was seen and not used, and what was filled in by a default that another file overruled.
    """

    document: dict[str, dict[str, Any]]
    origins: dict[str, str]
    notes: tuple[str, ...]


class Fact(NamedTuple):
    """One value. `origin`: "file:line what it said". `default`: nobody wrote it, the framework fills it in; any written value overrules it."""

    value: Any
    origin: str
    default: bool = False


class Facts:
    """Values by key. A key of a plan file is "section.key"; keys "said.*" are kept for `resolve` alone, such as said.world_size."""

    def __init__(self) -> None:
        self.values: dict[str, Fact] = {}
        self.notes: list[str] = []

    def say(self, key: str, value: object, origin: str, *, default: bool = False) -> None:
        """Adds a value; None says nothing. Raises ConfigError if another one was written before."""
        if value is None:
            return
        new, old = Fact(value, origin, default), self.values.get(key)
        if old is None or (old.default and not default):
            if old and old.value != value:
                self.note(f"{key} = {show(value)} ({origin}) goes before the default {show(old.value)} ({old.origin})")
            self.values[key] = new
        elif old.value == value:
            return
        elif default:
            self.note(f"{key} = {show(old.value)} ({old.origin}) goes before the default {show(value)} ({origin})")
        else:
            raise contradiction(key, old, new)

    def take(self, key: str, fact: Fact | None) -> None:
        """As `say`, with a fact that may be missing."""
        if fact:
            self.say(key, fact.value, fact.origin, default=fact.default)

    def get(self, key: str) -> Any:
        """The value of a key, None if nobody said it."""
        fact = self.values.get(key)
        return fact.value if fact else None

    def note(self, text: str) -> None:
        """Adds a remark for the reader, once."""
        if text not in self.notes and len(self.notes) < MAX_NOTES:
            self.notes.append(text)

    def add(self, others: "Facts") -> None:
        """Adds what another file said. Raises ConfigError where the two disagree."""
        for key, fact in others.values.items():
            self.take(key, fact)
        for note in others.notes:
            self.note(note)


def contradiction(key: str, old: Fact, new: Fact) -> ConfigError:
    """The refusal of two values of one key."""
    return ConfigError(
        new.origin,
        f"gives {show(new.value)}, but {old.origin} gives {show(old.value)}",
        key=key,
        remedy="leave out the file that is out of date, or correct one of the two",
    )


class Options:
    """The options of one framework by name, as one file gives them. Reading an option marks it as used; `rest` are the others.

    `said`: name -> value and origin; None there means not set. `absent`: origin of what the framework fills in itself. `unknown`: options
    that are set to something that the file alone does not tell: no default takes their place.
    """

    def __init__(self, said: Mapping[str, Fact], absent: str, unknown: Iterable[str] = ()) -> None:
        self.said = dict(said)
        self.absent = absent
        self.unknown = frozenset(unknown)
        self.used: set[str] = set()

    def raw(self, *names: str) -> Fact | None:
        """The first of these options that is set (not None, not empty)."""
        self.used.update(names)
        found = (self.said.get(name) for name in names)
        return next((fact for fact in found if fact and str(fact.value) not in {"None", "null", ""}), None)

    def number(self, *names: str, default: int | None = None) -> Fact | None:
        """A whole number. Raises ConfigError if the option is something else."""
        fact = self.raw(*names)
        return fact._replace(value=whole(fact, names[0])) if fact else self.default(default, *names)

    def decimal(self, *names: str, default: float | None = None) -> Fact | None:
        """A number. Raises ConfigError if the option is something else."""
        fact = self.raw(*names)
        return fact._replace(value=real(fact, names[0])) if fact else self.default(default, *names)

    def flag(self, *names: str, default: bool | None = None) -> Fact | None:
        """True or False. Raises ConfigError if the option is something else."""
        fact = self.raw(*names)
        return fact._replace(value=truth(fact, names[0])) if fact else self.default(default, *names)

    def word(self, *names: str, default: str | None = None) -> Fact | None:
        """A text in lower case."""
        fact = self.raw(*names)
        return fact._replace(value=str(fact.value).strip().lower()) if fact else self.default(default, *names)

    def on(self, *names: str) -> bool:
        """Whether a flag is given and true."""
        fact = self.flag(*names)
        return bool(fact and fact.value)

    def rest(self, related: re.Pattern[str]) -> Iterable[str]:
        """Options that nobody read and that are set, whose name matches."""
        for name, fact in self.said.items():
            if name not in self.used and related.search(name) and is_set(fact.value):
                yield f"{name} = {short(fact.value)}"

    def default(self, value: object, *names: str) -> Fact | None:
        """What the framework fills in where none of these options is set; None if one of them is set to something unknown."""
        return None if value is None or self.unknown & set(names) else Fact(value, self.absent, default=True)


def is_set(value: object) -> bool:
    """Whether an option does something: not None, False, 0 or empty."""
    return str(value) not in {"None", "null", "False", "false", "0", "0.0", "", "[]", "{}", "()", "no_shard"}


def short(value: object) -> str:
    """A value for an origin: one printable line of at most MAX_SHOWN characters."""
    text = str(value)[: MAX_SHOWN * 4] if isinstance(value, str) else show(value)
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def whole(fact: Fact, name: str) -> int:
    """A value as a whole number: 48, "48", "220_000_000", 48.0. Raises ConfigError."""
    value = fact.value
    if isinstance(value, float) and value.is_integer() and abs(value) < 10**MAX_DIGITS:
        value = int(value)
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9][0-9_]{0,30}", value.strip()):
        value = int(value.replace("_", ""))
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**MAX_DIGITS:
        return value
    raise wrong(fact, name, "a whole number")


def real(fact: Fact, name: str) -> float:
    """A value as a finite number. Raises ConfigError."""
    value = fact.value
    if isinstance(value, int | float | str) and not isinstance(value, bool) and len(str(value)[:100]) < 50:
        try:
            number = float(value)
        except (ValueError, OverflowError):
            raise wrong(fact, name, "a number") from None
        if abs(number) < 10.0**MAX_DIGITS:  # neither infinite nor no number at all
            return number
    raise wrong(fact, name, "a number")


_TRUTH = {"true": True, "yes": True, "1": True, "on": True, "false": False, "no": False, "0": False, "off": False}


def truth(fact: Fact, name: str) -> bool:
    """A value as true or false. Raises ConfigError."""
    known = _TRUTH.get(str(fact.value).strip().lower()) if isinstance(fact.value, bool | int | str) else None
    if known is None:
        raise wrong(fact, name, "true or false")
    return known


def wrong(fact: Fact, name: str, expected: str) -> ConfigError:
    """The refusal of a value that is not what an option takes."""
    return ConfigError(
        fact.origin,
        f"{show(fact.value)} is not {expected}",
        key=name,
        remedy=f"correct it there: {name} takes {expected}",
    )
