"""One answer from many: what the localiser says of each family of logs at each size, read together so that the sizes don't contradict one another.

A culprit is named if it shows at most of the large sizes. One that shows at fewer is not identifiable, with itself as the candidate. What is unclear in one family and
explained by a part that another names is left out.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from preflight.model.base import Record
from preflight.model.localisation import Ask, Culprit, Ends, Localisation
from preflight.probe.nccl_tests.families import Family
from preflight.probe.nccl_tests.shots import show_size

MAX_ASKS = 32
MERE_NOISE = 3  # the localiser's priority of repeats that only tell the noise


class Said(Record, frozen=True):
    """What the localiser said of one family at one size."""

    family: Family
    size_bytes: int
    localisation: Localisation


def combined(
    said: Sequence[Said], ends: Ends, others: Sequence[Culprit] = (), notes: Sequence[str] = ()
) -> Localisation:
    """The one localisation of all logs. `others`: culprits that were found in another way (runs that died, runs of many nodes)."""
    by_family: dict[str, list[Said]] = {}
    for one in said:
        by_family.setdefault(f"{one.family.kind.folder} {one.family.name}", []).append(one)
    everything = [*others, *_links_seen_again([(list(_of_family(family)), family) for family in by_family.values()])]
    named = _merged(culprit for culprit in everything if culprit.kind is not None)
    unclear = [c for c in everything if c.kind is None and not _explained(c, named)]
    judged = [one.localisation for one in said]
    floors = [loc.floor for loc in judged if loc.floor is not None]
    return Localisation(
        ends=ends,
        references=tuple(reference for loc in judged for reference in loc.references),
        culprits=(*sorted(named, key=lambda culprit: -(culprit.depth or 0.0)), *_distinct(unclear)),
        asks=_asks(judged, named, unclear),
        notes=_once_each([*notes, *_size_notes(by_family.values()), *(note for loc in judged for note in loc.notes)]),
        unjudged=_why_unjudged(judged),
        floor=max(floors) if floors else None,
        cleared_ends=max((loc.cleared_ends for loc in judged), default=0),
        shots=sum(loc.shots for loc in judged),
    )


def _why_unjudged(judged: Sequence[Localisation]) -> str:
    """Why not one rate is judged; empty: some are. Logs of which nothing can be compared are unknown, not healthy."""
    if not judged:
        return "no run has a figure at a size that is large enough to judge"
    reasons = dict.fromkeys(one.unjudged for one in judged)
    if "" in reasons:
        return ""
    return "no run could be compared with its like: " + "; ".join(reasons).replace("too few", "not enough")


def identity(culprit: Culprit) -> tuple[object, ...]:
    """What makes two culprits the same part."""
    sets = frozenset((frozenset(culprit.nodes), frozenset(culprit.other_nodes)))
    ends = culprit.ends if culprit.direction != "both" else tuple(sorted(culprit.ends))
    return (culprit.kind, ends, sets, culprit.leaf, culprit.slot, culprit.fact, culprit.direction, culprit.failed)


def _of_family(said: Sequence[Said]) -> Iterator[Culprit]:
    """The culprits of one family over its sizes."""
    judged = [one for one in said if not one.localisation.unjudged]
    if not judged:
        return
    found: dict[tuple[object, ...], list[tuple[Said, Culprit]]] = {}
    for one in judged:
        for culprit in one.localisation.culprits:
            if culprit.kind is not None:
                found.setdefault(identity(culprit), []).append((one, culprit))
    named = []
    for seen in found.values():
        if 2 * len(seen) > len(judged) or len(judged) == 1:
            named.append(_named(seen, judged))
        else:
            yield _once(seen, judged)
    yield from named
    largest = max(judged, key=lambda one: one.size_bytes)
    yield from (c for c in largest.localisation.culprits if c.kind is None and not _explained(c, named))


def _links_seen_again(families: Sequence[tuple[Sequence[Culprit], Sequence[Said]]]) -> Iterator[Culprit]:
    """The culprits of all families. A pair that is slow in one run may be something passing, or a collision of routes that lasts as long as its connections; in two
    runs, and at each size, it is the pair's.
    """
    runs: Counter[tuple[int, ...]] = Counter()
    for culprits, said in families:
        for culprit in culprits:
            link = _only_link(culprit)
            if link and all(link in map(_only_link, one.localisation.culprits) for one in said):
                runs[link] += max(1, len(set(culprit.evidence)))
    for culprits, _ in families:
        for culprit in culprits:
            link = _only_link(culprit)
            if link is None or runs[link] < 2:
                yield culprit
                continue
            reason = f"{culprit.reason}; slow at each size in {runs[link]} separate runs"
            yield msgspec.structs.replace(
                culprit, kind="link", confidence="likely", ends=link, candidates=(), reason=reason
            )


def _only_link(culprit: Culprit) -> tuple[int, ...] | None:
    """The ends of the only candidate, if that is a link."""
    only = culprit.candidates[0] if culprit.kind is None and len(culprit.candidates) == 1 else None
    return tuple(sorted(only.ends)) if only and only.kind == "link" and not culprit.failed else None


def _named(seen: Sequence[tuple[Said, Culprit]], judged: Sequence[Said]) -> Culprit:
    culprit = max(seen, key=lambda pair: pair[0].size_bytes)[1]
    sizes = _sizes(item for item, _ in seen)
    over = f" (so at {sizes}{'' if len(seen) == len(judged) else f', {len(seen)} of {len(judged)} sizes'})"
    ops = tuple(dict.fromkeys(op for _, other in seen for op in other.ops))
    return msgspec.structs.replace(culprit, reason=culprit.reason + (over if len(judged) > 1 else ""), ops=ops)


def _once(seen: Sequence[tuple[Said, Culprit]], judged: Sequence[Said]) -> Culprit:
    """Named at fewer than most of the sizes: they contradict one another."""
    culprit = seen[0][1]
    others = _sizes(one for one in judged if one not in [item for item, _ in seen])
    reason = f"it shows at {_sizes(item for item, _ in seen)} and not at {others}, so that no part is named: {culprit.reason}"
    return msgspec.structs.replace(
        culprit,
        kind=None,
        confidence="possible",
        reason=reason,
        candidates=(msgspec.structs.replace(culprit, confidence="possible"),),
    )


def _explained(unclear: Culprit, named: Sequence[Culprit]) -> bool:
    """Whether a part that is named is among what may explain this."""
    parts = {identity(culprit) for culprit in named}
    return any(identity(candidate) in parts for candidate in unclear.candidates)


def _merged(culprits: Iterable[Culprit]) -> list[Culprit]:
    """Each part once, as the deepest of its entries, with the operations of all."""
    found: dict[tuple[object, ...], Culprit] = {}
    for culprit in culprits:
        before = found.get(identity(culprit))
        deeper = culprit if before is None or (culprit.depth or 0) > (before.depth or 0) else before
        ops = dict.fromkeys((*(before.ops if before else ()), *culprit.ops))
        found[identity(culprit)] = msgspec.structs.replace(deeper, ops=tuple(ops))
    return list(found.values())


def _distinct(unclear: Iterable[Culprit]) -> Iterator[Culprit]:
    """Those that list the same candidates, once."""
    seen: set[object] = set()
    for culprit in unclear:
        key = (
            (frozenset(map(identity, culprit.candidates)), frozenset(culprit.evidence))
            if not culprit.candidates
            else frozenset(map(identity, culprit.candidates))
        )
        if key not in seen:
            seen.add(key)
            yield culprit


def _asks(judged: Sequence[Localisation], named: Sequence[Culprit], unclear: Sequence[Culprit]) -> tuple[Ask, ...]:
    """What would decide more; nothing if all is clear."""
    if not named and not unclear:
        return ()
    distinct: dict[tuple[int, int], Ask] = {}
    for ask in (ask for loc in judged for ask in loc.asks if ask.priority < MERE_NOISE):
        distinct.setdefault((min(ask.a, ask.b), max(ask.a, ask.b)), ask)
    return tuple(distinct.values())[:MAX_ASKS]


def _size_notes(families: Iterable[Sequence[Said]]) -> Iterator[str]:
    """At which sizes each family was judged, and what of it was not."""
    for said in families:
        yield f"{said[0].family.name}: {len(said[0].family.runs)} runs, judged at {_sizes(said)}, never by the average in their summaries"
        yield from dict.fromkeys(
            f"{one.family.name}: {one.localisation.unjudged}" for one in said if one.localisation.unjudged
        )


def _once_each(notes: Iterable[str]) -> tuple[str, ...]:
    """The notes, those that differ in percentages alone once: every size has its own."""
    return tuple({re.sub(r"\d[\d.]*%", "%", note): note for note in reversed(list(notes))}.values())[::-1]


def _sizes(said: Iterable[Said]) -> str:
    sizes = sorted({one.size_bytes for one in said})
    return ", ".join(map(show_size, sizes))
