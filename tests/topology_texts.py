"""33 machines as people showed them in public threads (tests/topologies/*.txt, each with its source), and `nvidia-smi topo` as it would print them.

In a file: the facts, then one line per GPU, its parts set apart by "|": GPUs, NICs, and the columns that `behind` names. "-" and "?": nobody said. A second block: `topo -p2p`.
"""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "topologies"
COLUMNS = {"cpu": "CPU Affinity", "numa": "NUMA Affinity", "own numa": "GPU NUMA ID"}
LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
"""
NVLINK_LEGEND = "  NV#  = Connection traversing a bonded set of # NVLinks\n"


@dataclass(frozen=True)
class Machine:
    """One machine. `gpus[i][j]`, `nics[i][k]`: relations, None: nobody said. `behind[i]`: further columns, by name. `nearest`: GPU -> relation and the NICs that have it."""

    name: str
    source: str
    product: str | None
    command: str | None
    verdict: str
    nearest: dict[int, tuple[str, tuple[str, ...]]]
    nvlink_pairs: int
    nic_names: tuple[str, ...]
    columns: tuple[str, ...]
    gpus: tuple[tuple[str | None, ...], ...]
    nics: tuple[tuple[str | None, ...], ...]
    behind: tuple[dict[str, str | None], ...]
    p2p: tuple[tuple[str, ...], ...] = ()


def load(name: str) -> Machine:
    """The machine of that name."""
    head, *blocks = (FOLDER / f"{name}.txt").read_text().split("\n\n")
    facts = dict(line.split(": ", 1) for line in head.splitlines())
    names = tuple(facts.get("nics", "").split())
    columns = tuple(column for column in facts["behind"].split(", ") if column != "none")
    rows = [line.split(" | ") for line in blocks[0].splitlines()]
    near = [entry.split() for entry in facts.get("nearest", "").split("; ") if entry]
    nic_rows = [row[1].split() if names else [] for row in rows]
    return Machine(
        name=name,
        source=facts["source"],
        product=facts["product"].split(" (")[0] if "product" in facts else None,
        command=facts.get("command"),
        verdict=facts["verdict"],
        nearest={int(gpu[3:]): (relation, tuple(nics)) for gpu, relation, *nics in near},
        nvlink_pairs=int(facts["nvlink pairs"].split()[0]),
        nic_names=names,
        columns=columns,
        gpus=tuple(tuple(map(known, row[0].split())) for row in rows),
        nics=tuple((None,) * len(names) if row == ["?"] else tuple(map(known, row)) for row in nic_rows),
        behind=tuple(dict(zip(columns, map(known, row[len(row) - len(columns) :]), strict=True)) for row in rows),
        p2p=tuple(tuple(line.split()) for line in blocks[1].splitlines()) if len(blocks) > 1 else (),
    )


def known(cell: str) -> str | None:
    return None if cell in {"?", "-"} else cell


def names() -> list[str]:
    """All machines."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def render(
    machine: Machine, *, command: bool = True, legend: bool = True, spaces: bool = False, escapes: bool = False
) -> str:
    """What `nvidia-smi topo -m` prints: tabs, an underlined header, N/A for what it can't tell; a row of which nobody said the NICs ends before them."""
    header = ["", *(f"GPU{i}" for i in range(len(machine.gpus))), *machine.nic_names]
    header += [COLUMNS[column] for column in machine.columns]
    rows = []
    for i, gpus in enumerate(machine.gpus):
        cells = [" X " if cell == "X" else cell or "N/A" for cell in (*gpus, *machine.nics[i])]
        if machine.nic_names and not any(machine.nics[i]):
            cells = cells[: len(gpus)]
        rows.append([f"GPU{i}", *cells, *(machine.behind[i][column] or "N/A" for column in machine.columns)])
    first, last = ("\x1b[4m", "\x1b[0m") if escapes else ("", "")
    lines = [first + join(header, spaces=spaces) + last, *(join(row, spaces=spaces) for row in rows)]
    text = (f"$ {machine.command}\n" if command and machine.command else "") + "\n".join(lines) + "\n"
    return (
        text
        + (LEGEND + NVLINK_LEGEND if legend and machine.command else "")
        + (p2p_text(machine.p2p) if machine.p2p else "")
    )


def join(cells: list[str], *, spaces: bool) -> str:
    return "".join(cell.ljust(8) if len(cell) < 8 else cell + "    " for cell in cells) if spaces else "\t".join(cells)


def p2p_text(rows: tuple[tuple[str, ...], ...], kind: str = "rw") -> str:
    """What `nvidia-smi topo -p2p` prints."""
    header = " \t" + "\t".join(f"GPU{i}" for i in range(len(rows)))
    lines = [f" GPU{i}\t" + "\t".join(row) for i, row in enumerate(rows)]
    return (
        f"\n$ nvidia-smi topo -p2p {kind}\n"
        + "\n".join([header, *lines])
        + "\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"
    )
