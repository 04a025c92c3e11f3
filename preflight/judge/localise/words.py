"""The inference in a sentence or two, for people."""

import msgspec

from preflight.model.localisation import Culprit, Ends
from preflight.model.part_names import part_phrase
from preflight.model.units import show_rate

MOST_NAMES = 4  # of the GPUs that a share of an uplink slows


def reasoned(culprit: Culprit, ends: Ends) -> Culprit:
    """The culprit with its reason, where it has none."""
    if culprit.reason:
        return culprit
    candidates = tuple(msgspec.structs.replace(c, reason=part_phrase(c, ends)) for c in culprit.candidates)
    return msgspec.structs.replace(culprit, reason=_reason(culprit, ends), candidates=candidates)


def _reason(culprit: Culprit, ends: Ends) -> str:
    if culprit.failed and culprit.observed_bytes_per_s is None:
        return "every probe across it failed, while its ends are fast with others"
    assert culprit.observed_bytes_per_s is not None
    figure = f"{show_rate(culprit.observed_bytes_per_s)}, {1 - (culprit.depth or 0.0):.0%} of its peers"
    way = {"both": "", "sending": " sending", "receiving": " receiving"}[culprit.direction]
    return {
        "gpu": f"slow{way} with every partner, on its own node too: {figure}",
        "nic": f"slow{way} with every partner on other nodes, fast on its own: {figure}",
        "node": f"slow{way} with every partner: {figure}",
        "slot": f"slow on every node: {figure}",
        "leaf": f"slow among its own nodes: {figure}",
        "uplink": f"slow{way} towards every other leaf{_whose(culprit, ends)}, fast inside: {figure}",
        "path": f"every pair across is slow{_between(culprit)}, pairs on either side are fast: {figure}",
        "class": f"slow for all nodes with it: {figure}",
        "link": f"slow each time{_between(culprit)}, both ends are fast with others: {figure}",
        None: f"slow: {figure}; {_why_open(culprit)}",
    }.get(culprit.kind, figure)


def _between(culprit: Culprit) -> str:
    """Which way, of what has two sides."""
    return {"both": "", "sending": " from the first to the second", "receiving": " from the second to the first"}[
        culprit.direction
    ]


def _whose(culprit: Culprit, ends: Ends) -> str:
    """Of a share of an uplink, whom it slows."""
    if culprit.share is None or not culprit.ends:
        return ""
    names = [ends.name(end) for end in culprit.ends]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f" for {', '.join(names[:MOST_NAMES])}{more}"


def _why_open(culprit: Culprit) -> str:
    """Why a question is one."""
    if [candidate.kind for candidate in culprit.candidates] == ["link"]:
        return "too few measurements of this pair to tell a slow link from something passing"
    return "more than one explanation remains"
