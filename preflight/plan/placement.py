"""Where ranks will sit, predicted before the job starts."""

from collections.abc import Mapping, Sequence

from preflight.model import Placement, Rank


def predict_placement(
    world_size: int,
    node_names: Sequence[str] | None,
    gpus_per_node: int,
    gpu_uuids: Mapping[str, Sequence[str | None]] | None = None,
) -> Placement:
    """Block placement: consecutive ranks fill a node, what every launcher with one starter per node does.

    rank = node_rank x gpus_per_node + local_rank; with 8 GPUs per node, rank 13 is local rank 5 of the second node.
    `node_names` in node-rank order; None: "node0", "node1", ... `gpu_uuids`: node name -> UUIDs by local rank, as far as known.
    """
    num_nodes = -(-world_size // gpus_per_node)
    names = [f"node{i}" for i in range(num_nodes)] if node_names is None else node_names
    assert len(names) >= num_nodes
    ranks = []
    for rank in range(world_size):
        node_rank, local_rank = divmod(rank, gpus_per_node)
        uuids = (gpu_uuids or {}).get(names[node_rank], ())
        ranks.append(
            Rank(
                rank=rank,
                node=names[node_rank],
                node_rank=node_rank,
                local_rank=local_rank,
                gpu_uuid=uuids[local_rank] if local_rank < len(uuids) else None,
            )
        )
    return Placement(source="predicted", method="block", ranks=tuple(ranks))
