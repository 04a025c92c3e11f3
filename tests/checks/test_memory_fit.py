"""memory_fit catches jobs that GPUs can't hold, and leaves alone those that leave room: by the estimate where there is one, else by the training state."""

import msgspec
import pytest

from preflight.model import Evidence, Finding, Inventory, Memory, MemoryLine, Node, Rule, Settings, Verdict
from preflight_checks.memory_fit import CHECK
from tests.builders import make_evidence, make_gpu, make_inventory, make_plan


def judge(inventory: Inventory | None = None, **job) -> Finding:
    [finding] = CHECK.judge(make_evidence(plan=make_plan(**{"tp": 8, "pp": 4, **job}), inventory=inventory))
    return finding


@pytest.mark.parametrize(
    ("gpu_memory_bytes", "verdict"),
    [
        (80 * 10**9, Verdict.PASS),
        (43_750_000_000, Verdict.PASS),  # 20 % of it is free
        (43_749_999_999, Verdict.WARN),
        (35_000_000_001, Verdict.WARN),
        (
            35_000_000_000,
            Verdict.WARN,
        ),  # fits if a distributed optimizer shards 12 of the 16 bytes over dp 2: 21.875 GB
        (21_875_000_001, Verdict.WARN),
        (21_875_000_000, Verdict.FAIL),
    ],
)
def test_a_state_that_fits_in_no_way_fails_and_a_thin_margin_or_a_needed_sharding_warns(gpu_memory_bytes, verdict):
    assert judge(gpu_memory_bytes=gpu_memory_bytes).verdict is verdict


def test_a_failure_says_how_far_the_model_must_be_split():
    finding = judge(tp=2, pp=1, dp=32)
    assert finding.verdict is Verdict.FAIL
    assert "state 560 GB of 80.0 GB per GPU" in finding.observed
    assert "raise tp x pp from 2 to 18 or more" in finding.remedy


def test_a_state_that_needs_a_distributed_optimizer_says_so():
    finding = judge(pp=1)
    assert finding.verdict is Verdict.WARN
    assert "make sure that the optimizer is distributed (48.1 GB with" in finding.remedy


def test_discovered_memory_goes_before_the_planned_one():
    finding = judge(make_inventory(8, 8), gpu_memory_bytes=24 * 10**9)
    assert finding.verdict is Verdict.PASS
    assert "85.5 GB per GPU (discovered)" in finding.observed


def test_the_smallest_gpu_counts():
    nodes = list(make_inventory(8, 8).nodes)
    small = tuple(make_gpu("node7", i, memory_bytes=(20 if i == 7 else 80) * 10**9) for i in range(8))
    nodes[7] = Node(name="node7", gpus=small)
    assert judge(Inventory(nodes=tuple(nodes))).verdict is Verdict.FAIL


def test_memory_that_nobody_knows_is_unknown_not_pass():
    assert judge(gpu="NVIDIA H500").verdict is Verdict.UNKNOWN
    assert judge(gpu=None).verdict is Verdict.UNKNOWN
    finding = judge(make_inventory(7, 8), gpu=None)
    assert finding.verdict is Verdict.UNKNOWN
    assert "memory of the GPUs on node7 is not known" in finding.observed


def test_where_discovery_could_not_tell_the_planned_memory_counts():
    assert "as planned" in judge(make_inventory(8, None)).observed


def test_experts_may_make_a_large_state_fit_so_it_is_unknown():
    finding = judge(tp=1, pp=4, ep=16)
    assert finding.verdict is Verdict.UNKNOWN
    assert "how much of the model is experts" in finding.remedy


def test_experts_that_could_not_make_it_fit_do_not_excuse_it():
    assert judge(tp=1, pp=4, ep=2).verdict is Verdict.FAIL


def test_the_margin_can_be_set():
    rule = Rule(limits={"warn_free_share": 0.6})
    assert judge(rules={"memory_fit": rule}).verdict is Verdict.WARN


def test_nothing_is_judged_where_a_run_without_gpus_is_meant():
    def findings(evidence: Evidence) -> list[Finding]:
        return list(CHECK.judge(evidence))

    assert findings(make_evidence(plan=make_plan(), settings=Settings(cpu_declared=True))) == []
    assert findings(make_evidence(plan=make_plan(gpu=None, backend="auto"))) == []


def judge_estimate(
    total_gb: float, capacity_gb: int | None = 80, *, limits: dict[str, float] | None = None, **job
) -> Finding:
    """An estimate of that total in place of the plan's own, most of it activations; its band is 12 %."""
    plan = make_plan(**{"tp": 8, "pp": 4, "gpu_memory_bytes": capacity_gb and capacity_gb * 10**9, **job})
    sizes = {"parameters": 4.0, "gradients": 9.0, "optimizer": 13.0, "buffers": 1.0, "reserve": 5.0}
    sizes["activations"] = total_gb - sum(sizes.values())
    memory = Memory(
        stage=0,
        lines=tuple(MemoryLine(part=part, size_bytes=round(gb * 1e9), formula="") for part, gb in sizes.items()),
        error_share=0.12,
        error_source="measured rows",
        not_modelled=("CUDA graphs",),
    )
    plan = msgspec.structs.replace(plan, estimate=msgspec.structs.replace(plan.estimate, memory=memory))
    if limits:
        rules = {"memory_fit": Rule(limits=limits)}
        plan = msgspec.structs.replace(plan, job=msgspec.structs.replace(plan.job, rules=rules))
    [finding] = CHECK.judge(make_evidence(plan=plan))
    return finding


@pytest.mark.parametrize(
    ("total_gb", "verdict"),
    [(60, Verdict.PASS), (71.4, Verdict.PASS), (71.5, Verdict.WARN), (80, Verdict.WARN), (80.1, Verdict.FAIL)],
)
def test_an_estimate_above_the_memory_fails_and_one_whose_band_reaches_it_warns(total_gb, verdict):
    assert judge_estimate(total_gb).verdict is verdict


def test_a_size_from_a_data_sheet_is_in_gib_so_only_more_than_that_is_refused():
    # nvidia-smi shows 85.5 GB for the H100 whose data sheet says 80 GB
    assert judge_estimate(84, None).verdict is Verdict.WARN
    assert judge_estimate(86, None).verdict is Verdict.FAIL


def test_an_estimate_shows_its_lines_its_band_and_what_it_leaves_out():
    finding = judge_estimate(60)
    assert (
        "estimate 60.0 GB of 80.0 GB per GPU (as planned, stage 0): parameters 4.00 GB, gradients 9.00 GB"
        in finding.observed
    )
    assert "not counted: CUDA graphs" in finding.observed
    assert finding.expected == "estimate + 12 % below the memory of a GPU (measured rows)"
    assert (finding.remedy, finding.blames) == ("", None)


def test_an_estimate_that_does_not_fit_is_told_what_saves_most():
    finding = judge_estimate(90)
    assert finding.remedy == (
        'save 10.0 GB: recompute = "full", or sequence_parallel = true, or zero_stage = 1 (optimizer state shared by 2 ranks), or raise tp x pp above 32'
    )


def test_savings_that_are_in_use_are_not_proposed():
    finding = judge_estimate(90, zero_stage=1, sequence_parallel=True, dp=2, training={"recompute": "full"})
    assert finding.remedy == "save 10.0 GB: raise tp x pp above 32"


def test_savings_that_are_not_enough_together_are_not_offered_as_a_cure():
    finding = judge_estimate(160, zero_stage=1, sequence_parallel=True, capacity_gb=40)
    assert (
        finding.remedy
        == 'raise tp x pp above 32: 120 GB are too much, and these save less even together: recompute = "full"'
    )


def test_where_weights_are_replicated_more_shards_are_offered():
    finding = judge_estimate(90, framework="torchtitan", dp_replicate=8, dp_shard=8, tp=1, pp=1)
    assert "a larger dp_shard in place of dp_replicate" in finding.remedy
    assert "dp_shard" not in judge_estimate(90, framework="torchtitan", dp_shard=64, tp=1, pp=1).remedy


def test_a_warning_about_a_size_above_the_data_sheets_says_why_it_is_no_refusal():
    finding = judge_estimate(82, None, gpu="H100-80GB")
    assert finding.verdict is Verdict.WARN
    assert "nearly GiB" in finding.observed
    assert "nearly GiB" not in judge_estimate(75, None, gpu="H100-80GB").observed


def test_the_band_can_be_widened():
    assert judge_estimate(60, limits={"warn_error_bands": 3.0}).verdict is Verdict.WARN


def test_a_plan_with_a_shape_is_judged_by_its_own_estimate():
    shape = {"ffn_size": 28672, "attention_heads": 64, "kv_heads": 8, "vocab_size": 128256}
    finding = judge(model=shape, zero_stage=1, sequence_parallel=True)
    assert finding.verdict is Verdict.PASS
    assert "activations" in finding.observed


@pytest.mark.parametrize(("gpu_memory_bytes", "verdict"), [(22, Verdict.PASS), (21, Verdict.WARN), (17, Verdict.FAIL)])
def test_a_state_that_is_known_to_be_sharded_is_judged_as_it_is(gpu_memory_bytes, verdict):
    job = {
        "framework": "torchtitan",
        "tp": 8,
        "pp": 1,
        "dp_shard": 8,
        "micro_batch_size": None,
    }  # (16/8) x 8.75e9 weights = 17.5 GB
    finding = judge(gpu_memory_bytes=gpu_memory_bytes * 10**9, **job)
    assert finding.verdict is verdict
    assert "state 17.5 GB" in finding.observed
    assert ("dp_shard" in finding.remedy) == (verdict is not Verdict.PASS)
