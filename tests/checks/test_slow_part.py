"""slow_part names a GPU, NIC, node, link or path only where the pairs single it out, and leaves healthy differences between routes alone."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.judge.run import localised
from preflight.model import Culprit, Evidence, Failure, Finding, GpuPeer, Inventory, Localisation, Verdict
from preflight.model.ends import ends_of
from preflight.model.localisation import Ends
from preflight_checks.slow_part import CHECK
from tests.builders import make_gpu, make_measurement, make_node, make_plan, uuids_of
from tests.checks.clusters import HEALTHY, cluster, slow, with_measurements
from tests.fast_machines import evidence_of, inventory_of


def said(evidence: Evidence, *verdicts: Verdict) -> list[Finding]:
    found = CHECK.judge(localised(evidence))
    return [finding for finding in found if not verdicts or finding.verdict in verdicts]


def subjects(evidence: Evidence, verdict: Verdict = Verdict.FAIL) -> list[str]:
    return [finding.subject for finding in said(evidence, verdict)]


def repeated(rates: dict[tuple[int, int], float], *, plan=None, inventory=None, repeats: int = 2) -> Evidence:
    """Each pair measured as often as said, 1 % apart."""
    measurements = tuple(
        make_measurement(pair, algbw_bytes_per_s=rate * 1.01**repeat, repeat=repeat)
        for repeat in range(repeats)
        for pair, rate in rates.items()
    )
    return Evidence(plan=plan, inventory=inventory, measurements=measurements)


def one_gpu_nodes(number: int):
    return make_plan(tp=1, dp=number, nodes=number, gpus_per_node=1, gpu=None)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), noise=st.floats(0.0005, 0.05), nodes=st.integers(2, 3))
def test_a_healthy_cluster_is_left_alone_at_any_noise(seed, noise, nodes):
    found = said(cluster(noise=noise, nodes=nodes, seed=seed))
    assert {finding.verdict for finding in found} <= {Verdict.PASS, Verdict.WARN}


def test_what_passes_says_how_much_was_seen():
    [finding] = said(cluster())
    assert finding.verdict is Verdict.PASS
    assert "no part slower than its peers: 16 GPUs" in finding.observed
    assert "upper mode" in finding.expected


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 5), data=st.data())
def test_one_gpu_that_is_30_percent_slow_is_always_found_and_never_another_one(seed, nodes, data):
    rank = data.draw(st.integers(0, 4 * nodes - 1))
    [finding] = said(cluster(slow(rank), noise=0.01, nodes=nodes, seed=seed))
    assert (finding.verdict, finding.blames.kind) == (Verdict.FAIL, "gpu")
    assert finding.subject == f"node{rank // 4} GPU {rank % 4}"
    assert finding.evidence


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), nodes=st.integers(3, 5), data=st.data())
def test_a_slow_node_is_found_as_the_node_and_nothing_else(seed, nodes, data):
    node = data.draw(st.integers(0, nodes - 1))
    evidence = cluster(slow(*range(4 * node, 4 * node + 4)), noise=0.01, nodes=nodes, seed=seed)
    [finding] = said(evidence, Verdict.FAIL, Verdict.UNKNOWN)
    assert (finding.subject, finding.blames.kind) == (f"node{node}", "node")


def test_a_node_that_is_slow_only_inside_is_blamed_for_that():
    evidence = cluster(lambda a, b: HEALTHY * (0.5 if a // 4 == b // 4 == 1 else 1))
    [finding] = said(evidence, Verdict.FAIL)
    assert (finding.subject, finding.blames.kind) == ("node1", "node")


def test_a_node_that_is_slow_only_towards_others_is_blamed():
    evidence = cluster(lambda a, b: HEALTHY * (0.5 if a // 4 != b // 4 and 2 in {a // 4, b // 4} else 1))
    assert subjects(evidence) == ["node2"]


def test_a_nic_is_told_from_its_gpu_by_the_pairs_inside_the_node():
    evidence = cluster(lambda a, b: HEALTHY * (0.5 if a // 4 != b // 4 and 5 in {a, b} else 1))
    [finding] = said(evidence, Verdict.FAIL)
    assert (finding.subject, finding.blames.kind) == ("NIC of node1 GPU 1", "nic")
    assert "node1" in finding.remedy


def test_a_slow_node_among_slow_pairs_is_named_and_two_that_met_only_each_other_are_not():
    """A public report: seven nodes, five pairs; node 0 is slow with two good partners, nodes 4 and 5 met nobody else."""
    rates = {(0, 1): 49.36e9, (2, 3): 88.36e9, (4, 5): 49.28e9, (0, 3): 49.30e9, (1, 6): 86.81e9}
    found = said(repeated(rates, plan=one_gpu_nodes(7)))
    assert [(f.subject, f.verdict) for f in found] == [("node0", Verdict.FAIL), ("node[4-5]", Verdict.UNKNOWN)]
    assert found[1].blames is None
    assert "run " in found[1].remedy


def test_a_rank_that_met_one_good_partner_only_is_not_blamed():
    rates = {(0, 1): 50e9, (1, 2): 51e9, (0, 2): 50e9, (2, 3): 20e9}
    assert [f.verdict for f in said(repeated(rates, plan=one_gpu_nodes(4)))] == [Verdict.UNKNOWN]


@pytest.mark.parametrize("nodes", [2, 4])
def test_two_slow_gpus_of_different_nodes_are_both_named(nodes):
    assert set(subjects(cluster(slow(1, 6), nodes=nodes))) == {"node0 GPU 1", "node1 GPU 2"}


def test_a_pair_that_was_slow_in_its_only_measurement_is_unknown():
    evidence = cluster(lambda a, b: HEALTHY * (0.5 if (a, b) == (1, 5) else 1))
    kept = [m for m in evidence.measurements if m.probe.subject != "pair 1-5" or m.probe.repeat == 0]
    evidence = with_measurements(evidence, kept)
    assert subjects(evidence) == []
    [finding] = said(evidence, Verdict.UNKNOWN)
    assert "node0 GPU 1 to node1 GPU 1" in finding.observed


def test_a_pair_that_is_slow_every_time_is_named():
    evidence = cluster(lambda a, b: HEALTHY * (0.5 if (a, b) == (1, 5) else 1))
    again = [make_measurement((1, 5), algbw_bytes_per_s=HEALTHY * 0.5 * 1.005**n, repeat=5 + n) for n in range(3)]
    [finding] = said(with_measurements(evidence, [*evidence.measurements, *again]), Verdict.FAIL)
    assert (finding.subject, finding.blames.kind) == ("node0 GPU 1 to node1 GPU 1", "link")


def test_a_pair_that_was_slow_only_once_is_told_and_not_blamed():
    evidence = cluster(noise=0.001)
    shares = {0: 0.8, 1: 0.99}
    changed = [
        make_measurement((1, 5), algbw_bytes_per_s=HEALTHY * shares[m.probe.repeat], repeat=m.probe.repeat)
        if m.probe.subject == "pair 1-5"
        else m
        for m in evidence.measurements
    ]
    [finding] = said(with_measurements(evidence, changed))
    assert finding.verdict in {Verdict.PASS, Verdict.WARN}
    assert "slow once" in finding.observed


def test_figures_taken_while_looking_for_a_culprit_are_not_compared():
    evidence = cluster()
    again = [
        msgspec.structs.replace(m, probe=msgspec.structs.replace(m.probe, attempt=attempt))
        for attempt in (1, 2)
        for m in cluster(slow(3, factor=0.2)).measurements
        if 3 in m.probe.ranks
    ]
    assert subjects(with_measurements(evidence, [*evidence.measurements, *again])) == []


@pytest.mark.parametrize(("nodes", "first"), [(4, 2), (6, 3), (16, 2)])
def test_two_sets_with_every_pair_across_slow_blame_the_path_and_no_part(nodes, first):
    """Also where the pairs across are few among all, so that their number alone would not give it away."""

    def rate(a: int, b: int) -> float:
        return HEALTHY * (0.5 if (a // 4 < first) != (b // 4 < first) else 1)

    [finding] = said(cluster(rate, nodes=nodes), Verdict.FAIL, Verdict.UNKNOWN)
    assert finding.blames.kind == "path"
    assert "no node is at fault" in finding.remedy


def test_many_slow_pairs_without_a_pattern_are_not_listed_as_faults():
    pairs = [(a, b) for b in range(8) for a in range(b)]
    unlucky = set(random.Random(4).sample([p for p in pairs if 0 not in p], 10))
    rates = {pair: 20e9 if pair in unlucky else 50e9 for pair in pairs}
    assert subjects(repeated(rates, plan=one_gpu_nodes(8))) == []


@pytest.mark.parametrize("factor", [0.6, 0.88])
def test_unlike_slots_that_are_slower_on_every_node_are_a_route_and_no_fault(factor):
    evidence = cluster(lambda a, b: HEALTHY * (factor if a // 4 != b // 4 and a % 4 != b % 4 else 1))
    [finding] = said(evidence)
    assert finding.verdict is Verdict.PASS
    assert "a difference between routes, by itself no part's fault" in finding.observed


def box(joined: set[tuple[int, int]]) -> tuple[Inventory, dict[tuple[int, int], float]]:
    """One node of four PCIe cards, bridged as said: its inventory, and what each pair gives."""

    def links(a: int, b: int) -> int:
        return 12 if (min(a, b), max(a, b)) in joined else 0

    gpus = tuple(
        make_gpu(
            "node0",
            i,
            peers=tuple(GpuPeer(index=j, num_nvlinks=links(i, j), ancestor="PHB") for j in range(4) if j != i),
        )
        for i in range(4)
    )
    rates = {(a, b): 250e9 if links(a, b) else 20e9 for b in range(4) for a in range(b)}
    node = msgspec.structs.replace(make_node("node0", gpus=4), gpus=gpus)
    return Inventory(nodes=(node,)), rates


def judge_box(joined: set[tuple[int, int]], *, known: bool = True):
    inventory, rates = box(joined)
    plan = make_plan(
        tp=2, dp=2, nodes=1, gpus_per_node=4, gpu=None, node_names=["node0"], gpu_uuids=uuids_of(inventory)
    )
    return said(repeated(rates, plan=plan, inventory=inventory if known else None))


def test_cards_bridged_in_pairs_are_compared_by_route():
    [finding] = judge_box({(0, 1), (2, 3)})
    assert finding.verdict is Verdict.PASS


def test_cards_bridged_in_pairs_of_which_nothing_is_known_blame_no_gpu():
    assert {f.blames.kind if f.blames else None for f in judge_box({(0, 1), (2, 3)}, known=False)} <= {None, "path"}


def test_a_gpu_that_reaches_the_others_over_pcie_while_they_have_nvlink_is_found():
    found = judge_box({(0, 1), (0, 3), (1, 3)})
    assert [(f.subject, f.verdict) for f in found] == [("node0 GPU 2", Verdict.FAIL)]


def test_noise_that_hides_everything_is_a_warning():
    [finding] = said(cluster(noise=0.5))
    assert finding.verdict is Verdict.WARN
    assert "too noisy" in finding.observed


def test_two_pairs_are_no_peers():
    plan = make_plan(tp=2, dp=2, nodes=2, gpus_per_node=2, gpu=None)
    [finding] = said(repeated({(0, 1): 50e9, (2, 3): 10e9}, plan=plan))
    assert finding.verdict is Verdict.SKIP
    assert "too few" in finding.observed


def test_a_localiser_that_broke_is_unknown():
    broken = Localisation(ends=Ends(nodes=(), node=(), slot=()), unjudged="the localiser broke: ValueError: x")
    [finding] = CHECK.judge(Evidence(localisation=broken, measurements=()))
    assert finding.verdict is Verdict.UNKNOWN


def test_what_never_ran_is_held_against_running_and_how_the_noise_was_found_is_no_finding():
    ends = Ends(nodes=("n0", "n1"), node=(0, 1), slot=(0, 0), leaves=None, whole_nodes=True)
    dead = Culprit(kind="node", confidence="likely", nodes=("n1",), failed=True, reason="all 3 runs with n1 died")
    found = Localisation(ends=ends, culprits=(dead,), notes=("the noise of 0.5% is the spread of the fast shots",))
    [finding] = CHECK.judge(Evidence(localisation=found))
    assert finding.expected == "every run comes to its end"
    [finding] = CHECK.judge(Evidence(localisation=msgspec.structs.replace(found, culprits=(), cleared_ends=2, shots=3)))
    assert finding.verdict is Verdict.PASS
    assert "noise" not in finding.observed


# --- pairs that gave no figure ---


def without_figures(evidence: Evidence, *ranks: int, kind: str = "timed_out") -> Evidence:
    """The same run in which no pair with one of these ranks came to its end."""
    failure = Failure(kind=kind, text="not over at the deadline")
    return with_measurements(
        evidence,
        [
            msgspec.structs.replace(m, samples=(), failure=failure)
            if m.probe.axis is None and len(m.probe.ranks) == 2 and set(ranks) & set(m.probe.ranks)
            else m
            for m in evidence.measurements
        ],
    )


def test_pairs_that_only_failed_are_counted_and_what_only_they_cross_is_not_called_fast():
    evidence = without_figures(cluster(), 3)
    silent = len({m.probe.subject for m in evidence.measurements if m.failure})
    [finding] = said(evidence)
    assert finding.verdict is Verdict.PASS
    assert "no part slower than its peers: 15 of 16 GPUs" in finding.observed
    assert f"{silent} pairs gave no figure (see reachable)" in finding.observed


def test_where_no_pair_gave_a_figure_nothing_passes():
    [finding] = said(without_figures(cluster(), *range(16)))
    assert finding.verdict is Verdict.UNKNOWN
    assert "no part slower" not in finding.observed


def test_too_few_pairs_of_which_some_failed_are_unknown():
    plan = make_plan(tp=2, dp=2, nodes=2, gpus_per_node=2, gpu=None)
    [finding] = said(without_figures(repeated({(0, 1): 50e9, (2, 3): 50e9}, plan=plan), 3))
    assert finding.verdict is Verdict.UNKNOWN
    assert "1 pair gave no figure" in finding.observed


def test_pairs_that_were_left_out_are_coverage_and_no_failure():
    [finding] = said(without_figures(cluster(), 3, kind="not_run"))
    assert "gave no figure" not in finding.observed


def test_the_card_of_a_slow_nic_is_named_where_the_inventory_tells_it():
    evidence = evidence_of(inventory_of(4))
    ends = ends_of(evidence.plan)
    nic = Culprit(kind="nic", ends=(13,), reason="slow", direction="sending")
    found = Localisation(ends=ends, culprits=(nic,), cleared_ends=31, shots=99)
    [finding] = CHECK.judge(msgspec.structs.replace(evidence, localisation=found))
    assert "the NIC of its GPU 5 (mlx5_5): the switch port at the other end of its cable" in finding.remedy
