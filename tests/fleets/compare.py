"""Ours beside the public schemes: on the same random fleets, and on the two real matrices."""

import random
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from preflight.judge.localise import localise
from preflight.model.localisation import Culprit, Ends, Localisation, Shots
from preflight.probe.simulate import Cluster, Fabric
from tests.fleets.examine import Examined
from tests.fleets.fleets import SLOTS, Fleet
from tests.fleets.schemes import Measure, Scheme, pairing

Matrix = Mapping[tuple[str, str], float | None]
REAL_LIMIT = 0.8  # of the fast mode, as in the published comparison


class Blamed(NamedTuple):
    """`ill`, `accused_ill`: nodes with a fault of their own GPU, NIC or whole, and those of them that were accused. `innocent`: accused nodes without one; a node at the end of an ill link
    is counted as neither. `node_faults`, `exact`: faults of whole nodes, and those whose node was accused.
    """

    ill: int
    accused_ill: int
    innocent: int
    node_faults: int
    exact: int


def held_against(cluster: Cluster, accused: set[str]) -> Blamed:
    """What a scheme that knows only nodes got right."""
    whole = {node for fault in cluster.faults if fault.kind == "node" for node in fault.nodes}
    ill = whole | {
        cluster.nodes[end // SLOTS] for fault in cluster.faults if fault.kind in {"gpu", "nic"} for end in fault.ends
    }
    at_links = {cluster.nodes[end // SLOTS] for fault in cluster.faults if fault.kind == "link" for end in fault.ends}
    return Blamed(len(ill), len(ill & accused), len(accused - ill - at_links), len(whole), len(whole & accused))


def total(blamed: Sequence[Blamed]) -> Blamed:
    return Blamed(*(sum(column) for column in zip(*blamed, strict=True)))


def nodes_accused(culprits: Sequence[Culprit], ends: Ends) -> set[str]:
    """By ours: the nodes of GPUs, NICs and nodes that it blames."""
    blames = [culprit for culprit in culprits if culprit.kind in {"gpu", "nic", "node"}]
    return {ends.nodes[ends.node[end]] for culprit in blames for end in culprit.ends} | {
        node for culprit in blames for node in culprit.nodes
    }


def of_nodes(fabric: Fabric) -> Measure:
    """A measurement between two whole nodes: all like slots at once, as slow as the slowest."""
    number = iter(range(10**9))

    def measure(pairs: Sequence[tuple[int, int]]) -> list[float | None]:
        ends = [(a * SLOTS + slot, b * SLOTS + slot) for a, b in pairs for slot in range(SLOTS)]
        rates = fabric.pairs("send_recv", ends, next(number))
        each = (rates[first : first + SLOTS] for first in range(0, len(rates), SLOTS))
        return [None if None in slots else min(slots) for slots in each]

    return measure


def scheme_on(fleet: Fleet, name: str, scheme: Scheme) -> Blamed:
    cluster = fleet.cluster
    healthy = cluster.nic_bytes_per_s * (1 - cluster.other_leaf_loss)  # what its slowest healthy pairs reach
    limit = healthy * (1 - max(8 * cluster.noise, 0.1))
    measure = of_nodes(Fabric(cluster, fleet.seed))
    accused = scheme(len(cluster.nodes), measure, limit, random.Random(f"{name} {fleet.seed}"))
    return held_against(cluster, {cluster.nodes[node] for node in accused})


def ours_on(examined: Examined) -> Blamed:
    return held_against(
        examined.fabric.cluster, nodes_accused(examined.localisation.culprits, examined.localisation.ends)
    )


def lookup(matrix: Matrix, names: Sequence[str]) -> Measure:
    """Measures pairs of nodes by looking them up."""

    def measure(pairs: Sequence[tuple[int, int]]) -> list[float | None]:
        return [matrix[names[min(pair)], names[max(pair)]] for pair in pairs]

    return measure


def accusations(scheme: Scheme, matrix: Matrix, names: Sequence[str], trials: int) -> list[int]:
    """How many nodes a scheme accuses in each of many random pairings."""
    limit = REAL_LIMIT * max(rate for rate in matrix.values() if rate)
    measure = lookup(matrix, names)
    return [len(scheme(len(names), measure, limit, random.Random(f"trial {trial}"))) for trial in range(trials)]


def ours_on_matrix(matrix: Matrix, names: Sequence[str], pairs: Sequence[Sequence[tuple[int, int]]]) -> Localisation:
    """Rounds of pairs of a matrix, then up to four batches of what the localiser asks for, as far as the matrix has it."""
    ends = Ends(nodes=tuple(names), node=tuple(range(len(names))), slot=(0,) * len(names), whole_nodes=True)
    measure, rows = lookup(matrix, names), []

    def run(number: int, chosen: Sequence[tuple[int, int]]) -> None:
        for (a, b), rate in zip(chosen, measure(chosen), strict=True):
            rows.append(
                (a, b, "alltoall", rate and rate * 1e9, "" if rate else "crashed", number, f"{a}-{b} #{len(rows)}")
            )

    def judged() -> Localisation:
        columns = [tuple(column) for column in zip(*rows, strict=True)]
        return localise(ends, Shots(**dict(zip(Shots.__struct_fields__, columns, strict=True))))

    for number, chosen in enumerate(pairs):
        run(number, chosen)
    verdict = judged()
    for batch in range(4):
        wanted = [(ask.a, ask.b) for ask in verdict.asks if ask.a != ask.b]
        if not wanted:
            break
        run(len(pairs) + batch, wanted)
        verdict = judged()
    return verdict


def random_rounds(nodes: int, rounds: int, seed: int) -> list[list[tuple[int, int]]]:
    chance = random.Random(f"rounds {seed}")
    return [pairing(range(nodes), chance) for _ in range(rounds)]


def mean_and_none(counts: Sequence[int]) -> str:
    return f"{statistics.mean(counts):6.2f} {sum(count == 0 for count in counts) / len(counts):9.0%}"
