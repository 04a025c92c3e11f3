"""The same culprit seen in several operations is one."""

import msgspec

from preflight.model.localisation import Culprit


def identity(culprit: Culprit) -> tuple[object, ...]:
    """What makes two culprits one: the kind and the part, not the figures."""
    sides = frozenset({culprit.nodes, culprit.other_nodes})
    ends = () if culprit.kind == "uplink" else tuple(sorted(culprit.ends))
    return culprit.kind, ends, sides, culprit.leaf, culprit.slot, culprit.fact, culprit.share is None


def merged(lists: list[list[Culprit]]) -> list[Culprit]:
    """Culprits of several operations, equal ones joined: the deepest with the evidence of all."""
    found: dict[tuple[object, ...], Culprit] = {}
    for culprit in (culprit for culprits in lists for culprit in culprits):
        key = identity(culprit)
        other = found.get(key)
        found[key] = culprit if other is None else _joined(other, culprit)
    return list(found.values())


def _joined(one: Culprit, two: Culprit) -> Culprit:
    deeper, other = (one, two) if (one.depth or 0) >= (two.depth or 0) else (two, one)
    ops = tuple(dict.fromkeys([*one.ops, *two.ops]))
    evidence = tuple(dict.fromkeys([*deeper.evidence, *other.evidence]))
    sure = one.confidence if one.confidence == "certain" else two.confidence
    return msgspec.structs.replace(deeper, ops=ops, evidence=evidence, confidence=sure)
