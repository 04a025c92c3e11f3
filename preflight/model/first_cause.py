"""Which of several kernel events is the cause, and which only follow from it. Pure.

One fault makes a GPU and its peers speak many times; blaming each speaker would drain good GPUs. Sources: NVIDIA, Xid Catalog: 45 and 94 are to be followed to the other
Xid, 154 only repeats another's action, 48 comes with 63 or 64; "if a GPU fails, another GPU connected to it over NVLink may report an Xid 74 simply because the
link went down" (Xid Errors, 74). NVIDIA/open-gpu-kernel-modules issues 1150 and 1355: 45 "caused by previous Xid 149" on one GPU, 145 on its peers.
marin-community/marin 9086: one Xid 149, and 63 other GPUs that only reported 145. Switches report links that went down 12 s after a GPU
fell off the bus (a public report of Xid 79 followed by SXid 20034 on all switches), so that a window of a minute is ample.
"""

from collections.abc import Iterable, Sequence

from preflight.model.base import Record
from preflight.model.surroundings import KernelEvent
from preflight.model.xids import named_cause, weigh

WINDOW_S = 60.0
BEFORE_S = 5.0  # lines of several devices may stand a little out of order
_LOST = 79
_MEMORY, _MEMORY_FOLLOWS = 48, {63, 64, 94, 95}
_LINK_CODES = {74, 108, 137, *range(144, 149)}  # told by a GPU whose peer failed
_CLEANED_UP = {43, 45}


class Chain(Record, frozen=True):
    """A cause, and the events that follow from it, in the order of the log."""

    cause: KernelEvent
    follows: tuple[KernelEvent, ...] = ()

    @property
    def events(self) -> tuple[KernelEvent, ...]:
        """All of them, the cause first."""
        return (self.cause, *self.follows)


def first_cause(events: Sequence[KernelEvent]) -> tuple[Chain, ...]:
    """The events of one node, as chains in the order in which they begin. Every event is in exactly one."""
    ordered = list(events)
    if all(event.at_s is not None for event in ordered):
        ordered.sort(key=lambda event: event.at_s or 0.0)
    place = {id(event): position for position, event in enumerate(ordered)}
    chains = [_chain(run) for run in _runs(ordered)]
    chains.sort(key=lambda chain: min(place[id(event)] for event in chain.events))
    roots = [chain for chain in chains if _can_be_root(chain)]
    are_roots = {id(root) for root in roots}
    merged: dict[int, list[KernelEvent]] = {}
    kept = []
    for chain in chains:
        root = None if id(chain) in are_roots else _root_of(chain, roots)
        if root is None:
            kept.append(chain)
        else:
            merged.setdefault(id(root.cause), []).extend(chain.events)
    return tuple(
        chain.replace(
            follows=tuple(sorted([*chain.follows, *merged.get(id(chain.cause), [])], key=lambda e: place[id(e)]))
        )
        for chain in kept
    )


def only_follows(chain: Chain) -> bool:
    """Whether all of a chain is what a GPU says when another one fails: its root may be on another node of the same NVLink domain."""
    return all(_link_only(event) or event.code == 154 or event.code in _CLEANED_UP for event in chain.events) and any(
        (named_cause(event) or event.code) in {*_LINK_CODES, 149, 150} for event in chain.events
    )


def is_lost(event: KernelEvent) -> bool:
    """Whether the event is that of a GPU that left the bus."""
    return event.kind == "fell off" or (event.kind == "xid" and event.code == _LOST)


def _runs(events: Sequence[KernelEvent]) -> list[list[KernelEvent]]:
    """The events of each device, apart where more than the window lies between; after a device is lost all belongs to that."""
    runs: list[list[KernelEvent]] = []
    open_runs: dict[tuple[bool, str | None], list[list[KernelEvent]]] = {}
    for event in events:
        key = (event.kind == "sxid", event.pci_bus_id)
        mine = open_runs.setdefault(key, [])
        home = _home(event, mine) if event.pci_bus_id is not None and event.kind != "sxid" else None
        if home is None:
            home = []
            mine.append(home)
            runs.append(home)
        home.append(event)
    return runs


def _home(event: KernelEvent, runs: Sequence[list[KernelEvent]]) -> list[KernelEvent] | None:
    if not runs:
        return None
    named = named_cause(event)
    for run in reversed(runs):
        if named is not None and any(earlier.code == named for earlier in run):
            return run
    last = runs[-1]
    lost = any(is_lost(earlier) for earlier in last)
    return last if lost or _near(last[-1], event) else None


def _near(earlier: KernelEvent, later: KernelEvent) -> bool:
    ended = earlier.at_s if earlier.last_at_s is None else earlier.last_at_s
    return ended is None or later.at_s is None or later.at_s - ended <= WINDOW_S


def _chain(run: Sequence[KernelEvent]) -> Chain:
    cause = min(run, key=_rank)  # the first of the equal ones
    if cause.code in _MEMORY_FOLLOWS:
        cause = next((event for event in run if event.code == _MEMORY), cause)
    return Chain(cause, tuple(event for event in run if event is not cause))


def _rank(event: KernelEvent) -> int:
    """How deep a cause is: 0 deepest."""
    if is_lost(event):
        return 0
    if event.kind != "xid":
        return 2
    if event.code == 154:
        return 4
    weighed = weigh(event)
    if weighed.kind in {"application", "ignore"}:
        return 3
    return 1 if weighed.serious else 2


def _link_only(event: KernelEvent) -> bool:
    if event.kind == "sxid":
        return True
    code = named_cause(event) or event.code
    return event.kind == "xid" and (code in _LINK_CODES or (code in {149, 150} and not weigh(event).serious))


def _can_be_root(chain: Chain) -> bool:
    return chain.cause.kind in {"xid", "fell off"} and _rank(chain.cause) <= 1 and not _link_only(chain.cause)


def _root_of(chain: Chain, roots: Iterable[Chain]) -> Chain | None:
    """The fault on another device that explains this chain."""
    if not (_link_only(chain.cause) or chain.cause.code in _CLEANED_UP):
        return None
    near = [root for root in roots if root.cause.pci_bus_id != chain.cause.pci_bus_id and _within(root, chain)]
    return max(near, key=lambda root: root.cause.at_s or 0.0, default=None)


def _within(root: Chain, chain: Chain) -> bool:
    begins, follows = root.cause.at_s, chain.cause.at_s
    if begins is None or follows is None:
        return True
    ends = max(event.last_at_s or event.at_s or begins for event in root.events)
    return begins - BEFORE_S <= follows <= ends + WINDOW_S
