"""plan_consistent catches what the framework would refuse at start-up, and leaves alone what it accepts."""

import pytest

from preflight.model import Finding, Verdict
from preflight_checks.plan_consistent import CHECK
from tests.builders import make_evidence, make_plan


def judge(**job) -> list[Finding]:
    return list(CHECK.judge(make_evidence(plan=make_plan(**{"tp": 8, "pp": 4, **job}))))


def model(**keys):
    return {"model": keys}


TITAN = {"framework": "torchtitan"}
DEEPSPEED = {"framework": "deepspeed"}
MOE = {"tp": 2, "pp": 1, "ep": 8, "etp": 1}


@pytest.mark.parametrize(
    "job",
    [
        {},
        {"virtual_stages": 5},
        {"cp": 2},
        {"pp": 1, "layers": 7},
        {"seq_length": None, "hidden_size": None, "cp": 2},
        {"schedule": "dualpipe"},
        {"sequence_parallel": True},
        model(ffn_size=28672, attention_heads=64, kv_heads=8),
        model(attention_heads=64, kv_heads=2),  # Megatron copies key-value heads where tp is a multiple of them
        {**MOE, "sequence_parallel": True, **model(experts=16, expert_ffn_size=100)},
        {"tp": 1, "ep": 8, **model(experts=8)},  # without tp no sequence parallelism is needed
        {"order": ("tp", "cp", "ep", "pp", "dp")},
        {**TITAN, "layers": 81},  # torchtitan deals layers unevenly by itself
        {**TITAN, "virtual_stages": 2, "micro_batches": 6},  # one round of six
        {**DEEPSPEED, "layers": 81, "zero_stage": 1},
        {**DEEPSPEED, "pp": 1, "zero_stage": 3},
        {**DEEPSPEED, "tp": 2, "pp": 1, "ep": 8, "etp": 2},
        {"framework": "fsdp", "pp": 1, "tp": 1, "seq_length": 4097},
    ],
)
def test_a_sound_plan_passes_once(job):
    [finding] = judge(**job)
    assert (finding.subject, finding.verdict) == ("plan", Verdict.PASS)


def test_a_passing_plan_shows_both_layouts():
    [finding] = judge(**MOE, sequence_parallel=True)
    assert finding.observed == "tp 2 x cp 1 x dp 32 x pp 1 = 64 ranks, experts etp 1 x ep 8 x edp 8 in each stage"


@pytest.mark.parametrize(
    ("job", "subject", "remedy"),
    [
        ({"pp": 1, "virtual_stages": 2}, "parallel.virtual_stages", "set virtual_stages = 1"),
        ({**DEEPSPEED, "virtual_stages": 2}, "parallel.virtual_stages", "set virtual_stages = 1"),
        ({"layers": 3}, "model.layers", "until their product is at most 3"),
        ({"layers": 8, "virtual_stages": 4}, "model.layers", "until their product is at most 8"),
        ({"nodes": 3, "pp": 3, "schedule": "dualpipe", "layers": 81}, "parallel.pp", "use pp = 4"),
        ({"schedule": "dualpipe", "micro_batches": 6}, "training.micro_batches", "use 8 micro-batches"),
        ({"schedule": "dualpipe", "micro_batches": 33}, "training.micro_batches", "use 34 micro-batches"),
        ({"virtual_stages": 2, "micro_batches": 30}, "training.micro_batches", "use 32 micro-batches"),
        ({**TITAN, "virtual_stages": 2, "micro_batches": 30}, "training.micro_batches", "use 32 micro-batches"),
        ({"cp": 2, "seq_length": 4098}, "training.seq_length", "use a sequence of 4100 tokens"),
        (
            {"cp": 2, "seq_length": 4098, "sequence_parallel": True},
            "training.seq_length",
            "use a sequence of 4112 tokens",
        ),
        ({**TITAN, "cp": 2, "seq_length": 4100}, "training.seq_length", "use a sequence of 4128 tokens"),
        ({**TITAN, "seq_length": 4104}, "training.seq_length", "use a sequence of 4112 tokens"),
        ({"sequence_parallel": True, "seq_length": 4100}, "training.seq_length", "use a sequence of 4104 tokens"),
        ({"hidden_size": 8190}, "model.hidden_size", "choose a tp that divides 8190"),
        (model(ffn_size=100), "model.ffn_size", "choose a tp that divides 100"),
        (model(attention_heads=12), "model.attention_heads", "choose a tp that divides 12"),
        (model(kv_heads=3), "model.kv_heads", "choose a tp that divides 3"),
        ({**TITAN, **model(kv_heads=4)}, "model.kv_heads", "choose a tp that divides 4"),
        ({**MOE, "sequence_parallel": True, **model(experts=12)}, "model.experts", "choose an ep that divides 12"),
        (
            {"pp": 1, "ep": 2, "sequence_parallel": True, **model(experts=12, expert_ffn_size=100)},
            "model.expert_ffn_size",
            "choose an etp that divides 100",
        ),
        ({**MOE, "sequence_parallel": False}, "parallel.sequence_parallel", "set sequence_parallel = true"),
        ({"cp": 2, "tp": 4, "order": ("tp", "cp", "pp", "dp")}, "parallel.order", "let pp be the outermost axis"),
        ({**DEEPSPEED, "zero_stage": 2}, "parallel.zero_stage", "set zero_stage = 1"),
        ({"schedule": "1f1b", "virtual_stages": 2}, "parallel.schedule", "set virtual_stages = 1"),
        ({"schedule": "interleaved"}, "parallel.schedule", "set virtual_stages = 2"),
    ],
)
def test_what_the_framework_refuses_fails_with_the_smallest_change(job, subject, remedy):
    [finding] = judge(**job)
    assert (finding.subject, finding.verdict) == (subject, Verdict.FAIL)
    assert remedy in finding.remedy
    assert finding.blames.name == subject


@pytest.mark.parametrize(
    ("job", "subject"),
    [
        pytest.param({"layers": 81}, "model.layers", id="a pipeline layout may allow uneven stages"),
        pytest.param(
            {"tp": 4, "cp": 2, "order": ("tp", "cp", "dp", "pp", "ep")}, "parallel.order", id="the order of nanotron"
        ),
        pytest.param(MOE, "parallel.sequence_parallel", id="sequence parallelism is not said to be on"),
        pytest.param({**DEEPSPEED, "tp": 2, "pp": 1, "ep": 8}, "parallel.etp", id="DeepSpeed has three layouts"),
        pytest.param({**TITAN, "tp": 2, "pp": 1, "ep": 8, "etp": 2}, "parallel.etp", id="an older torchtitan"),
        pytest.param(
            {"tp": 1, "ep": 8, **model(ffn_size=28672, attention_heads=64)}, "model.experts", id="experts forgotten"
        ),
        pytest.param(
            {"tp": 1, "optimizer_instances": 2}, "parallel.optimizer_instances", id="no distributed optimizer"
        ),
    ],
)
def test_what_depends_on_things_that_the_plan_does_not_say_is_a_warning(job, subject):
    [finding] = judge(**job)
    assert (finding.subject, finding.verdict) == (subject, Verdict.WARN)


def test_each_broken_rule_is_a_finding_of_its_own():
    assert {finding.subject for finding in judge(layers=3, hidden_size=8190)} == {"model.layers", "model.hidden_size"}
