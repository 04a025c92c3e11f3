"""Runs between whole nodes, as logs have them: real matrices, and families made up like them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.judge.localise import localise
from tests.fleets.real_matrices import HEALTHY, HEALTHY_NAMES, SICK, SICK_NAMES, sick_sets
from tests.judge.localise.shots import GB, all_pairs, measured, named, node_ends, shots_of


def matrix(text: str, number: int):
    values = [None if value == "-" else float(value) * GB for value in text.split()]
    rows = zip(all_pairs(number), values, strict=True)
    return shots_of((a, b, "alltoall", value) for (a, b), value in rows)


@pytest.mark.parametrize("size", SICK)
def test_the_real_cluster_with_a_sick_path_has_the_path_named_and_no_node(size):
    found = localise(node_ends(SICK_NAMES), matrix(SICK[size], 17))
    [(kind, _, nodes, others, _, _)] = named(found)
    assert kind == "path"
    assert {frozenset(nodes), frozenset(others)} == {frozenset(side) for side in sick_sets()}
    [path] = [culprit for culprit in found.culprits if culprit.kind == "path"]
    assert path.evidence
    assert "peers" in path.reference


@pytest.mark.parametrize("size", HEALTHY)
def test_the_real_healthy_cluster_has_nothing_to_say(size):
    found = localise(node_ends(HEALTHY_NAMES), matrix(HEALTHY[size], 10))
    assert found.culprits == ()
    assert found.unjudged == ""
    assert found.cleared_ends == 10


CASE_1 = [("node1", "node2", 49.36), ("node3", "node4", 88.36), ("node5", "node6", 49.28)]
CASE_1 += [("node4", "node1", 49.30), ("node7", "node2", 86.81)]
CASE_1_NAMES = [f"node{number}" for number in range(1, 8)]


@pytest.mark.parametrize("leaves", [None, ["a"] * 5 + ["b"] * 2], ids=["leaves not told", "leaves told"])
def test_one_slow_node_among_slow_pairs_is_named_and_two_that_met_only_each_other_are_not(leaves):
    """NVIDIA/nccl-tests issue 106: a maintainer named node1 from this table."""
    ends = node_ends(CASE_1_NAMES, leaves)
    place = CASE_1_NAMES.index
    found = localise(ends, shots_of((place(a), place(b), "all_reduce", rate * GB) for a, b, rate in CASE_1))
    assert named(found) == [("node", (), ("node1",), (), None, None)]
    [open_one] = [culprit for culprit in found.culprits if culprit.kind is None]
    assert {candidate.nodes for candidate in open_one.candidates if candidate.kind == "node"} == {
        ("node5",),
        ("node6",),
    }
    asked = {frozenset((ends.name(ask.a), ends.name(ask.b))) for ask in found.asks}
    assert any("node5" in pair and pair != {"node5", "node6"} for pair in asked)
    assert any("node6" in pair and pair != {"node5", "node6"} for pair in asked)


@settings(max_examples=60, deadline=None)
@given(number=st.integers(3, 24), noise=st.floats(0.001, 0.05), seed=st.integers(0, 10**6), repeats=st.integers(1, 2))
def test_a_healthy_matrix_of_any_size_and_noise_blames_nothing(number, noise, seed, repeats):
    rows = measured(all_pairs(number) * repeats, lambda _a, _b: 90 * GB, noise=noise, seed=seed)
    assert localise(node_ends([f"n{i}" for i in range(number)]), shots_of(rows)).culprits == ()


@settings(max_examples=60, deadline=None)
@given(number=st.integers(6, 20), seed=st.integers(0, 10**6), depth=st.floats(0.6, 0.9), data=st.data())
def test_one_bad_node_is_named_at_any_size_and_noise_of_three_per_cent(number, seed, depth, data):
    bad = data.draw(st.integers(0, number - 1))
    rows = measured(all_pairs(number), lambda a, b: 90 * GB * (1 - depth * (bad in {a, b})), noise=0.03, seed=seed)
    found = localise(node_ends([f"n{i}" for i in range(number)]), shots_of(rows))
    named_rightly = [("node", (), (f"n{bad}",), (), None, None)]
    # with a few pairs that nobody repeated the noise may look too large to call anything
    assert named(found) == named_rightly or (number < 10 and found.culprits == () and found.floor > 0.3)


@settings(max_examples=60, deadline=None)
@given(first=st.integers(2, 12), second=st.integers(2, 12), seed=st.integers(0, 10**6))
def test_two_sets_of_any_size_are_named_as_a_path(first, second, seed):
    number = first + second
    rows = measured(all_pairs(number), lambda a, b: 90 * GB * (0.5 if (a < first) != (b < first) else 1), seed=seed)
    found = localise(node_ends([f"n{i}" for i in range(number)]), shots_of(rows))
    if number == 4 and not found.culprits:  # two fast pairs that happen to differ make the noise: one in a hundred
        assert "slower than their peers by less than" in found.notes[-1]
        return
    [(kind, _, nodes, others, _, _)] = named(found)
    assert kind == "path"
    assert {len(nodes), len(others)} == {first, second}


def test_three_sets_are_explained_by_paths_that_cross_every_slow_pair_and_no_fast_one():
    rows = measured(all_pairs(12), lambda a, b: 90 * GB * (0.5 if a // 4 != b // 4 else 1))
    found = named(localise(node_ends([f"n{i}" for i in range(12)]), shots_of(rows)))
    assert {kind for kind, *_ in found} == {"path"}
    crossed = {frozenset((a, b)) for _, _, nodes, others, _, _ in found for a in nodes for b in others}
    assert crossed == {frozenset((f"n{a}", f"n{b}")) for a, b in all_pairs(12) if a // 4 != b // 4}


def test_a_bad_node_beside_a_path_is_named_too():
    def rate(a, b):
        return 90 * GB * (0.5 if (a < 6) != (b < 6) else 1) * (0.3 if 3 in {a, b} else 1)

    found = named(localise(node_ends([f"n{i}" for i in range(12)]), shots_of(measured(all_pairs(12), rate))))
    assert {(kind, nodes) for kind, _, nodes, *_ in found if kind == "node"} == {("node", ("n3",))}
    assert [kind for kind, *_ in found].count("path") == 1


@pytest.mark.parametrize("shape", ["star", "chain"])
def test_a_slow_pair_in_a_star_or_chain_is_not_pinned_on_a_node(shape):
    pairs = [(0, node) for node in range(1, 8)] if shape == "star" else [(node, node + 1) for node in range(7)]
    rows = measured(pairs, lambda a, b: 90 * GB * (0.5 if (a, b) == pairs[3] else 1))
    found = localise(node_ends([f"n{i}" for i in range(8)]), shots_of(rows))
    assert named(found) == []
    assert [culprit.kind for culprit in found.culprits] == [None]
    assert found.asks


def test_a_pair_is_named_when_it_is_slow_again_and_only_then():
    def rate(a, b):
        return 90 * GB * (0.5 if (a, b) == (2, 5) else 1)

    ends = node_ends([f"n{i}" for i in range(8)])
    once = localise(ends, shots_of(measured(all_pairs(8), rate)))
    assert named(once) == []
    assert (2, 5) in {(ask.a, ask.b) for ask in once.asks}
    again = localise(ends, shots_of(measured([*all_pairs(8), (2, 5), (2, 5)], rate)))
    assert named(again) == [("link", (2, 5), (), (), None, None)]


def test_failed_pairs_across_a_path_are_explained_by_it():
    def rate(a, b):
        return None if (a, b) in {(0, 7), (3, 9)} else 90 * GB * (0.4 if (a < 6) != (b < 6) else 1)

    found = localise(node_ends([f"n{i}" for i in range(12)]), shots_of(measured(all_pairs(12), rate)))
    assert [kind for kind, *_ in named(found)] == ["path"]


def test_two_sets_between_which_everything_fails_are_a_path_too_and_a_class_if_software_tells_them_apart():
    def rate(a, b):
        return None if (a < 5) != (b < 5) else 90 * GB

    names = [f"n{i}" for i in range(10)]
    shots = shots_of(measured(all_pairs(10), rate))
    [path] = localise(node_ends(names), shots).culprits
    assert (path.kind, path.failed) == ("path", True)
    versions = ("570.86",) * 5 + ("550.54",) * 5
    [block] = localise(node_ends(names, classes={"driver": versions}), shots).culprits
    assert block.kind == "class"
    assert "570.86" in (block.fact or "")


def test_too_few_pairs_and_too_much_noise_are_not_judged():
    few = localise(node_ends(["a", "b", "c"]), shots_of([(0, 1, "x", 50 * GB), (1, 2, "x", 5 * GB)]))
    assert "too few" in few.unjudged
    noisy = localise(
        node_ends([f"n{i}" for i in range(8)]),
        shots_of(measured(all_pairs(8) * 3, lambda _a, _b: 50 * GB, noise=0.4)),
    )
    assert "too noisy" in noisy.unjudged
    assert noisy.culprits == ()


def test_all_alike_slow_is_the_environment_on_four_nodes_and_nobody_on_three():
    for number, kinds in ((4, ["environment"]), (3, [])):
        shots = shots_of(measured(all_pairs(number), lambda _a, _b: 20 * GB))
        expected = {("send_recv", "between nodes"): (48 * GB, "formula: 400 Gbit/s x 0.96")}
        found = localise(node_ends([f"n{i}" for i in range(number)]), shots, expected=expected)
        assert [culprit.kind for culprit in found.culprits] == kinds
