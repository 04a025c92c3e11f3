"""Names of Megatron-LM's options. Source: megatron/training/arguments.py and transformer_config.py, and forks where they still are in use."""

import re

# names of config classes -> the option of arguments.py that means the same
ALIASES = {
    "num_moe_experts": "num_experts",
    "gated_linear_unit": "swiglu",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "sequence_length": "seq_length",
    "encoder_seq_length": "seq_length",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
}
# options by which a command is known to be one of Megatron-LM
KNOWN = frozenset(
    """
    context_parallel_size expert_model_parallel_size ffn_hidden_size global_batch_size hidden_size
    max_position_embeddings micro_batch_size num_attention_heads num_layers pipeline_model_parallel_size seq_length
    sequence_parallel tensor_model_parallel_size train_iters train_samples use_distributed_optimizer
    use_mcore_models
    """.split()  # noqa: SIM905 - a list of words reads better
)
# options without a value, after which a variable adds more options
FLAGS = frozenset(
    """
    accumulate_allreduce_grads_in_fp32 apply_layernorm_1p bf16 checkpoint_activations deepspeed
    deepspeed_activation_checkpointing disable_bias_linear finetune fp16 grad_reduce_in_bf16 group_query_attention
    label log_throughput manual_gc mock_data moe_grouped_gemm multi_latent_attention no_bias_swiglu_fusion
    no_gradient_accumulation_fusion no_load_optim no_load_rng no_masked_softmax_fusion no_position_embedding
    no_rope_fusion no_save_optim optimizer_cpu_offload overlap_grad_reduce overlap_param_gather qk_layernorm
    recompute_activations sequence_parallel standalone swiglu tp_comm_overlap untie_embeddings_and_output_weights
    use_distributed_optimizer use_flash_attn use_mcore_models use_megatron_fsdp use_precision_aware_optimizer
    use_rotary_position_embeddings use_torch_fsdp2 use_tp_pp_dp_mapping
    """.split()  # noqa: SIM905 - a list of words reads better
)
# options that may matter to a plan, and are mentioned where nothing here reads them
RELATED = re.compile(
    r"parallel|pipeline|tensor_|expert|moe_|recompute|fsdp|shard|overlap|offload|fp8|fp4|layout|rampup|bucket|cuda_graph|checkpoint_act"
)
# of those, the ones that change nothing that a plan file says
SILENT = frozenset(
    """
    batch_p2p_comm checkpoint_activations ckpt_fully_parallel_load ckpt_fully_parallel_save cuda_graph_scope
    cuda_graph_warmup_steps data_parallel_random_init defer_embedding_wgrad_compute distributed_backend
    distributed_timeout_minutes encoder_tensor_model_parallel_size expert_interval
    expert_model_parallel_size_override finalize_model_grads_func fp8_amax_compute_algo fp8_amax_history_len
    fp8_interval fp8_margin fp8_recipe fp8_wgrad fsdp_double_buffer fully_parallel_load fully_parallel_save
    microbatch_group_size_per_virtual_pipeline_stage microbatch_group_size_per_vp_stage moe_aux_loss_coeff
    moe_deepep_num_sms moe_grouped_gemm moe_input_jitter_eps moe_per_layer_logging moe_router_bias_update_rate
    moe_router_dtype moe_router_enable_expert_bias moe_router_group_topk moe_router_load_balancing_type
    moe_router_num_groups moe_router_pre_softmax moe_router_score_function moe_router_topk_scaling_factor
    moe_token_drop_policy moe_token_dropping moe_z_loss_coeff non_persistent_local_ckpt_algo num_moe_experts
    overlap_p2p_comm overlap_p2p_comm_warmup_flush parallel_output pipeline_dtype pipeline_model_parallel_split_rank
    scatter_embedding_sequence_parallel tensorboard_dir tensorboard_queue_size tp_comm_bootstrap_backend
    tp_comm_bulk_dgrad tp_comm_bulk_wgrad tp_comm_overlap_ag tp_comm_overlap_rs tp_comm_overlap_rs_dgrad
    tp_comm_split_ag tp_comm_split_rs transformer_pipeline_model_parallel_size use_sharded_state_dict
    """.split()  # noqa: SIM905 - a list of words reads better
)
