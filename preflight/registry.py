"""Finds the installed checks and profiles through the entry-point groups `preflight.checks` and `preflight.profiles`.

An entry names a tuple of checks, or a folder of profiles, so that a site adds its own by installing a distribution. The `entry_points.txt` files are read
directly: importlib.metadata costs 25 ms and some 40 modules, so it is left for import paths that hold archives.
"""

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from preflight.errors import WorldError
from preflight.model import Check
from preflight.model.base import Record

GROUP = "preflight.checks"
PROFILES = "preflight.profiles"
OURS = "cluster-preflight"  # the distribution whose checks come first

SITE_PROFILES = Path("/etc/preflight/profiles")

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_FACTS = ("inventory", "health", "before", "plan", "measurements")


class InstalledCheck(Record, frozen=True):
    """A check and the distribution that provides it."""

    check: Check
    distribution: str


class _Entry(Record, frozen=True):
    distribution: str
    name: str
    target: str

    @property
    def label(self) -> str:
        return f"checks of distribution {self.distribution} (entry point {self.name} = {self.target})"


def load_checks(*, of_nodes: bool = False) -> tuple[Check, ...]:
    """All installed checks: ours first in reading order, then those of other distributions by name.

    `of_nodes`: those that need neither a plan nor measurements will do. A module that has a tuple NODE_CHECKS beside the one that its entry names is asked for that, so that
    it need not load the others; of any other everything is loaded.

    Raises WorldError, which names the distribution: no checks at all, a name given twice, an entry that can't be imported or
    isn't a tuple of checks. Leaving such checks out would make a run look better than it is.
    """
    return tuple(installed.check for installed in load_checks_with_source(of_nodes=of_nodes))


def load_checks_with_source(*, of_nodes: bool = False) -> tuple[InstalledCheck, ...]:
    """As load_checks, with the distribution of each."""
    entries = sorted(_entries(sys.path, GROUP), key=lambda entry: (entry.distribution != OURS, entry))
    found: dict[str, InstalledCheck] = {}
    for entry in entries:
        for check in _load(entry, of_nodes=of_nodes):
            if check.name in found:
                raise WorldError(
                    f"check {check.name} is installed twice: by {found[check.name].distribution} and by "
                    f"{entry.distribution}\n  uninstall one of them, or rename the check"
                )
            found[check.name] = InstalledCheck(check, entry.distribution)
    if not found:
        raise WorldError(f"no checks are installed (entry-point group {GROUP} is empty)\n  reinstall {OURS}")
    return tuple(found.values())


def load_profile_folders() -> list[Path]:
    """The folders of profiles that installed distributions bring, by distribution and name: an entry `acme = acme_profiles.toml` is the folder `toml` of the package
    `acme_profiles`. No code of a distribution is run. Raises WorldError, which names the distribution: no such folder.
    """
    folders = []
    for entry in sorted(_entries(sys.path, PROFILES)):
        package, *rest = entry.target.replace(":", ".").split(".")
        named = all(part.isidentifier() for part in (package, *rest))
        spec = importlib.util.find_spec(package) if named else None
        places = [Path(place, *rest) for place in (spec.submodule_search_locations or () if spec else ())]
        folder = next((place for place in places if place.is_dir()), None)
        if folder is None:
            raise WorldError(
                f"profiles of distribution {entry.distribution} (entry point {entry.name} = {entry.target}): there is no such folder\n"
                f"  repair or uninstall {entry.distribution}; without its profiles other values would be expected"
            )
        folders.append(folder)
    return folders


def profile_folders(given: Sequence[Path] = ()) -> list[Path]:
    """All folders with profiles of the site: of installed distributions, then those given, else the one in /etc if it is there. Later ones override earlier ones."""
    return [*load_profile_folders(), *(given or [folder for folder in (SITE_PROFILES,) if folder.is_dir()])]


def _entries(path: Sequence[str], group: str) -> Iterator[_Entry]:
    """The entries of a group; of a distribution that is there twice, the first on the path, as Python imports it."""
    seen: set[str] = set()
    for folder in path:
        try:
            with os.scandir(folder or ".") as listing:
                infos = sorted(item.name for item in listing if item.name.endswith((".dist-info", ".egg-info")))
        except NotADirectoryError:
            yield from _entries_by_importlib(seen, group)  # an archive
            return
        except OSError:
            continue  # Python skips what it can't list too
        for info in infos:
            distribution = re.sub(r"[-_.]+", "-", info.rsplit(".", 1)[0].split("-", 1)[0]).lower()
            if distribution in seen:
                continue
            seen.add(distribution)
            try:
                text = Path(folder, info, "entry_points.txt").read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            yield from (_Entry(distribution, name, target) for name, target in _parse(text, group))


def _parse(text: str, group: str) -> Iterator[tuple[str, str]]:
    """(name, target) of each entry of a group in the text of an entry_points.txt."""
    section = None
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif section == group and "=" in line and not line.startswith(("#", ";")):
            name, target = line.split("=", 1)
            yield name.strip(), target.split("[", 1)[0].strip()


def _entries_by_importlib(seen: set[str], group: str) -> Iterator[_Entry]:
    from importlib.metadata import distributions

    for distribution in distributions():
        named = "Name" in distribution.metadata  # asking for a header that is missing warns from Python 3.12 on
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] if named else "unnamed").lower()
        if name not in seen:
            seen.add(name)
            yield from (_Entry(name, ep.name, ep.value) for ep in distribution.entry_points if ep.group == group)


def _load(entry: _Entry, *, of_nodes: bool) -> tuple[Check, ...]:
    """The tuple of checks that the entry names. Raises WorldError."""
    module_name, _, attribute = entry.target.partition(":")
    try:
        loaded: object = importlib.import_module(module_name)
        fewer = getattr(loaded, "NODE_CHECKS", None) if of_nodes else None
        for part in filter(None, attribute.split(".")):
            loaded = getattr(loaded, part) if fewer is None else fewer
    except (Exception, SystemExit) as error:
        raise WorldError(
            f"{entry.label} can't be imported: {type(error).__name__}: {error}\n"
            f"  repair or uninstall {entry.distribution}; a run without its checks would look better than it is"
        ) from error
    if not isinstance(loaded, tuple):
        raise WorldError(f"{entry.label}: expected a tuple of checks, found {type(loaded).__name__}")
    for check in loaded:
        problem = _problem_of(check)
        if problem:
            raise WorldError(f"{entry.label}: {problem}")
    return loaded


def _problem_of(check: object) -> str | None:
    """How an item breaks the contract of a check; None if it doesn't."""
    if not isinstance(check, Check):
        return f"expected a Check, found {type(check).__name__}"
    if not isinstance(check.name, str) or not _NAME.fullmatch(check.name):
        return f"check name {check.name!r}: expected lower-case letters, digits and _, since it becomes a metric label"
    unknown = [fact for fact in check.uses if fact not in _FACTS]
    if unknown:
        return f"check {check.name} uses {unknown[0]!r}: expected one of {', '.join(_FACTS)}"
    if not callable(check.judge):
        return f"check {check.name}: judge is not a function"
    return None
