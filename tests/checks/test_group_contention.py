"""group_contention catches groups that lose bandwidth when all run at once, and says what it could not see."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.model import Evidence, Rule, Settings, Verdict
from preflight_checks.group_contention import CHECK
from tests.checks.clusters import cluster, said, subjects, with_measurements
from tests.fast_machines import evidence_of, inventory_of, timed

EVERY_GROUP = [f"{axis}{i}" for axis in ("tp", "dp") for i in range(4)]


def without(evidence: Evidence, subject: str, mode: str, from_repeat: int = 0) -> Evidence:
    """The same run without these repeats of one group."""
    kept = (
        m
        for m in evidence.measurements
        if (m.probe.subject, m.probe.mode) != (subject, mode) or m.probe.repeat < from_repeat
    )
    return with_measurements(evidence, kept)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), noise=st.floats(0.0005, 0.015))
def test_groups_that_share_nothing_pass(seed, noise):
    found = said(CHECK, cluster(noise=noise, seed=seed))
    assert [(f.subject, f.verdict) for f in found] == [(name, Verdict.PASS) for name in EVERY_GROUP]


@pytest.mark.parametrize(
    ("shared", "verdict"),
    [(1.0, Verdict.PASS), (0.85, Verdict.PASS), (0.75, Verdict.WARN), (0.55, Verdict.WARN), (0.3, Verdict.FAIL)],
)
def test_the_share_that_is_left_decides(shared, verdict):
    found = said(CHECK, cluster(shared=shared, noise=0.002))
    assert {f.verdict for f in found} == {verdict}
    assert f"{shared:.2f} of its bandwidth is left" in {
        f.observed[: len("0.00 of its bandwidth is left")] for f in found
    }


def test_a_group_that_got_faster_is_no_fault():
    assert {f.verdict for f in said(CHECK, cluster(shared=1.3))} == {Verdict.PASS}


def test_only_the_groups_that_lost_are_called():
    healthy, sharing = cluster(), cluster(shared=0.3)
    mixed = [
        bad if good.probe.subject in {"dp0", "dp1"} else good
        for good, bad in zip(healthy.measurements, sharing.measurements, strict=True)
    ]
    assert subjects(CHECK, with_measurements(healthy, mixed)) == ["dp0", "dp1"]


def test_a_group_that_was_timed_once_together_is_not_failed_for_it():
    evidence = without(cluster(shared=0.3), "tp1", "together", from_repeat=1)
    assert set(subjects(CHECK, evidence)) == {*EVERY_GROUP} - {"tp1"}
    assert subjects(CHECK, evidence, Verdict.WARN) == ["tp1"]


def test_a_group_that_was_never_timed_together_is_unknown_and_the_others_are_judged():
    evidence = without(cluster(), "dp2", "together")
    [finding] = said(CHECK, evidence, Verdict.UNKNOWN)
    assert finding.subject == "dp groups"
    assert finding.observed.endswith("not together with the others: dp2")
    assert len(said(CHECK, evidence, Verdict.PASS)) == 7


def test_an_axis_that_the_budget_left_alone_is_unknown_once():
    evidence = cluster()
    kept = (m for m in evidence.measurements if m.probe.mode == "alone" or m.probe.axis != "dp")
    assert subjects(CHECK, with_measurements(evidence, kept), Verdict.UNKNOWN) == ["dp groups"]


def test_a_group_without_any_figure_is_left_to_group_busbw():
    evidence = without(without(cluster(), "dp2", "together"), "dp2", "alone")
    assert {f.subject for f in said(CHECK, evidence)} == {*EVERY_GROUP} - {"dp2"}


def test_noise_above_the_limit_is_a_warning_for_the_axis_and_never_a_failure():
    found = said(CHECK, cluster(noise=0.2, shared=0.1))
    assert {(f.subject, f.verdict) for f in found} == {("tp groups", Verdict.WARN), ("dp groups", Verdict.WARN)}
    assert all("too noisy to judge" in f.observed for f in found)


def test_figures_from_the_search_for_a_culprit_do_not_count_as_together():
    """When part of a round is repeated after a failure, the other groups are silent."""
    evidence = cluster()
    changed = [
        msgspec.structs.replace(m, probe=msgspec.structs.replace(m.probe, attempt=1))
        if m.probe.mode == "together" and m.probe.axis == "tp"
        else m
        for m in evidence.measurements
    ]
    assert subjects(CHECK, with_measurements(evidence, changed), Verdict.UNKNOWN) == ["tp groups"]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), shared=st.floats(0.05, 1.2), noise=st.floats(0.001, 0.3))
def test_agents_on_one_machine_are_never_failed(seed, shared, noise):
    evidence = cluster(noise=noise, shared=shared, seed=seed)
    local = msgspec.structs.replace(evidence, settings=Settings(backend="gloo", local=True))
    assert subjects(CHECK, local) == []


def test_the_plan_file_sets_the_limits():
    evidence = cluster(shared=0.45)
    rules = {"group_contention": Rule(limits={"fail_ratio": 0.2, "warn_ratio": 0.4})}
    job = msgspec.structs.replace(evidence.plan.job, rules=rules)
    lenient = msgspec.structs.replace(evidence, plan=msgspec.structs.replace(evidence.plan, job=job))
    assert {f.verdict for f in said(CHECK, evidence)} == {Verdict.FAIL}
    assert {f.verdict for f in said(CHECK, lenient)} == {Verdict.PASS}


# --- NICs that are shared by design ---


def shared_nics(ratio: float, *, nics: int, mode="together", repeats=(1.0, 1.003, 0.997)) -> Evidence:
    """Four nodes of 8 H100 whose GPUs share so many NICs; each dp group keeps this share of its bandwidth."""
    evidence = evidence_of(inventory_of(4, nics=nics))
    found = []
    for name in (group.name for group in evidence.plan.on_axis("dp")):
        found += timed(evidence.plan, name, [47e9 * r for r in repeats])
        found += timed(evidence.plan, name, [47e9 * ratio * r for r in repeats], mode=mode)
    return with_measurements(evidence, found)


@pytest.mark.parametrize(
    ("nics", "ratio", "verdict"),
    [
        (8, 0.97, Verdict.PASS),
        (8, 0.49, Verdict.FAIL),
        (4, 0.49, Verdict.PASS),  # two groups on each NIC
        (4, 0.35, Verdict.WARN),
        (4, 0.2, Verdict.FAIL),
        (2, 0.25, Verdict.PASS),  # four
        (2, 0.12, Verdict.FAIL),
    ],
)
def test_groups_that_share_a_nic_by_design_are_held_against_its_parts(nics, ratio, verdict):
    found = said(CHECK, shared_nics(ratio, nics=nics))
    assert {f.verdict for f in found if f.subject.startswith("dp")} == {verdict}
    if nics < 8:
        assert f"{8 // nics} groups share each NIC, which leaves {nics / 8:.2f}" in found[0].expected


def test_whose_nic_is_whose_is_said_where_it_is_not_known():
    blind = msgspec.structs.replace(shared_nics(0.97, nics=8), inventory=None)
    assert "whether the groups share NICs is not known" in said(CHECK, blind)[0].expected


def test_groups_inside_a_node_share_no_nic_however_few_there_are():
    evidence = evidence_of(inventory_of(4, nics=2))
    found = []
    for name in (group.name for group in evidence.plan.on_axis("tp")):
        found += timed(evidence.plan, name, (366e9, 367e9))
        found += timed(evidence.plan, name, (150e9, 151e9), mode="together")
    assert set(subjects(CHECK, with_measurements(evidence, found))) == {f"tp{i}" for i in range(4)}


# --- the mixed step ---


@pytest.mark.parametrize(
    ("ratio", "nics", "verdict"),
    [(0.95, 8, Verdict.PASS), (0.3, 8, Verdict.WARN), (0.5, 4, Verdict.PASS), (0.3, 4, Verdict.WARN)],
)
def test_the_mixed_step_is_told_and_never_failed(ratio, nics, verdict):
    """With four NICs for eight GPUs, a group of another axis may be at work on the same NIC."""
    found = [f for f in said(CHECK, shared_nics(ratio, nics=nics, mode="mixed")) if "mixed" in f.subject]
    assert {f.verdict for f in found} == {verdict}
    assert found[0].subject == "dp0 in the mixed step"
    assert "groups of several axes run at once" in found[0].observed


def test_each_message_is_compared_with_itself():
    """A group timed at two sizes: the worse ratio is told, with its size."""
    evidence = evidence_of(inventory_of(4))
    found = []
    for name in (group.name for group in evidence.plan.on_axis("dp")):
        for size, alone, together in ((2**26, 20e9, 19e9), (2**30, 46e9, 30e9)):
            found += timed(evidence.plan, name, (alone, alone), size_bytes=size)
            found += timed(evidence.plan, name, (together, together), size_bytes=size, mode="together")
    finding = said(CHECK, with_measurements(evidence, found))[0]
    assert finding.verdict is Verdict.WARN
    assert finding.observed.startswith("0.65 of its bandwidth is left")
    assert finding.observed.endswith("at 1.07 GB")


def test_a_skewed_exchange_is_no_repeat_of_the_even_one():
    evidence = shared_nics(0.97, nics=8)
    skewed = [
        msgspec.structs.replace(m, probe=msgspec.structs.replace(m.probe, split=(0.4, 0.2, 0.2, 0.2)))
        for m in shared_nics(0.1, nics=8).measurements
    ]
    both = with_measurements(evidence, (*evidence.measurements, *skewed))
    assert subjects(CHECK, both) == []


def test_a_mixed_step_that_was_measured_once_and_lost_nothing_passes():
    once = shared_nics(0.97, nics=8, mode="mixed", repeats=(1.0,))
    assert {f.verdict for f in said(CHECK, once) if "mixed" in f.subject} == {Verdict.PASS}
    lost = shared_nics(0.3, nics=8, mode="mixed", repeats=(1.0,))
    [finding] = [f for f in said(CHECK, lost) if "mixed" in f.subject]
    assert finding.verdict is Verdict.WARN
    assert "measured once" in finding.observed


def test_a_ratio_of_single_measurements_is_repeated_before_anything_is_looked_for():
    evidence = evidence_of(inventory_of(4))
    found = []
    for name in (group.name for group in evidence.plan.on_axis("dp")):
        found += timed(evidence.plan, name, (46e9, 46e9))
        found += timed(evidence.plan, name, (20e9,) if name == "dp0" else (45e9, 45e9), mode="together")
    [finding] = [f for f in said(CHECK, with_measurements(evidence, found)) if f.verdict is Verdict.WARN]
    assert finding.observed.endswith("one of the two was timed only once")
    assert finding.remedy == "give a larger --budget, so that it is repeated"
