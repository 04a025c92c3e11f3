"""What each group touches: how many nodes, NVLink domains, leaves, racks and GPU slots.

Which nodes share an NVLink domain comes from the best source there is: fabric information of their GPUs, a file that names domains, the plan
file's nodes_per_nvlink_domain, Slurm's blocks on machines whose NVLink joins nodes; else each node counts as one domain, and everybody who
shows a domain says so (Placement.domain_source).
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from preflight.model import NODE_IN_DOUBT, NODE_IS_DOMAIN, Footprint, Placement, Topology

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ids = NDArray[np.int32]

Names = tuple[str | None, ...]
Groups = tuple[tuple[int, ...], ...]

# products whose NVLink joins nodes: GB200 and GB300 (NVL36, NVL72), VR200 (NVL144), GH200 NVL32
_JOINS_NODES = re.compile(r"\b(GB\d{3}|VR\d{3}|\w*NVL\d+)", re.IGNORECASE)
RACK_SCALE_GPUS_PER_NODE = (
    4  # a compute tray of NVL36 and NVL72 has 4 GPUs (DGX GB200 user guide); nodes of 8 are joined by no NVLink product
)


def add_topology(
    placement: Placement, topology: Topology | None, nodes_per_domain: int | None, *, gpu: str | None = None
) -> Placement:
    """The placement with what is known of domains, leaves and racks filled in. Nothing known: unchanged.

    `nodes_per_domain`: the plan file's nodes_per_nvlink_domain. `gpu`: its name of the GPU, which tells whether a Slurm block can be an NVLink domain.
    A node that the source of the domains doesn't know has domain None: nobody told.
    """
    known = topology or Topology()
    domains, source, blocks_used = _domains(placement, known, nodes_per_domain, gpu)
    racks = known.racks or (None if blocks_used else known.blocks)
    leaves = {node: above[0] for node, above in (known.switches or {}).items() if above}
    return msgspec.structs.replace(
        placement,
        domains=domains,
        domain_source=source,
        leaves=_of_nodes(placement, leaves),
        racks=_of_nodes(placement, racks or {}),
    )


def _of_nodes(placement: Placement, names: Mapping[str, str]) -> Names | None:
    """The name of each node of the placement; None if none of them has one."""
    if not names:
        return None
    found = tuple(names.get(node) for node in placement.nodes)
    return found if any(found) else None


def _domains(
    placement: Placement, topology: Topology, nodes_per_domain: int | None, gpu: str | None
) -> tuple[Names | None, str, bool]:
    """Domain of each node (None: each node is one), where that comes from, and whether Slurm's blocks were used for it."""
    if placement.source == "measured" and placement.domains is not None:
        return placement.domains, placement.domain_source, False  # the ranks themselves read the fabric
    origin = topology.source or "the topology"
    by_gpu = _domains_by_gpu(placement, topology)
    if by_gpu is not None:
        return by_gpu, "NVLink domains by the fabric information of the GPUs", False
    by_node = _of_nodes(placement, topology.node_domains or {})
    if by_node is not None:
        return by_node, f"NVLink domains from {origin}", False
    blocks = _of_nodes(placement, topology.blocks or {})
    if blocks is not None and _blocks_are_domains(placement, blocks, nodes_per_domain, gpu):
        return blocks, f"taking each block of {origin} as one NVLink domain", True
    if nodes_per_domain is not None and nodes_per_domain > 1:
        named = tuple(f"domain{index // nodes_per_domain}" for index in range(len(placement.nodes)))
        return named, f"taking every {nodes_per_domain} nodes in their order as one NVLink domain", False
    source = NODE_IS_DOMAIN
    if topology.node_domains:
        source += f"; {origin} knows none of these nodes"
    elif blocks is not None and nodes_per_domain is None:
        source += f"; blocks of {origin} count as racks"
    elif nodes_per_domain is None and gpu is not None and _JOINS_NODES.search(gpu) and len(placement.nodes) > 1:
        source = NODE_IN_DOUBT
    return None, source, False


def _domains_by_gpu(placement: Placement, topology: Topology) -> Names | None:
    """The domain that all ranks of a node share, by the UUIDs of their GPUs; None for a node where they don't or where one is unknown."""
    if not topology.nvlink_domains or placement.gpu_uuids is None:
        return None
    by_uuid = {uuid: domain for domain, uuids in topology.nvlink_domains.items() for uuid in uuids}
    seen: list[set[str | None]] = [set() for _ in placement.nodes]
    for node, uuid in zip(placement.node_ranks, placement.gpu_uuids, strict=True):
        seen[node].add(by_uuid.get(uuid) if uuid else None)
    found = tuple(next(iter(domains)) if len(domains) == 1 else None for domains in seen)
    return found if any(found) else None


def _blocks_are_domains(placement: Placement, blocks: Names, nodes_per_domain: int | None, gpu: str | None) -> bool:
    """Whether Slurm's blocks can be NVLink domains here: the plan file says that domains are at least that large, or the machine is rack-scale."""
    if nodes_per_domain is not None:
        return max(Counter(block for block in blocks if block).values()) <= nodes_per_domain
    if gpu is not None:
        return _JOINS_NODES.search(gpu) is not None
    return max(Counter(placement.node_ranks).values()) <= RACK_SCALE_GPUS_PER_NODE


def find_footprints(placement: Placement, groups: Mapping[str, Groups]) -> dict[str, Footprint]:
    """Axis -> what its groups touch.

    Worked example: ranks 0 to 7 in blocks of 4 on two nodes; the group [0, 4] touches 2 nodes, 2 domains (each node one), 1 slot; its chunk is 1.
    """
    if not groups:
        return {}
    import numpy as np

    node_of = np.asarray(placement.node_ranks, dtype=np.int32)
    slot_of = np.asarray(placement.local_ranks, dtype=np.int32)
    columns: dict[str, Ids] = {}
    if placement.domains is not None:
        columns["domains"] = _ids(placement.domains)[node_of]
    for name, known in (("leaves", placement.leaves), ("racks", placement.racks)):
        if known is not None:
            ids = _ids(known)
            columns[name] = ids[node_of]
            # the same nodes listed leaf by leaf, leaves by first appearance
            columns[f"{name}_in_order"] = np.sort(ids)[_places(node_of, len(ids))[node_of]]
    found: dict[str, Footprint] = {}
    seen: dict[int, Footprint] = {}  # axes that have the same groups share them (plan/frameworks/grid.py)
    for axis, members in groups.items():
        if id(members) not in seen:
            counts = {name: _listed(values) for name, values in _counted(members, node_of, slot_of, columns).items()}
            seen[id(members)] = Footprint(**counts)
        found[axis] = seen[id(members)]
    return found


def _places(node_of: "Ids", nodes: int) -> "Ids":
    """The place of each node in the order in which ranks come to them: a hostfile need not follow the list of nodes."""
    import numpy as np

    used, first = np.unique(node_of, return_index=True)
    places = np.zeros(nodes, dtype=np.int32)
    places[used[np.argsort(first)]] = np.arange(len(used), dtype=np.int32)
    return places


def _counted(members: Groups, node_of: "Ids", slot_of: "Ids", columns: Mapping[str, "Ids"]) -> dict[str, Any]:
    """Field of Footprint -> its value for each group, as an array."""
    import numpy as np

    parts = _of_one_size(members)
    if len(parts) == 1:
        return _touched(parts[0][1], node_of, slot_of, columns)
    counts: dict[str, Any] = {}
    for places, ranks in parts:
        for name, values in _touched(ranks, node_of, slot_of, columns).items():
            counts.setdefault(name, np.zeros(len(members), dtype=np.int64))[places] = values
    return counts


def _listed(values: Any) -> tuple[int, ...]:
    """An array as a tuple of plain numbers; quick where all are the same, as they mostly are."""
    first = int(values[0])
    return (first,) * len(values) if bool((values == first).all()) else tuple(values.tolist())


def _touched(ranks: "Ids", node_of: "Ids", slot_of: "Ids", columns: Mapping[str, "Ids"]) -> dict[str, Any]:
    """Field of Footprint -> its value for each group. `ranks` (groups, members)."""
    import numpy as np

    nodes, by_node = _distinct(node_of[ranks])
    touched = {"nodes": nodes, "slots": _distinct(slot_of[ranks])[0]}
    domains, by_domain = nodes, by_node
    for name, column in columns.items():
        touched[name], ordered = _distinct(column[ranks])
        if name == "domains":
            domains, by_domain = touched[name], ordered
    size = ranks.shape[1]
    touched["domains"] = domains
    touched["chunk"] = np.select([domains == 0, domains == 1, domains == size], [0, size, 1], -1)
    open_rows = np.flatnonzero(touched["chunk"] < 0)
    if len(open_rows):
        touched["chunk"][open_rows] = _shortest_run(by_domain[open_rows])
    return touched


def _distinct(rows: "Ids") -> tuple[Any, "Ids"]:
    """How many different values each row has (0 if one of them is -1, unknown), and the rows in ascending order."""
    import numpy as np

    ascending = bool((rows[:, 1:] >= rows[:, :-1]).all())  # as with block placement
    ordered = rows if ascending else np.sort(rows, axis=1)
    number = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)
    return np.where(ordered[:, 0] < 0, 0, number), ordered


def _shortest_run(ordered: "Ids") -> Any:
    """The shortest run of equal values in each row. `ordered` (groups, members), each row ascending."""
    import numpy as np

    starts = np.ones(ordered.shape, dtype=bool)  # a run never goes on into the next row
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    flat = np.flatnonzero(starts)
    lengths = np.diff(flat, append=starts.size)
    first = np.flatnonzero(flat % ordered.shape[1] == 0)  # the first run of each row
    return np.minimum.reduceat(lengths, first)


def _ids(names: Names) -> "Ids":
    """A number for each name, by first appearance; -1: unknown."""
    import numpy as np

    numbers: dict[str, int] = {}
    return np.asarray([-1 if name is None else numbers.setdefault(name, len(numbers)) for name in names], np.int32)


def _of_one_size(groups: Sequence[Sequence[int]]) -> list[tuple[Sequence[int], Any]]:
    """The groups as arrays (groups, members), one for each size: which groups they are, and their ranks. Nearly always one array."""
    from itertools import chain

    import numpy as np

    sizes = set(map(len, groups))
    parts: list[tuple[Sequence[int], Any]] = []
    for size in sizes:
        places = range(len(groups)) if len(sizes) == 1 else [i for i, group in enumerate(groups) if len(group) == size]
        chosen = groups if len(sizes) == 1 else [groups[place] for place in places]
        flat = np.fromiter(chain.from_iterable(chosen), dtype=np.int32, count=size * len(places))
        parts.append((places, flat.reshape(-1, size)))
    return parts
