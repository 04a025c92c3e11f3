"""torchrun: one starter per node; ranks follow the order that its rendezvous gives the nodes.

c10d: nodes are sorted as text by address, which is --local-addr or the fully qualified host name; --node-rank is ignored, so gpu-10 comes before
gpu-2. static, which is what torchrun does if no --rdzv-backend is given: the node with --node-rank 0 first, and so on. Ranks are numbered node by node.
Source: torch/distributed/elastic/rendezvous/dynamic_rendezvous.py (sorted(state.participants), _NodeDesc) and torch/distributed/run.py, torch 2.13.
"""

from collections.abc import Sequence

from preflight.model import Job
from preflight.plan.launchers.seats import Seats, deal, node_counts

NAMES_UNKNOWN = "host names are not known, and c10d orders nodes by them: write hosts under [launch]"


def seat(job: Job, names: Sequence[str], gpus_per_node: int, *, names_known: bool) -> Seats:
    """Where torchrun puts the ranks. `names` in the order of --node-rank, or of the allocation. Raises ConfigError."""
    counts = node_counts(job, names, gpus_per_node)
    if job.launch.rendezvous == "c10d":
        return seat_sorted("torchrun", names, counts, names_known=names_known)
    node_ranks, local_ranks = deal(counts, max(counts))
    if job.launch.rendezvous == "static":
        return Seats("torchrun static: nodes in the order of --node-rank", tuple(names), node_ranks, local_ranks)
    doubt = None
    if len(names) > 1 and (not names_known or as_text(names) != list(range(len(names)))):
        doubt = 'static is torchrun\'s default, but c10d would order the nodes otherwise: write rendezvous = "c10d" or "static" under [launch]'
    return Seats(
        "torchrun static (its default): nodes in the order given", tuple(names), node_ranks, local_ranks, doubt
    )


def seat_sorted(launcher: str, names: Sequence[str], counts: Sequence[int], *, names_known: bool) -> Seats:
    """Where c10d puts the ranks: nodes sorted as text, each with its own count."""
    order = as_text(names) if names_known else list(range(len(names)))
    node_ranks, local_ranks = deal([counts[node] for node in order], max(counts))
    doubt = None
    if not names_known and len(names) > 1:
        doubt = NAMES_UNKNOWN
    elif order != as_text([f"{name}." for name in names]) and not any("." in name for name in names):
        # c10d compares whole names: "n-1.site" is after "n-1-a.site", though "n-1" is before "n-1-a"
        doubt = "a domain after these short names would change their order as text: write fully qualified names"
    method = f"{launcher} c10d: nodes sorted as text" if names_known else f"{launcher} c10d: order of nodes not known"
    return Seats(method, tuple(names[node] for node in order), node_ranks, local_ranks, doubt)


def as_text(names: Sequence[str]) -> list[int]:
    """Positions of the names in the order of their text: gpu-1, gpu-10, gpu-2."""
    return sorted(range(len(names)), key=names.__getitem__)
