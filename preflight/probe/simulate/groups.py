"""How long collectives of groups take that run at the same time, over the same parts as pairs.

A group moves at the pace of the slowest thing that its members' data crosses. What each operation sends:

- all_reduce, all_gather, reduce_scatter, broadcast: around rings, in the order of the members. With m members on each of several nodes there are m rings, each leaving a node
  through another member's NIC and entering the next through the like one, as NCCL lays them (of an odd number of nodes one pair is unlike); each carries 1/m. Per ring and edge 2 (n-1)/n of the message, (n-1)/n, (n-1)/n, all of it.
- all_to_all: each member sends 1/n of its buffer, the message, to each member, or the shares of `split`. send_recv: each member exchanges the message with its neighbours, as a pipeline.
  send: the first member to the second.

An all_reduce inside one NVLink domain may be reduced in its switches (NVLS): then it takes message / (share x NVLink rate), if that is less. Not modelled: trees (one
over two nodes halves what NICs carry), SHARP between nodes, protocols and their thresholds, the 10 to 30 % that all-to-all
loses beyond 8 to 16 nodes. Besides the data an operation takes 8.4 us, and 3.4 us (NVLink) or 14 us (network) for each of 2 log2(n) hops (NCCL's constants for the Simple protocol; that many hops are its tree's).

Example: all_reduce of 1 GB over 8 GPUs of one node at 370 GB/s: 2 x 7/8 GB per edge take 4.73 ms, and 29 us of latency: busbw 368 GB/s.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from preflight.probe.simulate.chance import factors_of
from preflight.probe.simulate.damage import Damage, Gate, dead_ends
from preflight.probe.simulate.fabric import Fabric
from preflight.probe.simulate.flows import Crossings, fair_rates
from preflight.probe.simulate.layout import Layout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Flows: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]

BASE_S, NVLINK_HOP_S, NETWORK_HOP_S = 8.4e-6, 3.4e-6, 14e-6
AROUND = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "broadcast": 1.0}
NVLS_GPUS = 5  # fewer reduce around a ring: H200 reaches 363 GB/s with 4 GPUs, 414 with 5 (NVIDIA's GTC25 slides)
BATCH = 2**18  # flows that are looked at together, so that an all_to_all of 2,048 members doesn't take gigabytes


class Exchange(NamedTuple):
    """One group's operation. `size_bytes`, `split`: as of a Probe."""

    op: str
    ends: tuple[int, ...]
    size_bytes: int
    split: tuple[float, ...] = ()


class _Load(NamedTuple):
    """What one operation of each group puts on the fabric: entries of (group, resource, bytes), by group; and the shortest time in which a group's own flows could all be
    done, inf: one fails. `least_s` shape: (groups,)
    """

    group: "NDArray[np.int64]"
    resource: "NDArray[np.int64]"
    volume: "NDArray[np.float64]"
    least_s: "NDArray[np.float64]"


def durations(fabric: Fabric, exchanges: Sequence[Exchange], number: int) -> list[float | None]:
    """Seconds of one operation of each group, all groups running at the same time in round `number`; None: it fails. Raises ValueError for an operation or ends that can't be meant."""
    import numpy as np

    if not exchanges:
        return []
    dead = dead_ends(fabric.layout, fabric.cluster.faults, number).keys()
    damages = {op: fabric.damage(op, number) for op in sorted({each.op for each in exchanges})}
    loads = [_load(fabric, exchanges, op, damages[op]) for op in damages]
    group = np.concatenate([load.group for load in loads])
    order = np.argsort(group, kind="stable")
    group = group[order]
    resource = np.concatenate([load.resource for load in loads])[order]
    volume = np.concatenate([load.volume for load in loads])[order]
    least_s = np.maximum.reduce([load.least_s for load in loads])
    least_s[[bool(dead & set(each.ends)) if dead else False for each in exchanges]] = np.inf
    going = np.isfinite(least_s)
    # a group's rate is that of the resource which it uses most, so that groups share a full one by bytes
    largest = np.maximum.reduceat(volume, np.flatnonzero(np.diff(group, prepend=-1)))
    live = going[group]
    crossings = Crossings(group[live], resource[live], (volume / largest[group])[live])
    capacity = np.minimum.reduce([fabric.capacity(damage) for damage in damages.values()])
    rate = fair_rates(capacity, crossings, np.where(going, largest / np.where(going, least_s, 1.0), 1.0))
    seconds = (largest / rate + _latencies_s(fabric, exchanges)) / _chance(fabric, exchanges, damages, number)
    return [each if well else None for each, well in zip(seconds.tolist(), going.tolist(), strict=True)]


def _chance(
    fabric: Fabric, exchanges: Sequence[Exchange], damages: dict[str, Damage], number: int
) -> "NDArray[np.float64]":
    """A group is as busy as its busiest member. shape: (groups,)"""
    import numpy as np

    groups = np.arange(len(exchanges))
    busy = [
        (np.array([bool(ends[list(each.ends)].any()) for each in exchanges]), depth)
        for damage in list(damages.values())[:1]
        for ends, depth in damage.busy
    ]
    return factors_of(fabric.cluster, groups, groups, seed=(fabric.seed, number, "groups"), busy=busy)


def _latencies_s(fabric: Fabric, exchanges: Sequence[Exchange]) -> "NDArray[np.float64]":
    import numpy as np

    domain = fabric.layout.domain.tolist()
    hops_s = [NVLINK_HOP_S if len({domain[end] for end in each.ends}) == 1 else NETWORK_HOP_S for each in exchanges]
    hops = [2 * math.ceil(math.log2(max(2, len(each.ends)))) for each in exchanges]
    return np.array([BASE_S + number * hop_s for number, hop_s in zip(hops, hops_s, strict=True)])


def _load(fabric: Fabric, exchanges: Sequence[Exchange], op: str, damage: Damage) -> _Load:
    """What the groups with that operation do."""
    import numpy as np

    layout = fabric.layout
    keys, volumes = [], []
    least_s = np.zeros(len(exchanges))
    for owner, source, target, volume in _batches(layout, exchanges, op):
        crossed = layout.crossed(source, target)
        flat = (owner[:, None] * layout.num_resources + crossed)[crossed >= 0]
        unique, place = np.unique(flat, return_inverse=True)
        keys.append(unique)
        volumes.append(np.bincount(place, np.repeat(volume, (crossed >= 0).sum(axis=1))))
        limit = fabric.limits(source, target, damage)
        with np.errstate(divide="ignore"):
            np.maximum.at(least_s, owner, volume / limit)
        for gate in damage.gates:
            _through(fabric, gate, (owner, source, target, volume), least_s)
    unique, place = np.unique(np.concatenate(keys), return_inverse=True)
    total = np.bincount(place, np.concatenate(volumes)).astype(np.float64)
    return _Load(unique // layout.num_resources, unique % layout.num_resources, total, least_s)


def _through(fabric: Fabric, gate: Gate, flows: "Flows", least_s: "NDArray[np.float64]") -> None:
    """Raise `least_s` to the time that what crosses a faulty path takes together: it carries its factor of what the NICs on its narrower side could send through it."""
    import numpy as np

    owner, source, target, volume = flows
    layout = fabric.layout
    hit = gate.holds(source, target) & ~layout.inside(source, target)
    if not hit.any() or gate.factor <= 0:
        return
    widths = [
        np.bincount(
            np.unique(owner[hit] * layout.num_nics + layout.nic[ends[hit]]) // layout.num_nics, minlength=least_s.size
        )
        for ends in (source, target)
    ]
    room = np.minimum(*widths) * fabric.cluster.nic_bytes_per_s * gate.factor
    through = np.bincount(owner[hit], volume[hit], minlength=least_s.size)
    np.maximum(least_s, np.divide(through, room, out=np.zeros(room.size), where=room > 0), out=least_s)


def _batches(layout: Layout, exchanges: Sequence[Exchange], op: str) -> "Iterator[Flows]":
    """The flows of all groups with that operation, some hundred thousand at a time: (group, source, target, bytes of one operation)."""
    import numpy as np

    batch: list[Flows] = []
    size = 0
    for number, exchange in enumerate(exchanges):
        for source, target, volume in _flows(layout, exchange) if exchange.op == op else ():
            batch.append((np.full(source.size, number), source, target, volume))
            size += source.size
            if size > BATCH:
                yield _joined(batch)
                batch, size = [], 0
    if batch:
        yield _joined(batch)


def _joined(batch: "list[Flows]") -> "Flows":
    import numpy as np

    owner, source, target, volume = (np.concatenate(column) for column in zip(*batch, strict=True))
    return owner, source, target, volume


def _flows(
    layout: Layout, exchange: Exchange
) -> "Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]":
    """Sources, targets and bytes of one operation, in parts."""
    import numpy as np

    op, size, ends = exchange.op, float(exchange.size_bytes), np.array(exchange.ends, np.int64)
    num = ends.size
    if num < 2 or np.unique(ends).size < num or ends.min() < 0 or ends.max() >= layout.num_ends:
        raise ValueError(f"{op}: needs two or more ends, each once, of 0 to {layout.num_ends - 1}")
    if op in AROUND:
        rings = _rings(layout, ends)
        times = _times_around(layout, op, ends)
        for ring in rings:
            yield ring, np.roll(ring, -1), np.full(num, times * size / len(rings))
    elif op == "send":
        yield ends[:1], ends[1:2], np.array([size])
    elif op == "send_recv":
        source, target = np.concatenate([ends[:-1], ends[1:]]), np.concatenate([ends[1:], ends[:-1]])
        yield source, target, np.full(source.size, size)
    elif op == "all_to_all":
        shares = np.array(exchange.split or (1 / num,) * num)
        if shares.size != num:
            raise ValueError(f"{op}: split has {shares.size} shares for {num} members")
        for first in range(0, num, max(1, BATCH // num)):
            some = ends[first : first + max(1, BATCH // num)]
            source, target, volume = np.repeat(some, num), np.tile(ends, some.size), np.tile(shares * size, some.size)
            keep = (source != target) & (volume > 0)
            yield source[keep], target[keep], volume[keep]
    else:
        raise ValueError(f"no group can do {op!r}")


def _times_around(layout: Layout, op: str, ends: "NDArray[np.int64]") -> float:
    """How often the message passes each edge of the ring, or what comes to the same where the NVSwitches of the group's one domain reduce it."""
    num = ends.size
    times = AROUND[op] * (1.0 if op == "broadcast" else (num - 1) / num)
    share = layout.cluster.nvls_share
    if op == "all_reduce" and share and num >= NVLS_GPUS and (layout.domain[ends] == layout.domain[ends[0]]).all():
        return min(times, 1 / share)
    return times


def _rings(layout: Layout, ends: "NDArray[np.int64]") -> "list[NDArray[np.int64]]":
    """The orders around which a group's data goes: one for each member of a node where all nodes have as many and there are several nodes, each with another member last."""
    import numpy as np

    _, first, place, counts = np.unique(layout.domain[ends], return_index=True, return_inverse=True, return_counts=True)
    if counts.size == 1 or (counts != counts[0]).any():
        return [ends]
    turns = np.argsort(np.argsort(first))  # nodes in the order in which they appear among the members
    by_node = ends[np.argsort(turns[place], kind="stable")].reshape(counts.size, int(counts[0]))
    rings = [np.roll(by_node, turn, axis=1) for turn in range(by_node.shape[1])]
    for ring in rings:  # every other node backwards: what leaves a node at one slot enters the next at the same
        ring[1::2] = ring[1::2, ::-1]
    return [ring.ravel() for ring in rings]
