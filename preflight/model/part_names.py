"""What a part that the localiser names is called, in findings and reports alike (pure)."""

from preflight.model.crossing import shortened
from preflight.model.hostlist import fold
from preflight.model.localisation import Culprit, Ends

OPEN = "not identifiable"
SELF_TELLING = {None, "gpu", "rank", "environment"}  # "n3 GPU 2" says that it is a GPU
STUTTERING = {"node", "leaf", "rail"}  # no "node node3", no "leaf leaf1"


def part_name(culprit: Culprit, ends: Ends) -> str:
    """The bare name, for subjects and for what is blamed: "n3", "n3 GPU 2", "NIC of n3 GPU 2", "n1 GPU 0 to n2 GPU 0", "slot 3", "leaf1", "uplink of leaf1, slot 3", "n[0-8] to n[9-16]".

    Of a question whose every answer is on one GPU's own way: that GPU; of any other: "not identifiable".
    """
    names = [ends.name(end) for end in culprit.ends]
    nodes, others = fold(culprit.nodes), fold(culprit.other_nodes)
    slot = "" if culprit.slot is None else f", slot {culprit.slot}"
    if culprit.kind is None:
        return ends.name(culprit.candidates[0].ends[0]) if is_one_end(culprit) else OPEN
    if culprit.kind == "path" or (culprit.kind == "class" and others and not culprit.fact):
        return f"{nodes} to {others}"
    return {
        "gpu": " and ".join(names),
        "nic": f"NIC of {' and '.join(names)}",
        "link": " to ".join(names),
        "slot": f"slot {culprit.slot}",
        "rail": "rail" if culprit.slot is None else f"rail {culprit.slot}",
        "node": nodes,
        "class": culprit.fact or nodes,
        "leaf": f"{culprit.leaf}{slot}",
        "uplink": f"uplink of {culprit.leaf}{slot}{'' if culprit.share is None else ', in part'}",
        "environment": "environment",
    }.get(culprit.kind, nodes or " and ".join(names) or culprit.kind)


def part_phrase(culprit: Culprit, ends: Ends) -> str:
    """The name with the kind of part before it, where the name doesn't tell it, and behind it what share of the part and which direction is meant; for sentences.

    "node n3, sending", "link n1 GPU 0 to n2 GPU 0", "path n[0-8] to n[9-16]", "uplink of leaf1, in part (25% of what crosses it)", "slot 3 of all nodes", "nodes with driver 550 (n[0-3])".
    """
    name = shortened(part_name(culprit, ends))
    if culprit.kind == "class" and culprit.fact:
        nodes, others = (shortened(fold(names)) for names in (culprit.nodes, culprit.other_nodes))
        return f"{name}: {nodes} to {others}" if others else f"nodes with {name} ({nodes})"
    stem = f"{culprit.kind}" if culprit.kind in STUTTERING else f"{culprit.kind} "
    if culprit.kind not in SELF_TELLING and not f"{name} ".casefold().startswith(stem):
        name = f"{culprit.kind} {name}"
    if culprit.kind == "slot":
        name += " of all nodes"
    share = "" if culprit.share is None else f" ({culprit.share:.0%} of what crosses it)"
    way = "" if culprit.direction == "both" else f", {culprit.direction}"
    return f"{name}{share}{way}"


def is_one_end(culprit: Culprit) -> bool:
    """A question whose every answer is on one GPU's own way: whatever it is, this rank is slow."""
    ends = {candidate.ends for candidate in culprit.candidates}
    kinds = {candidate.kind for candidate in culprit.candidates}
    return culprit.kind is None and len(ends) == 1 and ends != {()} and bool(kinds) and kinds <= {"gpu", "nic"}
