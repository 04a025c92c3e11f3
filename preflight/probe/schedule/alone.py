"""What each GPU does by itself: a matrix product, and copies between host and device. All ranks at once, compared with one another afterwards."""

from preflight.model import Collective, Probe
from preflight.model.units import MIB
from preflight.probe.schedule.probes import LOOP_S

# CPUs have no copies of interest: host memory to host memory tells nothing of a link
ALONE_OPS: dict[str, tuple[Collective, ...]] = {
    "nccl": ("matmul", "host_to_device", "device_to_host"),
    "gloo": ("matmul",),
}
ALONE_REPEATS = 2
# side n of the square product, 2 n^3 operations: 1.1e12 keeps an H100 busy for 1.5 ms, with matrices (134 MB each in bf16) beyond its L2 cache of 50 MB;
# 2.7e8 are some milliseconds of one CPU core
MATMUL_SIDE = {"nccl": 8192, "gloo": 512}
ELEMENT_BYTES = {"nccl": 2, "gloo": 4}
COPY_BYTES = (
    256 * MIB
)  # PCIe is at its plateau: nvbandwidth takes 512 MiB; pinned host memory of all GPUs of a node stays at 2 GiB


def alone_probe(rank: int, op: Collective, backend: str, *, reason: str = "") -> Probe:
    """The probe of one GPU, without a partner."""
    flops, size, source = 0, COPY_BYTES, "fixed for copies"
    if op == "matmul":
        side = MATMUL_SIDE[backend]
        flops, size = 2 * side**3, 3 * side**2 * ELEMENT_BYTES[backend]
        source = f"two matrices of {side} x {side} and their product"
    return Probe(
        subject=f"gpu {rank}",
        axis=None,
        collective=op,
        ranks=(rank,),
        size_bytes=size,
        size_source=source,
        loop_s=LOOP_S[backend],
        flops=flops,
        reason=reason,
    )
