"""Ends and shots of a run: its measured pairs, those of unlike routes inside nodes told apart by what joins the GPUs."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from preflight.model.ends import ends_of
from preflight.model.evidence import Evidence
from preflight.model.gpu import Gpu
from preflight.model.inventory import Inventory
from preflight.model.localisation import LONE, Ends, Shots
from preflight.model.measurement import Measurement
from preflight.model.plan import Plan, Rank
from preflight.model.units import show_rate

if TYPE_CHECKING:
    from preflight.model.expected_rate import Expectations

PAIR_OPS = frozenset({"send_recv", "send", "host_to_device", "device_to_host"})
PCIE, NVLINKS = "over PCIe", "NVLinks"
PAIRS_TRIED = 4  # of one class of routes, for its formula: the pairs of a class are alike
MIXED_VALUES = 2  # a software fact is a class where it has so many values or more


def ends_and_shots(evidence: Evidence) -> tuple[Ends, Shots] | None:
    """None: no pair was measured. Probes that were made to find out who does not answer are left out where they gave figures: they ran beside a fault."""
    assert evidence.plan is not None
    pairs = [m for m in evidence.measurements or () if _is_pair(m)]
    if any(m.probe.reason for m in pairs) and _most_on_a_nic(evidence) > 1:
        # GPUs that share a NIC get half of it in a full round, and all of it in what was asked for later
        pairs = [m for m in pairs if not m.probe.reason or not _leaves_its_node(m, evidence.plan)]
    if not any(len(m.probe.ranks) == 2 for m in pairs):
        return None
    ends = ends_of(evidence.plan, evidence.topology)
    ends = msgspec.structs.replace(ends, classes=_classes(ends, evidence.inventory))
    names = _op_names(pairs, evidence.plan, evidence.inventory)
    return ends, Shots(
        a=tuple(m.probe.ranks[0] for m in pairs),
        b=tuple(m.probe.ranks[-1] for m in pairs),
        op=tuple(names),
        bytes_per_s=tuple(m.busbw_bytes_per_s for m in pairs),
        failure=tuple(m.failure.kind if m.failure else "" for m in pairs),
        round=tuple(range(len(pairs))),
        key=tuple(m.probe.key for m in pairs),
    )


def expected_rates(evidence: Evidence, ends: Ends, shots: Shots) -> dict[tuple[str, str], tuple[float, str]]:
    """(op, route) -> what a formula allows the best of a few of its pairs, and the formula; only where it can be said for certain."""
    from preflight.judge.localise.table import base_op, table_of
    from preflight.model.expected_rate import Expectations

    table = table_of(ends, shots)
    sizes = {m.probe.key: m.probe.size_bytes for m in evidence.measurements or ()}
    expectations, tried = Expectations(evidence), Counter[tuple[str, str]]()
    shared = _most_on_a_nic(evidence, expectations)
    found: dict[tuple[str, str], tuple[float, str]] = {}
    for place, route in zip(table.position.tolist(), table.route.tolist(), strict=True):
        a, b, op = shots.a[place], shots.b[place], shots.op[place]
        key = (op, table.routes[route])
        collective = base_op(op)
        if a == b or tried[key] >= PAIRS_TRIED or (collective not in {"send_recv", "send"}):
            continue
        tried[key] += 1
        one = expectations.of("send" if collective == "send" else "send_recv", (a, b), sizes[shots.key[place]])
        if one.bytes_per_s is None or not one.firm:
            continue
        among = 1 if expectations.domain(a) == expectations.domain(b) else shared
        if one.bytes_per_s / among > found.get(key, (0.0, ""))[0]:
            text = f", shared by {among} GPUs: {show_rate(one.bytes_per_s / among)}" if among > 1 else ""
            found[key] = (one.bytes_per_s / among, f"formula: {one.formula}{text}")
    return found


def _leaves_its_node(m: Measurement, plan: Plan) -> bool:
    return len({plan.placement.ranks[rank].node for rank in m.probe.ranks}) > 1


def _most_on_a_nic(evidence: Evidence, known: "Expectations | None" = None) -> int:
    """GPUs of the job on the NIC that most of them share, which all use it in a full round; 1 where it is not known."""
    from preflight.model.expected_rate import Expectations

    if evidence.plan is None or evidence.inventory is None:
        return 1
    expectations = known or Expectations(evidence)
    ranks = range(len(evidence.plan.placement.node_ranks))
    users = Counter(card for rank in ranks for card in expectations.nics(rank) or ())
    return max(users.values(), default=1)


def _is_pair(m: Measurement) -> bool:
    probe = m.probe
    return (
        probe.axis is None
        and len(probe.ranks) in {1, 2}
        and probe.collective in PAIR_OPS
        and probe.mode == "alone"
        and not probe.attempt
    )


def _op_names(pairs: list[Measurement], plan: Plan, inventory: Inventory | None) -> list[str]:
    """The collective; inside nodes with the route behind it, where GPUs are joined unlike and every GPU has a pair on every route: that one lacks a route is what to find.

    Where NVLink joins none of them, or single pairs (bridges), routes are apart in any case: a pair whose bridge is off is as slow as others over PCIe, and no fault of its GPUs.
    Below one host bridge peer access gives 9.9 GB/s, and the way through host memory between others 22 (NVIDIA/nccl issue 814).
    """
    placed, gpus = plan.placement.ranks, _gpus_by_node(inventory)
    routes: dict[tuple[int, ...], str] = {
        ranks: _joined_by(placed, ranks, gpus)
        for ranks in dict.fromkeys(m.probe.ranks for m in pairs)
        if len(ranks) == 2
    }
    inside = {ranks: route for ranks, route in routes.items() if placed[ranks[0]].node == placed[ranks[1]].node}
    kinds = set(inside.values())
    everyone = {rank for ranks in inside for rank in ranks}
    complete = all(
        {rank for ranks, kind in inside.items() if kind == one for rank in ranks} == everyone for one in kinds
    )
    bare = all(kind.startswith(PCIE) for kind in kinds)
    apart = inside if len(kinds) > 1 and (complete or bare or _is_bridged(inside)) else {}
    words = ((m.probe.collective, apart.get(m.probe.ranks), LONE if m.probe.size_name == LONE else "") for m in pairs)
    return [" ".join(filter(None, each)) for each in words]


def _is_bridged(routes: Mapping[tuple[int, ...], str]) -> bool:
    """NVLink joins pairs of GPUs only, each GPU with one other."""
    joined = {frozenset(ranks) for ranks, kind in routes.items() if kind.endswith(NVLINKS)}
    return bool(joined) and len(frozenset().union(*joined)) == 2 * len(joined)


def _gpus_by_node(inventory: Inventory | None) -> dict[str, dict[str, Gpu]]:
    """Node -> UUID -> GPU, once for all pairs."""
    found: dict[str, dict[str, Gpu]] = {}
    for node in inventory.nodes if inventory else ():
        found.setdefault(node.name, {gpu.uuid: gpu for gpu in node.gpus or () if gpu.uuid})
    return found


def _joined_by(placed: tuple[Rank, ...], ranks: Iterable[int], gpus_of: Mapping[str, Mapping[str, Gpu]]) -> str:
    """What joins two GPUs of one node; "": not known."""
    a, b = (placed[rank] for rank in ranks)
    if a.node != b.node:
        return ""
    gpus = gpus_of.get(a.node, {})
    mine, other = gpus.get(a.gpu_uuid or ""), gpus.get(b.gpu_uuid or "")
    peer = next((p for p in mine.peers if other and p.index == other.index), None) if mine else None
    if peer is None or peer.num_nvlinks is None:
        return ""
    return f"over {peer.num_nvlinks} {NVLINKS}" if peer.num_nvlinks else f"{PCIE} ({peer.ancestor})"


def _classes(ends: Ends, inventory: Inventory | None) -> dict[str, tuple[str | None, ...]]:
    """Software facts of the nodes that differ among them."""
    if inventory is None:
        return {}
    nodes = {node.name: node for node in inventory.nodes}
    found = [nodes.get(name) for name in ends.nodes]
    facts = {
        "driver": tuple(node.driver_version if node else None for node in found),
        "kernel": tuple(node.kernel if node else None for node in found),
        "CUDA": tuple(node.cuda_version if node else None for node in found),
    }
    return {name: values for name, values in facts.items() if len(set(values) - {None}) >= MIXED_VALUES}
