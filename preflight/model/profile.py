"""Expected values of one machine type, each with its source."""

from collections.abc import Iterator
from typing import Literal

from preflight.model.base import Strict

SITE_SOURCE = (
    "site ("  # how the source of a value begins that a site gave: "site (/etc/preflight/profiles/h100.toml): ..."
)


class Expected(Strict, frozen=True, kw_only=True):
    """One expected value and where it comes from (formula, vendor sheet, our run with its date)."""

    value: float
    source: str


class NvlinkLayout(Strict, frozen=True, kw_only=True):
    """One way in which boards of this product join GPUs by NVLink.

    `gpus`: how many stand on such a board (a bridge: 2, 3 or 4 cards that it joins). `kind`: "switched" (any to any), "mesh" (each directly to each), "cube" (each to
    some), "bridge" (cards in sets; a card without a bridge has none, and that is no fault). `per_pair`: the number of links that a joined pair may have;
    `per_gpu`: active links of each GPU.
    """

    gpus: int
    kind: Literal["switched", "mesh", "cube", "bridge"]
    per_pair: tuple[int, ...]
    per_gpu: int
    source: str


class NicLayout(Strict, frozen=True, kw_only=True):
    """One way in which machines of this type are given NICs for training: how many of which speed (one direction, each), for how many GPUs."""

    gpus: int
    nics: int
    bytes_per_s: float
    source: str


class ExpectedRate(Strict, frozen=True, kw_only=True):
    """A bandwidth that healthy machines of this type show. `collective`: "all_reduce", "all_to_all", "send_recv", "host_copy", ...; `gpus` on `nodes`; `busbw_bytes_per_s` of messages of `size_bytes` and larger."""

    collective: str
    gpus: int
    busbw_bytes_per_s: float
    source: str
    nodes: int = 1
    size_bytes: int | None = None


class Profile(Strict, frozen=True, kw_only=True):
    """A machine type. `gpu_names` are NVML product names; lookups match them without regard to case. A CPU-only machine has none. `aliases`: what people call it besides.

    `nvlink_links`, `nvlink_bytes_per_s`: of one GPU on the usual board; other boards of the product are in `nvlink_layouts`. `link_bytes_per_s`: the line rate that the driver
    reports for one link, one direction. `fabric`: how GPUs get into their NVLink fabric: "none" (nothing to register), "manager" (a fabric manager, of which NVML
    shows nothing), "node" (registration of one switched node: zero UUID and clique are normal), "rack" (NVLink joins nodes: UUID and clique must be set).
    `ecc`, `row_remap`: whether the product has that. `power_limit_w`: the default limit.
    """

    name: str
    gpu_names: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    gpus_per_node: int | None = None
    gpu_memory_bytes: Expected | None = None
    nvlink_links: Expected | None = None
    nvlink_bytes_per_s: Expected | None = None  # sum over links, one direction
    link_bytes_per_s: Expected | None = None
    nvlink_layouts: tuple[NvlinkLayout, ...] | None = None  # None: unknown; empty: the product has no NVLink
    fabric: Literal["none", "manager", "node", "rack"] | None = None
    nic_bytes_per_s: Expected | None = None  # per GPU, one direction
    nic_layouts: tuple[NicLayout, ...] = ()
    pcie_generation: Expected | None = None
    pcie_width: Expected | None = None
    power_limit_w: Expected | None = None
    ecc: bool | None = None
    row_remap: bool | None = None
    rates: tuple[ExpectedRate, ...] = ()
    # peak of one GPU in dense floating-point operations per second, by precision ("bf16", "fp8", ...)
    peak_flops: dict[str, Expected] = {}
    # the best rate that large matrix products reach in practice, by precision
    matmul_flops: dict[str, Expected] = {}
    memory_bytes_per_s: Expected | None = None

    def sources(self) -> dict[str, tuple[str, ...]]:
        """The sources of every key that has any, each once."""
        found = {field: tuple(dict.fromkeys(_sources(getattr(self, field)))) for field in self.__struct_fields__}
        return {field: sources for field, sources in found.items() if sources}


def _sources(value: object) -> Iterator[str]:
    if isinstance(value, (Expected, NvlinkLayout, NicLayout, ExpectedRate)):
        yield value.source
    elif isinstance(value, (tuple, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _sources(inner)
