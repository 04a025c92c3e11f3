"""Which NVLink domains the groups of an axis touch (pure; the placement checks need it).

What was measured counts first: with an inventory, the domain of each rank's GPU (Gpu.nvlink_domain). Without one, what the plan stage found
(Plan.footprints, Placement.domains), with the assumption that it rests on.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Literal

from preflight.model.base import Record
from preflight.model.evidence import Evidence
from preflight.model.inventory import Inventory, Node
from preflight.model.plan import Plan

NO_NVLINK = "none"  # Gpu.nvlink_domain of a GPU that reaches no other

State = Literal["inside", "apart", "pcie", "unknown"]


class AxisDomains(Record, frozen=True):
    """The groups of one axis, by state: index of the groups in Plan.groups, ascending.

    `inside`: one domain. `apart`: more than one. `pcie`: on one node whose GPUs NVLink does not all join. `unknown`: could not be found out.
    """

    inside: tuple[int, ...]
    apart: tuple[int, ...]
    pcie: tuple[int, ...]
    unknown: tuple[int, ...]


class Domains:
    """NVLink domains of one plan. `note`: the assumption behind them, empty where they were measured."""

    def __init__(self, plan: Plan, inventory: Inventory | None) -> None:
        self.plan = plan
        self._inventory = inventory
        self.note = "" if inventory else plan.placement.domain_source

    @classmethod
    def of(cls, evidence: Evidence) -> "Domains | None":
        """The domains that this evidence tells; None where there is no plan, or where a run without GPUs is meant."""
        if evidence.plan is None or evidence.settings.cpu_declared:
            return None
        return cls(evidence.plan, evidence.inventory)

    @cached_property
    def _of_rank(self) -> Callable[[int], str | None]:
        placement = self.plan.placement
        if self._inventory is None:
            names = placement.nodes if placement.domains is None else placement.domains
            return lambda rank: names[placement.node_ranks[rank]]
        of_node = {node.name: _common_domain(node) for node in self._inventory.nodes}
        by_uuid = {gpu.uuid: gpu.nvlink_domain for node in self._inventory.nodes for gpu in node.gpus or () if gpu.uuid}
        uuids = placement.gpu_uuids

        def of_rank(rank: int) -> str | None:
            uuid = uuids[rank] if uuids else None
            return of_node.get(placement.nodes[placement.node_ranks[rank]]) if uuid is None else by_uuid.get(uuid)

        return of_rank

    def of_rank(self, rank: int) -> str | None:
        """The domain of a rank's GPU; None: unknown."""
        return self._of_rank(rank)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """GPUs of each domain, in order of first appearance: all of them with an inventory, else those that have a rank. At least one entry."""
        sizes: Counter[str] = Counter()
        if self._inventory is not None:
            sizes.update(
                gpu.nvlink_domain for node in self._inventory.nodes for gpu in node.gpus or () if gpu.nvlink_domain
            )
            sizes.pop(NO_NVLINK, None)
            return tuple(sizes.values()) or (1,)
        placement = self.plan.placement
        if placement.domains is None:
            return placement.ranks_per_node
        for name, number in zip(placement.domains, placement.ranks_per_node, strict=True):
            if name is not None:
                sizes[name] += number
        return tuple(sizes.values()) or (1,)

    @cached_property
    def different_sizes(self) -> tuple[int, ...]:
        """The sizes of domains that occur, ascending."""
        return tuple(sorted(set(self.sizes)))

    @cached_property
    def is_filled_in_order(self) -> bool:
        """All domains have the same number of ranks, and consecutive ranks fill one before the next one begins."""
        placement = self.plan.placement
        if self._inventory is not None or not placement.is_block or len(self.different_sizes) > 1:
            return False
        domains = placement.domains
        if domains is None:
            return True
        changes = sum(a != b for a, b in pairwise(domains))
        return None not in domains and changes + 1 == len(self.sizes)

    def along(self, axis: str) -> AxisDomains:
        """The state of each group of an axis; all empty where the axis has no groups."""
        groups, footprint = self.plan.groups.get(axis, ()), self.plan.footprints.get(axis)
        found: dict[State, list[int]] = {"inside": [], "apart": [], "pcie": [], "unknown": []}
        if self._inventory is not None or footprint is None:
            for index, ranks in enumerate(groups):
                found[self._state(ranks)].append(index)
        elif footprint.domains.count(1) == len(groups):  # nearly always, and there may be 65,536
            return AxisDomains(tuple(range(len(groups))), (), (), ())
        elif not footprint.domains.count(1) and not footprint.domains.count(0):
            return AxisDomains((), tuple(range(len(groups))), (), ())
        else:
            for index, number in enumerate(footprint.domains):
                # 0: unknown for some member, and the others may still be known to be apart
                state = "inside" if number == 1 else "apart" if number else self._state(groups[index])
                found[state].append(index)
        return AxisDomains(**{state: tuple(indexes) for state, indexes in found.items()})

    def _state(self, ranks: Sequence[int]) -> State:
        domains = set(map(self._of_rank, ranks))
        known = domains - {None}
        if len(known) > 1 or (NO_NVLINK in known and len(ranks) > 1):
            node_ranks = self.plan.placement.node_ranks
            return "apart" if any(node_ranks[rank] != node_ranks[ranks[0]] for rank in ranks) else "pcie"
        return "unknown" if None in domains else "inside"


def _common_domain(node: Node) -> str | None:
    """The domain that all GPUs of a node share; None if they don't, since CUDA's order of GPUs may differ from NVML's."""
    domains = {gpu.nvlink_domain for gpu in node.gpus or ()}
    return domains.pop() if len(domains) == 1 else None
