"""straggler_cost tells what a busy expert costs, and warns where the network makes it worse than the busiest link explains."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.model import Evidence, Rule, Verdict
from preflight_checks.straggler_cost import CHECK
from tests.builders import make_measurement, make_plan
from tests.checks.clusters import said

SPLIT = (0.3,) + (0.1,) * 7  # one of eight experts' ranks takes 30 %


def exchange(slower: float, *, split=SPLIT, repeats=(1.0, 1.002, 0.998), **job) -> Evidence:
    """ep 8 over one node each; the skewed exchange takes so many times as long as the even one."""
    job = job or {"tp": 1, "dp": 16, "ep": 8, "nodes": 2, "gpus_per_node": 8, "gpu": None}
    plan = make_plan(model={"experts": 64, "experts_per_token": 2}, **job) if "ep" in job else make_plan(**job)
    found = []
    for group in plan.on_axis("ep"):
        for repeat, factor in enumerate(repeats):
            for shares, longer in (((), 1.0), (split, slower)):
                m = make_measurement(
                    group.ranks,
                    subject=group.name,
                    axis="ep",
                    collective="all_to_all",
                    algbw_bytes_per_s=40e9 / longer * factor,
                    repeat=repeat,
                )
                found.append(msgspec.structs.replace(m, probe=msgspec.structs.replace(m.probe, split=shares)))
    return Evidence(plan=plan, measurements=tuple(found))


def test_a_skew_that_costs_what_the_busiest_link_explains_passes_with_its_figures():
    found = said(CHECK, exchange(2.35))
    assert [f.verdict for f in found] == [Verdict.PASS] * 2
    assert "a rank that takes 30% of the tokens makes the exchange 2.35 times as long" in found[0].observed
    assert "the busiest rank's link carries 2.40 times as much" in found[0].expected


def test_an_incast_that_costs_more_is_a_warning_and_advisory():
    found = said(CHECK, exchange(4.0))
    assert [f.verdict for f in found] == [Verdict.WARN] * 2
    assert "towards one receiver" in found[0].remedy
    assert CHECK.need == "advisory"


@given(st.floats(0.2, 3.0))
def test_what_the_skew_itself_costs_is_never_called(slower):
    assert {f.verdict for f in said(CHECK, exchange(slower))} == {Verdict.PASS}


def test_noise_is_said_where_it_may_be_the_cause():
    found = said(CHECK, exchange(4.0, repeats=(1.0, 0.7, 1.3)))
    assert {f.verdict for f in found} == {Verdict.WARN}
    assert "too noisy" in found[0].observed


def test_without_a_skewed_exchange_there_is_nothing_to_judge():
    evidence = exchange(2.0)
    even = tuple(m for m in evidence.measurements if not m.probe.split)
    assert said(CHECK, msgspec.structs.replace(evidence, measurements=even)) == []


@pytest.mark.parametrize("split", [(0.5, 0.5), (1.0,) * 8])
def test_a_split_of_another_size_is_no_comparison_and_an_even_one_costs_nothing(split):
    found = said(CHECK, exchange(1.0, split=split))
    assert [f.verdict for f in found] == ([] if len(split) == 2 else [Verdict.PASS] * 2)


def test_the_plan_file_sets_the_limit():
    evidence = exchange(2.9)
    rules = {"straggler_cost": Rule(limits={"excess_ratio": 1.1})}
    job = msgspec.structs.replace(evidence.plan.job, rules=rules)
    strict = msgspec.structs.replace(evidence, plan=msgspec.structs.replace(evidence.plan, job=job))
    assert {f.verdict for f in said(CHECK, evidence)} == {Verdict.PASS}
    assert {f.verdict for f in said(CHECK, strict)} == {Verdict.WARN}
