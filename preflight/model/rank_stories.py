"""What happened to each rank of a run: what its agent saw of it, what it took part in, and which failures point at it (pure; reachable needs it)."""

from collections.abc import Iterable, Iterator, Sequence

from preflight.model.base import Record
from preflight.model.evidence import Evidence, Incident
from preflight.model.measurement import Measurement
from preflight.model.plan import Rank

ENDED = {"worker_died", "worker_hung"}
_NOBODYS = {
    "budget_ended",
    "worker_slow",
}  # a budget that ended, and a worker that was at work in what was slow, are no fault of a rank
# what is said of a replacement that was not ready in the few seconds that it has in the middle of a run: so late, and no more is known of the node
_LATE = ("took more than", "said nothing for")
_HANGS = ("is stopped (T)", "uninterruptible sleep (D)")


class Story(Record, frozen=True):
    """What happened to one rank: what its agent saw, its measurements in the order in which they were made, and the positions among them
    of the failures that point at it.
    """

    rank: Rank
    incidents: tuple[Incident, ...]
    own: tuple[Measurement, ...]
    troubles: tuple[int, ...]

    @property
    def recovered(self) -> bool:
        """It worked after the last failure that points at it."""
        return any(m.samples for m in self.own[max(self.troubles, default=-1) + 1 :])

    @property
    def partners(self) -> set[tuple[int, ...]]:
        """Those with whom it failed, one entry for each set of them; (): in what it does alone."""
        return {tuple(r for r in self.own[i].probe.ranks if r != self.rank.rank) for i in self.troubles}


def stories_of(wanted: Sequence[Rank], evidence: Evidence, placed: Sequence[Rank]) -> list[Story]:
    """What happened to each rank. What one only suffered together with a rank that doesn't answer is that one's trouble alone."""
    incidents: dict[int, list[Incident]] = {}
    for incident in evidence.incidents:
        if incident.rank is not None and incident.kind not in _NOBODYS:
            incidents.setdefault(incident.rank, []).append(incident)
    own: dict[int, list[Measurement]] = {}
    for measurement in evidence.measurements or ():
        for rank in measurement.probe.ranks:
            own.setdefault(rank, []).append(measurement)
    stories = [_story(rank, incidents.get(rank.rank, ()), own.get(rank.rank, ())) for rank in wanted]
    silent = {story.rank.rank for story in stories if does_not_answer(story, placed)}
    return [story if story.rank.rank in silent else _without(story, silent) for story in stories]


def _story(rank: Rank, incidents: Sequence[Incident], own: Sequence[Measurement]) -> Story:
    keys = {incident.probe for incident in incidents}
    troubles = tuple(
        i
        for i, m in enumerate(own)
        if m.failure
        and m.failure.kind != "not_run"
        and (m.failure.rank == rank.rank or m.probe.key in keys or m.probe.ranks == (rank.rank,))
    )
    return Story(rank, tuple(incidents), tuple(own), troubles)


def _without(story: Story, silent: set[int]) -> Story:
    """A rank's story without what only its partner's silence did to it; what its own agent saw of it stays."""
    keys = {incident.probe for incident in story.incidents}
    kept = tuple(
        i for i in story.troubles if story.own[i].probe.key in keys or not silent.intersection(story.own[i].probe.ranks)
    )
    return story.replace(troubles=kept)


def does_not_answer(story: Story, placed: Sequence[Rank]) -> bool:
    """Whether it failed to the end, with two partners and across more than one route, or twice in what it does alone."""
    if story.recovered or not story.troubles:
        return False
    alone = [i for i in story.troubles if len(story.own[i].probe.ranks) == 1]
    return len(alone) > 1 or (len(story.partners - {()}) > 1 and not _one_route(story, placed))


def _one_route(story: Story, placed: Sequence[Rank]) -> bool:
    """Whether it only failed to come to ranks of one other node, and its own agent saw nothing: then the route between the nodes explains as much."""
    nodes = {placed[other].node for partners in story.partners for other in partners}
    return not story.incidents and len(nodes) == 1 and story.rank.node not in nodes


def idle_nodes(incidents: Sequence[Incident], ranks: Iterable[Rank]) -> Iterator[tuple[str, Incident]]:
    """Nodes whose agent answered and could start no worker, or none of those that it has to start again."""
    whole, single = {}, {}
    for incident in incidents:
        if incident.kind == "worker_not_started" and incident.node:
            if incident.rank is None:
                whole[incident.node] = incident
            else:
                single[incident.rank] = incident
    ended = {i.rank for i in incidents if i.kind in ENDED}
    single = {rank: i for rank, i in single.items() if not (rank in ended and was_late(i.text))}
    by_node: dict[str, list[Incident | None]] = {}
    for rank in ranks:
        by_node.setdefault(rank.node, []).append(single.get(rank.rank))
    for node, mine in by_node.items():
        if node in whole:
            yield node, whole[node]
        elif mine[0] and len(mine) > 1 and all(mine):
            yield node, mine[0]


def was_late(text: str) -> bool:
    """Whether an incident's text says of a worker that it was not ready in time, and no more. One that is stopped, or sleeps in the kernel for good, hangs."""
    return any(words in text for words in _LATE) and not any(state in text for state in _HANGS)
