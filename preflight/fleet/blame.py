"""After a round with failures: repeat what failed, then try the suspects with other partners, until it is clear who is at fault.

A worker that hung or died has been replaced by its agent, so a repetition asks "does it happen again?". A rank that fails again with another, cleared partner is left
out of the rest of the run. Ranks that only failed together keep their places: then the path between them is at fault, or nothing is.
"""

from collections.abc import Iterable, Sequence

import msgspec

from preflight.model import Measurement, Probe
from preflight.probe.schedule import Round, pair_probe


def repeat_of(failed: Iterable[Measurement], left_out: set[int]) -> Round:
    """The failed probes of one round once more (they are disjoint), without those that can't work."""
    return tuple(
        msgspec.structs.replace(m.probe, attempt=m.probe.attempt + 1)
        for m in failed
        if m.failure and not left_out.intersection(m.probe.ranks)
    )


def suspects_of(failed: Sequence[Measurement]) -> tuple[int, ...]:
    """The ranks that failures point at; where one points at nobody in particular, all of its ranks, at most four."""
    ranks: list[int] = []
    for measurement in failed:
        assert measurement.failure is not None
        named = measurement.failure.rank
        ranks += measurement.probe.ranks[:4] if named is None else [named]
    return tuple(dict.fromkeys(ranks))


def confirm(suspects: Sequence[int], cleared: Sequence[int], backend: str, attempt: int) -> Round:
    """Each suspect with a cleared partner of its own, all at once. Suspects without a partner are not confirmed."""
    partners = [rank for rank in cleared if rank not in suspects]
    pairs = zip(suspects, partners, strict=False)
    return tuple(_attempt(pair_probe((min(a, b), max(a, b)), backend, 0), attempt) for a, b in pairs)


def cleared_ranks(measurements: Iterable[Measurement], left_out: set[int]) -> list[int]:
    """Ranks whose latest probe worked, most recently proven first."""
    latest: dict[int, bool] = {}
    for measurement in measurements:
        for rank in measurement.probe.ranks:
            latest.pop(rank, None)
            latest[rank] = measurement.failure is None
    return [rank for rank, good in reversed(latest.items()) if good and rank not in left_out]


def _attempt(probe: Probe, attempt: int) -> Probe:
    return msgspec.structs.replace(probe, attempt=attempt)
