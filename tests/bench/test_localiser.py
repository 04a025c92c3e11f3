"""The localiser beside public schemes to find bad nodes: on the same random fleets, and on two real pair matrices. The schemes are described in tests/fleets/schemes.py."""

import statistics

import pytest

from tests.fleets.campaign import Job, outcomes
from tests.fleets.compare import (
    accusations,
    nodes_accused,
    ours_on_matrix,
    random_rounds,
    scheme_on,
    total,
)
from tests.fleets.fleets import random_fleet
from tests.fleets.real_matrices import HEALTHY_NAMES, SICK_NAMES, healthy_10, sick_17, sick_sets
from tests.fleets.schemes import SCHEMES
from tests.fleets.tally import Tally

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]
FLEETS, LARGEST, TRIALS = 100, 512, 500
MAX_INNOCENT = 0.02  # nodes a fleet; measured 0.01, and none is the aim, which tests/soak asserts


def test_random_fleets():
    """Ours names what it may (GPU, NIC, slot, ...); the schemes know nodes only, so all are counted by nodes, and ours by kind below."""
    examined = list(outcomes(Job(seed, "faults", LARGEST) for seed in range(FLEETS)))
    print(f"\n{Tally(outcome.score for outcome in examined).table()}\n")
    fleets = [random_fleet(seed, max_nodes=LARGEST) for seed in range(FLEETS)]
    found = {"preflight": [outcome.nodes for outcome in examined]} | {
        name: [scheme_on(fleet, name, scheme) for fleet in fleets] for name, scheme in SCHEMES.items()
    }
    every, few = range(FLEETS), [number for number, fleet in enumerate(fleets) if few_parts(fleet)]
    for title, numbers in (("0 to 8 faults of every kind", every), ("faults of GPUs, NICs, nodes and pairs only", few)):
        print(f"\n{len(numbers)} fleets of up to {LARGEST} nodes, {title}:")
        print(f"{'':34} ill nodes accused   of them faults of nodes   innocent nodes accused per fleet")
        for name, blamed in found.items():
            show_nodes(name, [blamed[number] for number in numbers])
    assert total(found["preflight"]).innocent <= MAX_INNOCENT * FLEETS
    assert all(total(found[name]).innocent > 0 for name in SCHEMES if "median" not in name)


def few_parts(fleet):
    """A fault of a slot, an uplink or a path makes many nodes slow, so schemes that know only nodes accuse many; without such faults they are at their best."""
    return all(fault.kind in {"gpu", "nic", "node", "link"} for fault in fleet.cluster.faults)


def show_nodes(name, blamed):
    counts = total(blamed)
    ill, exact = f"{counts.accused_ill} of {counts.ill}", f"{counts.exact} of {counts.node_faults}"
    print(f"{name:34} {ill:>17}   {exact:>23}   {counts.innocent / len(blamed):10.2f}")


@pytest.mark.parametrize(
    ("matrix", "names", "title"),
    [(sick_17(), SICK_NAMES, "17 nodes, a bad path"), (healthy_10(), HEALTHY_NAMES, "10 healthy nodes")],
    ids=["sick-17", "healthy-10"],
)
def test_real_matrices(matrix, names, title):
    """No node is ill in either. Ours once with all pairs, as they were measured, and for random pairings with eight rounds of them and what it asks for then."""
    print(f"\n{title}: nodes accused on average, and how often none, of {TRIALS} random pairings")
    for name, scheme in SCHEMES.items():
        show(name, accusations(scheme, matrix, names, TRIALS))
    trials = [ours_on_matrix(matrix, names, random_rounds(len(names), 8, trial)) for trial in range(TRIALS)]
    ours = [len(nodes_accused(verdict.culprits, verdict.ends)) for verdict in trials]
    show("preflight, 8 rounds and its asks", ours)
    whole = ours_on_matrix(matrix, names, [[(a, b)] for a in range(len(names)) for b in range(a)])
    show("preflight, all pairs", [len(nodes_accused(whole.culprits, whole.ends))])
    if names == SICK_NAMES:
        [path] = whole.culprits
        assert path.kind == "path"
        assert {frozenset(path.nodes), frozenset(path.other_nodes)} == set(sick_sets())
    else:
        assert whole.culprits == ()
    assert nodes_accused(whole.culprits, whole.ends) == set()


def show(name, counts):
    print(f"{name:34} {statistics.mean(counts):6.2f}  {sum(count == 0 for count in counts) / len(counts):6.0%}")
