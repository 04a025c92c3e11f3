"""A round, the probe of one pair, the sizes on each backend, and what a round costs."""

from preflight.model import Collective, Probe
from preflight.model.units import KIB, MIB

Round = tuple[Probe, ...]

# backend -> (pair size, smallest and largest group message). GPUs: bandwidth has its plateau only from about 256 MiB (nccl-tests tables for H100 and A100).
# CPUs over loopback: gloo is within 10 % of its plateau at 4 to 8 MiB, and larger messages only take longer.
SIZES = {"nccl": (256 * MIB, 1 * MIB, 1024 * MIB), "gloo": (4 * MIB, 256 * KIB, 8 * MIB)}
LOOP_S = {"nccl": 0.3, "gloo": 0.2}
PAIR_REPEATS, GROUP_REPEATS = 2, 3  # noise is taken from repeats within the run
FULL_CROSS_NODES = 4  # up to so many nodes unlike GPU slots are paired too; beyond, between nodes, like slots only


def pair_probe(
    pair: tuple[int, int], backend: str, repeat: int, collective: Collective = "send_recv", reason: str = ""
) -> Probe:
    """Of "send_recv" both ranks send and receive at once, and the figure is one direction's; of "send" the first sends to the second."""
    return Probe(
        subject=f"pair {pair[0]}-{pair[1]}",
        axis=None,
        collective=collective,
        ranks=pair,
        size_bytes=SIZES[backend][0],
        size_source=f"fixed for pairs on {backend}",
        repeat=repeat,
        loop_s=LOOP_S[backend],
        reason=reason,
    )


JOIN_S, LONGEST_JOIN_S = 0.02, 10.0  # for each rank of a group: gloo joins 64 ranks in 1.2 s (measured)


def seconds_of(probes: Round) -> float:
    """What a healthy round takes, roughly: joining and first calls 0.3 s, more for large groups, warm-up, then the loop."""
    largest = max(len(probe.ranks) for probe in probes)
    return 0.4 + min(LONGEST_JOIN_S, JOIN_S * max(0, largest - 2)) + 1.5 * max(probe.loop_s for probe in probes)
