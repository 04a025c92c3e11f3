"""Under torchrun's c10d rendezvous, host names sorted as text give the order of nodes that was meant.

c10d ignores --node-rank and the order of the allocation: it sorts nodes by host name as text, so gpu-10 comes before gpu-2. Neighbouring ranks then sit on nodes
that are not neighbours, and groups cross leaves that they need not cross; it looks random and is not. Source: dynamic_rendezvous.py of torch 2.13,
sorted(state.participants). What was meant: the order of launch.hosts, else the natural order of the names.
"""

from collections.abc import Iterator, Sequence

from preflight.model import Check, Evidence, Finding, Part, Verdict
from preflight.model.hostlist import natural_key

NAME = "host_names"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding where c10d orders at least two nodes whose names are known. Nothing for other launchers."""
    plan = evidence.plan
    assert plan is not None
    launch, nodes = plan.job.launch, plan.placement.nodes
    measured = plan.placement.source == "measured"
    names_known = launch.hosts is not None or evidence.inventory is not None or measured
    if (
        launch.launcher not in {"torchrun", "kubernetes"}
        or launch.rendezvous != "c10d"
        or not names_known
        or len(nodes) < 2
    ):
        return
    given = launch.hosts is not None and set(launch.hosts) == set(nodes)
    meant = launch.hosts if given and launch.hosts is not None else tuple(sorted(nodes, key=natural_key))
    how = "measured" if measured else "sorted as text"
    if nodes == meant:
        verdict, observed, remedy = Verdict.PASS, f"{how}, the {len(nodes)} nodes are in the order meant", ""
    else:
        moved = [at for at, (node, wanted) in enumerate(zip(nodes, meant, strict=True)) if node != wanted]
        first = moved[0]
        unpadded = meant == tuple(sorted(nodes, key=natural_key))
        reason = "numbers in the names are not padded" if unpadded else "c10d ignores the order of the allocation"
        verdict = Verdict.WARN
        observed = (
            f"{how}: {_show(nodes)}; {reason}, so node rank {first} is {nodes[first]} in place of {meant[first]}, "
            f"and {len(moved)} of {len(nodes)} nodes have another rank than meant"
        )
        padding = "pad the numbers in host names or in --local-addr (gpu-02), or " if unpadded else ""
        remedy = f"{padding}use static rendezvous: --rdzv-backend=static --master-addr={meant[0]} --node-rank=0 there, 1 on {meant[1]}, ..."
    yield Finding(
        check=NAME,
        subject="nodes",
        verdict=verdict,
        observed=observed,
        expected=f"the order meant: {_show(meant)}",
        remedy=remedy,
        blames=None if verdict is Verdict.PASS else Part(kind="plan", name="launch.rendezvous"),
    )


def _show(names: Sequence[str]) -> str:
    """The first names of a list."""
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


CHECK = Check(
    name=NAME,
    claim="Under torchrun's c10d rendezvous, host names sorted as text give the order of nodes that was meant.",
    why="gpu-10 sorts before gpu-2: neighbouring ranks land on distant nodes, groups cross leaves, and it looks random.",
    source="torch 2.13, torch/distributed/elastic/rendezvous/dynamic_rendezvous.py: sorted(state.participants)",
    remedy="name nodes with leading zeros, or use a static rendezvous (--rdzv-backend=static with --node-rank)",
    uses=("plan",),
    judge=judge,
)
