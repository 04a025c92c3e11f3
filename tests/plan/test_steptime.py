"""Step time: against published runs, and each part of it where it can be reasoned out."""

import msgspec
import pytest

from preflight.model import Footprint, Placement, Plan, StepTime, Traffic
from preflight.plan.exposed import HALF_RATE_BYTES, traffic_seconds
from preflight.plan.footprint import find_footprints
from preflight.plan.ledger import make_ledger
from preflight.plan.profiles import find_profile
from preflight.plan.rates import Rates, rates_of
from preflight.plan.steptime import estimate_step_time
from tests.builders import make_job, make_plan
from tests.plan.step_rows import FOLDER, mean_absolute_error, read_toml, row_job, step_rows
from tests.plan.test_ledger import LLAMA_70B

MIB = 2**20


def step_of(plan: Plan, rates: Rates | None = None) -> StepTime | None:
    found = find_profile(plan.job.hardware.gpu or "")
    rates = rates or rates_of(plan.job.hardware, found)
    ledger = make_ledger(plan.job, plan.degrees, plan.estimate.micro_batches, rates)
    return estimate_step_time(
        plan.job,
        plan.degrees,
        micro_batches=plan.estimate.micro_batches,
        ledger=ledger,
        footprints=plan.footprints,
        rates=rates,
        world_size=plan.world_size,
    )


def known(plan: Plan) -> StepTime:
    step = step_of(plan)
    assert step is not None
    return step


def test_korthikanti_s_eight_times_are_met_within_3_65_percent_on_average():
    rows = step_rows("korthikanti")
    assert len(rows) == 8
    assert mean_absolute_error(rows) <= 0.0365
    assert max(abs(row.error) for row in rows) <= 0.0887  # the largest error of Calculon, the peer


def test_sc21_s_ten_rows_are_met_within_3_percent_on_average():
    rows = step_rows("sc21")
    assert len(rows) == 10
    assert mean_absolute_error(rows) <= 0.03
    assert max(abs(row.error) for row in rows) <= 0.06


def test_sc21_s_scaling_of_two_models_is_met_within_2_percent_row_by_row():
    rows = step_rows("sc21_table2")
    assert len(rows) == 6
    assert max(abs(row.error) for row in rows) <= 0.02


def test_the_micro_batches_assumed_for_sc21_are_the_fastest_by_this_estimate():
    document = read_toml(FOLDER / "step_sc21.toml")
    for row in document["rows"]:
        times = {}
        for size in (1, 2, 4, 8, 16):
            job = row_job(document, {**row, "micro_batch_size": size})
            dp = row["gpus"] // (row["tp"] * row["pp"])
            if row["global_batch_size"] % (size * dp) == 0:
                job = msgspec.structs.replace(job, training=msgspec.structs.replace(job.training, micro_batches=None))
                times[size] = known(make_plan_of(job)).total_s
        assert min(times, key=lambda size: times[size]) == row["micro_batch_size"], row["model"]


def make_plan_of(job):
    from preflight.plan.build import build_plan

    return build_plan(job)


def test_megascale_s_eight_rows_of_megatron_are_met_within_6_percent_on_average():
    rows = step_rows("megascale")
    assert len(rows) == 8
    assert mean_absolute_error(rows) <= 0.06


def test_megascale_at_fixed_batch_loses_by_bubble_and_exposed_data_parallelism():
    few, many = step_rows("megascale")[4].predicted, step_rows("megascale")[7].predicted
    share = {
        name: (few.terms[name] / few.total_s, many.terms[name] / many.total_s) for name in ("bubble", "dp", "compute")
    }
    assert share["bubble"][1] > 3 * share["bubble"][0]
    assert share["dp"][1] > 3 * share["dp"][0]
    assert share["compute"][1] < share["compute"][0]


def test_bigscience_s_sweep_of_the_batch_has_the_measured_slope():
    rows = step_rows("bigscience")[-5:-1]
    slopes = [
        (rows[-1].measured_s - rows[0].measured_s) / 96,  # 32 to 128 micro-batches: 0.743 s each
        (rows[-1].predicted.total_s - rows[0].predicted.total_s) / 96,
    ]
    assert slopes[0] == pytest.approx(0.743, abs=0.001)
    assert slopes[1] == pytest.approx(slopes[0], rel=0.05)


def test_torchtitan_s_interleaved_schedule_is_faster_as_measured():
    one, interleaved = step_rows("torchtitan")[11:13]
    assert one.measured_s > interleaved.measured_s
    assert one.predicted.total_s > interleaved.predicted.total_s


def test_terms_sum_to_the_total_and_mfu_follows():
    step = known(make_plan(model=LLAMA_70B))
    assert sum(step.terms.values()) == pytest.approx(step.total_s)
    assert step.mfu == pytest.approx(step.model_flops / step.total_s / 64 / 989e12)
    assert {"compute", "bubble", "optimizer", "tp", "pp", "dp"} == set(step.terms)
    assert step.hfu == step.mfu


def test_recomputation_is_a_term_and_raises_hfu_alone():
    none, full = (known(make_plan(model=LLAMA_70B, training={"recompute": how})) for how in ("none", "full"))
    assert "recompute" not in none.terms
    assert full.terms["recompute"] == pytest.approx(none.terms["compute"] / 3, rel=0.15)
    assert full.mfu < none.mfu
    assert full.hfu == pytest.approx(full.mfu * (4 / 3), rel=0.05)


def test_the_bubble_is_its_overhead_times_the_work():
    plain, chunked = (known(make_plan(model=LLAMA_70B, tp=8, pp=4, dp=2, virtual_stages=v)) for v in (1, 5))
    assert plain.terms["bubble"] == pytest.approx(5 * chunked.terms["bubble"])
    assert "bubble" not in known(make_plan(model=LLAMA_70B, tp=8)).terms


def test_tp_on_eight_nodes_costs_several_times_as_much():
    block = known(make_plan(model=LLAMA_70B))
    cyclic = known(make_plan(model=LLAMA_70B, launch={"launcher": "slurm", "distribution": "cyclic"}))
    assert cyclic.terms["tp"] > 5 * block.terms["tp"]
    assert cyclic.terms["compute"] == block.terms["compute"]


def test_161b_on_64_gpus_is_fastest_with_tp_filling_the_node():
    # SC'21, figure 13: (pipeline, tensor) = (8, 8) is best, (2, 32) and (32, 2) far lower
    def seconds(tp: int, pp: int) -> float:
        shape = {"ffn_size": 4 * 12288, "attention_heads": 96, "vocab_size": 51200, "gated_mlp": False, "dropout": True}
        training = {"recompute": "full", "attention": "unfused", "precision": "fp16", "overlap_tp": False}
        plan = make_plan(
            parameters=161 * 10**9,
            layers=88 if pp != 32 else 96,
            hidden_size=12288,
            model=shape,
            gpu="A100-80GB",
            seq_length=2048,
            micro_batches=32,
            training=training,
            tp=tp,
            pp=pp,
        )
        return known(plan).total_s / plan.job.model.layers

    best = seconds(8, 8)
    assert seconds(32, 2) > 1.5 * best
    assert seconds(2, 32) > 1.3 * best


def test_an_expert_skew_lengthens_compute_and_dispatch():
    shape = {
        "attention_heads": 64,
        "kv_heads": 8,
        "vocab_size": 32000,
        "experts": 64,
        "experts_per_token": 4,
        "expert_ffn_size": 4096,
    }
    even, skewed = (
        known(make_plan(parameters=10**11, model=shape, training={"expert_skew": skew}, tp=1, pp=1, ep=8))
        for skew in (1.0, 2.0)
    )
    assert skewed.terms["compute"] > 1.3 * even.terms["compute"]
    assert skewed.terms["ep"] == pytest.approx(2 * even.terms["ep"], rel=0.05)


@pytest.mark.parametrize(
    "missing",
    [
        {"hidden_size": None},
        {"seq_length": None},
        {"micro_batches": None},
        {"micro_batch_size": None},
        {"gpu": None},
        {"gpu": "NVIDIA L40S"},
        {"model": {"attention_heads": 64, "vocab_size": 1000}},
        {"training": {"offload_optimizer": True}},
        {"training": {"precision": "fp8"}, "gpu": "A100-80GB"},
    ],
    ids=str,
)
def test_where_the_plan_does_not_say_enough_there_is_no_step_time(missing):
    assert step_of(make_plan(**{"model": LLAMA_70B, **missing})) is None


def test_without_a_network_rate_nothing_that_crosses_nodes_is_timed():
    rates = rates_of(make_job().hardware, find_profile("H100-80GB"))
    assert step_of(make_plan(model=LLAMA_70B), rates._replace(nic_bytes_per_s=None)) is None
    assert step_of(make_plan(model=LLAMA_70B, nodes=1, tp=8), rates._replace(nic_bytes_per_s=None)) is not None


def footprint(domains: int, chunk: int) -> Footprint:
    return Footprint(nodes=(domains,), domains=(domains,), slots=(1,), chunk=(chunk,))


def traffic(collective: str, **changes):
    plan = make_plan(model=LLAMA_70B)
    (row,) = [row for row in make_ledger(plan.job, plan.degrees, 32) if row.axis == "dp"]
    return msgspec.structs.replace(row, collective=collective, **changes)


def test_outside_its_domain_a_ring_has_one_nic_for_each_rank_that_shares_the_domain():
    rates = Rates(nvlink_bytes_per_s=360e9, nic_bytes_per_s=48e9)
    row = traffic("all_reduce", message_bytes=10**12, wire_bytes=48 * 10**9)
    assert traffic_seconds(row, footprint(2, 1), 2, rates) == pytest.approx(1.0, rel=1e-3)
    assert traffic_seconds(row, footprint(2, 4), 8, rates) == pytest.approx(0.25, rel=1e-3)
    assert traffic_seconds(row, footprint(2, 16), 32, rates) == pytest.approx(48 / 360, rel=1e-3)
    assert traffic_seconds(row, footprint(1, 8), 8, rates) == pytest.approx(48 / 360, rel=1e-3)


def test_of_an_all_to_all_only_what_leaves_the_domain_uses_the_network():
    rates = Rates(nvlink_bytes_per_s=360e9, nic_bytes_per_s=48e9)
    row = traffic("all_to_all", message_bytes=10**12, wire_bytes=48 * 10**9)
    assert traffic_seconds(row, footprint(2, 8), 16, rates) == pytest.approx(8 / 15)  # published: b (n-1)/(n-g)


def test_a_dispatcher_that_sends_once_to_each_node_saves_the_network_and_not_nvlink():
    rates = Rates(nvlink_bytes_per_s=360e9, nic_bytes_per_s=48e9)
    whole = traffic("all_to_all", calls=1.0, message_bytes=16 * 10**9, wire_bytes=15 * 10**9)
    once = msgspec.structs.replace(whole, copies=8)
    assert traffic_seconds(whole, footprint(2, 8), 16, rates) == pytest.approx(
        8e9 / 48e9
    )  # half of the experts are elsewhere
    nearly_one_of_eight = 16e9 / 8 * (1 - 0.5**8)
    assert traffic_seconds(once, footprint(2, 8), 16, rates) == pytest.approx(
        max(nearly_one_of_eight / 48e9, 15e9 / 360e9)
    )
    assert traffic_seconds(once, footprint(1, 16), 16, rates) == traffic_seconds(whole, footprint(1, 16), 16, rates)


def test_a_message_of_20_mib_runs_at_half_the_rate():
    rates = Rates(nvlink_bytes_per_s=360e9)
    row = traffic("all_reduce", message_bytes=HALF_RATE_BYTES, wire_bytes=36 * 10**9)
    assert traffic_seconds(row, None, 8, rates) == pytest.approx(2 * 0.1)


def test_overlapped_gradients_cost_only_what_the_backward_pass_does_not_cover():
    # one micro-batch: the reduction of many weights is far longer than a backward pass of few tokens
    exposed, hidden = (
        known(make_plan(model=LLAMA_70B, micro_batches=1, training={"overlap_gradients": overlap}))
        for overlap in (False, True)
    )
    assert 0 < hidden.terms["dp"] < exposed.terms["dp"]


def test_a_sharded_optimizer_updates_experts_in_shards_without_expert_parallelism_too():
    shape = {"attention_heads": 64, "vocab_size": 32000, "experts": 8, "experts_per_token": 2, "expert_ffn_size": 14336}
    whole, shared = (
        make_plan(model=shape, pp=4, dp=16, zero_stage=stage, tp=1).estimate.step_time.terms["optimizer"]
        for stage in (0, 1)
    )
    assert shared == pytest.approx(whole / 16, rel=0.01)


@pytest.mark.parametrize(("seq_length", "said"), [(8192, False), (2**22, True)])
def test_a_share_above_the_peak_says_which_convention_made_it(seq_length, said):
    shape = {"ffn_size": 14336, "attention_heads": 32, "kv_heads": 8, "vocab_size": 128256}
    training = {"recompute": "full"}
    plan = make_plan(layers=32, hidden_size=4096, model=shape, seq_length=seq_length, training=training, tp=8, cp=8)
    time = plan.estimate.step_time
    assert (time.hfu > 1) is said
    assert any("never computed" in text for text in time.assumptions) is said


def test_a_ring_is_as_slow_as_the_domain_with_fewest_of_its_ranks_makes_it():
    """Seven ranks on one node and one on the next: all that goes round the ring enters and leaves the second node over one NIC."""
    ring = Traffic(
        axis="tp", purpose="", collective="all_reduce", calls=1, message_bytes=2**33, wire_bytes=10**10, exposed=True
    )
    rates = Rates(nvlink_bytes_per_s=360e9, nic_bytes_per_s=48e9)
    node_ranks = [[0] * 7 + [1], [0] * 4 + [1] * 4]
    times = []
    for nodes in node_ranks:
        local_ranks = tuple(nodes[:rank].count(node) for rank, node in enumerate(nodes))
        placement = Placement(
            source="predicted", method="test", nodes=("a", "b"), node_ranks=tuple(nodes), local_ranks=local_ranks
        )
        found = find_footprints(placement, {"tp": (tuple(range(8)),)})["tp"]
        times.append(traffic_seconds(ring, found, 8, rates))
    assert times[0] == pytest.approx(10**10 / 48e9, rel=0.01)
    assert times[1] == pytest.approx(10**10 / (4 * 48e9), rel=0.01)
