"""Numbers of parameters, against what the models' authors publish."""

import pytest

from preflight.model import ModelShape
from preflight.plan.shape import active_parameters, count_parameters, layers_of_stage, stage_parameters
from tests.builders import make_job
from tests.plan.shapes import SHAPES


def shape(name: str, **changes) -> ModelShape:
    return ModelShape(**{"parameters": 1, **SHAPES[name], **changes})


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("llama3-8b", 8.03, 8.03),
        ("llama3-70b", 70.55, 70.55),
        ("llama3-405b", 405.85, 405.85),
        ("gpt3-175b", 174.60, 174.60),
        ("bloom-176b", 176.25, 176.25),
        ("mixtral-8x7b", 46.70, 12.88),
        ("qwen3-30b-a3b", 30.53, 3.35),
        ("qwen3-32b", 32.76, 32.76),
        ("deepseek-v3", 671.03, 37.55),
    ],
)
def test_published_models_are_counted_as_their_authors_count_them(name, billions, active):
    model = shape(name)
    assert round(count_parameters(model) / 1e9, 2) == billions
    assert round(active_parameters(model) / 1e9, 2) == active


def test_the_gpt_recipe_has_biases_and_norms_as_in_its_formula():
    model = shape("gpt3-175b")
    layers, h, vocab, positions = 96, 12288, 50257, 2048
    formula = (
        layers * (12 * h**2 + 13 * h) + (vocab + positions) * h + 2 * h
    )  # 12 L h^2 (1 + 13/12h + (V+s)/12Lh), last norm
    assert count_parameters(model) == formula


def test_a_multi_token_prediction_layer_counts_as_a_layer_and_a_projection():
    one = count_parameters(shape("deepseek-v3", mtp_layers=1)) - count_parameters(shape("deepseek-v3"))
    assert one == pytest.approx(11.6e9, rel=0.01)


def test_a_shape_that_says_too_little_is_not_counted():
    assert count_parameters(ModelShape(parameters=1, layers=80, hidden_size=8192)) is None
    assert count_parameters(shape("llama3-70b", ffn_size=None)) is None
    assert count_parameters(shape("deepseek-v3", ffn_size=None)) is None  # its first three layers have no experts
    assert active_parameters(ModelShape(parameters=1, layers=80)) is None


def degrees(**given):
    return {"tp": 1, "cp": 1, "ep": 1, "dp": 1, "pp": 1, **given}


def with_shape(name: str, **changes):
    import msgspec

    return msgspec.structs.replace(make_job(), model=shape(name, **changes))


def test_the_most_loaded_shard_of_70b_is_the_stage_with_an_embedding():
    job, layout = with_shape("llama3-70b"), degrees(tp=8, pp=4)
    stages = [round(stage_parameters(job, layout, stage).dense / 1e9, 4) for stage in range(4)]
    assert stages == [2.2708, 2.1394, 2.1394, 2.2708]


def test_the_stages_of_all_ranks_add_up_to_the_model():
    for name, layout in (
        ("llama3-70b", degrees(pp=4)),
        ("mixtral-8x7b", degrees(pp=8)),
        ("deepseek-v3", degrees(pp=16)),
    ):
        job = with_shape(name)
        total = sum(sum(stage_parameters(job, layout, stage)) for stage in range(layout["pp"]))
        assert total == count_parameters(job.model)


def test_a_tied_embedding_is_kept_twice_if_there_is_a_pipeline_and_once_if_not():
    job = with_shape("bloom-176b")
    model, embedding = count_parameters(job.model), 250880 * 14336
    assert stage_parameters(job, degrees(), 0).dense == model
    assert sum(stage_parameters(job, degrees(pp=2), stage).dense for stage in range(2)) == model + embedding


def test_experts_are_divided_by_their_own_layout_and_the_rest_by_tp():
    job = with_shape("mixtral-8x7b")
    experts = 32 * 8 * 3 * 4096 * 14336
    assert stage_parameters(job, degrees(tp=2, ep=4, etp=1), 0).expert == experts // 4
    assert stage_parameters(job, degrees(tp=2, ep=4, etp=2), 0).expert == experts // 8
    assert stage_parameters(job, degrees(tp=2), 0).expert == experts // 2


def test_norms_and_routers_are_kept_by_every_tensor_parallel_rank():
    job = with_shape("llama3-70b")
    norms = (2 * 80 + 1) * 8192
    whole = count_parameters(job.model)
    assert stage_parameters(job, degrees(tp=8), 0).dense == (whole - norms) // 8 + norms


def test_without_a_shape_the_parameters_are_spread_evenly():
    assert stage_parameters(make_job(), degrees(tp=8, pp=4), 1) == (70 * 10**9 // 32, 0)


def test_layers_that_do_not_divide_go_to_the_first_stages():
    job = with_shape("llama3-405b")
    assert [layers_of_stage(job, degrees(pp=8), stage)[0] for stage in range(8)] == [16] * 6 + [15] * 2


def test_dense_layers_come_first():
    job = with_shape("deepseek-v3")
    assert [layers_of_stage(job, degrees(pp=16), stage) for stage in range(2)] == [(3, 1), (0, 4)]
