"""The localiser: from the figures of pair probes to the parts that explain the slow ones.

Inference on a graph of parts. A fast shot clears every part that it crossed; a part is at least as good as its best shot, so only parts whose every shot is slow
are suspects; the explanation that covers most slow shots is taken first, and what it covers is evidence for nothing else. What remains unclear is said to be so,
with the probes that would decide.

numpy is imported when shots are judged, never before: commands that measure nothing don't pay for it.
"""

from collections.abc import Mapping

from preflight.model.evidence import Evidence
from preflight.model.localisation import Ends, Localisation, Shots

Expected = Mapping[tuple[str, str], tuple[float, str]]


def localise(ends: Ends, shots: Shots, *, expected: Expected | None = None) -> Localisation:
    """Which parts explain the slow and failed shots (pure).

    `expected`: (op, route) -> bytes per second that a formula allows and where that comes from; None: nobody knows. Raises nothing for shots that
    can't be judged: they are left out, and `unjudged` or `notes` say so.
    """
    from preflight.judge.localise.whole import localise_shots

    return localise_shots(ends, shots, expected or {})


def localise_evidence(evidence: Evidence, *, expected: Expected | None = None) -> Localisation | None:
    """What the measured pairs of a run say. None: there are no pairs. Without a plan, what the evidence already carries is kept. `expected` None: the formulas say."""
    if evidence.plan is None or not evidence.measurements:
        return evidence.localisation
    from preflight.judge.localise.from_evidence import ends_and_shots, expected_rates

    asked = ends_and_shots(evidence)
    if asked is None:
        return None
    return localise(*asked, expected=expected_rates(evidence, *asked) if expected is None else expected)
