"""Kubernetes: one pod per node, numbered by completion index; each pod starts the workers of its GPUs.

Without c10d the index is the node rank (Job completion index, JobSet's job-global-index, PyTorchJob's replica index). Under c10d it is ignored: pods are sorted as text
by host name, so that from 11 unpadded pods on the order breaks (0, 1, 10, 11, 2, ...).
"""

from collections.abc import Sequence

from preflight.model import Job
from preflight.plan.launchers.seats import Seats, deal, node_counts
from preflight.plan.launchers.torchrun import seat_sorted


def seat(job: Job, names: Sequence[str], gpus_per_node: int, *, names_known: bool) -> Seats:
    """Where the ranks sit. `names`: of the pods, by completion index. Raises ConfigError."""
    counts = node_counts(job, names, gpus_per_node)
    if job.launch.rendezvous == "c10d":
        return seat_sorted("kubernetes", names, counts, names_known=names_known)
    return Seats("kubernetes: nodes by completion index", tuple(names), *deal(counts, max(counts)))
