"""Names of products: an index of the profiles that come with preflight, so that one file has to be read and not thirty; and what a person means by a name.

A test keeps the index equal to what stands in the files.
"""

import re
from collections.abc import Iterable, Mapping

from preflight.model.base import Record

Names = Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]

# profile -> product names as NVML spells them, and what people call it besides
NAMES: Names = {
    "A100-40GB": (("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"), ("NVIDIA A100 SXM 40GB", "A100 SXM4 40 GB")),
    "A100-64GB": (("NVIDIA A100-SXM-64GB", "A100-SXM-64GB"), ("NVIDIA A100 SXM4 64GB",)),
    "A100-80GB": (
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB", "NVIDIA A100-SXM-80GB", "A100-SXM-80GB"),
        ("NVIDIA A100 SXM 80GB", "A100 SXM4 80 GB"),
    ),
    "A100-PCIE-40GB": (("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"), ("NVIDIA A100 PCIe 40GB",)),
    "A100-PCIE-80GB": (("NVIDIA A100 80GB PCIe", "NVIDIA A100-PCIE-80GB"), ("NVIDIA A100 PCIe 80GB",)),
    "A40-48GB": (("NVIDIA A40", "A40"), ("NVIDIA A40 48GB",)),
    "A800-80GB": (("NVIDIA A800-SXM4-80GB", "A800-SXM4-80GB"), ("NVIDIA A800 SXM",)),
    "A800-PCIE-80GB": (("NVIDIA A800 80GB PCIe",), ("NVIDIA A800 PCIe",)),
    "B200-180GB": (("NVIDIA B200",), ("NVIDIA B200 SXM", "HGX B200")),
    "CPU-only": ((), ()),
    "GB200-186GB": (("NVIDIA GB200",), ("NVIDIA GB200 NVL72",)),
    "H100-64GB": (("NVIDIA H100 64GB HBM2",), ("NVIDIA H100 SXM 64GB",)),
    "H100-80GB": (("NVIDIA H100 80GB HBM3",), ("NVIDIA H100 SXM", "H100 SXM5 80GB", "HGX H100")),
    "H100-NVL-94GB": (("NVIDIA H100 NVL",), ("NVIDIA H100 NVL 94GB",)),
    "H100-PCIE-80GB": (("NVIDIA H100 PCIe",), ("NVIDIA H100 PCIe 80GB", "NVIDIA H100 80GB PCIe")),
    "H20-141GB": (("NVIDIA H20-3e",), ("NVIDIA H20 141GB",)),
    "H20-96GB": (("NVIDIA H20",), ("NVIDIA H20 SXM", "HGX H20")),
    "H200-141GB": (("NVIDIA H200",), ("NVIDIA H200 SXM", "H200 SXM5 141GB", "HGX H200")),
    "H200-NVL-141GB": (("NVIDIA H200 NVL",), ("NVIDIA H200 NVL 141GB",)),
    "H800-80GB": (("NVIDIA H800",), ("NVIDIA H800 SXM", "H800 SXM5 80GB")),
    "H800-PCIE-80GB": (("NVIDIA H800 PCIe",), ("NVIDIA H800 PCIe 80GB",)),
    "L20-48GB": (("NVIDIA L20",), ("NVIDIA L20 48GB",)),
    "L40S-48GB": (("NVIDIA L40S",), ("NVIDIA L40S 48GB",)),
    "P4-8GB": (("Tesla P4",), ("NVIDIA P4", "NVIDIA Tesla P4 8GB")),
    "RTX-4090-24GB": (("NVIDIA GeForce RTX 4090",), ("GeForce RTX 4090 24GB",)),
    "RTX-5090-32GB": (("NVIDIA GeForce RTX 5090",), ("GeForce RTX 5090 32GB",)),
    "RTX-A6000-48GB": (("NVIDIA RTX A6000", "RTX A6000"), ("NVIDIA A6000",)),
    "T4-16GB": (("Tesla T4",), ("NVIDIA T4", "NVIDIA Tesla T4 16GB")),
    "V100-PCIE-16GB": (("Tesla V100-PCIE-16GB",), ("Tesla V100 PCIe 16GB",)),
    "V100-PCIE-32GB": (("Tesla V100-PCIE-32GB",), ("Tesla V100 PCIe 32GB",)),
    "V100-SXM2-16GB": (("Tesla V100-SXM2-16GB",), ()),
    "V100-SXM2-32GB": (("Tesla V100-SXM2-32GB",), ()),
    "V100-SXM3-32GB": (("Tesla V100-SXM3-32GB",), ()),
}

# words that tell nothing of the product; the makers' names of boards that carry SXM modules
_EMPTY = {"nvidia", "tesla", "geforce", "quadro", "gpu", "tensor", "core", "rtx"}
_SAME = {"hgx": "sxm", "dgx": "sxm", "pci": "pcie"}
# NVML writes these words into the name of every Hopper product that is not the SXM one, which bears no such word ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA
# H100 NVL", "NVIDIA H200", "NVIDIA H200 NVL"), and "PCIe" into those of A100 and A800 cards: a name without them is not the card's.
_CARD = {"pcie", "nvl"}
_BRANDED = r"(nvidia|tesla|quadro|geforce|grid|titan) .*\w"


class Meaning(Record, frozen=True):
    """The profiles that a name may mean. `reason`: why others that bear its words were left out, "" if none were."""

    profiles: tuple[str, ...]
    reason: str = ""


def index(names: Names) -> dict[str, str]:
    """Profile by its own name and by each of its product names, all in lower case."""
    return {known.casefold(): profile for profile, (products, _) in names.items() for known in (profile, *products)}


def is_branded(text: str) -> bool:
    """Whether a text is written as the driver writes a product's name, so that it may be one that no profile knows."""
    return bool(re.fullmatch(_BRANDED, text.strip().casefold()))


def meaning(text: str, names: Names) -> Meaning:
    """The profiles with that name, product name or alias; else those that bear all words of the text ("H100 SXM", "a100 80 GB"). The memory's size alone is no name."""
    wanted = text.strip().casefold()
    for profile, (products, aliases) in names.items():
        if wanted in (known.casefold() for known in (profile, *products, *aliases)):
            return Meaning((profile,))
    asked = words(text)
    if not _own(asked):
        return Meaning(())
    found = tuple(profile for profile in names if _bears(asked, _words_of(profile, names)))
    others = tuple(profile for profile in found if asked >= _CARD & _words_of(profile, names))
    if len(found) > 1 and others and len(others) < len(found):
        return Meaning(others, "the driver writes PCIe or NVL into the names of cards")
    return Meaning(found)


def related(text: str, names: Names) -> list[str]:
    """Profiles that share the product's own word with a text: "A100" for "NVIDIA A100 PCIE 96GB"."""
    asked = _own(words(text))
    return [profile for profile in names if asked & words(profile)]


def words(text: str) -> set[str]:
    """The words that tell products apart: "NVIDIA A100-SXM4 80 GB (NV12)" -> a100, sxm4, 80gb."""
    plain = re.sub(r"\([^)]*\)", " ", text.casefold())
    plain = re.sub(r"(\d+)\s*(?:gib|gb|g)\b", r"\1gb", plain)
    return {_SAME.get(word, word) for word in re.findall(r"[a-z0-9]+", plain)} - _EMPTY


def _own(found: set[str]) -> set[str]:
    """Those words that are a product's own: not a size, a socket or a number of links."""
    return {word for word in found if re.search(r"\d", word) and not re.fullmatch(r"\d+gb|sxm\d|nv\d+", word)}


def _words_of(profile: str, names: Names) -> set[str]:
    products, aliases = names[profile]
    return set().union(*map(words, (profile, *products, *aliases)))


def _bears(asked: Iterable[str], known: set[str]) -> bool:
    """Whether all words are among those known; "sxm" is there as "sxm4" too."""
    return all(word in known or (word == "sxm" and any(w.startswith("sxm") for w in known)) for word in asked)
