"""`preflight topology`: GPUs against GPUs and HCAs, in the words of `nvidia-smi topo -m`; whose HCA is whose."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import click

from preflight.cli.node_input import load_nodes, save_snapshot, source_options
from preflight.cli.node_text import (
    gpu_summary,
    host_lines,
    known,
    link_count,
    nic_lines,
    plain,
    problem_lines,
    table,
)
from preflight.errors import UsageError
from preflight.model import Gpu, Node
from preflight.model.hostlist import fold_numbers
from preflight.model.rails import Rails, fabric_devices, rails, relation_of

# the legend of `nvidia-smi topo -m`
LEGEND = {
    "NV#": "a path over # NVLinks",
    "PIX": "a path over at most one PCIe switch",
    "PXB": "over several PCIe switches, but not over the CPU's host bridge",
    "PHB": "over one PCIe host bridge",
    "NODE": "over host bridges of one NUMA node",
    "SYS": "over the link between NUMA nodes",
    "SYS?": "that PCIe path; whether there are NVLinks could not be found out (the other words likewise)",
    "?": "could not be found out",
}
SOURCES = {
    "topo": "the text of `nvidia-smi topo`",
    "topo -mp": "the text of `nvidia-smi topo -mp`, which hides NVLink",
    "nccl xml": "a topology of NCCL's, with the GPUs of one communicator",
    "simulated": "a modelled cluster",
}
# what each status of the driver means (nvml.h, nvmlGpuP2PStatus_t)
P2P = {
    "chipset": "not supported by the chipset",
    "gpu": "not supported by the GPU",
    "topology": "not supported across these PCIe paths",
    "disabled": "disabled by a setting of the driver",
}


@click.command("topology")
@source_options
@click.option(
    "--format",
    "style",
    envvar="PREFLIGHT_FORMAT",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
)
def command(style: Literal["text", "json"], **source: Any) -> int:
    """Show how the GPUs and HCAs of this node are joined, as a matrix with a legend, and which HCA is whose."""
    if len(source["from_files"]) > 1:
        raise UsageError("topology shows one node: give --from once")
    (node,) = load_nodes(**source)
    save_snapshot((node,), source["save"])
    if style == "json":
        click.echo(_document(node), nl=False)
    else:
        click.echo("\n".join(describe(node)))
    return 0


def _document(node: Node) -> bytes:
    from preflight.model import to_json

    matrix = {f"GPU{row[0]}": row[1:] for row in _rows(node)}
    columns = [*(f"GPU{gpu.index}" for gpu in node.gpus or ()), *_device_names(node)]
    return to_json(
        {
            "schema": "preflight.topology/1",
            "topology": _domains(node),
            "columns": columns,
            "matrix": {name: row[: len(columns)] for name, row in matrix.items()},
            "rails": rails(node),
            "node": node,
        }
    )


def _domains(node: Node) -> Any:
    """NVLink domains by UUID; unknown, not empty, where the source tells no UUIDs."""
    from preflight.discover.topology import build_topology
    from preflight.model import Inventory, Topology

    unnamed = any(gpu.uuid is None and gpu.nvlink_domain not in (None, "none") for gpu in node.gpus or ())
    return Topology() if unnamed else build_topology(Inventory(nodes=(node,)))


def describe(node: Node) -> Iterable[str]:
    """Matrix and rails as lines of text; without GPUs: CPUs, NUMA nodes and NICs."""
    yield f"node {plain(node.name)}" + (" (simulated)" if node.simulated else "")
    if node.source == "node":
        yield from host_lines(node)
        yield from gpu_summary(node)
    else:
        yield f"  source    {SOURCES[node.source]}; nothing is known of health"
        products = ", ".join(dict.fromkeys(plain(gpu.name or "product unknown") for gpu in node.gpus or ()))
        yield f"  GPUs      {len(node.gpus or ())}, {products}"
    if node.gpus:
        rows = list(_rows(node))
        names = [f"GPU{gpu.index}" for gpu in node.gpus] + [plain(name) for name in _device_names(node)]
        yield from table(["GPU", *names, "NUMA", "NVLinks", "domain"], rows)
        yield ""
        hidden = any(word != "?" and word.endswith("?") for row in rows for word in row)
        for word, meaning in LEGEND.items():
            if word != "SYS?" or hidden:
                yield f"  {word.ljust(4)}  {meaning}"
        yield from _peer_access(node)
        yield from _rail_lines(node, rails(node))
    if node.source == "node":
        yield from nic_lines(node)
    yield from problem_lines(node)


def _device_names(node: Node) -> list[str]:
    return [device.name for device in fabric_devices(node.hcas, node.nics)]


def _rows(node: Node) -> Iterator[list[str]]:
    devices = fabric_devices(node.hcas, node.nics)
    for gpu in node.gpus or ():
        to_gpus = [gpu_label(gpu, other) for other in node.gpus or ()]
        to_devices = [known(relation_of(node, gpu, device)) for device in devices]
        # a topology of NCCL's lists active links only
        links = f"{len(gpu.links)} active" if gpu.links and node.source != "node" else link_count(gpu)
        yield [str(gpu.index), *to_gpus, *to_devices, known(gpu.numa_node), links, known(gpu.nvlink_domain)]


def gpu_label(gpu: Gpu, other: Gpu) -> str:
    """The pair's "NV18" or its PCIe ancestor; "SYS?" where NVLinks are unknown, "?" where that path is too; "X" for the GPU itself."""
    if other.index == gpu.index:
        return "X"
    peer = gpu.peer(other.index)
    if peer is None:
        return "?"
    if peer.num_nvlinks is None:
        return f"{peer.ancestor or ''}?"
    return f"NV{peer.num_nvlinks}" if peer.num_nvlinks else known(peer.ancestor)


def _peer_access(node: Node) -> Iterator[str]:
    """What the driver says of peer access: one line for each kind, the pairs named where they differ."""
    told: dict[str, dict[str, list[str]]] = {}
    for gpu in node.gpus or ():
        for peer in gpu.peers:
            for kind, status in peer.p2p.items():
                told.setdefault(kind, {}).setdefault(status, []).append(f"{gpu.index}>{peer.index}")
    if told:
        yield ""
    for name, statuses in told.items():
        alike = len(statuses) == 1
        parts = [
            f"{P2P.get(status, status)} for {'all pairs' if alike else _first(pairs)}"
            for status, pairs in statuses.items()
        ]
        yield f"  peer access, {name}: {'; '.join(parts)}"


def _first(pairs: list[str], limit: int = 6) -> str:
    return " ".join(pairs[:limit]) + (f" and {len(pairs) - limit} more" if len(pairs) > limit else "")


def _rail_lines(node: Node, found: Rails) -> Iterator[str]:
    """Whose HCA is whose, and what is nobody's."""
    closeness = {device.name: device for device in fabric_devices(node.hcas, node.nics)}
    if not closeness:
        yield ""
        yield "  rails     unknown" if node.hcas is None else "  rails     none: this source shows no HCA"
        return
    if not found.own and set(found.unknown_gpus) == {gpu.index for gpu in node.gpus or ()}:
        yield ""
        yield f"  rails     unknown: nothing tells how close {plain(' '.join(closeness))} is to the GPUs"
        return
    rows = []
    for gpu in node.gpus or ():
        names = found.own.get(gpu.index, ())
        sharers = {other for name in names for other in found.sharers(name)} - {gpu.index}
        words = dict.fromkeys(known(relation_of(node, gpu, closeness[name])) for name in names)
        none = "?" if gpu.index in found.unknown_gpus else "none"
        shared = f"GPU {fold_numbers(sharers)}" if sharers else ""
        rows.append([str(gpu.index), plain(" ".join(names)) or none, " ".join(words), shared])
    yield from table(["GPU", "its HCAs", "distance", "shared with"], rows)
    if found.not_rails:
        yield from table(
            ["nobody's", "because it is"], [[plain(name), plain(reason)] for name, reason in found.not_rails.items()]
        )
    if found.unknown_hcas:
        yield ""
        yield f"  whose they are is unknown: {plain(' '.join(found.unknown_hcas))}"
