"""Every tensor-parallel group lies inside one NVLink domain.

A group that leaves its domain does its all-reduces, two per layer, over the network: the job runs, many times slower, and nothing
fails. Domain: Gpu.nvlink_domain (NVML fabric info: cluster UUID and clique). Without an inventory a node counts as one domain,
and every finding says so; that is wrong for machines whose NVLink joins several nodes, which need an inventory to be judged.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator

from preflight.model import Check, Evidence, Finding, Group, Inventory, Node, Part, Plan, Rank, Verdict
from preflight.model.hostlist import fold, fold_numbers

NAME = "tp_in_nvlink_domain"
NO_NVLINK = "none"  # Gpu.nvlink_domain of a GPU that reaches no other


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding per tensor-parallel group."""
    plan = evidence.plan
    if plan is None or evidence.settings.cpu_declared:
        return
    if evidence.inventory is None:
        per_node = max(Counter(rank.node for rank in plan.placement.ranks).values())
        for group in plan.on_axis("tp"):
            yield _judge_group(plan, group, lambda rank: rank.node, per_node, "taking each node as one domain")
        return
    domain_of, size = _domains(evidence.inventory)
    for group in plan.on_axis("tp"):
        yield _judge_group(plan, group, domain_of, size, None)


def _judge_group(
    plan: Plan, group: Group, domain_of: Callable[[Rank], str | None], domain_size: int, assumption: str | None
) -> Finding:
    members = [plan.placement.ranks[rank] for rank in group.ranks]
    nodes = plan.placement.nodes_of(group.ranks)
    domains = {domain_of(member) for member in members}
    where = f"ranks {fold_numbers(group.ranks)} on {len(nodes)} node{'s' if len(nodes) > 1 else ''}, {fold(nodes)}"
    note = f" ({assumption})" if assumption else ""
    verdict, remedy, blames = Verdict.PASS, "", None
    known = domains - {None}
    apart = len(known) > 1 or NO_NVLINK in known
    if apart and len(nodes) == 1:
        # slow, but it does not leave the node: someone should look, the job may run
        verdict = Verdict.WARN
        observed = f"{where}: NVLink does not join all of these GPUs, so they talk over PCIe"
        remedy = f"use GPUs that NVLink joins, or lower tp below {len(group.ranks)}"
    elif apart:
        verdict = Verdict.FAIL
        observed = f"{where}: no NVLink between them{note}"
        remedy = _remedy(group, domain_size)
        blames = Part(kind="plan", name="parallel.tp")
    elif None in domains:
        verdict = Verdict.UNKNOWN
        unknown = fold({member.node for member in members if domain_of(member) is None})
        observed = f"{where}: NVLink domain not known on {unknown}"
        remedy = f"run `preflight node` on {unknown} to see why NVML does not tell"
    else:
        observed = f"{where}: one NVLink domain{note}"
    return Finding(
        check=NAME,
        subject=group.name,
        verdict=verdict,
        observed=observed,
        expected=f"all {len(group.ranks)} ranks in one NVLink domain{note}",
        remedy=remedy,
        blames=blames,
    )


def _remedy(group: Group, domain_size: int) -> str:
    """The smallest fix: another placement if the group fits into a domain and domains divide evenly, else a lower tp."""
    num_ranks, fits = len(group.ranks), math.gcd(len(group.ranks), domain_size)
    if domain_size % num_ranks == 0:
        return f"place ranks {fold_numbers(group.ranks)} in one NVLink domain (block placement: consecutive ranks fill a node)"
    if fits == 1:
        return f"set tp = 1, or use nodes whose GPUs NVLink joins in multiples of {num_ranks}"
    return f"lower tp from {num_ranks} to {fits}, which divides the {domain_size} GPUs of an NVLink domain"


def _domains(inventory: Inventory) -> tuple[Callable[[Rank], str | None], int]:
    """A function from rank to domain (None: unknown), and the GPUs of the smallest domain, at least 1."""
    nodes = {node.name: node for node in inventory.nodes}
    by_uuid = {gpu.uuid: gpu.nvlink_domain for node in inventory.nodes for gpu in node.gpus or () if gpu.uuid}
    of_node = {name: _common_domain(node) for name, node in nodes.items()}
    sizes = Counter(domain for node in inventory.nodes for gpu in node.gpus or () if (domain := gpu.nvlink_domain))
    sizes.pop(NO_NVLINK, None)

    def domain_of(rank: Rank) -> str | None:
        return of_node.get(rank.node) if rank.gpu_uuid is None else by_uuid.get(rank.gpu_uuid)

    return domain_of, min(sizes.values(), default=1)


def _common_domain(node: Node) -> str | None:
    """The domain that all GPUs of a node share; None if they don't, since CUDA's order of GPUs may differ from NVML's."""
    domains = {gpu.nvlink_domain for gpu in node.gpus or ()}
    return domains.pop() if len(domains) == 1 else None


CHECK = Check(
    name=NAME,
    claim="Every tensor-parallel group lies inside one NVLink domain.",
    why="A group that leaves it does two all-reduces per layer over the network: many times slower, and silent.",
    uses=("plan",),
    judge=judge,
)
