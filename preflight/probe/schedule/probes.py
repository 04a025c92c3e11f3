"""A round, the probe of one pair, the sizes on each backend, and what a round costs."""

from preflight.model import Probe
from preflight.model.units import KIB, MIB

Round = tuple[Probe, ...]

# backend -> (pair size, smallest and largest group message). GPUs: bandwidth has its plateau only from about 256 MiB (nccl-tests tables for H100 and A100).
# CPUs over loopback: gloo is within 10 % of its plateau at 4 to 8 MiB, and larger messages only take longer.
SIZES = {"nccl": (256 * MIB, 1 * MIB, 1024 * MIB), "gloo": (4 * MIB, 256 * KIB, 8 * MIB)}
LOOP_S = {"nccl": 0.3, "gloo": 0.2}
PAIR_REPEATS, GROUP_REPEATS = 2, 3  # noise is taken from repeats within the run
FULL_CROSS_NODES = 4  # up to so many nodes unlike GPU slots are paired too; beyond, between nodes, like slots only


def pair_probe(pair: tuple[int, int], backend: str, repeat: int) -> Probe:
    """Both ranks send and receive at once; the figure is one direction's."""
    return Probe(
        subject=f"pair {pair[0]}-{pair[1]}",
        axis=None,
        collective="send_recv",
        ranks=pair,
        size_bytes=SIZES[backend][0],
        size_source=f"fixed for pairs on {backend}",
        repeat=repeat,
        loop_s=LOOP_S[backend],
    )


def seconds_of(probes: Round) -> float:
    """What a healthy round takes, roughly: joining and first calls 0.3 s, warm-up, then the loop."""
    return 0.4 + 1.5 * max(probe.loop_s for probe in probes)
