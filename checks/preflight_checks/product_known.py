"""For every GPU product that was found there is a profile that says what to expect of it.

Without a profile the number of its links, its memory or its power limit can only be compared with that of other GPUs of the same product: a fault that they all share
goes unseen. That is no fault of the node, so this check never fails one. Source of the profiles: preflight/profiles/*.toml, each value with its own; sites change and add
(deploy/profiles/README.md). That an unknown product is compared with its peers and not refused: complaints about tools that fail parts which are newer than they are
(Azure/azurehpc-health-checks issues 54 and 165, NVIDIA/NVSentinel issues 1663 and 1716).
"""

import re
from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Node, Profile, Verdict
from preflight.model.per_gpu import count
from preflight.model.profile import SITE_SOURCE

NAME = "product_known"
EXPECTED = "a profile for each product"
_SITE = re.compile(re.escape(SITE_SOURCE) + r"(.*?)\): .*", re.DOTALL)  # "site (FILE): what stands there"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each product of each node. Nothing for nodes without GPUs, and where a run without GPUs is meant."""
    assert evidence.inventory is not None  # named in `uses`
    if evidence.settings.cpu_declared:
        return
    for node in evidence.inventory.nodes:
        for product in dict.fromkeys(gpu.name for gpu in node.open_gpus):
            yield _judge(evidence, node, product)


def _judge(evidence: Evidence, node: Node, product: str | None) -> Finding:
    gpus = [gpu for gpu in node.open_gpus if gpu.name == product]
    profile = evidence.profiles.get(product.casefold()) if product else None
    if product is None:
        what = "the driver tells no product" if node.tells_health else "the file tells no product"
        return Finding(
            check=NAME,
            subject=node.name,
            verdict=Verdict.SKIP,
            observed=f"{count(gpus)}: {what}: compared with peers only",
            expected=EXPECTED,
            remedy="" if node.tells_health else "give it: --product NAME",
        )
    if profile is not None:
        return Finding(
            check=NAME,
            subject=node.name,
            verdict=Verdict.PASS,
            observed=f"{count(gpus)}: {product}: profile {profile.name}{_where(profile)}",
            expected=EXPECTED,
        )
    # where products are mixed and no job is planned, nothing rests on the one that is unknown
    relied_on = evidence.plan is not None or len({gpu.name for gpu in node.open_gpus}) == 1
    return Finding(
        check=NAME,
        subject=node.name,
        verdict=Verdict.WARN if relied_on else Verdict.SKIP,
        observed=f"{count(gpus)}: no profile for {product}: compared with peers only",
        expected=EXPECTED,
        remedy=f"write a profile with {product!r} in gpu_names (deploy/profiles/README.md says how), and give its folder: --profiles DIR",
    )


def _where(profile: Profile) -> str:
    """The files that the profile comes from, with the keys that a site gave."""
    by_site = {key: sources for key, sources in profile.sources().items() if any(map(_is_site, sources))}
    shipped = any(not _is_site(source) for sources in profile.sources().values() for source in sources)
    files = dict.fromkeys(
        re.sub(_SITE, r"\1", source) for sources in by_site.values() for source in sources if _is_site(source)
    )
    parts = [f"preflight/profiles/{profile.name}.toml"] if shipped else []
    if by_site:
        parts.append(f"by the site: {', '.join(by_site)} in {', '.join(files)}" if shipped else ", ".join(files))
    return f" ({'; '.join(parts)})" if parts else ""


def _is_site(source: str) -> bool:
    return source.startswith(SITE_SOURCE)


CHECK = Check(
    name=NAME,
    claim="For every GPU product that was found there is a profile that says what to expect of it.",
    why="Without a profile GPUs can only be compared with each other, and a fault that they all share goes unseen.",
    source="The profiles in preflight/profiles, each value with its own source, and those of the site.",
    remedy="Write a profile for the product, or give the folder that holds one with --profiles; deploy/profiles/README.md explains every key.",
    uses=("inventory",),
    judge=judge,
    need="advisory",
)
