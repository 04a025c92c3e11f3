"""Machine types that we know: one TOML file each in preflight/profiles."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from preflight.errors import ConfigError
from preflight.formats import read_toml
from preflight.model import Profile

FOLDER = Path(__file__).parent.parent / "profiles"


def read_profile(path: Path) -> Profile:
    """One profile. Raises ConfigError with the path of the fault inside the file."""
    document = read_toml(path)
    try:
        return msgspec.convert(document, Profile)
    except msgspec.ValidationError as error:
        raise ConfigError(str(path), f"is not a profile: {error}") from error


def all_profiles() -> Iterator[Profile]:
    """Every profile that comes with preflight, by file name."""
    for path in sorted(FOLDER.glob("*.toml")):
        yield read_profile(path)


@cache
def find_profile(name: str) -> Profile | None:
    """The profile of that name, or the one that lists it as NVML product name; case doesn't matter. None: unknown machine."""
    wanted = name.casefold()
    # the file of that name first: mostly it is the only one that has to be read
    paths = sorted(FOLDER.glob("*.toml"), key=lambda path: (path.stem.casefold() != wanted, path.name))
    for profile in map(read_profile, paths):
        if wanted in (known.casefold() for known in (profile.name, *profile.gpu_names)):
            return profile
    return None


def near_profiles(name: str) -> str:
    """For a name that has no profile: those of the same product ("H100", "NVIDIA H100 PCIe"), else the nearest one, as a question; and all that there are."""
    from difflib import get_close_matches

    names = {
        known.casefold(): profile.name for profile in all_profiles() for known in (profile.name, *profile.gpu_names)
    }
    words = re.findall(r"[a-z]+[0-9]+[a-z]*", name.casefold())
    close = [known for known in dict.fromkeys(names.values()) if known.partition("-")[0].casefold() in words]
    close = close or [names[known] for known in get_close_matches(name.casefold(), names, n=1)]
    hint = f"did you mean {' or '.join(map(repr, sorted(close)))}? " if close else ""
    return f"{hint}known: {', '.join(sorted(set(names.values())))}"
