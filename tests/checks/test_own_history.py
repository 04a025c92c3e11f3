"""own_history lays pairs that fell on the smallest thing that explains them, and never says FAIL."""

import math
import random

import msgspec
import pytest

from preflight.model import Baseline, BaselineEntry, BaselineRun, Verdict
from preflight_checks.own_history import CHECK
from tests.builders import make_evidence, make_measurement, make_plan
from tests.checks.clusters import said

NODES = ("n1", "n2", "n3", "n4")
RUNS = 12


def evidence(down=(), *, factor=0.7, lasting=True, noise=0.01, seed=0, runs=RUNS, repeats=2):
    """Four nodes of two GPUs; every pair of like slots between nodes, with `runs` earlier runs at 50 GB/s. `down`: what fell to `factor`, nodes or pairs of ranks; `lasting`: it was so in the last three runs before, too."""
    plan = make_plan(tp=2, dp=4, nodes=4, gpus_per_node=2, gpu=None, backend="gloo")
    plan = msgspec.structs.replace(plan, placement=msgspec.structs.replace(plan.placement, nodes=NODES))
    rng = random.Random(seed)
    pairs = [(a, b) for a in range(8) for b in range(a + 1, 8) if a % 2 == b % 2]
    found, entries = [], []
    for a, b in pairs:
        fell = (a, b) in down or {NODES[a // 2], NODES[b // 2]} & set(down)
        level = [50e9] * (runs - 3) + [50e9 * (factor if fell and lasting else 1)] * 3
        rates = tuple(rate * math.exp(rng.gauss(0, noise)) for rate in level)
        entries.append(
            BaselineEntry(
                subject=f"pair {a}-{b}",
                collective="send_recv",
                size_bytes=2**26,
                busbw_bytes_per_s=rates,
                runs=tuple(range(runs)),
            )
        )
        now = 50e9 * (factor if fell else 1)
        found += [
            make_measurement((a, b), algbw_bytes_per_s=now * math.exp(rng.gauss(0, noise)), repeat=r)
            for r in range(repeats)
        ]
    past = tuple(BaselineRun(at_s=86400.0 * (20_000 + n), nodes={"n2": n >= runs - 3}) for n in range(runs))
    baseline = Baseline(entries=tuple(entries), runs=past, facts=({"driver": "550"}, {"driver": "570"}))
    return make_evidence(plan=plan, measurements=tuple(found), baseline=baseline)


def warned(found):
    return [finding.subject for finding in said(CHECK, found, Verdict.WARN)]


@pytest.mark.parametrize("seed", range(5))
def test_a_node_whose_pairs_fell_is_named_with_the_day_and_what_changed(seed):
    [finding] = said(CHECK, evidence(["n2"], seed=seed), Verdict.WARN)
    assert finding.subject == "n2"
    assert "6 of its pairs are slower than they were" in finding.observed
    assert "since 2024-10-13, and with it: driver 550 -> 570 (n2)" in finding.observed
    assert (finding.blames.kind, finding.blames.confidence) == ("node", "possible")
    assert not said(CHECK, evidence(["n2"], seed=seed), Verdict.FAIL)


def test_a_node_that_fell_in_this_run_for_the_first_time_is_named():
    [finding] = said(CHECK, evidence(["n3"], lasting=False), Verdict.WARN)
    assert finding.subject == "n3"
    assert "in this run" in finding.observed


def test_what_befell_all_is_the_environment_and_blames_no_node():
    [finding] = said(CHECK, evidence(NODES), Verdict.WARN)
    assert finding.subject == "all pairs"
    assert finding.blames.kind == "environment"
    assert "no node is to blame" in finding.observed


def test_a_pair_that_is_lower_for_several_runs_is_named_and_one_that_is_so_once_is_not():
    assert warned(evidence([(0, 4)])) == ["pair 0-4"]
    once = evidence([(0, 4)], lasting=False)
    assert warned(once) == []
    assert "1 are lower in this run" in said(CHECK, once, Verdict.PASS)[0].observed


def test_two_nodes_whose_common_pairs_fell_are_not_told_apart():
    [finding] = said(CHECK, evidence([(2, 4), (3, 5)]), Verdict.WARN)[:1]
    assert finding.blames is None or finding.blames.kind == "link"


def test_two_sick_nodes_are_both_named():
    assert sorted(warned(evidence(["n1", "n2"]))) in (["n1", "n2"], ["all pairs"])


@pytest.mark.parametrize("seed", range(10))
def test_a_healthy_cluster_is_well_whatever_the_noise(seed):
    for noise in (0.002, 0.02, 0.08):
        assert warned(evidence(noise=noise, seed=seed)) == []


def test_a_short_history_says_nothing():
    assert said(CHECK, evidence(NODES, runs=4)) == []
    assert said(CHECK, msgspec.structs.replace(evidence(NODES), baseline=None)) == []
