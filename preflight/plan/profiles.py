"""Machine types that we know: one TOML file each in preflight/profiles, and those of a site (see site_profiles)."""

import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from preflight.errors import ConfigError
from preflight.formats import read_toml, readable
from preflight.model import Inventory, Profile
from preflight.model.base import Record
from preflight.plan.products import NAMES, Names, index, is_branded, meaning, related
from preflight.plan.site_profiles import read_site, to_profile

FOLDER = Path(__file__).parent.parent / "profiles"


class Product(Record, frozen=True):
    """What a person means by a product. `name`: NVML's. `profile` None: none exists. `note`: what was taken for granted, to be shown; "" if nothing."""

    profile: Profile | None
    name: str
    note: str = ""


def read_profile(path: Path) -> Profile:
    """One profile. Raises ConfigError with the path of the fault inside the file."""
    return to_profile(readable(str(path)), read_toml(path))


def all_profiles() -> Iterator[Profile]:
    """Every profile that comes with preflight, by file name."""
    for path in sorted(FOLDER.glob("*.toml")):
        yield read_profile(path)


def find_profile(name: str, folders: Sequence[Path] = ()) -> Profile | None:
    """The profile of that name, or the one that lists it as NVML product name; case doesn't matter. None: unknown machine.

    `folders`: of the site. Raises ConfigError for a bad file in them.
    """
    return _Known(folders).find(name) if folders else _shipped_by_any_name(name)


def profiles_of(inventory: Inventory, folders: Sequence[Path] = ()) -> dict[str, Profile]:
    """The profiles of the products that were found, by NVML's name in lower case; a product without one is left out. `folders`: of the site.

    Of the files that come with preflight only those of the products found are read. Raises ConfigError for a bad file of the site.
    """
    products = {gpu.name.casefold() for node in inventory.nodes for gpu in node.gpus or () if gpu.name}
    if not products:
        return {}
    known = _Known(folders)
    found = {product: known.find(product) for product in sorted(products)}
    return {product: profile for product, profile in found.items() if profile is not None}


def product_named(text: str, folders: Sequence[Path] = ()) -> Product:
    """The product that a person means: by NVML's name, the profile's name or an alias, else by words that only it bears ("H100 SXM", "A800").

    Where the memory's size is left out and the boards are joined alike, the smallest is taken; where neither PCIe nor NVL is said, the SXM board, for the driver
    names cards so. Both are said in `note`. A name as the driver writes it of a product that has no profile is taken as it is. Raises ConfigError, with near
    names, for any other name and where boards that are joined differently could be meant.
    """
    known = _Known(folders)
    meant = meaning(text, known.names)
    candidates = [profile for profile in map(known.find, meant.profiles) if profile is not None]
    told = [profile for profile in candidates if profile.nvlink_layouts is not None]
    if len(candidates) > 1 and told:  # boards whose links nobody knows, each of one site
        candidates = told
    if not candidates and is_branded(text):
        return Product(None, text.strip(), f"no profile for {text.strip()}")
    if not candidates or any(_joins(each) != _joins(candidates[0]) for each in candidates):
        _refuse(text, candidates, known)
    return _product(text, candidates, meant.reason)


def near_profiles(name: str) -> str:
    """For a name that has no profile: those of the same product ("H100", "NVIDIA H100 PCIe"), else the nearest one, as a question; and all that there are."""
    from difflib import get_close_matches

    by_name = index(NAMES)
    near = [
        [by_name[known] for known in get_close_matches(name.casefold(), by_name, n=1, cutoff=share)]
        for share in (0.9, 0.6)
    ]
    close = near[0] or related(name, NAMES) or near[1]
    hint = f"did you mean {' or '.join(map(repr, sorted(close)))}? " if close else ""
    return f"{hint}known: {', '.join(sorted(NAMES))}"


class _Known:
    """The profiles that come with preflight, and those of a site over them."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.site = read_site(folders, _shipped_document) if folders else {}
        changed = {profile.name: (profile.gpu_names, profile.aliases) for profile in self.site.values()}
        self.names: Names = {**NAMES, **changed}
        self._by_name = index(self.names)
        for profile in self.site.values():
            for product in profile.gpu_names:
                other = next(
                    (
                        name
                        for name, (products, _) in self.names.items()
                        if name != profile.name and _lists(products, product)
                    ),
                    None,
                )
                if other is not None:
                    raise ConfigError(
                        f"profile {profile.name} of the site",
                        f"{product!r} is a product of profile {other} too",
                        key="gpu_names",
                        remedy=f"to change what is expected of it, write name = {other!r}",
                    )

    def find(self, name: str) -> Profile | None:
        profile = self._by_name.get(name.strip().casefold())
        return None if profile is None else self.site.get(profile.casefold()) or _shipped(profile)


def _lists(products: Sequence[str], product: str) -> bool:
    return product.casefold() in (known.casefold() for known in products)


def _refuse(text: str, candidates: Sequence[Profile], known: _Known) -> None:
    names = [profile.gpu_names[0] for profile in candidates if profile.gpu_names]
    if names:
        raise ConfigError(
            "--product",
            f"{text!r} may be {' or '.join(map(repr, names))}, which are joined differently",
            remedy="give one of these names",
        )
    close = [known.names[name][0][0] for name in related(text, known.names) if known.names[name][0]]
    remedy = f"did you mean {' or '.join(map(repr, close))}?" if close else near_profiles(text)
    raise ConfigError("--product", f"{text!r} is none that we know", remedy=remedy)


def _joins(profile: Profile) -> object:
    """How its GPUs are joined, without the sources."""
    layouts = (
        None
        if profile.nvlink_layouts is None
        else {each[:-1] for each in map(msgspec.structs.astuple, profile.nvlink_layouts)}
    )
    return layouts, profile.fabric


def _product(text: str, candidates: Sequence[Profile], reason: str) -> Product:
    """The product of one profile, or of the smallest of several that are joined alike. Raises ConfigError if it is the machine without GPUs."""
    profile = min(candidates, key=lambda each: each.gpu_memory_bytes.value if each.gpu_memory_bytes else math.inf)
    if not profile.gpu_names:
        raise ConfigError(
            "--product", f"{text!r} is the name of a machine without GPUs", remedy="give the name of a GPU product"
        )
    name = next(
        (each for each in profile.gpu_names if each.casefold() == text.strip().casefold()), profile.gpu_names[0]
    )
    notes = [reason] if reason else []
    if len(candidates) > 1:
        notes.append(f"{' and '.join(sorted(each.name for each in candidates))} are joined alike")
    return Product(profile, name, f"{text!r} is taken as {name}: {'; '.join(notes)}" if notes else "")


@cache
def _shipped(name: str) -> Profile:
    return read_profile(FOLDER / f"{name}.toml")


@cache
def _shipped_index() -> dict[str, str]:
    return index(NAMES)


def _shipped_by_any_name(name: str) -> Profile | None:
    profile = _shipped_index().get(name.casefold())
    return None if profile is None else _shipped(profile)


def _shipped_document(name: str) -> dict[str, Any] | None:
    """What stands in the file of that profile; None: there is none."""
    profile = next((known for known in NAMES if known.casefold() == name.casefold()), None)
    return None if profile is None else read_toml(FOLDER / f"{profile}.toml")
