"""group_busbw catches a group slower than its peers, and calls nothing where groups differ by kind, noise or lack of repeats."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.model import Evidence, Failure, Measurement, Rule, Verdict
from preflight_checks.group_busbw import CHECK
from tests.builders import make_measurement, make_plan
from tests.checks.clusters import cluster, said, slow, subjects, with_measurements

FAST = (50e9, 50.3e9, 49.8e9)


def groups(rates: dict[str, tuple[float, ...]], *, attempt: int = 0, **job) -> Evidence:
    """The reference cluster of 4 nodes x 4 GPUs, with the algbw of each repeat of each group."""
    plan = make_plan(**{"tp": 4, "dp": 4, "nodes": 4, "gpus_per_node": 4, "gpu": None, **job})
    found = []
    for axis in plan.groups:
        for group in plan.on_axis(axis):
            for repeat, rate in enumerate(rates.get(group.name, ())):
                m = make_measurement(
                    group.ranks,
                    subject=group.name,
                    axis=axis,
                    collective="all_reduce",
                    algbw_bytes_per_s=rate,
                    repeat=repeat,
                )
                found.append(msgspec.structs.replace(m, probe=msgspec.structs.replace(m.probe, attempt=attempt)))
    return Evidence(plan=plan, measurements=tuple(found))


def all_fast(plan_groups: int = 4) -> dict[str, tuple[float, ...]]:
    return {f"{axis}{i}": FAST for axis in ("tp", "dp") for i in range(plan_groups)}


def not_run(evidence: Evidence, subject: str, text: str) -> Evidence:
    """The same run, in which every probe of one group failed."""
    failure = Failure(kind="error", text=text)
    changed: list[Measurement] = [
        Measurement(probe=m.probe, failure=failure) if m.probe.subject == subject else m for m in evidence.measurements
    ]
    return with_measurements(evidence, changed)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), noise=st.floats(0.0005, 0.015))
def test_groups_of_a_healthy_cluster_pass(seed, noise):
    verdicts = {f.verdict for f in said(CHECK, cluster(noise=noise, seed=seed))}
    assert verdicts <= {Verdict.PASS, Verdict.WARN}


def test_one_slow_group_fails_and_its_peers_pass():
    evidence = groups({**all_fast(), "tp2": (30e9, 30.2e9, 30.1e9)})
    [finding] = said(CHECK, evidence, Verdict.FAIL)
    assert finding.subject == "tp2"
    assert "60% of its peers" in finding.observed
    assert "ranks 8-11" in finding.remedy
    assert len(said(CHECK, evidence, Verdict.PASS)) == 7


def test_of_two_groups_the_slower_one_fails():
    rates = {"tp0": FAST, "tp1": (30e9, 30.1e9, 30.2e9)}
    evidence = groups(rates, tp=8, dp=2)
    assert subjects(CHECK, evidence) == ["tp1"]


def test_the_fastest_repeat_decides_so_that_one_bad_moment_fails_nobody():
    """The limit is a shortfall each time."""
    assert subjects(CHECK, groups({**all_fast(), "tp1": (44e9, 46e9, 44e9)})) == []


def test_groups_of_another_number_of_nodes_or_ranks_are_no_peers():
    """tp 4 on nodes of 6 GPUs: every other group spans two nodes and is eight times slower, as it must be."""
    job = {"nodes": 4, "gpus_per_node": 6, "tp": 4, "dp": 6}
    plan = groups({}, **job).plan
    spans = {f"tp{i}": len(plan.placement.nodes_of(ranks)) for i, ranks in enumerate(plan.groups["tp"])}
    assert set(spans.values()) == {1, 2}
    evidence = groups({name: tuple(rate / 8 ** (n - 1) for rate in FAST) for name, n in spans.items()}, **job)
    assert {f.verdict for f in said(CHECK, evidence) if f.subject.startswith("tp")} == {Verdict.PASS}


def test_a_group_that_was_slow_in_its_only_measurement_is_unknown():
    evidence = groups({**all_fast(), "tp3": (20e9,)})
    assert subjects(CHECK, evidence) == []
    [finding] = said(CHECK, evidence, Verdict.UNKNOWN)
    assert finding.subject == "tp3"
    assert "only measurement" in finding.observed


def test_a_group_that_was_measured_in_some_repeats_only_is_judged_by_those():
    assert subjects(CHECK, groups({**all_fast(), "tp3": FAST[:1]}), Verdict.PASS) == [
        *(f"tp{i}" for i in range(4)),
        *(f"dp{i}" for i in range(4)),
    ]
    assert subjects(CHECK, groups({**all_fast(), "tp3": (20e9, 20.1e9)})) == ["tp3"]


def test_a_group_of_which_the_budget_left_nothing_is_unknown():
    rates = all_fast()
    del rates["dp1"]
    [finding] = said(CHECK, groups(rates), Verdict.UNKNOWN)
    assert finding.subject == "dp1"
    assert "it was not reached" in finding.observed
    assert "--budget" in finding.remedy


def test_a_group_that_only_failed_is_unknown_and_says_why():
    [finding] = said(CHECK, not_run(groups(all_fast()), "tp1", "connection reset"), Verdict.UNKNOWN)
    assert finding.subject == "tp1"
    assert "connection reset" in finding.observed


def test_a_figure_from_the_search_for_a_culprit_is_no_figure():
    evidence = groups(all_fast(), attempt=1)
    assert {f.verdict for f in said(CHECK, evidence)} == {Verdict.UNKNOWN}


def test_repeats_that_differ_more_than_the_limit_are_a_warning_and_never_a_failure():
    noisy = dict.fromkeys(all_fast(), (50000000000.0, 25000000000.0, 40000000000.0))
    found = said(CHECK, groups({**noisy, "tp2": (5e9, 2e9, 3e9)}))
    assert {(f.subject, f.verdict) for f in found} == {("tp groups", Verdict.WARN), ("dp groups", Verdict.WARN)}
    assert all("too noisy to judge" in f.observed for f in found)


def test_groups_measured_once_each_are_a_warning():
    found = said(CHECK, groups({name: (rate,) for name, rate in zip(all_fast(), range(10, 18), strict=True)}))
    assert {f.verdict for f in found} == {Verdict.WARN}
    assert all("measured once" in f.observed for f in found)


def test_the_plan_file_sets_the_limit():
    evidence = groups(
        {**all_fast(), "tp2": (30e9, 30.2e9, 30.1e9)}, rules={"group_busbw": Rule(limits={"shortfall": 0.5})}
    )
    assert subjects(CHECK, evidence) == []


def test_a_group_without_a_peer_is_not_judged():
    [finding] = said(CHECK, groups({"tp0": (1e9, 1e9, 1e9)}, tp=16, dp=1))
    assert finding.verdict is Verdict.SKIP
    assert "no other group" in finding.observed


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), rank=st.integers(0, 15))
def test_a_slow_rank_fails_exactly_the_groups_that_it_is_in(seed, rank):
    evidence = cluster(slow(rank), noise=0.005, seed=seed)
    assert set(subjects(CHECK, evidence)) == {f"tp{rank // 4}", f"dp{rank % 4}"}


def test_a_whole_axis_that_is_slow_alike_blames_nobody():
    assert subjects(CHECK, groups({**all_fast(), **{f"dp{i}": (1e9, 1.001e9) for i in range(4)}})) == []


def test_groups_without_a_figure_for_one_reason_are_told_in_the_same_words():
    evidence = groups(all_fast())
    for group, text in (("tp1", "rank 4 is left out: n1 has no agent"), ("dp1", "rank 5 is left out: n1 has no agent")):
        evidence = not_run(evidence, group, text)
    found = said(CHECK, evidence, Verdict.UNKNOWN)
    assert {finding.subject for finding in found} == {"tp1", "dp1"}
    assert {(f.observed, f.remedy) for f in found} == {
        ("no figure: n1 has no agent", "mend what reachable says of it, and run again")
    }


def test_whose_rank_it_is_that_gave_no_answer_stays_told():
    [finding] = said(
        CHECK, not_run(groups(all_fast()), "tp1", "rank 4 is left out: it gave no answer"), Verdict.UNKNOWN
    )
    assert finding.observed == "no figure: rank 4 is left out: it gave no answer"
