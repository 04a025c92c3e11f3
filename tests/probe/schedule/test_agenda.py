"""A run's rounds: the most telling that fit, what the localiser asks for, and how much of the plan they cover."""

from collections.abc import Callable, Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.model import Coverage, Inventory, Measurement, Plan, Probe, Samples
from preflight.model.ends import ends_of
from preflight.model.localisation import Ask, Ends
from preflight.probe.schedule import Agenda, Round, Tournament
from preflight.probe.schedule.agenda import ASK_ROUNDS, FOLLOW_UPS, KEPT_ROUNDS, MOST_BATCHES, PAIR_FOLLOW_UPS
from tests.builders import make_inventory, make_plan, uuids_of

PLANS = [
    {"nodes": 1, "gpus_per_node": 1, "tp": 1, "dp": 1},
    {"nodes": 1, "gpus_per_node": 8, "tp": 4, "dp": 2},
    {"nodes": 2, "gpus_per_node": 4, "tp": 4, "dp": 2},
    {"nodes": 5, "gpus_per_node": 2, "tp": 2, "dp": 5},
    {"nodes": 8, "gpus_per_node": 4, "tp": 8, "pp": 2, "dp": 2},
    {"nodes": 4, "gpus_per_node": 4, "tp": 2, "pp": 2, "dp": 4, "ep": 2},
    {"nodes": 6, "gpus_per_node": 1, "tp": 1, "dp": 6},
    {"nodes": 12, "gpus_per_node": 2, "tp": 4, "dp": 6},
]
ANY_PLAN = st.sampled_from(PLANS)


def plan_of(job: dict[str, int]) -> Plan:
    return make_plan(gpu=None, **job)


def ends_on_leaves(plan: Plan, leaf: int | None) -> Ends:
    """`leaf`: nodes of each leaf, None: nobody told."""
    ends = ends_of(plan)
    told = tuple(f"leaf{node // leaf}" for node in range(len(ends.nodes))) if leaf else None
    return msgspec.structs.replace(ends, leaves=told)


def drain(
    agenda: Agenda,
    left_s: float = 1e9,
    *,
    cost: Callable[[Round], float] = lambda _: 1.0,
    asks: Iterable[list[Ask]] = (),
    most: int = 100_000,
) -> list[Round]:
    """All rounds that fit; `asks`: what the localiser wants each time that it looks."""
    wanted, found = iter(asks), []
    while len(found) < most:
        probes = agenda.next_round(left_s)
        if probes is None:
            break
        found.append(probes)
        left_s -= cost(probes)
        agenda.done(probes, cost(probes))
        if agenda.judging_due:
            agenda.ask(next(wanted, []))
    return found


def measured(rounds: Iterable[Round]) -> list[Measurement]:
    sample = (Samples(rank=0, durations_s=(1.0,)),)
    return [Measurement(probe=probe, samples=sample) for probes in rounds for probe in probes]


def pairs_of(rounds: Iterable[Round]) -> list[tuple[int, ...]]:
    return [probe.ranks for probes in rounds for probe in probes if probe.axis is None and len(probe.ranks) == 2]


def is_whole(coverage: Coverage) -> bool:
    names = ("pairs", "groups", "links", "uplinks", "leaf_pairs")
    return all(getattr(coverage, f"{name}_planned") == getattr(coverage, f"{name}_measured") for name in names)


@settings(max_examples=40, deadline=None)
@given(
    job=ANY_PLAN, leaf=st.none() | st.integers(1, 4), backend=st.sampled_from(["gloo", "nccl"]), seed=st.integers(0, 9)
)
def test_with_time_for_everything_all_is_covered_each_rank_once_in_a_round_and_each_key_once(job, leaf, backend, seed):
    plan = plan_of(job)
    ends = ends_on_leaves(plan, leaf)
    agenda = Agenda(plan, backend, ends)
    asks = [[Ask(a=seed % len(ends.node), b=(seed + 1 + n) % len(ends.node)) for n in range(3)] for _ in range(4)]
    rounds = drain(agenda, asks=asks)
    for probes in rounds:
        ranks = [rank for probe in probes for rank in probe.ranks]
        assert probes
        assert len(ranks) == len(set(ranks))
    keys = [probe.key for probes in rounds for probe in probes]
    assert len(keys) == len(set(keys))
    assert is_whole(agenda.coverage(measured(rounds)))
    assert agenda.planned_s == 0
    total = Tournament(ends, agenda.position.seed)
    assert agenda.position.across >= total.num_across
    assert agenda.position.inside >= total.num_inside


def test_gpus_come_first_then_their_nodes_then_five_rounds_between_nodes_then_groups():
    plan = plan_of({"nodes": 12, "gpus_per_node": 4, "tp": 4, "dp": 12})
    agenda = Agenda(plan, "nccl", ends_on_leaves(plan, 4))
    rounds = drain(agenda, most=19)
    assert [probes[0].collective for probes in rounds[:6]] == [
        *("matmul", "host_to_device", "device_to_host"),
    ] * 2
    assert [probes[0].repeat for probes in rounds[:6]] == [0, 0, 0, 1, 1, 1]
    assert all(len(probes) == 48 for probes in rounds[:6])
    rounds = rounds[3:]
    assert all(len(probes) == 24 for probes in rounds[3:12])
    node = [{rank // 4 for rank in probe.ranks} for probes in rounds for probe in probes]
    assert all(len(nodes) == 1 for nodes in node[: 3 * 48 + 3 * 24])
    assert all(len(nodes) == 2 for nodes in node[3 * 48 + 3 * 24 :][: 5 * 24])
    leaves = [{rank // 16 for rank in probe.ranks} for probe in rounds[6]]
    assert all(len(leaf) == 1 for leaf in leaves)
    assert rounds[11] == tuple(msgspec.structs.replace(probe, repeat=1) for probe in rounds[10])
    assert [probes[0].key for probes in rounds[12:14]] == ["tp0 all_reduce alone 0", "tp0 all_reduce together 0"]


def test_after_the_first_rounds_every_link_and_every_way_up_has_been_crossed():
    plan = plan_of({"nodes": 16, "gpus_per_node": 2, "tp": 2, "dp": 16})
    agenda = Agenda(plan, "nccl", ends_on_leaves(plan, 4))
    rounds = []
    while not agenda.judging_due:
        rounds.append(agenda.next_round(100.0) or ())
        agenda.done(rounds[-1], 1.0)
    seen = agenda.coverage(measured(rounds))
    assert (seen.links_measured, seen.links_planned) == (32, 32)
    assert (seen.uplinks_measured, seen.uplinks_planned) == (4, 4)
    assert (seen.leaf_pairs_measured, seen.leaf_pairs_planned) == (6, 6)
    assert seen.scan == "rounds 1 to 5 of 15"
    assert seen.pairs_planned == 16 + 2 * 120
    assert 16 < seen.pairs_measured < seen.pairs_planned


def test_what_the_localiser_asks_for_comes_next_and_it_looks_again_after_each_batch():
    plan = plan_of({"nodes": 8, "gpus_per_node": 2, "tp": 2, "dp": 8})
    agenda = Agenda(plan, "nccl", ends_of(plan))
    while not agenda.judging_due:
        agenda.done(agenda.next_round(100.0) or (), 1.0)
    for batch in range(FOLLOW_UPS + PAIR_FOLLOW_UPS):
        assert agenda.judging_due
        agenda.ask([Ask(a=0, b=3, reason="why"), Ask(a=0, b=5), Ask(a=4, b=4, op="matmul")])
        assert not agenda.judging_due
        first = agenda.next_round(100.0) or ()
        agenda.done(first, 1.0)
        alone = [probe.subject for probe in first if len(probe.ranks) == 1]
        assert alone == (["gpu 4"] if batch < FOLLOW_UPS else [])
        assert (first[0].ranks, first[0].reason, first[0].repeat) == ((0, 3), "why", batch)
        assert not agenda.judging_due
        second = agenda.next_round(100.0) or ()
        assert [probe.ranks for probe in second] == [(0, 5)]
        agenda.done(second, 1.0)
    assert not agenda.judging_due
    agenda.ask([Ask(a=0, b=3)])
    assert (agenda.next_round(100.0) or ())[0].axis == "tp"


def test_once_nothing_else_is_left_to_do_the_localiser_may_ask_again_and_not_for_ever():
    plan = plan_of({"nodes": 8, "gpus_per_node": 2, "tp": 2, "dp": 8})
    agenda = Agenda(plan, "nccl", ends_of(plan))
    asked, reasons = 0, []
    while probes := agenda.next_round(100.0):
        reasons.append(probes[0].reason)
        agenda.done(probes, 1.0)
        if agenda.judging_due:
            asked += 1
            agenda.ask([Ask(a=0, b=3, reason="why")])
    assert asked == MOST_BATCHES
    assert reasons.count("why") == MOST_BATCHES
    assert reasons[-(MOST_BATCHES - FOLLOW_UPS - PAIR_FOLLOW_UPS) - 1 :][0] != "why"


@pytest.mark.parametrize("budget_s", [70.0, 85.0, 100.0])
def test_what_the_last_rounds_of_a_scan_raise_is_asked_about_before_the_budget_ends(budget_s):
    """Nothing that was slow once stays unknown merely because time was spent on further pairs."""
    plan = plan_of({"nodes": 64, "gpus_per_node": 2, "tp": 2, "dp": 64})
    agenda, left_s, after_asking, asked = Agenda(plan, "nccl", ends_of(plan)), budget_s, 0, 0
    while (probes := agenda.next_round(left_s)) is not None:
        left_s -= 1.0
        agenda.done(probes, 1.0)
        after_asking = 0 if probes[0].reason == "why" else after_asking + 1
        if agenda.judging_due:
            asked += 1
            agenda.ask([Ask(a=0, b=3, reason="why")])
    assert asked > FOLLOW_UPS + PAIR_FOLLOW_UPS
    assert after_asking <= 1
    assert left_s < KEPT_ROUNDS + 3


def test_asks_that_nobody_can_run_and_rounds_without_end_are_left_out():
    plan = plan_of({"nodes": 8, "gpus_per_node": 2, "tp": 2, "dp": 8})
    agenda = Agenda(plan, "nccl", ends_of(plan))
    while not agenda.judging_due:
        agenda.done(agenda.next_round(100.0) or (), 1.0)
    agenda.ask([Ask(a=0, b=99), Ask(a=0, b=0), Ask(a=0, b=1, op="warp")])
    assert (agenda.next_round(100.0) or ())[0].axis == "tp"
    agenda.ask([Ask(a=0, b=other) for other in range(1, 16) for _ in "ab"])
    rounds = [agenda.next_round(100.0) or () for _ in range(ASK_ROUNDS + 1)]
    assert [probes[0].axis for probes in rounds] == [None] * ASK_ROUNDS + ["tp"]


@settings(max_examples=40, deadline=None)
@given(job=ANY_PLAN, budget_s=st.floats(0, 80), costs=st.lists(st.floats(0.1, 6), min_size=1, max_size=7))
def test_what_rounds_are_known_to_cost_is_never_more_than_what_is_left(job, budget_s, costs):
    """Each kind of round always takes equally long here."""
    plan = plan_of(job)

    def cost(probes: Round) -> float:
        return costs[len(probes[0].ranks) % len(costs)]

    agenda, left_s, seen = Agenda(plan, "gloo", ends_of(plan)), budget_s, set()
    while (probes := agenda.next_round(left_s)) is not None:
        kind = (probes[0].axis, probes[0].collective, probes[0].mode, len(probes[0].ranks))
        if kind in seen and probes[0].mode != "mixed" and probes[0].axis is None:
            assert cost(probes) <= left_s
        seen.add(kind)
        left_s -= cost(probes)
        agenda.done(probes, cost(probes))
    assert agenda.next_round(0) is None


@settings(max_examples=40, deadline=None)
@given(job=ANY_PLAN, small_s=st.floats(0, 60), more_s=st.floats(0, 60))
def test_a_larger_budget_begins_like_a_smaller_one_and_reaches_no_less(job, small_s, more_s):
    plan = plan_of(job)
    short, long = (drain(Agenda(plan, "gloo", ends_of(plan)), left_s) for left_s in (small_s, small_s + more_s))
    sure = max(0, int(small_s - 20))  # until then everything fits
    assert short[:sure] == long[:sure]
    assert len(short) <= len(long)


def test_when_the_most_telling_does_not_fit_a_cheaper_one_is_taken():
    plan = plan_of({"nodes": 8, "gpus_per_node": 2, "tp": 2, "dp": 8})
    agenda = Agenda(plan, "nccl", ends_of(plan))
    while (probes := agenda.next_round(1000.0)) is not None and probes[0].axis is None:
        agenda.done(probes, 0.5)
    assert probes
    assert probes[0].axis == "tp"
    agenda.done(probes, 30.0)
    cheap = agenda.next_round(2.0)
    assert cheap is not None
    assert cheap[0].axis is None


@settings(max_examples=25, deadline=None)
@given(job=ANY_PLAN, leaf=st.none() | st.integers(1, 4), stops=st.lists(st.integers(0, 40), min_size=30, max_size=30))
def test_runs_that_stop_anywhere_go_on_until_all_nodes_have_met(job, leaf, stops):
    plan = plan_of(job)
    ends = ends_on_leaves(plan, leaf)
    first = Agenda(plan, "gloo", ends).position
    wanted = {pair for pair in pairs_of(drain(Agenda(plan, "gloo", ends))) if _across(ends, pair)}
    met: set[tuple[int, ...]] = set()
    position, tournament = first, Tournament(ends, first.seed)
    for stop in [*stops, 10_000]:
        agenda = Agenda(plan, "gloo", ends, position=position)
        if agenda.position.seed != first.seed:
            break
        met.update(pair for pair in pairs_of(drain(agenda, most=stop)) if _across(ends, pair))
        position = agenda.position
    assert position.inside >= tournament.num_inside
    assert position.across >= tournament.num_across
    assert {pair for pair in wanted if ends.slot[pair[0]] == ends.slot[pair[1]]} <= met


def _across(ends: Ends, pair: tuple[int, ...]) -> bool:
    return ends.node[pair[0]] != ends.node[pair[1]]


def test_a_round_that_was_given_and_not_run_is_given_again_by_the_next_run():
    plan = plan_of({"nodes": 12, "gpus_per_node": 1, "tp": 1, "dp": 12})
    agenda = Agenda(plan, "gloo", ends_of(plan))
    drain(agenda, most=4)  # the matrix product twice, and two rounds between nodes
    lost = agenda.next_round(100.0) or ()
    again = Agenda(plan, "gloo", ends_of(plan), position=agenda.position)
    drain(again, most=2)
    assert again.next_round(100.0) == lost
    assert again.coverage([]).scan == "2 of 11 rounds before, none of them now"


def test_gpus_in_mig_mode_take_no_part():
    inventory = make_inventory(2, 4)
    mig = tuple(msgspec.structs.replace(gpu, mig_enabled=gpu.index == 3) for gpu in inventory.nodes[1].gpus or ())
    inventory = Inventory(nodes=(inventory.nodes[0], msgspec.structs.replace(inventory.nodes[1], gpus=mig)))
    names = [node.name for node in inventory.nodes]
    plan = make_plan(nodes=2, gpus_per_node=4, tp=4, dp=2, node_names=names, gpu_uuids=uuids_of(inventory))
    rounds = drain(Agenda(plan, "nccl", ends_of(plan), inventory=inventory))
    ranks = {rank for probes in rounds for probe in probes for rank in probe.ranks}
    assert ranks == set(range(7))
    assert all(probe.subject != "tp1" for probes in rounds for probe in probes)


def test_experts_are_also_timed_with_one_of_them_in_demand():
    plan = plan_of({"nodes": 4, "gpus_per_node": 4, "tp": 2, "pp": 2, "dp": 4, "ep": 2})
    probes = [probe for probes in drain(Agenda(plan, "nccl", ends_of(plan))) for probe in probes]
    skewed = [probe for probe in probes if probe.split]
    assert skewed
    assert {(probe.axis, probe.collective) for probe in skewed} == {("ep", "all_to_all")}
    assert {probe.mode for probe in probes if probe.axis == "ep"} == {"alone", "together", "mixed"}


def test_a_single_rank_is_timed_by_itself_only():
    plan = plan_of(PLANS[0])
    rounds = drain(Agenda(plan, "gloo", ends_of(plan)))
    assert [[probe.key for probe in probes] for probes in rounds] == [
        ["gpu 0 matmul alone 0"],
        ["gpu 0 matmul alone 1"],
    ]


def test_figures_of_failed_probes_and_of_pairs_beyond_the_plan_cover_nothing():
    plan = plan_of({"nodes": 6, "gpus_per_node": 2, "tp": 2, "dp": 6})
    agenda = Agenda(plan, "gloo", ends_of(plan))
    unlike = Probe(subject="pair 0-3", axis=None, collective="send_recv", ranks=(0, 3), size_bytes=1, size_source="")
    failed = msgspec.structs.replace(unlike, ranks=(0, 2))
    seen = agenda.coverage([*measured([(unlike,)]), Measurement(probe=failed)])
    assert seen.pairs_measured == 0
    assert seen.links_measured == 2


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_what_is_left_to_do_grows_less_with_every_round(backend):
    plan = plan_of({"nodes": 8, "gpus_per_node": 4, "tp": 8, "pp": 2, "dp": 2})
    agenda = Agenda(plan, backend, ends_of(plan))
    left = [agenda.planned_s]
    while (probes := agenda.next_round(1e9)) is not None:
        agenda.done(probes, 1.0)
        left.append(agenda.planned_s)
    assert left[-1] == 0
    assert min(left[:-1]) > 0


@pytest.mark.parametrize(("nodes", "rounds"), [(1, 0), (4, 3), (8, 7), (10, 9), (12, 5), (40, 5)])
def test_a_tournament_that_is_soon_through_is_not_broken_off_before_it_is_judged(nodes, rounds):
    plan = plan_of({"nodes": nodes, "gpus_per_node": 2, "tp": 2, "dp": nodes})
    agenda = Agenda(plan, "gloo", ends_of(plan))
    found = []
    while not agenda.judging_due:
        found.append(agenda.next_round(100.0) or ())
        agenda.done(found[-1], 1.0)
    assert agenda.position.across == rounds
    assert any(probe.repeat for probes in found for probe in probes)  # the noise is known by then


def test_where_every_gpu_is_in_mig_mode_there_is_nothing_to_do():
    inventory = make_inventory(2, 4)
    nodes = tuple(
        msgspec.structs.replace(
            node, gpus=tuple(msgspec.structs.replace(gpu, mig_enabled=True) for gpu in node.gpus or ())
        )
        for node in inventory.nodes
    )
    inventory = Inventory(nodes=nodes)
    names = [node.name for node in nodes]
    plan = make_plan(nodes=2, gpus_per_node=4, tp=4, dp=2, node_names=names, gpu_uuids=uuids_of(inventory))
    assert Agenda(plan, "nccl", ends_of(plan), inventory=inventory).next_round(1e9) is None
