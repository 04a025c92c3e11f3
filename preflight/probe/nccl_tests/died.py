"""What runs that died say: a node all of whose runs died, while its partners' others ran, is singled out by that; otherwise they are evidence against the pair alone."""

from collections.abc import Iterable, Sequence

from preflight.model.hostlist import fold
from preflight.model.localisation import Culprit, Ends
from preflight.probe.nccl_tests.run import Run

LEAST_RUNS = 2  # a single run that died doesn't tell its two nodes apart
MOST = 1 / 3  # of the nodes: where more than that die with everyone, it is how the runs were started


def died(run: Run) -> bool:
    """The run gave no figure at all."""
    return run.failure is not None and not run.rows


def culprits_of_deaths(runs: Sequence[Run], ends: Ends) -> tuple[Culprit, ...]:
    """Nodes that are singled out by runs over several nodes that died. Nodes in runs that ended, or that got as far as figures, are none of them."""
    several = [run for run in runs if len(run.hosts) > 1]
    alive = {host for run in several if not died(run) for host in run.hosts}
    dead = [node for node in ends.nodes if node not in alive and _num_good_partners(node, several, alive) >= LEAST_RUNS]
    found = tuple(_culprit(node, several, runs, alive) for node in dead)
    if len(found) <= max(1, MOST * len(ends.nodes)):
        return found
    reason = (
        f"all runs of {fold(dead)} died, {len(dead)} of {len(ends.nodes)} nodes: too many for faults of single nodes to be likely; "
        "look at how these runs were started"
    )
    return (Culprit(kind=None, confidence="possible", failed=True, reason=reason, candidates=found),)


def _num_good_partners(node: str, runs: Iterable[Run], alive: set[str]) -> int:
    """Partners of runs that died, each alone with the node, that are alive with others."""
    pairs = [run for run in runs if node in run.hosts and len(run.hosts) == 2]
    return len({host for run in pairs for host in run.hosts if host in alive})


def _culprit(node: str, several: Sequence[Run], runs: Sequence[Run], alive: set[str]) -> Culprit:
    mine = [run for run in several if node in run.hosts]
    partners = sorted({host for run in mine for host in run.hosts if host != node and host in alive})
    by_itself = any(run.hosts == (node,) and run.ended for run in runs)
    alone = "; it ran to the end by itself, so that its network is likelier than its GPUs" if by_itself else ""
    return Culprit(
        kind="node",
        confidence="likely",
        nodes=(node,),
        failed=True,
        reason=f"all {len(mine)} runs with {node} died, while {fold(partners)} ran with others{alone}",
        evidence=tuple(run.source for run in mine[:8]),
    )
