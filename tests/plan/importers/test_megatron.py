"""Megatron-LM's printed arguments and Megatron-Bridge's run_config: defaults as the framework resolves them."""

import pytest

from preflight.errors import ConfigError
from preflight.plan.importers.facts import Fact, Facts, Options
from preflight.plan.importers.megatron import read_megatron
from preflight.plan.importers.megatron_model import dense_layers
from preflight.plan.importers.resolve import resolve, stages_of_layout


def megatron(**options):
    """Facts of options as a command line gives them, resolved; keys without section where they are unique enough."""
    facts = Facts()
    said = {name: Fact(value, f"x:1 {name}") for name, value in options.items()}
    read_megatron(Options(said, "x default of Megatron-LM"), facts, "x")
    resolve(facts)
    return {key: fact.value for key, fact in facts.values.items()}


def test_the_last_argument_block_of_a_log_gives_every_resolved_option(read):
    imported = read("megatron.log")
    parallel = imported.document["parallel"]
    assert parallel == {
        "framework": "megatron",
        "tp": 8,
        "pp": 4,
        "cp": 1,
        "ep": 4,
        "etp": 1,
        "dp": 2,
        "optimizer_instances": 2,
        "sequence_parallel": True,
        "zero_stage": 1,
        "ep_needs_domain": True,
        "virtual_stages": 2,
    }
    model = imported.document["model"]
    assert (model["experts"], model["experts_per_token"], model["expert_ffn_size"], model["dense_layers"]) == (
        128,
        8,
        1536,
        1,
    )
    assert (model["kv_heads"], model["head_dim"], model["vocab_size"]) == (4, 128, 151643)
    assert imported.origins["model.vocab_size"].endswith("megatron.log:53 padded vocab (size: 151643)")
    assert imported.origins["parallel.tp"].endswith("megatron.log:43 tensor_model_parallel_size 8")


def test_a_log_alone_says_that_nodes_are_missing_and_a_script_gives_them(read):
    assert any("nodes and GPUs per node are not said" in note for note in read("megatron.log").notes)
    both = read("megatron.log", job__slurm="#!/bin/bash\n#SBATCH --nodes=8\n#SBATCH --gres=gpu:8\n")
    assert both.document["hardware"] == {"nodes": 8, "gpus_per_node": 8}
    assert not any("are not said" in note for note in both.notes)


def test_a_world_size_that_nodes_times_gpus_do_not_give_is_refused(read):
    with pytest.raises(ConfigError, match=r"says 64 ranks, but 4 nodes .*job\.slurm:2.* x 8 per node .* = 32"):
        read("megatron.log", job__slurm="#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gres=gpu:8\n")


def test_of_several_blocks_in_a_log_the_last_counts(read, tmp_path):
    def block(tp):
        return f"--- arguments ------\n  tensor_model_parallel_size ... {tp}\n  num_layers ... 4\n--- end of arguments ---\n"

    imported = read(restarts__log=f"noise\n{block(2)}iteration 1\n{block(4)}")
    assert imported.document["parallel"]["tp"] == 4
    assert any("2 argument blocks" in note for note in imported.notes)


def test_the_argument_block_of_one_rank_among_prefixes_is_read(values):
    lines = "[default3]:--- arguments -----\n[default3]:  bf16 ............. True\n[default3]:  num_layers ...... 4\n"
    said = values(run__log=lines + "[default3]:--- end of arguments -----\n")
    assert (said["model.layers"], said["training.precision"]) == (4, "bf16")


def test_expert_tensor_parallelism_defaults_to_tp_only_where_there_are_experts():
    assert megatron(tensor_model_parallel_size="8", num_experts="64")["parallel.etp"] == 8
    assert (
        megatron(tensor_model_parallel_size="8", num_experts="64", expert_tensor_parallel_size="1")["parallel.etp"] == 1
    )
    assert "parallel.etp" not in megatron(tensor_model_parallel_size="8")


def test_the_virtual_stage_flag_is_layers_per_stage_and_not_the_number_of_stages():
    said = megatron(num_layers="80", pipeline_model_parallel_size="4", num_layers_per_virtual_pipeline_stage="5")
    assert said["parallel.virtual_stages"] == 4  # 80 / (4 x 5)
    said = megatron(num_layers="80", pipeline_model_parallel_size="4", num_virtual_stages_per_pipeline_rank="2")
    assert said["parallel.virtual_stages"] == 2
    with pytest.raises(ConfigError, match="80 layers do not divide by pp 4 x 3"):
        megatron(num_layers="80", pipeline_model_parallel_size="4", num_layers_per_virtual_pipeline_stage="3")


def test_a_pipeline_layout_gives_its_number_of_stages():
    assert stages_of_layout("Et*3|(tt|)*29,m|L") == 32
    assert stages_of_layout("Ett|tt|ttL") == 3
    assert stages_of_layout("((t|)*2|)*3") is None
    said = megatron(
        pipeline_model_parallel_size="16", num_layers="61", pipeline_model_parallel_layout="Et*3|(tt|)*29,m|L"
    )
    assert said["parallel.virtual_stages"] == 2


@pytest.mark.parametrize(
    ("options", "width"),
    [
        ({"hidden_size": "4096"}, 16384),
        ({"hidden_size": "4096", "swiglu": True}, 10880),  # 8/3 x 4096 = 10922, down to a multiple of 64
        ({"hidden_size": "4096", "swiglu": True, "ffn_hidden_size": "14336"}, 14336),
    ],
)
def test_the_width_of_the_mlp_is_what_megatron_fills_in(options, width):
    assert megatron(**options)["model.ffn_size"] == width


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ({}, 64),
        ({"num_query_groups": "8"}, 64),  # without its flag the number has no say
        ({"group_query_attention": True, "num_query_groups": "8"}, 8),
        ({"group_query_attention": True}, 1),
    ],
)
def test_key_value_heads_count_only_with_group_query_attention(options, groups):
    assert megatron(num_attention_heads="64", **options)["model.kv_heads"] == groups


@pytest.mark.parametrize(
    ("options", "stage"),
    [
        ({}, 0),
        ({"use_distributed_optimizer": True}, 1),
        ({"use_torch_fsdp2": True}, 3),
        ({"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads"}, 2),
        ({"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}, 3),
        ({"data_parallel_sharding_strategy": "optim_grads_params", "use_distributed_optimizer": True}, 1),
    ],
)
def test_what_is_sharded_over_data_parallel_ranks(options, stage):
    assert megatron(**options)["parallel.zero_stage"] == stage


@pytest.mark.parametrize(
    ("options", "precision", "size"),
    [
        ({}, "fp32", None),
        ({"bf16": True}, "bf16", 4),
        ({"bf16": True, "grad_reduce_in_bf16": True}, "bf16", 2),
        ({"fp16": True}, "fp16", 2),
        ({"fp16": True, "accumulate_allreduce_grads_in_fp32": True}, "fp16", 4),
        ({"bf16": True, "fp8_format": "hybrid"}, "fp8", 4),
        ({"bf16": True, "use_precision_aware_optimizer": True, "main_grads_dtype": "bf16"}, "bf16", 2),
    ],
)
def test_precision_and_bytes_of_a_gradient(options, precision, size):
    said = megatron(**options)
    assert said["training.precision"] == precision
    assert said.get("training.gradient_bytes") == size


def test_moments_count_in_their_own_types_only_with_the_optimizer_that_takes_them():
    types = {"exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "bf16"}
    assert megatron(use_precision_aware_optimizer=True, **types)["training.moment_bytes"] == 3
    assert "training.moment_bytes" not in megatron(**types)


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({}, "none"),
        ({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": "1"}, "full"),
        ({"recompute_granularity": "selective"}, "selective"),
        ({"recompute_activations": True}, "selective"),
        ({"checkpoint_activations": True}, "full"),
    ],
)
def test_recomputation(options, mode):
    assert megatron(**options)["training.recompute"] == mode


@pytest.mark.parametrize(
    ("options", "kernel"),
    [
        ({}, "flash"),
        ({"transformer_impl": "local"}, "unfused"),
        ({"transformer_impl": "local", "use_flash_attn": True}, "flash"),
        ({"attention_backend": "AttnBackend.unfused"}, "unfused"),
        ({"attention_backend": "fused"}, "flash"),
        ({"deepspeed": True}, "unfused"),
    ],
)
def test_the_attention_kernel(options, kernel):
    assert megatron(**options)["training.attention"] == kernel


def test_sequence_parallelism_is_off_without_tp():
    assert megatron(sequence_parallel=True, tensor_model_parallel_size="2")["parallel.sequence_parallel"] is True
    assert megatron(sequence_parallel=True)["parallel.sequence_parallel"] is False


def test_without_a_global_batch_there_is_one_micro_batch():
    assert megatron(micro_batch_size="4")["training.micro_batches"] == 1
    said = megatron(micro_batch_size="4", global_batch_size="64")
    assert (said["training.global_batch_size"], said.get("training.micro_batches")) == (64, None)


def test_latent_attention_takes_its_own_defaults():
    said = megatron(multi_latent_attention=True, q_lora_rank="1536")
    keys = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    assert [said[f"model.{key}"] for key in keys] == [512, 1536, 128, 64, 128]
    assert "model.kv_lora_rank" not in megatron(q_lora_rank="1536")


@pytest.mark.parametrize(
    ("frequency", "layers", "dense"),
    [
        ("1", 8, 0),
        (2, 9, 4),
        ("([0]*3+[1]*58)", 61, 3),
        ([0, 1, 1], 3, 1),
        ("[1,0]*2", 4, 2),
        ("[0]*3", 61, None),
        ("f(x)", 4, None),
        ("0", 4, None),
    ],
)
def test_the_frequency_of_expert_layers(frequency, layers, dense):
    assert dense_layers(frequency, layers) == dense


def test_hierarchical_cp_and_capacity_and_hybrid_dispatch():
    said = megatron(
        hierarchical_context_parallel_sizes="2 4",
        moe_expert_capacity_factor="1.5",
        moe_pad_expert_input_to_capacity=True,
    )
    assert said["parallel.hierarchical_cp"] == [2, 4]
    assert said["training.capacity_factor"] == 1.5
    assert megatron(moe_flex_dispatcher_backend="hybridep")["parallel.ep_needs_domain"] is True
    assert "parallel.ep_needs_domain" not in megatron(
        moe_flex_dispatcher_backend="deepep", moe_token_dispatcher_type="flex"
    )


def test_run_config_of_megatron_bridge_is_read_and_its_tags_build_nothing(read):
    imported = read("run_config.yaml")
    parallel, model = imported.document["parallel"], imported.document["model"]
    assert (parallel["tp"], parallel["pp"], parallel["cp"], parallel["virtual_stages"]) == (8, 9, 2, 7)
    assert (parallel["zero_stage"], parallel["sequence_parallel"]) == (1, True)
    assert (model["layers"], model["kv_heads"], model["ffn_size"], model["gated_mlp"]) == (126, 8, 53248, True)
    assert model["tied_embeddings"] is False
    training = imported.document["training"]
    assert (training["global_batch_size"], training["micro_batch_size"], training["gradient_bytes"]) == (1536, 1, 4)
    assert imported.origins["parallel.tp"].endswith("run_config.yaml:50 model.tensor_model_parallel_size = 8")


def test_the_length_of_sequences_is_the_datas_and_not_the_models(values):
    text = "model: {tensor_model_parallel_size: 1, seq_length: 131072}\ndataset: {sequence_length: 1024}\n"
    assert values(run_config__yaml=text)["training.seq_length"] == 1024
    assert values(run_config__yaml=text.split("\n", 1)[0])["training.seq_length"] == 131072


def test_attention_backends_may_be_numbers_of_their_enumeration(values):
    text = "model:\n  tensor_model_parallel_size: 1\n  attention_backend: {_target_: AttnBackend, _call_: true, _args_: [%d]}\n"
    assert values(run_config__yaml=text % 3)["training.attention"] == "unfused"
    assert values(run_config__yaml=text % 5)["training.attention"] == "flash"


def test_defaults_in_a_log_are_no_news(read):
    dull = {
        "num_experts": None,
        "moe_layer_freq": 1,
        "moe_router_topk": 2,
        "moe_token_dispatcher_type": "allgather",
        "optimizer_offload_fraction": 1.0,
    }
    dull |= {
        "tp_comm_bulk_dgrad": True,
        "fp8_wgrad": True,
        "fp8_recipe": "delayed",
        "outer_dp_sharding_strategy": "no_shard",
        "num_layers": 4,
    }
    lines = "".join(f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in dull.items())
    imported = read(run__log=f"---- arguments ----\n{lines}---- end of arguments ----\n")
    assert not any("no key of a plan file" in note for note in imported.notes)


def test_a_nemo_configuration_is_read_by_the_same_names(values):
    text = (
        "trainer: {num_nodes: 4, devices: 8}\n"
        "model:\n  micro_batch_size: 1\n  global_batch_size: 64\n  tensor_model_parallel_size: 4\n  pipeline_model_parallel_size: 2\n"
        "  encoder_seq_length: 4096\n  num_layers: 32\n  hidden_size: 4096\n  num_attention_heads: 32\n  optim: {name: distributed_fused_adam}\n"
    )
    said = values(config__yaml=text)
    assert (said["parallel.tp"], said["parallel.pp"], said["hardware.nodes"], said["hardware.gpus_per_node"]) == (
        4,
        2,
        4,
        8,
    )
    assert said["training.seq_length"] == 4096


@pytest.mark.parametrize(
    ("option", "key"),
    [("--overlap-grad-reduce", "overlap_gradients"), ("--overlap-param-gather", "overlap_parameters")],
)
def test_what_overlaps_is_taken_over(read, option, key):
    script = "#!/bin/bash\nsrun python pretrain_gpt.py --num-layers 8 --hidden-size 64 --num-attention-heads 8 --use-distributed-optimizer"
    assert read(a__sh=f"{script} {option}\n").document["training"][key] is True
    assert key not in read(a__sh=f"{script}\n").document["training"]


NEMO = """
trainer:
  devices: 8
  num_nodes: 16
  precision: %s
model:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  num_layers: 24
  hidden_size: 4096
  num_attention_heads: 32
  optim:
    name: %s
"""


@pytest.mark.parametrize(
    ("said", "precision"),
    [("bf16", "bf16"), ("bf16-mixed", "bf16"), ("16", "fp16"), ("16-mixed", "fp16"), ("'32'", "fp32"), ("32", "fp32")],
)
def test_nemo_s_trainer_says_the_precision(read, said, precision):
    imported = read(nemo__yaml=NEMO % (said, "fused_adam"))
    assert imported.document["training"]["precision"] == precision
    assert imported.document["hardware"] == {"nodes": 16, "gpus_per_node": 8}


def test_a_precision_that_nobody_knows_is_noted(read):
    assert any("no precision" in note for note in read(nemo__yaml=NEMO % ("nvfp3", "adam")).notes)


def test_megatron_s_own_flag_goes_before_the_trainer_s_precision(read):
    text = NEMO % ("bf16-mixed", "adam") + "  fp16: true\n"
    assert read(nemo__yaml=text).document["training"]["precision"] == "fp16"


@pytest.mark.parametrize(("name", "stage"), [("distributed_fused_adam", 1), ("fused_adam", 0)])
def test_nemo_s_distributed_optimizer_is_megatron_s(read, name, stage):
    document = read(nemo__yaml=NEMO % ("bf16", name)).document
    assert (document["parallel"]["zero_stage"], document["training"]["optimizer"]) == (stage, "adam")


def test_megatron_bridge_names_its_precision_by_recipe(read):
    text = "model:\n  tensor_model_parallel_size: 2\n  num_layers: 4\nmixed_precision: bf16_mixed\n"
    assert read(a__yaml=text).document["training"]["precision"] == "bf16"
