"""The inference in a sentence or two, for people."""

import msgspec

from preflight.model.localisation import Culprit, Ends
from preflight.model.units import show_rate

SLOW_LINK = 1e9  # bytes per second


def reasoned(culprit: Culprit, ends: Ends) -> Culprit:
    """The culprit with its reason, where it has none."""
    if culprit.reason:
        return culprit
    candidates = tuple(msgspec.structs.replace(c, reason=name_of(c, ends)) for c in culprit.candidates)
    return msgspec.structs.replace(culprit, reason=_reason(culprit), candidates=candidates)


def rate_text(bytes_per_s: float) -> str:
    """As show_rate; slow links in MB/s, so that three digits are left. 12.3e6 -> "12.3 MB/s"."""
    if bytes_per_s >= SLOW_LINK:
        return show_rate(bytes_per_s)
    value = bytes_per_s / 1e6
    return f"{value:.1f} MB/s" if value >= 10 else f"{value:.2f} MB/s"


def name_of(culprit: Culprit, ends: Ends) -> str:
    """The part for people: "n3 GPU 2", "NIC of n3 GPU 2", "uplink of leaf1, slot 3", "path between n0-n8 and n9-n16"."""
    from preflight.model.hostlist import fold

    if culprit.kind in {"gpu", "nic", "link"}:
        names = [ends.name(end) for end in culprit.ends]
        return {"gpu": names[0], "nic": f"NIC of {names[0]}", "link": " to ".join(names)}[culprit.kind]
    slot = "" if culprit.slot is None else f"slot {culprit.slot}"
    if culprit.kind == "slot":
        return slot
    if culprit.kind in {"leaf", "uplink"}:
        return f"{culprit.leaf}" + (f" {slot}" if slot else "")
    if culprit.kind in {"path", "class"} and culprit.other_nodes:
        return f"{fold(culprit.nodes)} to {fold(culprit.other_nodes)}"
    if culprit.kind in {"node", "class"}:
        return fold(culprit.nodes)
    return culprit.kind or "not identifiable"


def _reason(culprit: Culprit) -> str:
    if culprit.failed and culprit.observed_bytes_per_s is None:
        return "every probe across it failed, while its ends are fast with others"
    assert culprit.observed_bytes_per_s is not None
    figure = f"{rate_text(culprit.observed_bytes_per_s)}, {1 - (culprit.depth or 0.0):.0%} of its peers"
    way = {"both": "", "sending": " sending", "receiving": " receiving"}[culprit.direction]
    return {
        "gpu": f"slow{way} with every partner, on its own node too: {figure}",
        "nic": f"slow{way} with every partner on other nodes, fast on its own: {figure}",
        "node": f"slow{way} with every partner: {figure}",
        "slot": f"slow on every node: {figure}",
        "leaf": f"slow among its own nodes: {figure}",
        "uplink": f"slow{way} towards every other leaf, fast inside: {figure}",
        "path": f"every pair across is slow, pairs on either side are fast: {figure}",
        "class": f"slow for all nodes with it: {figure}",
        "link": f"slow each time, both ends are fast with others: {figure}",
        None: f"slow: {figure}; {_why_open(culprit)}",
    }.get(culprit.kind, figure)


def _why_open(culprit: Culprit) -> str:
    """Why a question is one."""
    if [candidate.kind for candidate in culprit.candidates] == ["link"]:
        return "too few measurements of this pair to tell a slow link from something passing"
    return "more than one explanation remains"
