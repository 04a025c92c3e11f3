"""Probes between GPUs: which part is named, which is not, and what is asked."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.judge.localise import localise
from preflight.model import Ends
from tests.judge.localise.shots import HEALTHY, Rate, gpu_ends, measured, named, rail_pairs, shots_of

NODES, SLOTS, LEAF = 24, 4, 6
ENDS = gpu_ends(NODES, SLOTS, LEAF)


def node_of(end: int) -> int:
    return end // SLOTS


def leaf_of(end: int) -> int:
    return node_of(end) // LEAF


def rounds(rate: Rate, *, ends: Ends = ENDS, seed: int = 0, number: int = 7, noise: float = 0.01):
    return measured(rail_pairs(ends, number, seed), rate, noise=noise, seed=seed)


def inside(rate: Rate, nodes=range(NODES)):
    pairs = [(n * SLOTS + a, n * SLOTS + b) for n in nodes for a in range(SLOTS) for b in range(a + 1, SLOTS)]
    return measured(pairs, rate, seed=9)


def slow_at(*ends: int, factor: float = 0.5) -> Rate:
    return lambda a, b: HEALTHY * (factor if {a, b} & set(ends) else 1)


def test_an_end_that_is_slow_between_nodes_and_fast_inside_is_its_nic():
    rows = [*rounds(slow_at(17)), *inside(lambda _a, _b: 370e9)]
    [(kind, ends, *_)] = named(localise(ENDS, shots_of(rows)))
    assert (kind, ends) == ("nic", (17,))


def test_an_end_that_is_slow_inside_its_node_too_is_the_gpu():
    rows = [*rounds(slow_at(17)), *inside(lambda a, b: 370e9 * (0.5 if 17 in {a, b} else 1))]
    [(kind, ends, *_)] = named(localise(ENDS, shots_of(rows)))
    assert (kind, ends) == ("gpu", (17,))


def test_without_pairs_inside_the_node_gpu_and_nic_are_not_told_apart_and_such_pairs_are_asked_for():
    found = localise(ENDS, shots_of(rounds(slow_at(17))))
    assert named(found) == []
    [question] = found.culprits
    assert {candidate.kind for candidate in question.candidates} == {"gpu", "nic"}
    assert any(17 in {ask.a, ask.b} and node_of(ask.a) == node_of(ask.b) for ask in found.asks)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), node=st.integers(0, NODES - 1), depth=st.floats(0.2, 0.9))
def test_a_node_is_named_as_the_node(seed, node, depth):
    ends = range(node * SLOTS, node * SLOTS + SLOTS)
    found = localise(ENDS, shots_of(rounds(slow_at(*ends, factor=1 - depth), seed=seed)))
    assert named(found) == [("node", (), (f"n{node}",), (), None, None)]


def test_a_slot_is_named_as_the_slot():
    found = localise(ENDS, shots_of(rounds(lambda a, b: HEALTHY * (0.6 if a % SLOTS == 2 else 1))))
    assert named(found) == [("slot", (), (), (), None, 2)]


@pytest.mark.parametrize("slot", [None, 3])
def test_a_leafs_way_out_is_named_and_no_node_of_it(slot):
    def rate(a, b):
        out = (leaf_of(a) == 1) != (leaf_of(b) == 1) and slot in {None, a % SLOTS}
        return HEALTHY * (0.6 if out else 1)

    [(kind, _, _, _, leaf, which)] = named(localise(ENDS, shots_of(rounds(rate))))
    assert (kind, leaf, which) == ("uplink", "leaf1", slot)


def test_part_of_an_uplink_is_named_with_its_share():
    ill = {end for end in range(NODES * SLOTS) if leaf_of(end) == 2 and end % 5 < 2}

    def rate(a, b):
        return HEALTHY * (0.5 if leaf_of(a) != leaf_of(b) and {a, b} & ill else 1)

    found = localise(ENDS, shots_of(rounds(rate, number=9)))
    [share] = [culprit for culprit in found.culprits if culprit.kind is not None]
    assert (share.kind, share.leaf) == ("uplink", "leaf2")
    assert share.share == pytest.approx(len(ill) / 24, abs=0.1)


def test_a_path_between_leaves_is_named_with_both_sets():
    def rate(a, b):
        return HEALTHY * (0.6 if {leaf_of(a), leaf_of(b)} == {0, 3} else 1)

    [(kind, _, nodes, others, _, _)] = named(localise(ENDS, shots_of(rounds(rate, number=9))))
    assert kind == "path"
    assert {nodes, others} == {tuple(f"n{i}" for i in range(6)), tuple(f"n{i}" for i in range(18, 24))}


@pytest.mark.parametrize("way", ["sending", "receiving"])
def test_one_way_shots_tell_the_direction(way):
    both = [*rounds(slow_at(17)), *inside(lambda _a, _b: 370e9)]

    def one_way(a, b):
        return HEALTHY * (0.5 if (a if way == "sending" else b) == 17 else 1)

    partners = [1, 5, 21, 41]
    pairs = [(17, p) for p in partners] + [(p, 17) for p in partners] + [(p, p + 4) for p in partners]
    found = localise(ENDS, shots_of([*both, *measured(pairs, one_way, op="send")]))
    [nic] = [culprit for culprit in found.culprits if culprit.kind is not None]
    assert (nic.kind, nic.ends, nic.direction) == ("nic", (17,), way)


def test_follow_ups_ask_for_each_direction_of_what_is_named():
    rows = [*rounds(slow_at(17)), *inside(lambda _a, _b: 370e9)]
    sends = {(ask.a, ask.b) for ask in localise(ENDS, shots_of(rows)).asks if ask.op == "send"}
    assert any(a == 17 for a, _ in sends)
    assert any(b == 17 for _, b in sends)
    assert any(17 not in pair for pair in sends)  # for comparison


def test_the_gap_between_route_classes_is_noted_and_blamed_on_nothing():
    found = localise(ENDS, shots_of(rounds(lambda a, b: HEALTHY * (0.88 if leaf_of(a) != leaf_of(b) else 1))))
    assert found.culprits == ()
    assert any("12% less than same leaf" in note for note in found.notes)


def test_many_lasting_slow_pairs_without_a_pattern_are_no_links():
    ill = set(rail_pairs(ENDS, 7)[20::15])
    rows = measured([*rail_pairs(ENDS, 7), *sorted(ill) * 5], lambda a, b: HEALTHY * (0.5 if (a, b) in ill else 1))
    found = localise(ENDS, shots_of(rows))
    assert named(found) == []
    assert any("too many" in note for note in found.notes)


def test_a_slow_shot_that_was_fast_again_is_told_and_blames_nothing():
    rows = rounds(lambda _a, _b: HEALTHY)
    a, b, op, rate = rows[40]
    rows[40] = (a, b, op, rate * 0.4)
    found = localise(ENDS, shots_of([*rows, (a, b, op, rate), (a, b, op, rate)]))
    assert found.culprits == ()
    assert any("slow once and not again" in note for note in found.notes)


def test_a_rank_that_is_gone_is_no_evidence_against_anybody():
    rows = [(a, b, op, None if 9 in {a, b} else rate) for a, b, op, rate in rounds(lambda _a, _b: HEALTHY)]
    shots = shots_of(rows)
    import msgspec

    gone = msgspec.structs.replace(shots, failure=tuple("no_answer" if kind else "" for kind in shots.failure))
    assert localise(ENDS, gone).culprits == ()
    assert named(localise(ENDS, shots)) == []  # nor where it is said to have timed out: that is reachable's to judge


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(1e-3, 1e3), data=st.data())
def test_neither_the_names_of_nodes_nor_the_unit_of_rates_changes_the_verdict(seed, scale, data):
    order = data.draw(st.permutations(range(NODES)))
    rows = rounds(slow_at(*range(20, 24), 41, factor=0.5), seed=seed)
    there = {end: order[node_of(end)] * SLOTS + end % SLOTS for end in range(NODES * SLOTS)}
    leaves = tuple(f"leaf{order.index(node) // LEAF}" for node in range(NODES))
    moved = gpu_ends(NODES, SLOTS)
    import msgspec

    moved = msgspec.structs.replace(moved, leaves=leaves)
    turned = shots_of((there[a], there[b], op, rate * scale) for a, b, op, rate in rows)
    one, two = localise(ENDS, shots_of(rows)), localise(moved, turned)
    assert {nodes for _, _, nodes, *_ in named(one)} == {("n5",)}
    assert {nodes for _, _, nodes, *_ in named(two)} == {(f"n{order[5]}",)}


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), end=st.integers(0, NODES * SLOTS - 1), partner=st.integers(0, NODES - 1))
def test_a_fast_probe_more_never_makes_its_parts_blamed(seed, end, partner):
    rows = rounds(slow_at(17, 33), seed=seed)
    other = partner * SLOTS + end % SLOTS
    if node_of(other) == node_of(end):
        return
    before = named(localise(ENDS, shots_of(rows)))
    after = named(localise(ENDS, shots_of([*rows, (end, other, "send_recv", HEALTHY)])))
    touched = {end, other}
    blamed = {ends for _, ends, *_ in after if set(ends) & touched} - {ends for _, ends, *_ in before}
    assert blamed == set()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), slow_end=st.integers(0, NODES * SLOTS - 1))
def test_the_evidence_of_a_culprit_is_slow_shots(seed, slow_end):
    rows = [*rounds(slow_at(slow_end), seed=seed), *inside(lambda _a, _b: 370e9)]
    shots = shots_of(rows)
    for culprit in localise(ENDS, shots).culprits:
        assert culprit.evidence
        for key in culprit.evidence:
            assert slow_end in (shots.a[shots.key.index(key)], shots.b[shots.key.index(key)])
