"""Nodes with NVLinks, link by link, as a driver tells them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from preflight.model import Evidence, Gpu, GpuPeer, Inventory, Link, Node, Profile
from tests.builders import make_gpu, make_node
from tests.checks.topologies import H100_SXM

H100 = "NVIDIA H100 80GB HBM3"
V100 = "Tesla V100-SXM2-32GB"


def links(
    number: int,
    *,
    inactive: Collection[int] = (),
    closed: Collection[int] = (),
    unknown: Collection[int] = (),
    peer_kind: Any = "switch",
    gb_per_s: float | None = 26.562,
    rates: Mapping[int, float] | None = None,
) -> tuple[Link, ...]:
    """The links of one GPU, all active but for those that the arguments name. `rates`: of single links, GB/s."""

    def one(index: int) -> Link:
        if index in inactive:
            return Link(index=index, active=False, state="inactive")
        if index in closed:
            return Link(index=index, active=False, state="no traffic")
        if index in unknown:
            return Link(index=index)
        rate = (rates or {}).get(index, gb_per_s)
        speed = None if rate is None else int(rate * 1e9)
        return Link(index=index, active=True, state="active", peer_kind=peer_kind, speed_bytes_per_s=speed)

    return tuple(one(index) for index in range(number))


def node_with(
    *of_gpus: tuple[Link, ...] | None,
    product: str = H100,
    pairs: Sequence[Sequence[int | None]] | None = None,
    name: str = "node0",
    **changes: Any,
) -> Node:
    """A node of that product, with these links on its GPUs. `pairs`: NVLinks between GPUs, row by row."""
    gpus = tuple(
        make_gpu(name, index, name=product, links=told, nvlink_domain=None, peers=peers_of(index, pairs))
        for index, told in enumerate(of_gpus)
    )
    return msgspec.structs.replace(make_node(name), gpus=gpus, **changes)


def peers_of(index: int, pairs: Sequence[Sequence[int | None]] | None) -> tuple[GpuPeer, ...]:
    row = pairs[index] if pairs else ()
    return tuple(GpuPeer(index=other, num_nvlinks=number) for other, number in enumerate(row) if other != index)


def changed(gpu: Gpu, **changes: Any) -> Gpu:
    return msgspec.structs.replace(gpu, **changes)


def evidence(*nodes: Node, profiles: Mapping[str, Profile] | None = None, **others: Any) -> Evidence:
    """`profiles`: by product name; by default the H100's."""
    known = {H100: H100_SXM} if profiles is None else profiles
    return Evidence(
        inventory=Inventory(nodes=nodes),
        profiles={name.casefold(): profile for name, profile in known.items()},
        **others,
    )
