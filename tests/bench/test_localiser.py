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


def test_random_fleets():
    """Ours names what it may (GPU, NIC, slot, ...); the schemes know nodes only, so all are counted by nodes, and ours by kind below."""
    examined = list(outcomes(Job(seed, "faults", LARGEST) for seed in range(FLEETS)))
    print(f"\n{Tally(outcome.score for outcome in examined).table()}\n")
    fleets = [random_fleet(seed, max_nodes=LARGEST) for seed in range(FLEETS)]
    ours = total([outcome.nodes for outcome in examined])
    lines = {"preflight": ours} | {
        name: total([scheme_on(fleet, name, scheme) for fleet in fleets]) for name, scheme in SCHEMES.items()
    }
    print(f"{FLEETS} fleets of up to {LARGEST} nodes with 0 to 8 faults:")
    print(f"{'':34} ill nodes accused   of them faults of nodes   innocent nodes accused per fleet")
    for name, counts in lines.items():
        ill, exact = f"{counts.accused_ill} of {counts.ill}", f"{counts.exact} of {counts.node_faults}"
        print(f"{name:34} {ill:>17}   {exact:>23}   {counts.innocent / FLEETS:10.2f}")
    assert ours.innocent == 0
    assert all(counts.innocent > 0 for name, counts in lines.items() if "median" not in name and name != "preflight")


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
