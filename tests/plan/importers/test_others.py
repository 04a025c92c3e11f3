"""torchtitan, DeepSpeed, accelerate, nanotron and the shapes of Hugging Face."""

import json

import pytest

from preflight.errors import ConfigError
from preflight.plan.planfile import job_of


def test_torchtitans_toml_gives_stages_micro_batches_and_the_shape_of_its_flavor(read):
    document = read("titan.toml").document
    assert document["parallel"] == {
        "framework": "torchtitan",
        "tp": 8,
        "pp": 8,
        "dp_replicate": 1,
        "dp_shard": 8,
        "zero_stage": 3,
        "schedule": "interleaved",
        "virtual_stages": 2,  # ceil((126 + 1 + 1) / 8) = 16 stages over 8 ranks
    }
    assert document["training"]["micro_batches"] == 32
    assert document["training"]["micro_batch_size"] == 1
    assert (document["training"]["precision"], document["training"]["compiled"]) == ("fp8", True)
    assert job_of(document, "x").model.parameters == pytest.approx(405.85e9, rel=0.001)


def test_torchtitans_json_dump_leaves_dp_shard_minus_one_to_the_world_size(read):
    document = read("titan.json").document
    assert "dp_shard" not in document["parallel"]
    assert document["parallel"]["dp_replicate"] == 2
    assert document["parallel"]["reshard_after_forward"] is False
    assert document["training"]["micro_batch_size"] == 4  # 16384 tokens / 4096
    assert document["model"]["kv_heads"] == 4


def test_torchtitans_older_toml_has_degrees_in_other_sections(values):
    text = '[job]\n[metrics]\n[training]\nbatch_size = 2\ntensor_parallel_degree = 4\ncompile = true\n[experimental]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "GPipe"\npipeline_parallel_microbatches = 2\n[activation_checkpoint]\nmode = "none"\n'
    said = values(old__toml=text)
    assert (said["parallel.tp"], said["parallel.pp"], said["parallel.schedule"]) == (4, 2, "gpipe")
    assert (said["training.micro_batches"], said["training.micro_batch_size"]) == (2, 1)
    assert (said["training.compiled"], said["training.recompute"]) == (True, "none")


def test_a_torchtitan_schedule_without_a_word_in_a_plan_is_left_out_and_noted(read):
    document = {
        "parallelism": {
            "tensor_parallel_degree": 1,
            "pipeline_parallel_degree": 4,
            "pipeline_parallel_schedule": "DualPipeV",
        }
    }
    imported = read(config__json=json.dumps(document))
    assert "schedule" not in imported.document["parallel"]
    assert any("dualpipev" in note for note in imported.notes)
    assert imported.document["parallel"]["virtual_stages"] == 2


def test_a_torchtitan_that_shards_nothing_is_stage_0(values):
    document = {"parallelism": {"data_parallel_shard_degree": 1, "data_parallel_replicate_degree": 8}}
    assert values(config__json=json.dumps(document))["parallel.zero_stage"] == 0


def test_a_torchtitan_that_shards_over_context_parallel_ranks_alone_is_fully_sharded(values):
    parallelism = {"data_parallel_shard_degree": 1, "context_parallel_degree": 8}
    document = {"parallelism": parallelism, "training": {"local_batch_size": 1, "seq_len": 131072}}
    assert values(config__json=json.dumps(document))["parallel.zero_stage"] == 3


def test_deepspeed_gets_its_third_batch_size_from_hosts(read):
    imported = read("zero3.json", "hostfile")
    assert imported.document["training"]["micro_batch_size"] == 2  # 256 / (4 steps x 32 ranks)
    assert imported.document["parallel"] == {"framework": "deepspeed", "zero_stage": 3}
    assert imported.document["training"]["offload_optimizer"] is True
    assert any("zero_hpz_partition_size = 8" in note for note in imported.notes)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((64, 2, None), {"global_batch_size": 64, "micro_batch_size": 2}),
        ((None, 2, 4), {"micro_batch_size": 2, "micro_batches": 4}),
        ((None, 2, None), {"micro_batch_size": 2, "micro_batches": 1}),
        ((64, None, 2), {"global_batch_size": 64, "micro_batch_size": 1}),
        ((64, None, None), {"global_batch_size": 64, "micro_batch_size": 2}),
        ((64, 1, 2), {"global_batch_size": 64, "micro_batch_size": 1}),
    ],
)
def test_two_of_three_batch_sizes_are_enough_for_deepspeed(read, sizes, expected):
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    document = {name: size for name, size in zip(names, sizes, strict=True) if size}
    training = read("hostfile", ds__json=json.dumps(document)).document["training"]
    assert {key: value for key, value in training.items() if "batch" in key} == expected


def test_three_batch_sizes_that_do_not_fit_are_refused(read):
    document = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
    with pytest.raises(ConfigError, match=r"is 64, but micro-batch 4 .* x 2 accumulation steps .* x dp 32 = 256"):
        read("hostfile", ds__json=json.dumps(document))
    assert (
        read(ds__json=json.dumps(document)).document["training"]["global_batch_size"] == 64
    )  # dp is not known: nothing contradicts


def test_values_left_to_the_program_are_said_to_be_so(read):
    document = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2},
    }
    imported = read(ds__json=json.dumps(document))
    assert imported.document["parallel"]["zero_stage"] == 2
    assert "training" not in imported.document
    assert sum("the program that reads the file fills it in" in note for note in imported.notes) == 3


@pytest.mark.parametrize(
    ("config", "pp", "stage"),
    [
        ({"bf16": {"enabled": True}}, 4, 1),
        ({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}, 1, 1),
        ({"bf16": {"enabled": True}}, 1, 0),
        ({"fp16": {"enabled": True}}, 4, 0),
    ],
)
def test_stage_0_hides_the_bf16_optimizer_of_deepspeed(values, config, pp, stage):
    text = json.dumps({**config, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 0}})
    assert values(ds__json=text, job__toml=f"[parallel]\npp = {pp}\n")["parallel.zero_stage"] == stage


def test_accelerates_yaml_gives_fsdp_and_its_sizes(read):
    document = read("accelerate.yaml").document
    parallel = document["parallel"]
    assert (parallel["framework"], parallel["zero_stage"], parallel["reshard_after_forward"]) == ("fsdp", 3, True)
    assert (parallel["dp_replicate"], parallel["dp_shard"], parallel["tp"]) == (2, 4, 4)
    assert document["hardware"] == {"nodes": 4, "gpus_per_node": 8}
    assert document["launch"] == {"launcher": "torchrun", "rendezvous": "c10d"}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("fsdp_sharding_strategy: SHARD_GRAD_OP", {"zero_stage": 2}),
        ("fsdp_sharding_strategy: NO_SHARD", {"zero_stage": 0}),
        ("fsdp_sharding_strategy: HYBRID_SHARD", {"zero_stage": 3, "dp_shard": 8, "dp_replicate": 2}),
        ("fsdp_reshard_after_forward: false", {"zero_stage": 3, "reshard_after_forward": False}),
    ],
)
def test_accelerates_strategies(read, config, expected):
    text = f"distributed_type: FSDP\nnum_machines: 2\nnum_processes: 16\nfsdp_config:\n  {config}\n"
    parallel = read(config__yaml=text).document["parallel"]
    assert {key: parallel.get(key) for key in expected} == expected
    assert ("dp_shard" in parallel) == ("dp_shard" in expected)


def test_accelerate_with_deepspeed_asks_for_its_file(read):
    text = "distributed_type: DEEPSPEED\nnum_machines: 1\nnum_processes: 8\ndeepspeed_config:\n  deepspeed_config_file: /a/zero3.json\n"
    assert any("zero3.json" in note and "not given" in note for note in read(config__yaml=text).notes)
    both = read("zero3.json", config__yaml=text)
    assert both.document["parallel"]["framework"] == "deepspeed"
    assert not any("not given" in note for note in both.notes)


def test_nanotrons_yaml_is_read(read):
    document = read("nanotron.yaml").document
    assert {axis: document["parallel"][axis] for axis in ("tp", "pp", "dp")} == {"tp": 2, "pp": 2, "dp": 16}
    assert document["training"]["micro_batches"] == 8
    assert document["model"]["kv_heads"] == 8
    job_of(document, "x")


def test_nanotrons_experts_come_with_a_warning(read):
    text = "parallelism: {dp: 4, tp: 1, pp: 1, expert_parallel_size: 4}\ntokens: {micro_batch_size: 1}\n"
    assert any("fails to lay out the ranks" in note for note in read(config__yaml=text).notes)


def test_shapes_of_hugging_face(read):
    mixtral = read("mixtral.json").document["model"]
    assert (mixtral["experts"], mixtral["experts_per_token"], mixtral["expert_ffn_size"]) == (8, 2, 14336)
    deepseek = read("deepseek.json").document["model"]
    assert (deepseek["kv_lora_rank"], deepseek["q_lora_rank"], deepseek["v_head_dim"]) == (512, 1536, 128)
    assert (deepseek["dense_layers"], deepseek["shared_ffn_size"]) == (3, 2048)
    assert "mtp_layers" not in deepseek
    assert any("num_nextn_predict_layers" in note for note in read("deepseek.json").notes)
    assert "kv_heads" not in deepseek  # latent attention has none of its own


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"model_type": "llama", "num_attention_heads": 32},
            {"kv_heads": 32, "gated_mlp": True, "tied_embeddings": False, "positions": 0},
        ),
        ({"model_type": "llama", "tie_word_embeddings": True}, {"tied_embeddings": True}),
        (
            {"model_type": "qwen2", "num_attention_heads": 28, "num_key_value_heads": 4},
            {"kv_heads": 4, "gated_mlp": True},
        ),
        (
            {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024},
            {"layers": 12, "ffn_size": 3072, "positions": 1024, "tied_embeddings": True, "gated_mlp": False},
        ),
        (
            {"model_type": "qwen3_moe", "num_experts": 128, "moe_intermediate_size": 768, "mlp_only_layers": [0, 1]},
            {"experts": 128, "expert_ffn_size": 768, "dense_layers": 2},
        ),
        (
            {"model_type": "deepseek_v3", "n_shared_experts": 2, "moe_intermediate_size": 8, "n_routed_experts": 4},
            {"shared_ffn_size": 16},
        ),
        ({"model_type": "mistral", "head_dim": 128}, {"head_dim": 128}),
    ],
)
def test_families_of_hugging_face(read, config, expected):
    model = read(config__json=json.dumps({"architectures": ["X"], **config})).document["model"]
    assert {key: model.get(key) for key in expected} == expected


def test_an_unknown_family_gets_no_invented_defaults(read):
    imported = read(
        config__json=json.dumps(
            {"model_type": "new", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
        )
    )
    assert "gated_mlp" not in imported.document["model"]
    assert "tied_embeddings" not in imported.document["model"]
    assert any("'new' is not known" in note for note in imported.notes)


def test_the_text_part_of_a_model_with_more_parts_is_taken(read):
    config = {
        "model_type": "x_vl",
        "text_config": {"model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 3},
        "vision_config": {"hidden_size": 9},
    }
    imported = read(config__json=json.dumps(config))
    assert imported.document["model"]["layers"] == 3
    assert any("the others are not counted" in note for note in imported.notes)


def test_a_program_s_own_recomputation_is_asked_for(read):
    config = '{"train_batch_size": 64, "zero_optimization": {"stage": 3}}'
    assert any("recompute" in note for note in read(ds__json=config).notes)
    rest = '[training]\nrecompute = "full"\n'
    assert not any("recompute" in note for note in read(ds__json=config, rest__toml=rest).notes)


LOCAL_BATCH = """
[training]
local_batch_size = 8
seq_len = 4096
[parallelism]
data_parallel_shard_degree = -1
%s
[activation_checkpoint]
mode = "full"
"""


@pytest.mark.parametrize("in_file", [True, False])
def test_a_pipeline_cuts_torchtitan_s_local_batch_wherever_it_is_said(read, in_file):
    command = "torchrun --nnodes 2 --nproc-per-node 8 -m torchtitan.train --job.config_file titan.toml"
    degree = ("pipeline_parallel_degree = 2\npipeline_parallel_schedule = 'Interleaved1F1B'", "")
    if not in_file:
        degree = ("pipeline_parallel_schedule = 'Interleaved1F1B'", " --parallelism.pipeline_parallel_degree 2")
    document = read(titan__toml=LOCAL_BATCH % degree[0], job__sh=f"#!/bin/bash\n{command}{degree[1]}\n").document
    assert document["parallel"]["pp"] == 2
    assert (document["training"]["micro_batch_size"], document["training"]["micro_batches"]) == (1, 8)
    assert (document["parallel"]["schedule"], document["parallel"]["virtual_stages"]) == ("interleaved", 2)


def test_without_a_pipeline_the_local_batch_is_one_micro_batch_and_no_schedule_is_said(read):
    document = read(titan__toml=LOCAL_BATCH % "pipeline_parallel_schedule = 'Interleaved1F1B'").document
    assert (document["training"]["micro_batch_size"], document["training"]["micro_batches"]) == (8, 1)
    assert not {"schedule", "virtual_stages"} & set(document["parallel"])
