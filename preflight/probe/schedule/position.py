"""Where a tournament goes on: valid for the same set of nodes only (pure)."""

from hashlib import sha256

import msgspec

from preflight.model.localisation import Ends
from preflight.model.position import Position
from preflight.probe.schedule.strata import Tournament


def fingerprint_of(ends: Ends) -> str:
    """Of what the order of rounds depends on: names of nodes, their leaves and slots. The order in which nodes are listed doesn't matter."""
    slots: dict[int, list[int]] = {}
    for node, slot in zip(ends.node, ends.slot, strict=True):
        slots.setdefault(node, []).append(slot)
    leaves = ends.leaves or (None,) * len(ends.nodes)
    told = sorted((ends.nodes[node], leaves[node], sorted(found)) for node, found in slots.items())
    return sha256(msgspec.json.encode(told)).hexdigest()[:16]


def new_position(ends: Ends, seed: int | None = None) -> Position:
    """The start of a new tournament. `seed` None: one that follows from the nodes."""
    fingerprint = fingerprint_of(ends)
    return Position(seed=int(fingerprint[:8], 16) if seed is None else seed, fingerprint=fingerprint)


def resumed(position: Position | None, ends: Ends) -> tuple[Position, Tournament]:
    """The position to begin from, and its tournament: the remembered one if it is of these nodes and not through; else a new one with another seed."""
    if position is None:
        position = new_position(ends)
    elif position.fingerprint != fingerprint_of(ends):
        position = new_position(ends, position.seed + 1)
    tournament = Tournament(ends, position.seed)
    if is_through(position, tournament):
        position = new_position(ends, position.seed + 1)
        tournament = Tournament(ends, position.seed)
    return position, tournament


def is_through(position: Position, tournament: Tournament) -> bool:
    """Whether all pairs of nodes have met. A tournament without rounds never is."""
    total = tournament.num_inside + tournament.num_across
    return total > 0 and rounds_done(position, tournament) == total


def rounds_done(position: Position, tournament: Tournament) -> int:
    """Different rounds done, of num_inside + num_across."""
    return min(position.inside, tournament.num_inside) + min(position.across, tournament.num_across)


def scan_text(before: Position, after: Position, tournament: Tournament) -> str:
    """How far it has come, runs before this one included: "rounds 6 to 10 of 63". Empty: there is nothing to go through."""
    total = tournament.num_inside + tournament.num_across
    first, last = rounds_done(before, tournament) + 1, rounds_done(after, tournament)
    if total == 0:
        return ""
    if last < first:
        return f"{last} of {total} rounds before, none of them now" if last else f"none of {total} rounds"
    return f"round {first} of {total}" if first == last else f"rounds {first} to {last} of {total}"
