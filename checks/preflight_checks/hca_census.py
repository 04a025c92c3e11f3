"""A node has as many HCAs as the site says that its machines have.

An HCA that fell off the bus leaves no trace in a list of those that are there: NCCL goes on with the others, and the GPUs that it was meant for share a neighbour's.
How many there should be differs from cloud to cloud, so that the profiles that come with preflight judge nobody here: only a `nic_layouts` of the site's own profile for that
number of GPUs does. Among several nodes `nic_uniform` compares without any profile.
Counted are all HCAs of the node, for storage and management too, so that a card is missed only where no HCA could stand in its place.
Source: the site's profile; where an HCA stands is in `model/rails.py`.
"""

from collections.abc import Iterator, Sequence

from preflight.model import Check, Evidence, Finding, Gpu, NicLayout, Node, Part, Verdict
from preflight.model.profile import SITE_SOURCE

NAME = "hca_census"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each node whose machine type the site has described: one finding. Nothing for others, and for nodes without GPUs."""
    if evidence.settings.cpu_declared:
        return
    for node in evidence.health or ():
        layouts = _of_site(evidence, node.gpus or ())
        if layouts:
            yield _judge_node(node, min(layouts, key=lambda layout: layout.nics))


def _of_site(evidence: Evidence, gpus: Sequence[Gpu]) -> list[NicLayout]:
    """What the site says of machines with so many GPUs of this one product."""
    profile = evidence.profile_of(gpus[0]) if len({gpu.name for gpu in gpus}) == 1 and gpus[0].name else None
    return [
        layout
        for layout in (profile.nic_layouts if profile else ())
        if layout.gpus == len(gpus) and layout.source.startswith(SITE_SOURCE)
    ]


def _judge_node(node: Node, layout: NicLayout) -> Finding:
    expected = f"{layout.nics} HCAs for {layout.gpus} GPUs ({layout.source})"
    if node.hcas is None:
        texts = [problem.text for problem in node.problems if problem.field == "hcas"]
        return _finding(node, Verdict.UNKNOWN, f"HCAs unknown: {'; '.join(texts) or 'not in this snapshot'}", expected)
    names = ", ".join(hca.name for hca in node.hcas)
    observed = f"{len(node.hcas)} HCA{'s' * (len(node.hcas) != 1)}{f': {names}' if names else ''}"
    if len(node.hcas) >= layout.nics:
        return _finding(node, Verdict.PASS, observed, expected)
    container = node.platform.container if node.platform is not None else None
    if container not in (None, "none"):
        return _finding(
            node,
            Verdict.UNKNOWN,
            f"{observed}; this is a container ({container}), which may not be shown all",
            expected,
            remedy="run preflight on the host",
        )
    return _finding(
        node,
        Verdict.FAIL if container == "none" else Verdict.WARN,
        observed,
        expected,
        remedy=f"look for the missing HCA on the PCI bus of {node.name} (lspci) and in its kernel log, and power-cycle the node; or correct nic_layouts in the profile",
        blames=Part(kind="node", name=node.name, confidence="likely"),
    )


def _finding(
    node: Node, verdict: Verdict, observed: str, expected: str, *, remedy: str = "", blames: Part | None = None
) -> Finding:
    return Finding(
        check=NAME,
        subject=node.name,
        verdict=verdict,
        observed=observed,
        expected=expected,
        remedy=remedy,
        blames=blames,
    )


CHECK = Check(
    name=NAME,
    claim="A node has as many HCAs as the site's profile says that its machines have.",
    why="NCCL goes on without an HCA that fell off the bus, and the GPUs that it was meant for share a neighbour's.",
    source="nic_layouts of the site's own profile (deploy/profiles/README.md); profiles that come with preflight judge nobody here.",
    remedy="Look for the missing HCA on the PCI bus and in the kernel log, power-cycle the node, and replace the card if it is gone again.",
    uses=("health",),
    judge=judge,
    need="advisory",
)
