"""The checks of what was measured, over modelled clusters: each sick one is caught for the right reason, no healthy one is blamed."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.judge.run import localised, run_checks
from preflight.model import Evidence, Failure, Finding, Incident, Measurement, Plan, Settings, Verdict
from preflight.probe.schedule import pair_probe
from preflight_checks import data_correct, group_busbw, group_contention, reachable, slow_part
from tests.checks.clusters import HEALTHY, cluster, measured, slow

CHECKS = tuple(m.CHECK for m in (reachable, data_correct, slow_part, group_busbw, group_contention))


def findings(evidence: Evidence) -> tuple[Finding, ...]:
    return run_checks(CHECKS, localised(evidence))[0]


def failed(evidence: Evidence, check: str | None = None) -> list[str]:
    return [f.subject for f in findings(evidence) if f.verdict is Verdict.FAIL and check in {None, f.check}]


def test_a_healthy_cluster_passes_every_check():
    assert {f.verdict for f in findings(cluster())} == {Verdict.PASS}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), noise=st.floats(0.001, 0.5), nodes=st.integers(2, 5))
def test_no_amount_of_noise_makes_a_healthy_cluster_fail(seed, noise, nodes):
    assert failed(cluster(noise=noise, seed=seed, nodes=nodes)) == []


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), rank=st.integers(0, 15))
def test_one_slow_rank_is_found_and_nobody_else_is_blamed(seed, rank):
    evidence = cluster(slow(rank), noise=0.005, seed=seed)
    assert failed(evidence, "slow_part") == [f"node{rank // 4} GPU {rank % 4}"]
    assert set(failed(evidence, "group_busbw")) == {f"tp{rank // 4}", f"dp{rank % 4}"}


def test_a_slow_node_is_blamed_as_a_node_when_only_its_links_to_others_are_slow():
    def rate(a: int, b: int) -> float:
        crosses = a // 4 != b // 4
        return HEALTHY * (0.5 if crosses and 2 in {a // 4, b // 4} else 1)

    assert failed(cluster(rate), "slow_part") == ["node2"]


def test_a_slow_pair_is_blamed_as_a_pair():
    evidence = cluster(lambda a, b: HEALTHY * (0.5 if (a, b) == (1, 5) else 1))
    assert failed(evidence, "slow_part") == ["node0 GPU 1 to node1 GPU 1"]


def test_a_split_into_two_sets_blames_no_node_and_no_rank():
    """The public 17-node case: every pair within a set is fast, every pair across is slow; no node is bad."""
    evidence = cluster(lambda a, b: HEALTHY * (0.5 if a // 8 != b // 8 else 1), nodes=4)
    assert failed(evidence, "slow_part") == ["node[0-1] to node[2-3]"]


def test_a_cluster_that_is_slow_alike_blames_nobody():
    assert failed(cluster(lambda _a, _b: HEALTHY / 10)) == []


def test_noise_above_the_limit_is_said_and_nothing_is_called_even_where_something_is_slow():
    evidence = cluster(slow(3, factor=0.3), noise=0.3)
    noisy = [f for f in findings(evidence) if f.check in {"slow_part", "group_busbw"}]
    assert {f.verdict for f in noisy} == {Verdict.WARN}
    assert all("too noisy" in f.observed for f in noisy)


def test_groups_that_share_a_link_are_caught_only_together():
    assert set(failed(cluster(shared=0.4), "group_contention")) == {
        *(f"tp{i}" for i in range(4)),
        *(f"dp{i}" for i in range(4)),
    }
    assert failed(cluster(shared=0.4), "group_busbw") == []
    verdicts = {f.verdict for f in findings(cluster(shared=0.7)) if f.check == "group_contention"}
    assert verdicts == {Verdict.WARN}


def test_agents_on_one_machine_are_never_failed_for_contention():
    evidence = msgspec.structs.replace(cluster(shared=0.2), settings=Settings(backend="gloo", local=True))
    assert failed(evidence) == []


def test_wrong_data_fails_whatever_the_speed():
    evidence = cluster()
    assert evidence.measurements
    wrong = tuple(
        msgspec.structs.replace(m, data_correct=False) if m.probe.subject == "tp1" else m for m in evidence.measurements
    )
    assert failed(msgspec.structs.replace(evidence, measurements=wrong)) == ["tp1"]


def test_data_that_nobody_verified_is_unknown():
    evidence = cluster()
    assert evidence.measurements
    unverified = tuple(msgspec.structs.replace(m, data_correct=None) for m in evidence.measurements)
    found = findings(msgspec.structs.replace(evidence, measurements=unverified))
    assert [f.verdict for f in found if f.check == "data_correct"] == [Verdict.UNKNOWN]


def test_a_group_that_was_never_measured_is_unknown_and_a_pair_is_coverage():
    evidence = cluster()
    assert evidence.measurements
    kept = tuple(m for m in evidence.measurements if m.probe.subject not in {"dp3", "pair 0-1"})
    found = findings(msgspec.structs.replace(evidence, measurements=kept))
    assert [(f.subject, f.verdict) for f in found if f.verdict is not Verdict.PASS] == [("dp3", Verdict.UNKNOWN)]


# --- reachable ---


def run_of(*events: Measurement, incidents: tuple[Incident, ...] = (), plan: Plan | None = None) -> dict[str, Finding]:
    """A healthy pass over all pairs, then the events; what `reachable` says, by subject."""
    evidence = cluster()
    healthy = evidence.measurements or ()
    evidence = msgspec.structs.replace(
        evidence, plan=plan or evidence.plan, measurements=(*healthy, *events), incidents=incidents
    )
    return {f.subject: f for f in run_checks([reachable.CHECK], evidence)[0]}


def failure(a: int, b: int, blamed: int | None, kind: str = "timed_out", attempt: int = 1) -> Measurement:
    probe = msgspec.structs.replace(pair_probe((a, b), "gloo", 0), attempt=attempt)
    return Measurement(probe=probe, failure=Failure(kind=kind, text=f"rank {blamed} did not come", rank=blamed))


def success(a: int, b: int, attempt: int = 1) -> Measurement:
    probe = msgspec.structs.replace(pair_probe((a, b), "gloo", 0), attempt=attempt)
    return measured(probe, HEALTHY, 0.01, random.Random(1))


def hung(rank: int, probe: str = "pair 2-3 send_recv alone 0 again 1") -> Incident:
    return Incident(
        kind="worker_hung",
        text=f"rank {rank} gave no answer",
        phase="probing",
        at_s=5,
        node="node0",
        rank=rank,
        probe=probe,
    )


def test_a_rank_that_hung_once_and_then_worked_is_unknown_and_its_partner_is_not_blamed():
    found = run_of(failure(2, 3, 3), success(2, 3), incidents=(hung(3),))
    assert found["rank 3"].verdict is Verdict.UNKNOWN
    assert found["rank 3"].blames is None
    assert set(found) == {"rank 3", "ranks"}


def test_a_rank_that_fails_again_with_another_partner_is_blamed_alone():
    found = run_of(
        failure(2, 3, 3), failure(2, 3, 3, attempt=2), failure(3, 8, 3, attempt=3), incidents=(hung(3), hung(3))
    )
    assert found["rank 3"].verdict is Verdict.FAIL
    assert "2 different partners" in found["rank 3"].observed
    assert set(found) == {"rank 3", "ranks"}


def test_both_ends_of_a_hung_call_are_not_blamed_when_both_work_with_others():
    """With NCCL both processes hang in the call, and each agent sees its own; the first failure names only one of them."""
    events = (failure(2, 3, 2, "no_answer"), failure(2, 3, 2, "no_answer", 2), success(2, 8, 3), success(3, 9, 3))
    found = run_of(*events, incidents=(hung(2), hung(3)))
    assert set(found) == {"pair 2-3", "ranks"}
    assert found["pair 2-3"].blames.kind == "link"


def test_a_hang_after_which_nothing_was_tried_is_unknown():
    assert run_of(failure(2, 3, 3), incidents=(hung(3),))["rank 3"].verdict is Verdict.UNKNOWN


def test_two_ranks_that_only_fail_with_each_other_point_at_the_path_between_them():
    found = run_of(failure(2, 7, None), failure(2, 7, None, attempt=2), success(2, 8, 3), success(7, 9, 3))
    assert found["pair 2-7"].verdict is Verdict.FAIL
    assert found["pair 2-7"].blames.kind == "link"
    assert set(found) == {"pair 2-7", "ranks"}


def test_a_pair_that_failed_once_and_worked_when_repeated_is_a_warning():
    assert run_of(failure(2, 7, None), success(2, 7, 2))["pair 2-7"].verdict is Verdict.WARN


def test_a_lost_agent_is_its_node_and_not_its_partners():
    lost = Incident(kind="agent_lost", text="no answer", phase="probing", at_s=5, node="node1")
    found = run_of(failure(2, 7, 7, "no_answer"), incidents=(lost,))
    assert found["node1"].verdict is Verdict.FAIL
    assert found["node1"].blames.kind == "node"
    assert set(found) == {"node1", "ranks"}
    assert "12 of 16" in found["ranks"].observed


@pytest.mark.parametrize("kind", ["store_lost", "agent_busy", "budget_ended"])
def test_what_is_nobodys_fault_is_unknown_and_blames_nobody(kind):
    found = run_of(incidents=(Incident(kind=kind, text="t", phase="probing", at_s=5, node="node1"),))
    assert found["node1"].verdict is Verdict.UNKNOWN
    assert found["node1"].blames is None


def test_an_environment_in_which_no_worker_starts_blames_no_node():
    incidents = tuple(
        Incident(kind="worker_not_started", text="no torch", phase="starting workers", at_s=1, node=f"node{i}")
        for i in range(4)
    )
    evidence = msgspec.structs.replace(cluster(), measurements=(), incidents=incidents)
    found = {f.subject: f for f in run_checks([reachable.CHECK], evidence)[0]}
    assert found["workers"].verdict is Verdict.UNKNOWN
    assert found["workers"].blames.kind == "environment"
    one = run_of(incidents=incidents[:1])
    assert one["node0"].verdict is Verdict.FAIL


@pytest.mark.parametrize(
    "text", ["RuntimeError: can't start new thread", "can't fork: Resource temporarily unavailable"]
)
def test_a_worker_that_a_limit_of_the_user_kept_from_starting_blames_the_limit_and_no_rank(text):
    incident = Incident(
        kind="worker_not_started", text=text, phase="starting workers", at_s=1, node="node0", rank=1, probe=None
    )
    found = run_of(incidents=(incident,))["rank 1"]
    assert found.verdict is Verdict.UNKNOWN
    assert found.blames.kind == "environment"
