"""One node as lines of text: what was found, "?" for what could not be found out. Used by `preflight node` and `preflight topology`."""

from collections.abc import Iterable, Sequence

from preflight.model import Gpu, Hca, Nic, Node, Port
from preflight.model.hostlist import fold_numbers
from preflight.model.units import show_bytes, show_line_rate

MAX_WHOLE = 3  # nodes that are shown in full beside each other


def describe(node: Node) -> Iterable[str]:
    """The node as lines of text. "?" stands for what could not be found out."""
    yield f"node {plain(node.name)}" + (" (simulated)" if node.simulated else "")
    if not node.tells_health:
        yield from _joined_lines(node)
        return
    yield from host_lines(node)
    yield from gpu_summary(node)
    yield from surroundings_lines(node)
    if node.gpus:
        yield from table(
            ["GPU", "name", "memory", "PCI", "NUMA", "NVLinks", "domain", "MIG", "ECC", "heat", "power", "UUID"],
            map(_gpu_row, node.gpus),
        )
    yield from hca_lines(node)
    yield from nic_lines(node)
    yield from problem_lines(node)


def describe_all(nodes: Sequence[Node]) -> str:
    """A few nodes one after the other; of more a table, one row each: `--from` with one of the files shows that node whole."""
    if len(nodes) <= MAX_WHOLE:
        return "\n\n".join("\n".join(describe(node)) for node in nodes)
    header = ["node", "GPUs", "product", "driver", "NVLinks", "HCAs", "kernel", "problems"]
    return "\n".join([f"{len(nodes)} nodes", *table(header, map(_node_row, nodes))])


def _node_row(node: Node) -> Sequence[str]:
    gpus = node.gpus or ()
    links = [link for gpu in gpus for link in gpu.links or ()]
    known_links = bool(gpus) and all(gpu.links is not None for gpu in gpus)
    num_problems = len(node.problems) + sum(len(gpu.problems) for gpu in gpus)
    return (
        plain(node.name),
        known(None if node.gpus is None else len(gpus)),
        plain(", ".join(dict.fromkeys(gpu.name or "?" for gpu in gpus))) or "-",
        known(node.driver_version),
        f"{sum(bool(link.active) for link in links)} of {len(links)}" if known_links else "?" if gpus else "-",
        known(None if node.hcas is None else len(node.hcas)),
        known(node.kernel),
        str(num_problems or "-"),
    )


def _joined_lines(node: Node) -> Iterable[str]:
    """What a source tells that knows nothing but how things are joined; the matrix itself is shown by `preflight topology`."""
    products = ", ".join(dict.fromkeys(gpu.name or "product unknown" for gpu in node.gpus or ()))
    yield f"  source    {_SOURCES[node.source]}: how GPUs and HCAs are joined, nothing of their health"
    yield f"  GPUs      {len(node.gpus or ())} ({plain(products)})"
    yield f"  HCAs      {'?' if node.hcas is None else plain(' '.join(hca.name for hca in node.hcas)) or 'none'}"
    yield from problem_lines(node)


_SOURCES = {
    "topo": "text of `nvidia-smi topo -m`",
    "topo -mp": "text of `nvidia-smi topo -mp`",
    "nccl xml": "NCCL topology XML",
    "simulated": "a modelled cluster, SIMULATED",
}


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


def surroundings_lines(node: Node) -> Iterable[str]:
    """Where the system runs, what steers NCCL, and which devices this process was given; only what is there."""
    platform = node.platform
    if platform is not None:
        inside = [
            f"{word}{'' if kind == 'other' else f' {plain(kind)}'}"
            for word, kind in (("virtual machine", platform.virtual_machine), ("container", platform.container))
            if kind not in (None, "none")
        ]
        shown = ", ".join([*([plain(platform.machine)] if platform.machine else []), *inside])
        if shown:
            yield f"  platform  {shown}"
    if node.versions:
        yield f"  software  {plain(', '.join(f'{name} {version}' for name, version in sorted(node.versions.items())))}"
    for setting in node.settings or ():
        yield f"  setting   {plain(setting.name)}={plain(setting.value)} ({plain(setting.origin)})"
    if node.mask is not None:
        for name, value in node.mask.variables.items():
            yield f"  mask      {plain(name)}={plain(value)}"


def hca_lines(node: Node) -> Iterable[str]:
    """The HCAs as a table, one row for each port."""
    if node.hcas is None and node.tells_health and node.gpus != ():
        yield "  HCAs      unknown"
    rows = [_hca_row(hca, port) for hca in node.hcas or () for port in hca.ports or (None,)]
    if rows:
        yield from table(["HCA", "port", "state", "rate", "layer", "firmware", "PCI", "NUMA"], rows)


def _hca_row(hca: Hca, port: Port | None) -> Sequence[str]:
    state = None if port is None or port.state is None else f"{port.state} {port.physical_state or ''}".strip()
    rate = None if port is None or port.rate_bytes_per_s is None else show_line_rate(port.rate_bytes_per_s)
    return (
        plain(hca.name),
        known(port.number if port else None),
        known(state),
        known(rate),
        known(port.link_layer if port else None),
        known(hca.firmware_version),
        known(hca.pci_bus_id),
        known(hca.numa_node),
    )


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
        "?" if gpu.temperature is None or gpu.temperature.gpu_c is None else f"{gpu.temperature.gpu_c} C",
        "?" if gpu.power is None or gpu.power.draw_w is None else f"{gpu.power.draw_w:.0f} W",
        known(gpu.uuid),
    )


def link_count(gpu: Gpu) -> str:
    """Active NVLinks of those that the GPU has: "18 of 18"."""
    if gpu.links is None:
        return "?"
    return f"{sum(bool(link.active) for link in gpu.links)} of {len(gpu.links)}" if gpu.links else "none"


def _nic_row(nic: Nic) -> Sequence[str]:
    speed = "?" if nic.speed_bytes_per_s is None else show_line_rate(nic.speed_bytes_per_s)
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
