"""Which nodes a sweep measures together: the oldest pair first, all pairs in the end, suspects with others than before, and never a node that is not idle."""

import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.slurm.nodes import SlurmNode, parse_nodes
from preflight.slurm.scan_choice import choose, pair_of, share_covered
from preflight.slurm.scan_nodes import Kind, gpus_of, is_free, kinds_of

AGE_S, HOUR_S = 7 * 86400.0, 3600.0


def names_of(number: int) -> list[str]:
    return [f"n{index + 1:03d}" for index in range(number)]


def pairs_in(names) -> set[tuple[str, str]]:
    return {pair_of(a, b) for a, b in combinations(names, 2)}


def sweeps_until_covered(number: int, size: int, busy: float, most: int, seed: int = 1) -> int:
    """How many sweeps it takes until all pairs were measured, while each node is busy with that probability."""
    chance, names, covered = random.Random(seed), names_of(number), {}
    for sweep in range(1, 3000):
        idle = [name for name in names if chance.random() >= busy]
        for chosen in choose(idle, covered, size=size, now_s=sweep * HOUR_S, age_s=1e9, most=most):
            covered.update(dict.fromkeys(pairs_in(chosen), sweep * HOUR_S))
        if len(covered) == number * (number - 1) // 2:
            return sweep
    raise AssertionError(f"{len(covered)} pairs after {sweep} sweeps")


# the least that any scheme needs: pairs / (sets x pairs of a set), 1, 3, 11, 33; a third of all pairs has both nodes idle at a time
@pytest.mark.parametrize(
    ("number", "all_idle", "while_users_work"),
    [(4, 1, 12), (9, 8, 40), (33, 22, 90), pytest.param(100, 60, 200, marks=pytest.mark.soak)],
)
def test_all_pairs_are_covered_within_a_bound_of_sweeps_while_users_come_and_go(number, all_idle, while_users_work):
    most = max(1, number // 4)
    assert sweeps_until_covered(number, 4, 0.0, most) <= all_idle
    assert sweeps_until_covered(number, 4, 0.4, most) <= while_users_work


@st.composite
def situations(draw):
    names = names_of(draw(st.integers(0, 12)))
    pairs = list(combinations(names, 2))
    covered = {pair: draw(st.floats(-2 * AGE_S, 0)) for pair in pairs if draw(st.booleans())}
    suspects = {
        name: frozenset(draw(st.sets(st.sampled_from(names)))) for name in names if draw(st.integers(0, 5)) == 0
    }
    tried = {pair for pair in pairs if draw(st.integers(0, 4)) == 0}
    return names, covered, suspects, tried, draw(st.integers(2, 5)), draw(st.integers(1, 4))


@given(situations())
@settings(max_examples=60, deadline=None)
def test_sets_are_disjoint_in_size_and_hold_the_oldest_pair_that_is_due_or_a_suspect(situation):
    names, covered, suspects, tried, size, most = situation
    sets = choose(names, covered, size=size, now_s=0, age_s=AGE_S, most=most, suspects=suspects, tried=tried)
    chosen = [name for each in sets for name in each]
    assert len(chosen) == len(set(chosen))
    assert set(chosen) <= set(names)
    assert len(sets) <= most
    assert all(2 <= len(each) <= size for each in sets)
    due = {
        pair: -covered.get(pair, -1e12)
        for pair in pairs_in(names)
        if pair not in tried and covered.get(pair, -1e12) < -AGE_S
    }
    for each in sets:
        assert pairs_in(each) & set(due) or set(each) & set(suspects)
    if due and not suspects:
        oldest = max(due.values())
        assert any(waited == oldest and pair in pairs_in(sets[0]) for pair, waited in due.items())
    if not due and not suspects:
        assert sets == ()


def test_a_choice_depends_on_nothing_but_what_is_known():
    names = names_of(20)
    told = {"size": 4, "now_s": 0.0, "age_s": AGE_S, "most": 3}
    assert choose(names, {}, **told) == choose(reversed(names), {}, **told)


def test_a_suspect_meets_nodes_that_it_has_not_met_and_no_other_suspect():
    names = names_of(9)
    before = frozenset({"n002", "n003", "n004"})
    sets = choose(names, {}, size=4, now_s=0, age_s=AGE_S, most=2, suspects={"n001": before, "n009": frozenset()})
    (of_first,) = [each for each in sets if "n001" in each]
    assert not set(of_first) & before
    assert "n009" not in of_first
    assert len(of_first) == 4


def test_where_all_are_suspects_they_are_measured_with_one_another():
    names = names_of(4)
    sets = choose(names, {}, size=4, now_s=0, age_s=AGE_S, most=2, suspects=dict.fromkeys(names, frozenset()))
    assert sets == (tuple(names),)


def test_a_pair_that_this_sweep_has_had_gives_way_to_others():
    names = names_of(4)
    tried = pairs_in(["n001", "n002"])
    (chosen,) = choose(names, {}, size=2, now_s=0, age_s=AGE_S, most=1, tried=tried)
    assert chosen != ("n001", "n002")
    assert choose(names, {}, size=2, now_s=0, age_s=AGE_S, most=9, tried=pairs_in(names)) == ()


def test_of_very_many_nodes_those_with_most_to_be_measured_are_looked_at():
    names = names_of(600)
    covered = dict.fromkeys(combinations(names[:450], 2), 0.0)
    sets = choose(names, covered, size=4, now_s=0, age_s=AGE_S, most=10)
    assert len(sets) == 10
    assert all(pairs_in(each) - set(covered) for each in sets)


def test_the_share_that_is_covered_counts_what_is_fresh_between_these_nodes():
    names = names_of(3)
    covered = {("n001", "n002"): -10.0, ("n001", "n003"): -2 * AGE_S, ("n001", "zz"): 0.0}
    assert share_covered([names], covered, now_s=0, age_s=AGE_S) == pytest.approx(1 / 3)
    assert share_covered([["n001"], ["n002"]], covered, now_s=0, age_s=AGE_S) is None


# --- which nodes are free ------------------------------------------------------------------------------------------------

# states and flags of scontrol(1) and sinfo(1), 22.05 to 26.05, in the spelling of `scontrol show node`
STATES = (
    *("ALLOCATED", "DOWN", "ERROR", "FUTURE", "MIXED", "UNKNOWN", "ALLOCATED+COMPLETING", "IDLE+COMPLETING"),
    *("IDLE+DRAIN", "IDLE+DRAIN+NOT_RESPONDING", "IDLE+DRAINING", "IDLE+DRAINED", "IDLE+FAIL", "IDLE+FAILING"),
    *("IDLE+MAINTENANCE", "IDLE+MAINTENANCE+RESERVED", "IDLE+RESERVED", "IDLE+PLANNED", "IDLE+BLOCKED"),
    *("IDLE+POWER_DOWN", "IDLE+POWERED_DOWN", "IDLE+POWERING_DOWN", "IDLE+POWERING_UP", "IDLE+POWER_UP"),
    *("IDLE+CLOUD+POWERED_DOWN", "IDLE+CLOUD+POWERING_UP", "IDLE+CLOUD+POWER_DOWN", "IDLE+POWER_DRAIN"),
    *("IDLE+REBOOT_REQUESTED", "IDLE+REBOOT_ISSUED", "IDLE+REBOOT_CANCEL", "IDLE+NOT_RESPONDING", "IDLE+INVALID_REG"),
    *("IDLE+PERFCTRS", "IDLE+NPC", "IDLE+UNDRAIN", "IDLE+RESUME", "IDLE+DYNAMIC_FUTURE", "IDLE+EXTERNAL", "IDLE+A_NEW_ONE"),
)  # fmt: skip


def node(name: str = "n1", state: str = "IDLE", **changes: object) -> SlurmNode:
    facts = {"partitions": ("gpu",), "gres": "gpu:8", "states": frozenset(state.lower().split("+"))}
    return SlurmNode(**{"name": name, **facts, **changes})


@pytest.mark.parametrize("state", STATES)
def test_a_node_in_any_other_state_than_idle_is_never_used(state):
    assert not is_free(node(state=state))
    (parsed,) = parse_nodes(f"NodeName=n1 Arch=x86_64\n   State={state} ThreadsPerCore=1\n   Partitions=gpu \n")
    assert not is_free(parsed)


@pytest.mark.parametrize("state", ["IDLE", "IDLE+CLOUD", "IDLE+DYNAMIC_NORM"])
def test_an_idle_node_is_free_however_it_came_to_be(state):
    assert is_free(node(state=state))


def test_nodes_are_measured_together_if_they_have_the_same_gpus_partition_and_fabric():
    nodes = [
        node("n1"),
        node("n2", gres="gpu:8(S:0-1)"),
        node("n3", gres="gpu:h100:8"),
        node("n4", gres="gpu:h100:8,shard:64", partitions=("other", "gpu")),
        node("n5", gres=None),
        node("n6", partitions=("elsewhere",)),
        node("n7", state="IDLE+DRAIN"),
        node("n8"),
    ]
    roots = {"n1": "spine", "n2": "spine", "n3": "spine", "n4": "spine", "n8": "island"}
    assert kinds_of(nodes, ["gpu", "other"], roots) == {
        Kind("gpu", "gpu:8", "island"): ("n8",),
        Kind("gpu", "gpu:8", "spine"): ("n1", "n2"),
        Kind("gpu", "gpu:h100:8", "spine"): ("n3", "n4"),
    }


def test_without_gpus_anywhere_all_nodes_count_and_one_that_the_topology_does_not_name_stays_alone():
    nodes = [node("n1", gres=None), node("n2", gres=None), node("n3", gres="tmpdisk:100")]
    assert list(kinds_of(nodes, ["gpu"]).values()) == [("n1", "n2", "n3")]
    assert sorted(kinds_of(nodes, ["gpu"], {"n1": "s", "n2": "s"}).values()) == [("n1", "n2"), ("n3",)]


@pytest.mark.parametrize(
    ("gres", "said"),
    [
        ("gpu:8", "gpu:8"),
        ("gpu:a100:4(S:0,1),gpu:h100:4(S:2-3),shard:8", "gpu:a100:4,gpu:h100:4"),
        (None, ""),
        ("gpu:0", ""),
        ("tmpdisk:10,craynetwork:4", ""),
    ],
)
def test_gpus_are_named_as_a_job_asks_for_them(gres, said):
    assert gpus_of(node(gres=gres)) == said
