"""A way between nodes that the localiser accuses looks healthy beside itself: every place that shows a share of a reference holds it against what the localiser did."""

import msgspec
import pytest

from preflight.model import Culprit, Localisation, Placement, Report, RouteReference
from preflight.model.ends import ends_of
from preflight.report.matrix_view import pairs_of as terminal_pairs
from preflight.report.page.pairs import pairs_of as page_pairs
from preflight.report.page.write import page_html
from preflight.report.run_pairs import table_of_run
from tests.builders import make_evidence, make_measurement, make_plan
from tests.report.pair_facts import facts_of

NODES, LEAVES = ("a", "b", "c", "d"), ("leaf0", "leaf0", "leaf1", "leaf1")
SPEED = 48e9
AGAINST = {"reference_bytes_per_s": SPEED, "reference": "like peers"}
PATH = Culprit(kind="path", nodes=("a", "b"), other_nodes=("d", "c"), **AGAINST)
UPLINK = Culprit(kind="uplink", leaf="leaf1", **AGAINST)
SLOT = Culprit(kind="uplink", leaf="leaf1", slot=1, **AGAINST)
PART = Culprit(kind="uplink", leaf="leaf1", share=0.3, **AGAINST)
NIC = Culprit(kind="nic", ends=(0,), **AGAINST)
REDUCED = Culprit(kind="path", nodes=("a", "b"), other_nodes=("c", "d"), ops=("all_reduce",), **AGAINST)


def evidence(*culprits, unjudged=""):
    """Pairs of like slots; all those between the leaves give half, which is their class's reference."""
    placement = Placement(
        source="measured",
        method="block",
        nodes=NODES,
        node_ranks=(0, 0, 1, 1, 2, 2, 3, 3),
        local_ranks=(0, 1) * 4,
        leaves=LEAVES,
    )
    plan = msgspec.structs.replace(make_plan(nodes=4, gpus_per_node=2, tp=2, dp=4), placement=placement)
    measurements = [
        make_measurement((a, b), algbw_bytes_per_s=SPEED / 2 if a < 4 <= b else SPEED)
        for a in range(8)
        for b in range(a + 2, 8, 2)
    ]
    references = [
        RouteReference(op="send_recv", route=route, bytes_per_s=rate, shots=9, source="upper mode")
        for route, rate in (("same leaf, like slots", SPEED), ("other leaf, like slots", SPEED / 2))
    ]
    found = Localisation(
        ends=ends_of(plan), references=tuple(references), floor=0.1, culprits=culprits, unjudged=unjudged
    )
    return make_evidence(plan=plan, measurements=tuple(measurements), localisation=found)


def shares(of):
    """(rank, rank) -> share of the reference, as the page, the terminal, and the two paths to metrics and history have it."""
    page = page_pairs(of)
    facts = {((f.node, f.slot), (f.other_node, f.other_slot)): f.ratio for f in facts_of(of)}
    table = table_of_run(of, 0.0)
    places = [(node, slot) for node in NODES for slot in (0, 1)]
    columns = {
        ((table.nodes[node[0]], slot[0]), (table.nodes[node[1]], slot[1])): ratio
        for node, slot, ratio in zip(table.node.T.tolist(), table.slot.T.tolist(), table.ratio.tolist(), strict=True)
    }
    pairs = {(pair.a, pair.b): page.ratio(pair) for pair in page.pairs}
    assert {(p.a.rank, p.b.rank): p.ratio for p in terminal_pairs(of)} == pytest.approx(pairs)
    for found in (facts, columns):
        assert {(places.index(a), places.index(b)): ratio for (a, b), ratio in found.items()} == pytest.approx(pairs)
    return pairs


@pytest.mark.parametrize(
    ("culprits", "slow"),
    [
        ((PATH,), {0, 1}),
        ((UPLINK,), {0, 1}),
        ((SLOT,), {1}),
        ((NIC, SLOT, PATH), {0, 1}),
        ((), set()),
        ((NIC,), set()),
        ((PART,), set()),
        ((REDUCED,), set()),
    ],
)
def test_pairs_on_an_accused_way_are_held_against_what_it_was_held_against_and_no_other_pair_is(culprits, slow):
    for (a, b), share in shares(evidence(*culprits)).items():
        assert share == pytest.approx(0.5 if a < 4 <= b and a % 2 in slow else 1.0)


def test_the_page_names_the_reference_of_a_slow_way_and_whence_it_is():
    routes = {route.name: route for route in page_pairs(evidence(PATH)).routes}
    assert set(routes) == {"same leaf, like slots", "other leaf, like slots, on a slow way"}
    assert routes["other leaf, like slots, on a slow way"][1:] == (SPEED, None, "like peers", True)


def test_a_run_that_judges_no_rates_shows_no_share_on_any_way():
    assert all(route.reference is None for route in page_pairs(evidence(PATH, unjudged="too noisy")).routes)


@pytest.mark.parametrize("culprits", [(), (PATH,)])
def test_the_page_says_of_references_what_they_are(culprits):
    report = Report(
        run_id="r1",
        command="run",
        started_at_s=1e9,
        duration_s=1.0,
        answer="no-go",
        findings=(),
        evidence=evidence(*culprits),
    )
    assert ("on a way that is called slow" in page_html(report)) == bool(culprits)
