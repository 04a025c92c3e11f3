"""What failing pairs share: named only where nothing that worked refutes it."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.model import Failure, Measurement
from preflight.model.failing_pairs import Shared, shared
from tests.builders import make_measurement, make_plan, make_probe

NODES, EACH = 4, 4


def placed(nodes=NODES):
    return make_plan(nodes=nodes, gpus_per_node=EACH, tp=EACH, dp=nodes, gpu=None, backend="gloo").placement.ranks


def found(fails, nodes=NODES):
    """All pairs of the nodes were tried; those fail that `fails` says."""
    seats = placed(nodes)
    pairs = list(combinations(range(nodes * EACH), 2))
    failing = [[dead(pair)] for pair in pairs if fails(*pair)]
    worked = {rank: [p for p in pairs if rank in p and not fails(*p)] for rank in range(nodes * EACH)}
    return shared(failing, worked, seats)


def dead(pair):
    return Measurement(probe=make_probe(pair), failure=Failure(kind="timed_out", text="late"))


def across(a, b):
    return a // EACH != b // EACH


def test_one_rank_one_node_unlike_slots_and_all_nodes_are_told_apart():
    assert found(lambda a, b: across(a, b) and 5 in (a, b)) == Shared(rank=5)
    assert found(lambda a, b: across(a, b) and 2 in (a // EACH, b // EACH)) == Shared(node="node2")
    assert found(lambda a, b: across(a, b) and a % EACH != b % EACH) == Shared(unlike_slots=True)
    assert found(across) == Shared(all_nodes=True)


@pytest.mark.parametrize("nodes", [2, 3])
def test_few_nodes_may_each_be_it(nodes):
    assert found(across, nodes) == Shared()
    assert found(lambda a, b: across(a, b) and 0 in (a // EACH, b // EACH), 2) == Shared()


def test_what_worked_once_refutes_it():
    assert found(lambda a, b: across(a, b) and 5 in (a, b) and (a, b) != (5, 15)) == Shared()
    assert found(lambda a, b: across(a, b) and a % EACH != b % EACH and (a, b) != (0, 5)) == Shared()


def test_pairs_inside_nodes_and_smaller_messages_that_came_through_tell_more_than_this():
    assert found(lambda a, b: 5 in (a, b)) == Shared()
    slow = [[dead((0, 4)), make_measurement((0, 4))], [dead((0, 5))], [dead((0, 6))], [dead((0, 7))]]
    assert shared(slow, {0: [(0, 1)], 4: [(4, 8)], 5: [(5, 9)], 6: [(6, 10)], 7: [(7, 11)]}, placed()) == Shared()


@given(st.sets(st.sampled_from([p for p in combinations(range(16), 2) if across(*p)]), min_size=1, max_size=40))
def test_a_rank_or_node_that_is_named_is_in_every_failing_pair_and_works_nowhere_between_nodes(bad):
    told = found(lambda a, b: (a, b) in bad)
    if told.rank is not None:
        assert all(told.rank in pair for pair in bad)
        assert len(bad) == 12
    if told.node is not None:
        assert all(told.node in (f"node{a // EACH}", f"node{b // EACH}") for a, b in bad)
