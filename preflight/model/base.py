"""What all nouns have in common: frozen, keyword-only, saved to and loaded from JSON.

Conventions: unknown is None (never 0, "" or "N/A"); lists are tuples; units stand in the names.
Unknown fields are ignored on loading, so that an older preflight reads a newer report.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

R = TypeVar("R", bound="Record")


class Noun(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record that any stage can save, load and print. Each subclass says `frozen=True, kw_only=True`: mypy wants the first again, and msgspec doesn't inherit it."""


class Strict(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A record that a person or a stranger wrote: fields that we don't know are refused."""


class Record(msgspec.Struct, frozen=True, order=True):
    """A few values that functions hand to one another: positional, unpacked and compared like a tuple, never saved. (A NamedTuple costs ten times as much to define, which
    the start of a prolog pays for each of some fifty.)
    """

    def __iter__(self) -> Iterator[Any]:
        return iter(msgspec.structs.astuple(self))

    def replace(self: R, **changes: Any) -> R:  # noqa: PYI019 - Self came with Python 3.11
        """The same with other values in some places."""
        return msgspec.structs.replace(self, **changes)


N = TypeVar("N")


def to_json(noun: object) -> bytes:
    """The noun as JSON, indented for people, with a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(noun), indent=1) + b"\n"


def from_json(data: bytes | str, kind: type[N]) -> N:
    """Load a noun of the given kind.

    Raises msgspec.DecodeError (malformed JSON) or its subclass msgspec.ValidationError (wrong type, with the
    path of the fault); the caller knows the file's name and makes a ConfigError of it.
    """
    return msgspec.json.decode(data, type=kind)
