"""Expected values of one machine type, each with its source."""

from preflight.model.base import Strict


class Expected(Strict, frozen=True, kw_only=True):
    """One expected value and where it comes from (formula, vendor sheet, our run with its date)."""

    value: float
    source: str


class Profile(Strict, frozen=True, kw_only=True):
    """A machine type. `gpu_names` are NVML product names; lookups match them without regard to case."""

    name: str
    gpu_names: tuple[str, ...]
    gpus_per_node: int | None = None
    gpu_memory_bytes: Expected | None = None
    nvlink_links: Expected | None = None
    nvlink_bytes_per_s: Expected | None = None  # sum over links, one direction
    nic_bytes_per_s: Expected | None = None  # per GPU, one direction
    # peak of one GPU in dense floating-point operations per second, by precision ("bf16", "fp8", ...)
    peak_flops: dict[str, Expected] = {}
    # the best rate that large matrix products reach in practice, by precision
    matmul_flops: dict[str, Expected] = {}
    memory_bytes_per_s: Expected | None = None
