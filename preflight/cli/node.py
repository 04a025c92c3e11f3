"""`preflight node`: show what is in this node. On the prolog path: imports nothing heavy."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import click

from preflight.errors import UsageError
from preflight.model import Gpu, Nic, Node
from preflight.model.hostlist import fold_numbers
from preflight.model.units import parse_seconds, show_bytes

MAX_TIMEOUT_S = 3600.0


def _timeout(context: click.Context, parameter: click.Parameter, value: str) -> float:
    try:
        timeout_s = parse_seconds(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx=context, param=parameter) from error
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise click.BadParameter(f"{value!r} is not between 0 and 1h", ctx=context, param=parameter)
    return timeout_s


def snapshot_options(function: Callable[..., int]) -> Callable[..., int]:
    """The options of every command that looks at this node or at a snapshot of one."""
    options = (
        click.option("--save", metavar="FILE", help="Write the snapshot to FILE."),
        click.option("--from", "from_file", metavar="FILE", help="Show a saved snapshot instead of this node."),
        click.option(
            "--format",
            "style",
            envvar="PREFLIGHT_FORMAT",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
        ),
        click.option("--root", metavar="DIR", hidden=True, help="Where /proc and /sys are found."),
        click.option(
            "--timeout",
            "timeout_s",
            default="20s",
            show_default=True,
            callback=_timeout,
            help="Limit for the GPU driver to answer.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def load_node(*, save: str | None, from_file: str | None, root: str | None, timeout_s: float) -> Node:
    """This node, or the one of a snapshot; saved where asked. Raises PreflightError for a bad or unwritable file."""
    if from_file and root:
        raise UsageError("--from shows a snapshot and --root looks at a file tree: give one of them")
    if from_file:
        from preflight.formats import read_noun

        node = read_noun(from_file, Node)
    else:
        from preflight.discover.node import discover_node

        if root and not Path(root).is_dir():
            raise UsageError(f"--root {root}: no such directory")
        node = discover_node(root=Path(root or "/"), deadline_s=timeout_s)
    if save:
        from preflight.formats import write_atomically
        from preflight.model import to_json

        write_atomically(save, to_json(node))
    return node


@click.command("node")
@snapshot_options
def command(style: Literal["text", "json"], **source: Any) -> int:
    """Show what is in this node: CPUs, memory, network interfaces, GPUs. A node without GPUs is no error."""
    node = load_node(**source)
    if style == "json":
        from preflight.model import to_json

        click.echo(to_json(node), nl=False)
    else:
        click.echo("\n".join(describe(node)))
    return 0


def describe(node: Node) -> Iterable[str]:
    """The node as lines of text. "?" stands for what could not be found out."""
    yield f"node {plain(node.name)}" + (" (simulated)" if node.simulated else "")
    yield from host_lines(node)
    yield from gpu_summary(node)
    if node.gpus:
        yield from table(
            ["GPU", "name", "memory", "PCI", "NUMA", "NVLinks", "domain", "MIG", "ECC", "UUID"],
            map(_gpu_row, node.gpus),
        )
    yield from nic_lines(node)
    yield from problem_lines(node)


def host_lines(node: Node) -> Iterable[str]:
    """Host name, kernel, CPUs, memory and NUMA nodes."""
    yield f"  host      {known(node.hostname)}, kernel {known(node.kernel)}"
    yield f"  CPUs      {known(node.num_cpus)} x {known(node.cpu_model)}"
    yield f"  memory    {_size(node.memory_bytes)}"
    yield f"  NUMA      {'?' if node.numa_nodes is None else 'nodes ' + fold_numbers(node.numa_nodes)}"


def gpu_summary(node: Node) -> Iterable[str]:
    """One line on the GPUs, and one on their driver where there is one."""
    if node.gpus is None:
        yield f"  GPUs      unknown: {plain(node.gpu_note or 'no reason given')}"
    elif node.gpus:
        yield f"  GPUs      {len(node.gpus)}"
    else:
        yield f"  GPUs      {plain(node.gpu_note or 'none found')}: no GPUs on this node"
    if node.driver_version or node.gpus:
        versions = (
            f"{known(node.driver_version)}, CUDA up to {known(node.cuda_version)}, NVML {known(node.nvml_version)}"
        )
        yield f"  driver    {versions}"


def nic_lines(node: Node) -> Iterable[str]:
    """The network interfaces as a table."""
    if node.nics is None:
        yield "  NICs      unknown"
    elif not node.nics:
        yield "  NICs      none"
    else:
        yield from table(["NIC", "kind", "state", "speed", "MTU", "PCI", "NUMA", "addresses"], map(_nic_row, node.nics))


def problem_lines(node: Node) -> Iterable[str]:
    """What could not be read, of the node and of each GPU."""
    told = [(problem.source, problem.text) for problem in node.problems]
    told += [
        (f"GPU {gpu.index}: {problem.source}", problem.text) for gpu in node.gpus or () for problem in gpu.problems
    ]
    for source, text in told:
        yield f"  problem   {plain(source)}: {plain(text)}"


def _gpu_row(gpu: Gpu) -> Sequence[str]:
    return (
        str(gpu.index),
        known(gpu.name),
        _size(gpu.memory_bytes),
        known(gpu.pci_bus_id),
        known(gpu.numa_node),
        link_count(gpu),
        known(gpu.nvlink_domain),
        _switch(on=gpu.mig_enabled),
        _switch(on=gpu.ecc_enabled),
        known(gpu.uuid),
    )


def link_count(gpu: Gpu) -> str:
    """Active NVLinks of those that the GPU has: "18 of 18"."""
    if gpu.links is None:
        return "?"
    return f"{sum(bool(link.active) for link in gpu.links)} of {len(gpu.links)}" if gpu.links else "none"


def _nic_row(nic: Nic) -> Sequence[str]:
    speed = "?" if nic.speed_bytes_per_s is None else f"{nic.speed_bytes_per_s * 8 / 1e9:g} Gbit/s"
    return (
        plain(nic.name),
        known(nic.kind),
        {True: "up", False: "down", None: "?"}[nic.up],
        speed,
        known(nic.mtu_bytes),
        known(nic.pci_bus_id),
        known(nic.numa_node),
        plain(" ".join(nic.addresses)) or "-",
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    """An empty line, then columns padded to their widest cell, indented by two."""
    cells = [header, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    yield ""
    for row in cells:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def known(value: object) -> str:
    """The value as text, "?" if it is unknown."""
    return "?" if value is None else plain(str(value))


def plain(text: str) -> str:
    """Text without control characters: a snapshot may come from anyone, and a terminal obeys escape sequences."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _size(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else show_bytes(size_bytes)


def _switch(*, on: bool | None) -> str:
    return {True: "on", False: "off", None: "?"}[on]
