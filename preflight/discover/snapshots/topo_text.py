"""`nvidia-smi topo -m`, `-mp` and `-p2p` as text -> a node: how GPUs and NICs are joined, and nothing of their health.

The words are those of the command's own legend. NV# stands in place of the PCIe path, which is then unknown. The -mp view shows the PCIe path of every pair and hides NVLink; it is
told by its command line. The -m view is told by its command line, by NV# somewhere, or by a legend that explains NV#. If nothing tells the view, the number of NVLinks is unknown, not 0.
"""

from preflight.discover.nvlink import nvlink_domains
from preflight.discover.snapshots.cells import CPU, NUMA, OWN_NUMA, is_gpu
from preflight.discover.snapshots.product_lines import products_in
from preflight.discover.snapshots.tables import Table, find_tables
from preflight.model import Ancestor, Gpu, GpuPeer, Hca, Node, Problem
from preflight.model.gpu import P2pKind, P2pStatus

SOURCE = "topo"
_ANCESTORS: dict[str, Ancestor] = {
    "PIX": "PIX",
    "PXB": "PXB",
    "PHB": "PHB",
    "NODE": "NODE",
    "SYS": "SYS",
    "SOC": "SYS",
    "PSB": "internal",
}
# nvidia-smi topo -h: what the letters behind -p2p and the words of its tables mean
_KINDS: dict[str, P2pKind] = {"r": "read", "w": "write", "n": "nvlink", "a": "atomics", "p": "pci"}
_STATUSES: dict[str, P2pStatus] = {
    "OK": "ok",
    "CNS": "chipset",
    "GNS": "gpu",
    "TNS": "topology",
    "DR": "disabled",
    "NS": "not supported",
    "U": "unknown",
}


def read_topo(text: str, name: str, product: str | None) -> Node | None:
    """The node that a text tells of; None: it holds no table of `nvidia-smi topo`."""
    tables = find_tables(text)
    matrices = [table for table in tables if not table.is_p2p]
    matrix = next((table for table in matrices if table.view != "mp"), matrices[0] if matrices else None)
    statuses = [table for table in tables if table.is_p2p]
    if matrix is None and not statuses:
        return None
    shown = matrix or Table(devices={}, rows={})
    indices = sorted({*shown.gpus, *(index for table in statuses for index in table.gpus)})
    nvlink_told = _tells_nvlink(shown)
    told = products_in(text) if product is None else {}
    if not set(indices) <= set(told):
        told = {}  # a name for some of them would set those apart from the others
    gpus = tuple(
        _gpu(index, indices, shown, statuses, product or told.get(index), nvlink_told=nvlink_told) for index in indices
    )
    domains = nvlink_domains(name, gpus)
    hides_nvlink = nvlink_told is False
    return Node(
        name=name,
        source="topo -mp" if hides_nvlink else "topo",
        gpus=tuple(_with_domain(gpu, domains[gpu.index]) for gpu in gpus),
        hcas=_hcas(shown) if matrix else None,
        problems=tuple(_problems(shown, matrices, statuses, nvlink_told)),
    )


def _with_domain(gpu: Gpu, domain: str | None) -> Gpu:
    import msgspec

    return msgspec.structs.replace(gpu, nvlink_domain=domain)


def _tells_nvlink(matrix: Table) -> bool | None:
    """Whether this view shows NVLinks. None: nothing in the text says."""
    if matrix.has_nvlink or matrix.nvlink_in_legend or matrix.view == "m":
        return True
    return False if matrix.view == "mp" else None


def _gpu(
    index: int,
    indices: list[int],
    matrix: Table,
    statuses: list[Table],
    product: str | None,
    *,
    nvlink_told: bool | None,
) -> Gpu:
    label = f"GPU{index}"
    row = matrix.rows.get(label)
    behind = row.behind if row else {}
    peers = [_peer(label, other, matrix, statuses, nvlink_told=nvlink_told) for other in indices if other != index]
    fault = row.fault if row else f"no row for {label}"
    return Gpu(
        index=index,
        name=product,
        numa_node=_number(behind.get(NUMA)),
        own_numa_node=_number(behind.get(OWN_NUMA)),
        cpus=behind[CPU] if behind.get(CPU, "N/A") != "N/A" else None,
        nics={} if matrix.truncated else _nics(label, matrix),
        peers=tuple(peer for peer in peers if peer is not None),
        problems=(Problem(source=SOURCE, text=fault, field="peers"),) if fault and matrix.rows else (),
    )


def _number(text: str | None) -> int | None:
    """A NUMA node; several ("0-1", a cgroup over both) are not one."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 6 else None


def _peer(label: str, other: int, matrix: Table, statuses: list[Table], *, nvlink_told: bool | None) -> GpuPeer | None:
    cell = matrix.cell(label, f"GPU{other}")
    p2p: dict[P2pKind, P2pStatus] = {}
    for table in statuses:
        word = table.cell(label, f"GPU{other}")
        if word in _STATUSES:
            p2p |= {_KINDS[letter]: _STATUSES[word] for letter in table.p2p}
    links = int(cell[2:]) if cell and cell.startswith("NV") else 0 if cell and nvlink_told else None
    ancestor = _ANCESTORS.get(cell or "")
    return GpuPeer(index=other, num_nvlinks=links, ancestor=ancestor, p2p=p2p) if cell or p2p else None


def _nic_names(matrix: Table) -> dict[str, str]:
    """Column -> name, by the legend where it has one."""
    labels = [label for label in matrix.devices if not is_gpu(label)]
    named = {label: matrix.names.get(label, label) for label in labels}
    return named if len(set(named.values())) == len(named) else {label: label for label in labels}


def _nics(gpu: str, matrix: Table) -> dict[str, Ancestor]:
    told = {name: matrix.cell(gpu, label) or matrix.cell(label, gpu) for label, name in _nic_names(matrix).items()}
    return {name: _ANCESTORS[cell] for name, cell in told.items() if cell in _ANCESTORS}


def _hcas(matrix: Table) -> tuple[Hca, ...] | None:
    return None if matrix.truncated else tuple(Hca(name=name) for name in _nic_names(matrix).values())


def _problems(matrix: Table, matrices: list[Table], statuses: list[Table], nvlink_told: bool | None) -> list[Problem]:
    told: list[tuple[str, str | None]] = []
    if len(matrices) > 1:
        told.append((f"the text holds {len(matrices)} matrices; one of them is read", None))
    if matrix.truncated:
        told.append((f"{matrix.truncated}: which HCA is closest to a GPU is unknown", "hcas"))
    if matrix.words and nvlink_told is None:
        text = "no pair has NV#, and neither a command line nor a legend tells whether this is the -m view or -mp, which hides NVLink"
        told.append((text, "peers"))
    if any(not table.p2p for table in statuses):
        told.append(
            ("a table of peer access without the command that printed it: its kind (r, w, n) is unknown", "p2p")
        )
    told += [(f"a second row for {label} was passed over", None) for label in matrix.twice]
    told += [(text, "peers") for text in _one_way(matrix)]
    return [Problem(source=SOURCE, text=text, field=field) for text, field in told]


def _one_way(matrix: Table) -> list[str]:
    """Pairs of which the two rows say different things."""
    labels = list(matrix.devices)
    pairs = [(a, b) for i, a in enumerate(labels) for b in labels[i + 1 :]]
    told = [(a, b, matrix.cell(a, b), matrix.cell(b, a)) for a, b in pairs]
    return [
        f"{a} to {b} is {there}, {b} to {a} is {back}" for a, b, there, back in told if there and back and there != back
    ]
