"""What was tried of each pair and group, in order: did it fail to the end, was it slow or dead, do its ranks work with others (pure)."""

from collections.abc import Iterable, Sequence

from preflight.model.measurement import Measurement
from preflight.model.plan import Rank

SMALLER = "smaller"  # Probe.size_name of a repetition with a message that passes a link at 1 % of its speed


def by_subject(measurements: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    """What was tried of each pair and group, in order. What went one way only stands apart: the other way may be at fault."""
    tries: dict[str, list[Measurement]] = {}
    for m in measurements:
        if m.failure is None or m.failure.kind != "not_run":
            one_way = ", one way" if m.probe.collective == "send" else ""
            tries.setdefault(m.probe.subject + one_way, []).append(m)
    return tries


def persists(tried: Sequence[Measurement]) -> bool:
    """It failed more than once, and at the end."""
    return tried[-1].failure is not None and len([m for m in tried if m.failure]) > 1


def slow_after(tried: Sequence[Measurement], slow_message_s: float) -> list[Measurement]:
    """The smaller messages after the last whole one, if that was not over in time and at their rate the next wouldn't be either."""
    last = max((i for i, m in enumerate(tried) if m.probe.size_name != SMALLER), default=0)
    whole = tried[last]
    if whole.failure is None or whole.failure.rank is not None:
        return []
    after = [m for m in tried[last + 1 :] if m.algbw_bytes_per_s]
    rates = [m.algbw_bytes_per_s for m in after if m.algbw_bytes_per_s]
    return after if rates and whole.probe.size_bytes / rates[-1] >= slow_message_s else []


def how_slow(subject: str, tried: Sequence[Measurement], slow: Sequence[Measurement]) -> str:
    """What is known of a slow pair or group, for people."""
    late = [m for m in tried if m.failure]
    rate, size = slow[-1].algbw_bytes_per_s or 0.0, slow[-1].probe.size_bytes
    return (
        f"{subject} is slow, not dead: {late[-1].probe.size_bytes:,} bytes were not over at the deadline ({len(late)} of {len(tried)} tries); "
        f"{size:,} bytes went at {rate / 1e6:.3g} MB/s"
    )


def at_work(measurements: Iterable[Measurement]) -> dict[int, list[tuple[int, ...]]]:
    """Rank -> the ranks of each probe at full size in which it worked."""
    worked: dict[int, list[tuple[int, ...]]] = {}
    for m in measurements:
        if m.samples and len(m.probe.ranks) > 1 and m.probe.size_name != SMALLER:
            for rank in m.probe.ranks:
                worked.setdefault(rank, []).append(m.probe.ranks)
    return worked


def works_elsewhere(
    rank: int, ranks: Sequence[int], worked: dict[int, list[tuple[int, ...]]], placed: Sequence[Rank]
) -> bool:
    """Whether a rank works with others than these; if these sit on several nodes and there are more, with one of a node that isn't theirs."""
    theirs = {placed[other].node for other in ranks}
    more = len(theirs) > 1 and any(place.node not in theirs for place in placed)
    return any(
        set(others) != set(ranks) and (not more or any(placed[other].node not in theirs for other in others))
        for others in worked.get(rank, ())
    )
