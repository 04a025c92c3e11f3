"""What the history remembers of a node beside its figures: software that may change a rate, and which GPU sits where (pure)."""

from collections.abc import Iterable, Mapping

from preflight.model.base import Noun
from preflight.model.evidence import Evidence
from preflight.model.inventory import Node

MOST = 24  # pieces of software of one node
MAX_TEXT = 120


class NodeFacts(Noun, frozen=True, kw_only=True):
    """`software`: name -> version, of what is known. `gpus`: local rank, as text -> UUID, of those that are known."""

    software: dict[str, str] = {}
    gpus: dict[str, str] = {}


def facts_of(evidence: Evidence) -> dict[str, NodeFacts]:
    """Node name -> its facts; nodes of which nothing is known are left out. GPUs by the plan's local ranks, without a plan by NVML's numbers."""
    nodes = {node.name: node for node in evidence.inventory.nodes} if evidence.inventory else {}
    gpus: dict[str, dict[str, str]] = {}
    if evidence.plan is not None:
        placement = evidence.plan.placement
        for place, local, uuid in zip(
            placement.node_ranks, placement.local_ranks, placement.gpu_uuids or (), strict=False
        ):
            if uuid:
                gpus.setdefault(placement.nodes[place], {})[str(local)] = uuid[:MAX_TEXT]
    else:
        gpus = {
            name: {str(gpu.index): gpu.uuid[:MAX_TEXT] for gpu in node.gpus or () if gpu.uuid}
            for name, node in nodes.items()
        }
    found = {
        name: NodeFacts(software=_software(nodes[name]) if name in nodes else {}, gpus=gpus.get(name, {}))
        for name in dict.fromkeys((*nodes, *gpus))
    }
    return {name: facts for name, facts in found.items() if facts.software or facts.gpus}


def _software(node: Node) -> dict[str, str]:
    known = {
        "driver": node.driver_version,
        "kernel": node.kernel,
        "CUDA": node.cuda_version,
        **dict(sorted(node.versions.items())),
    }
    told = [(name, text) for name, text in known.items() if text][:MOST]
    return {name[:MAX_TEXT]: text[:MAX_TEXT] for name, text in told}


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """What both tell and tell differently, in words: "driver 550.54 -> 570.86"."""
    return tuple(
        f"{name} {before[name]} -> {after[name]}"
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    )


def changes_of(pairs: Iterable[tuple[str, Mapping[str, str], Mapping[str, str]]]) -> tuple[str, ...]:
    """The changes of several nodes (name, before, after), each with who has it: "driver 550.54 -> 570.86 (n1 and 3 more)"."""
    who: dict[str, list[str]] = {}
    for name, before, after in pairs:
        for text in changed(before, after):
            who.setdefault(text, []).append(name)
    return tuple(
        f"{text} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})" for text, names in who.items()
    )
