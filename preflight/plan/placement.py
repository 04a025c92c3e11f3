"""Where ranks will sit, predicted before the job starts."""

from collections.abc import Mapping, Sequence

from preflight.model import Job, Placement


def predict_placement(
    job: Job,
    *,
    node_names: Sequence[str],
    gpus_per_node: int,
    gpu_uuids: Mapping[str, Sequence[str | None]] | None = None,
) -> Placement:
    """The placement that the job's launcher (`[launch]`) will make on these nodes.

    `node_names`: in the order in which the allocation lists them. `gpus_per_node`: ranks that each node gets, unless the launcher says otherwise.
    `gpu_uuids`: node name -> UUIDs by local rank, as far as known. Without a launcher: block placement, what every launcher with one starter per
    node does: rank = node_rank x gpus_per_node + local_rank; with 8 GPUs per node, rank 13 is local rank 5 of the second node.
    """
    num_nodes = len(node_names)
    uuids = None
    if gpu_uuids:
        uuids = tuple(
            known[local] if local < len(known) else None
            for known in (gpu_uuids.get(name, ()) for name in node_names)
            for local in range(gpus_per_node)
        )
    return Placement(
        source="predicted",
        method="block",
        nodes=tuple(node_names),
        node_ranks=tuple(node for node in range(num_nodes) for _ in range(gpus_per_node)),
        local_ranks=tuple(range(gpus_per_node)) * num_nodes,
        gpu_uuids=uuids if uuids and any(uuids) else None,
    )
