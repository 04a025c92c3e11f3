"""How far a tournament over all pairs of nodes has come, so that the next run or scan goes on there."""

from preflight.model.base import Noun


class Position(Noun, frozen=True, kw_only=True):
    """Rounds done of one tournament; saved between runs.

    `seed` of the random order. `fingerprint` of the nodes, their leaves and GPU slots (preflight.probe.schedule.fingerprint_of): the position means something for
    that set of nodes only. `inside`, `across`: rounds done inside leaves, and across them (where leaves are unknown all count as across); each may run beyond
    the tournament's number, since every run begins with one round inside leaves: then rounds come a second time.
    """

    seed: int
    fingerprint: str
    inside: int = 0
    across: int = 0
