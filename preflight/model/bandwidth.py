"""From durations to algbw and busbw: the factor of each collective, with its source.

algbw = message size / duration. busbw = algbw x factor, so that a collective's figure can be compared with the rate of
the slowest link whatever the number of ranks n.

Source of the factors and of "message size": NVIDIA nccl-tests, doc/PERFORMANCE.md. The message size is the whole buffer of
one rank for all_reduce, broadcast and send_recv, and the total over the n ranks for all_gather, reduce_scatter and
all_to_all.

Worked example: all_reduce of 4e9 bytes over 8 ranks in 0.01 s: algbw 400e9 bytes/s, factor 2*7/8 = 1.75,
busbw 700e9 bytes/s.
"""

from typing import Literal

Collective = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "send_recv",  # each rank to its neighbours in the group, both ways at once
    "send",  # the first rank to the second, one way: the only one that tells directions apart
    # of one rank, without a partner:
    "matmul",
    "host_to_device",
    "device_to_host",
]
ALONE: frozenset[str] = frozenset({"matmul", "host_to_device", "device_to_host"})  # one rank, no link between ranks

# (a, b): factor = a * (n - 1) / n if b else a; nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth"
_FACTORS: dict[str, tuple[int, bool]] = {
    "all_reduce": (2, True),  # reduce-scatter then all-gather: each rank sends 2(n-1)/n of the buffer
    "all_gather": (1, True),  # each rank receives (n-1)/n of the total
    "reduce_scatter": (1, True),  # each rank sends (n-1)/n of the total
    "all_to_all": (1, True),  # each rank keeps 1/n of its share and sends the other (n-1)/n
    "broadcast": (1, False),  # every rank's link carries the buffer once
    "send_recv": (1, False),  # one link carries the buffer once in each direction
    "send": (1, False),  # one link carries the buffer once
}


def busbw_factor(collective: Collective, num_ranks: int) -> float:
    """busbw / algbw of a collective over num_ranks ranks; 1 for what a rank does alone.

    Raises ValueError below two ranks: nothing crosses a link then, and 0 would read as a dead link.

    >>> busbw_factor("all_reduce", 8)
    1.75
    """
    if collective in ALONE:
        return 1.0
    if num_ranks < 2:
        raise ValueError(f"{collective} over {num_ranks} rank: no link is crossed")
    scale, shrinks = _FACTORS[collective]
    return scale * (num_ranks - 1) / num_ranks if shrinks else float(scale)
