"""Profiles of a site: folders of TOML files that change what comes with preflight, or add to it. What each key means: deploy/profiles/README.md.

A file whose `name` is known changes that profile key by key: a value comes with its source, so `{value, source}` is replaced as a whole, and so is a list; only tables by
precision (`peak_flops`) are merged. Another name adds a profile. Files of a later folder go over those of an earlier one.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_origin

import msgspec

from preflight.errors import ConfigError
from preflight.formats import read_toml, readable
from preflight.model import Profile
from preflight.model.profile import SITE_SOURCE

MAX_FILES = 200  # of one folder


def to_profile(source: str, document: dict[str, Any]) -> Profile:
    """A TOML document as a profile. `source`: the file, for messages. Raises ConfigError: an unknown or missing key, a wrong type, a number that can't be, an empty source."""
    known = msgspec.structs.fields(Profile)
    for key in document:
        if key not in (field.name for field in known):
            from preflight.plan.refusals import refuse_unknown

            refuse_unknown(source, None, [key], [field.name for field in known], "key")
    try:
        profile = msgspec.convert(document, Profile)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$")
        remedy = 'write it as a table: {value = ..., source = "where it comes from"}' if "`object" in problem else None
        raise ConfigError(
            source, f"is not a profile: {problem}", key=where.strip("`.") or None, remedy=remedy
        ) from error
    for key, value in _leaves(document, ""):
        wrong = isinstance(value, float) and not math.isfinite(value)
        if wrong or (isinstance(value, (int, float)) and value < 0):
            raise ConfigError(source, f"{value} is not a number of 0 or more", key=key)
        if isinstance(value, str) and not value.strip():
            raise ConfigError(source, "is empty", key=key, remedy="say where the value comes from")
    return profile


def read_site(folders: Sequence[Path], shipped: Callable[[str], dict[str, Any] | None]) -> dict[str, Profile]:
    """The profiles of these folders by name in lower case, each whole. `shipped`: the document that comes with preflight, by name; None: no such profile.

    Raises ConfigError with file, key and what was expected: for any file there, also of products that this machine has none of.
    """
    documents: dict[str, dict[str, Any]] = {}
    profiles: dict[str, Profile] = {}
    for path in (path for folder in folders for path in _files(folder)):
        source = readable(str(path))
        given = read_toml(path)
        name = given.get("name")
        if not isinstance(name, str) or not re.fullmatch(r"[\w.+ -]{1,60}", name):
            raise ConfigError(source, "expected the name of a profile, as in 'H100-80GB'", key="name")
        _mark(given, f"{SITE_SOURCE}{source}): ")
        base = documents.get(name.casefold()) or shipped(name)
        document = merged(base, given) if base else given
        documents[name.casefold()] = document
        profiles[name.casefold()] = to_profile(source, document)
    return profiles


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """One document over another, key by key. The name stays as the base spells it."""
    whole = {**base, **over, "name": base["name"]}
    for field in msgspec.structs.fields(Profile):
        if (
            get_origin(field.type) is dict
            and isinstance(base.get(field.name), dict)
            and isinstance(over.get(field.name), dict)
        ):
            whole[field.name] = {**base[field.name], **over[field.name]}
    return whole


def _files(folder: Path) -> list[Path]:
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".toml" and not path.name.startswith("."))
    except OSError as error:
        raise ConfigError(readable(str(folder)), f"can't be listed: {error.strerror}") from error
    if len(paths) > MAX_FILES:
        raise ConfigError(readable(str(folder)), f"holds {len(paths)} profiles; {MAX_FILES} are allowed")
    return paths


def _mark(value: object, prefix: str) -> None:
    """Puts the file before every source, so that whoever reads the value sees who gave it."""
    if isinstance(value, dict):
        if isinstance(value.get("source"), str) and value["source"].strip():
            value["source"] = prefix + value["source"]
        for inner in value.values():
            _mark(inner, prefix)
    elif isinstance(value, list):
        for inner in value:
            _mark(inner, prefix)


def _leaves(value: object, key: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _leaves(inner, f"{key}[{number}]")
    else:
        yield key, value
