"""Every node starts the same number of workers.

Launchers number ranks node by node, so one node with a worker less shifts every rank after it: with 7 + 8 + 8 workers and tp 8 no tensor-parallel group after the
first seven ranks begins on a node boundary, and each of them talks over the network. Source: torchrun numbers ranks by the running sum of worker counts
(torch/distributed/elastic/agent/server/api.py, _assign_worker_ranks).
"""

from collections import Counter
from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Part, Plan, Verdict
from preflight.model.hostlist import fold, fold_numbers

NAME = "equal_workers"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding."""
    plan = evidence.plan
    assert plan is not None
    kinds = Counter(plan.placement.ranks_per_node)
    # of equals the larger count: a worker is missing more often than there is one too many
    usual = max(kinds, key=lambda count: (kinds[count], count))
    if len(kinds) == 1:
        observed, verdict, remedy, blames = (
            f"{_workers(usual)} on each of {_nodes(len(plan.placement.nodes))}",
            Verdict.PASS,
            "",
            None,
        )
    else:
        counts = Counter(dict(enumerate(plan.placement.ranks_per_node)))
        odd = sorted(node for node, count in counts.items() if count != usual)
        observed, verdict = f"{_uneven(plan, counts, usual)}; {_shifted(plan, odd[0])}", Verdict.WARN
        names = fold(plan.placement.nodes[node] for node in odd)
        few, many = min(counts.values()), max(counts.values())
        remedy = (
            f"start as many workers on {names} as on the others, or leave these nodes out "
            f"({_flag(plan)}: the same number everywhere, from {few} to {many})"
        )
        blames = Part(kind="node", name=plan.placement.nodes[odd[0]], confidence="possible") if len(odd) == 1 else None
    yield Finding(
        check=NAME,
        subject="nodes",
        verdict=verdict,
        observed=observed,
        expected="the same number of workers on every node",
        remedy=remedy,
        blames=blames,
    )


def _uneven(plan: Plan, counts: Counter[int], usual: int) -> str:
    """The nodes of each count, the usual one first."""
    shown = []
    for count in sorted(set(counts.values()), key=lambda count: (count != usual, count)):
        nodes = [plan.placement.nodes[node] for node, workers in counts.items() if workers == count]
        shown.append(f"{_workers(count)} on {_nodes(len(nodes))} ({fold(nodes)})")
    return ", ".join(shown)


def _shifted(plan: Plan, first_odd: int) -> str:
    """What it does to the tensor-parallel groups, or else to the ranks."""
    groups = plan.groups.get("tp", ())
    node_ranks = plan.placement.node_ranks
    torn = [i for i, group in enumerate(groups) if len({node_ranks[rank] for rank in group}) > 1]
    if not torn:
        node = plan.placement.nodes[first_odd]
        return f"ranks of the nodes after {node} are shifted against the node boundaries, and no tp group is torn by it"
    ranks = fold_numbers(groups[torn[0]])
    nodes = ", ".join(plan.placement.nodes_of(groups[torn[0]]))
    return f"{len(torn)} of {len(groups)} tp groups lie on several nodes, the first is tp{torn[0]}: ranks {ranks} on {nodes}"


def _flag(plan: Plan) -> str:
    """How the launcher is told the number of workers."""
    return {
        "slurm": "srun --ntasks-per-node",
        "torchrun": "torchrun --nproc-per-node",
        "kubernetes": "--nproc-per-node in every pod",
        "deepspeed": "slots in the hostfile",
        "mpi": "mpirun --map-by ppr:N:node",
    }.get(plan.job.launch.launcher or "", "launch.tasks_per_node")


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


CHECK = Check(
    name=NAME,
    claim="Every node starts the same number of workers.",
    why="One worker less shifts all later ranks: tensor-parallel groups leave their nodes, and nothing fails.",
    source="torch/distributed/elastic/agent/server/api.py, _assign_worker_ranks: ranks are numbered by the running sum of worker counts",
    remedy="start the same number of workers on every node, or leave the short node out",
    uses=("plan",),
    judge=judge,
)
