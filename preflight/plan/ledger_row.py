"""One row of the ledger while it is made, and the numbers that many rows share."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from preflight.model import Collective, busbw_factor

Cover = Literal[
    "", "weight_gradients", "input_gradients", "attention", "micro_batches", "first_forward", "last_backward"
]


class Row(NamedTuple):
    """`size`: ranks of the group. `message_bytes` of one call as nccl-tests counts it. `hides_behind`: what compute it overlaps with, "" for none.
    `formula`: the message with its numbers. `copies`: as in Traffic.
    """

    axis: str
    size: int
    purpose: str
    collective: Collective
    calls: float
    message_bytes: float
    formula: str
    hides_behind: Cover = ""
    copies: int = 0

    @property
    def wire_bytes(self) -> float:
        """Sent by one rank in all calls together."""
        return self.calls * self.message_bytes * busbw_factor(self.collective, self.size)


def axis_of(degrees: Mapping[str, int], *axes: str) -> tuple[str, int]:
    """The first of these axes that the layout has with more than one rank, and its degree; the last one otherwise."""
    for axis in axes:
        if degrees.get(axis, 1) > 1:
            return axis, degrees[axis]
    return axes[-1], degrees.get(axes[-1], 1)
