"""Nodes that fail at the same moment: each wants to be drained, and knows nothing of the others."""

import threading
from collections.abc import Sequence

from preflight.config import Brake, Site, SlurmSite
from preflight.slurm.commands import Slurm
from preflight.slurm.drain import Drained, drain

REASON = "preflight:row_remap GPU 1: bad; mend it [r1, local]"


def storm(slurm: Slurm, names: Sequence[str], rules: Brake) -> dict[str, Drained]:
    """All at the same moment, each in a thread of its own; what became of each."""
    site = Site(slurm=SlurmSite(enforce=True), brake=rules)
    barrier, results = threading.Barrier(len(names)), {}

    def one(name: str) -> None:
        barrier.wait()
        results[name] = drain(slurm, [name], REASON, site)

    threads = [threading.Thread(target=one, args=[name]) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
