"""An event simulation of pipeline schedules, written from their descriptions and not from the formulas under test.

Every stage works through its own list of passes in order; a pass starts when its stage is free and its input has arrived. F = 1, B = 2 per micro-batch and
stage, sends take no time. Chunk c of stage r is virtual stage c p + r.
"""

from typing import NamedTuple

FORWARD, BACKWARD = 0, 1
Pass = tuple[int, int, int]  # direction, chunk, micro-batch


class Simulated(NamedTuple):
    """Bubble over ideal time, and the most micro-batches in flight per stage, counted through the whole stage."""

    overhead: float
    peaks: list[float]


def simulate(schedule: str, p: int, m: int, v: int = 1) -> Simulated:
    """One training step."""
    orders = [_order(schedule, stage, p, m, v) for stage in range(p)]
    done: dict[tuple[int, int, int], float] = {}  # (direction, virtual stage, micro-batch) -> end
    free, position = [0.0] * p, [0] * p
    while any(position[stage] < len(orders[stage]) for stage in range(p)):
        moved = False
        for stage in range(p):
            while position[stage] < len(orders[stage]):
                direction, chunk, batch = orders[stage][position[stage]]
                virtual = chunk * p + stage
                arrived = _arrival(done, direction, virtual, batch, p * v)
                if arrived is None:
                    break
                free[stage] = max(free[stage], arrived) + (1 if direction == FORWARD else 2) / v
                done[direction, virtual, batch] = free[stage]
                position[stage] += 1
                moved = True
        assert moved, "the schedule deadlocks"
    return Simulated(max(free) / (3 * m) - 1, [_peak(order) / v for order in orders])


def _arrival(
    done: dict[tuple[int, int, int], float], direction: int, virtual: int, batch: int, last: int
) -> float | None:
    """When the input is there; None: not yet."""
    if direction == FORWARD:
        return 0.0 if virtual == 0 else done.get((FORWARD, virtual - 1, batch))
    if virtual == last - 1:
        return done.get((FORWARD, virtual, batch))
    return done.get((BACKWARD, virtual + 1, batch))


def _order(schedule: str, stage: int, p: int, m: int, v: int) -> list[Pass]:
    if schedule == "interleaved":
        forward = [(FORWARD, c, g * p + i) for g in range(m // p) for c in range(v) for i in range(p)]
        backward = [(BACKWARD, v - 1 - c, g * p + i) for g in range(m // p) for c in range(v) for i in range(p)]
        warm_up = min(2 * (p - stage - 1) + (v - 1) * p, m * v)
    else:
        forward, backward = [(FORWARD, 0, i) for i in range(m)], [(BACKWARD, 0, i) for i in range(m)]
        warm_up = m if schedule == "gpipe" else min(p - stage - 1, m)
    order = forward[:warm_up]
    for one, other in zip(forward[warm_up:], backward, strict=False):
        order += [one, other]
    return order + backward[len(forward) - warm_up :]


def _peak(order: list[Pass]) -> int:
    held = most = 0
    for direction, _, _ in order:
        held += 1 if direction == FORWARD else -1
        most = max(most, held)
    return most
