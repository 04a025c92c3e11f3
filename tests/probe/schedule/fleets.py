"""Ends of nodes as a test describes them: leaves with so many nodes, nodes with so many GPUs."""

from collections.abc import Sequence

from preflight.model.localisation import Ends


def ends_on(leaves: Sequence[int], gpus: int | Sequence[int] = 2, *, told: bool = True) -> Ends:
    """`leaves`: nodes on each; `gpus`: of each node, or of all. `told` False: nobody says which leaf a node is on."""
    where = [f"leaf{number}" for number, size in enumerate(leaves) for _ in range(size)]
    counts = [gpus] * len(where) if isinstance(gpus, int) else list(gpus)
    seats = [(node, slot) for node, count in enumerate(counts) for slot in range(count)]
    return Ends(
        nodes=tuple(f"n{node}" for node in range(len(where))),
        node=tuple(node for node, _ in seats),
        slot=tuple(slot for _, slot in seats),
        leaves=tuple(where) if told else None,
    )
