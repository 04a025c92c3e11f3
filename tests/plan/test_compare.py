"""From one plan to another: the speed-up, the ideal, and the term that eats the difference."""

import msgspec
import pytest

from preflight.errors import ConfigError
from preflight.model import Plan
from preflight.plan.compare import compare
from tests.builders import make_plan
from tests.plan.test_ledger import LLAMA_70B
from tests.plan.test_steptime import step_of

CYCLIC = {"launcher": "slurm", "distribution": "cyclic"}


def plan(**job) -> Plan:
    """A plan with its step time."""
    made = make_plan(model=LLAMA_70B, **job)
    return msgspec.structs.replace(made, estimate=msgspec.structs.replace(made.estimate, step_time=step_of(made)))


def eight() -> Plan:
    return plan(nodes=1, micro_batches=64, tp=8)


def test_eight_gpus_to_64_placed_cyclically_loses_to_tp_communication():
    comparison = compare(eight(), plan(launch=CYCLIC, tp=8, pp=4, dp=2))
    assert comparison.ideal == 8
    assert comparison.efficiency < 0.5
    assert comparison.culprit == "tp"
    assert "communication along tp eats most of the difference" in comparison.text[1]
    assert "8 nodes and 8 NVLink domains" in comparison.text[1]


def test_the_same_64_gpus_placed_in_blocks_lose_to_the_bubble_and_far_less():
    comparison = compare(eight(), plan(tp=8, pp=4, dp=2))
    assert comparison.efficiency > 0.8
    assert comparison.culprit == "bubble"
    assert comparison.terms[0].term == "bubble"


def test_the_speed_up_is_of_tokens_per_second():
    before, after = eight(), plan(tp=8, pp=4, dp=2)
    comparison = compare(before, after)
    assert before.estimate.step_time is not None
    assert comparison.tokens_per_s_before == pytest.approx(64 * 4096 / before.estimate.step_time.total_s)
    assert comparison.speedup == pytest.approx(comparison.tokens_per_s_after / comparison.tokens_per_s_before)


def test_each_term_s_cost_adds_up_to_all_gpu_seconds():
    before, after = eight(), plan(tp=8, pp=4, dp=2)
    comparison = compare(before, after)
    assert sum(change.after for change in comparison.terms) == pytest.approx(1000 * 64 / comparison.tokens_per_s_after)
    assert sum(change.before for change in comparison.terms) == pytest.approx(1000 * 8 / comparison.tokens_per_s_before)


def test_a_plan_beside_itself_scales_ideally_and_blames_nothing():
    comparison = compare(eight(), eight())
    assert (comparison.speedup, comparison.ideal, comparison.culprit) == (1, 1, None)
    assert [text for text in comparison.text if "eats" in text] == []


def test_a_plan_that_does_not_fit_its_gpus_is_told_and_one_that_does_is_not():
    said = compare(eight(), plan(tp=8, pp=4, dp=2, zero_stage=1, sequence_parallel=True)).text
    assert [text for text in said if "could not run" in text] == [said[-1]]
    assert "could not run on 8 GPUs" in said[-1]


def test_a_faster_gpu_is_expected_to_be_faster():
    comparison = compare(plan(gpu="A100-80GB"), plan(gpu="H100-80GB"))
    assert comparison.ideal == pytest.approx(989 / 312)
    assert 1 < comparison.speedup < comparison.ideal


def test_different_models_are_told():
    other = make_plan(layers=40, parameters=35 * 10**9, model=LLAMA_70B, tp=8, pp=4, dp=2)
    other = msgspec.structs.replace(other, estimate=msgspec.structs.replace(other.estimate, step_time=step_of(other)))
    assert any("different models" in line for line in compare(eight(), other).text)


def test_a_plan_without_a_step_time_is_refused_with_what_it_lacks():
    with pytest.raises(ConfigError, match=r"job.toml: doesn't say enough to predict the time of a step"):
        compare(eight(), make_plan())
