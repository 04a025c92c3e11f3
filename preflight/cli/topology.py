"""`preflight topology`: GPUs against GPUs and NICs, in the words of `nvidia-smi topo -m`."""

from collections.abc import Iterable
from typing import Any, Literal

import click

from preflight.cli.node_input import load_nodes, source_options
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
from preflight.model import Ancestor, Gpu, Nic, Node

# the legend of `nvidia-smi topo -m`
LEGEND = {
    "NV#": "a path over # NVLinks",
    "PIX": "a path over at most one PCIe switch",
    "PXB": "over several PCIe switches, but not over the CPU's host bridge",
    "PHB": "over one PCIe host bridge",
    "NODE": "over host bridges of one NUMA node",
    "SYS": "over the link between NUMA nodes",
    "?": "could not be found out",
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
    """Show how the GPUs and network interfaces of this node are joined, as a matrix with a legend."""
    (node,) = load_nodes(**source)
    if style == "json":
        click.echo(_document(node), nl=False)
    else:
        click.echo("\n".join(describe(node)))
    return 0


def _document(node: Node) -> bytes:
    from preflight.discover.topology import build_topology
    from preflight.model import Inventory, to_json

    matrix = {f"GPU{row[0]}": row[1:] for row in _rows(node)}
    columns = [*(f"GPU{gpu.index}" for gpu in node.gpus or ()), *(nic.name for nic in fabric_nics(node))]
    return to_json(
        {
            "schema": "preflight.topology/1",
            "topology": build_topology(Inventory(nodes=(node,))),
            "columns": columns,
            "matrix": {name: row[: len(columns)] for name, row in matrix.items()},
            "node": node,
        }
    )


def describe(node: Node) -> Iterable[str]:
    """The matrix as lines of text; without GPUs: CPUs, NUMA nodes and NICs."""
    yield f"node {plain(node.name)}" + (" (simulated)" if node.simulated else "")
    yield from host_lines(node)
    yield from gpu_summary(node)
    if node.gpus:
        names = [f"GPU{gpu.index}" for gpu in node.gpus] + [plain(nic.name) for nic in fabric_nics(node)]
        yield from table(["GPU", *names, "NUMA", "NVLinks", "domain"], _rows(node))
        yield ""
        for word, meaning in LEGEND.items():
            yield f"  {word.ljust(4)}  {meaning}"
    yield from nic_lines(node)
    yield from problem_lines(node)


def fabric_nics(node: Node) -> list[Nic]:
    """The interfaces that can carry traffic of a GPU: those that sit on a bus."""
    return [nic for nic in node.nics or () if nic.pci_bus_id is not None]


def _rows(node: Node) -> Iterable[list[str]]:
    nics = fabric_nics(node)
    for gpu in node.gpus or ():
        to_gpus = [gpu_label(gpu, other) for other in node.gpus or ()]
        to_nics = [known(nic_affinity(node, gpu, nic)) for nic in nics]
        yield [str(gpu.index), *to_gpus, *to_nics, known(gpu.numa_node), link_count(gpu), known(gpu.nvlink_domain)]


def gpu_label(gpu: Gpu, other: Gpu) -> str:
    """The pair's "NV18", its PCIe ancestor, or "?"; "X" for the GPU itself. NVLink unknown isn't called a PCIe path."""
    if other.index == gpu.index:
        return "X"
    peer = next((peer for peer in gpu.peers if peer.index == other.index), None)
    if peer is None or peer.num_nvlinks is None:
        return "?"
    return f"NV{peer.num_nvlinks}" if peer.num_nvlinks else known(peer.ancestor)


def nic_affinity(node: Node, gpu: Gpu, nic: Nic) -> Ancestor | None:
    """How close a NIC is to a GPU, from the bridges above both and their NUMA nodes; None: unknown.

    A switch is two bridges in sysfs (its port to the device, its port to the CPU), so a bridge that is at most second
    above both is one switch: PIX. Example: the GPU below (down1, up, port, pci0000:00) and the NIC below (down2, up,
    port, pci0000:00) share `up`: PIX.
    """
    above_gpu, above_nic = gpu.pci_upstream or (), nic.pci_upstream or ()
    shared = next((bridge for bridge in above_gpu if bridge in above_nic), None)
    if shared is not None:
        if shared == above_gpu[-1]:
            return "PHB"
        return "PIX" if max(above_gpu.index(shared), above_nic.index(shared)) <= 1 else "PXB"
    if not above_gpu or not above_nic:
        return None
    if node.numa_nodes is not None and len(node.numa_nodes) == 1:
        return "NODE"
    if gpu.numa_node is None or nic.numa_node is None:
        return None
    return "NODE" if gpu.numa_node == nic.numa_node else "SYS"
