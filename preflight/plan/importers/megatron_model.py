"""The shape of the model from options of Megatron-LM. Source: arguments.py (validate_args), transformer_config.py."""

import re

from preflight.plan.importers.facts import Facts, Options

MAX_LAYERS = 10_000
NO_VOCABULARY = "the size of the vocabulary comes from the tokenizer"  # a note that another file may make pointless

_UNFUSED = {"unfused", "local", "3", "4"}  # names and numbers of AttnBackend, megatron/core/transformer/enums.py
_ROTARY = {"rope", "yarn", "mrope", "none", "alibi", "relative"}


def read_model(options: Options, facts: Facts, where: str, *, local: bool) -> None:
    """Says the keys of [model] and the attention kernel. `local`: a fork from before Transformer Engine, whose attention is not fused."""
    layers = options.number("num_layers", "decoder_num_layers")
    hidden = options.number("hidden_size")
    heads = options.number("num_attention_heads")
    facts.take("model.layers", layers)
    facts.take("model.hidden_size", hidden)
    facts.take("model.attention_heads", heads)
    facts.take("model.head_dim", options.number("kv_channels"))
    _read_mlp(options, facts)
    _read_kv_heads(options, facts)
    _read_embeddings(options, facts, where)
    _read_mla(options, facts)
    _read_experts(options, facts, where)
    facts.take("model.mtp_layers", options.number("mtp_num_layers"))
    dropout = options.decimal("hidden_dropout", default=0.1)
    if dropout:
        facts.say("model.dropout", dropout.value > 0, f"{dropout.origin}", default=dropout.default)
    _read_attention(options, facts, local=local)


def _read_mlp(options: Options, facts: Facts) -> None:
    """ffn-hidden-size is 4 h if not given, with --swiglu 8/3 h rounded down to a multiple of 64."""
    gated = options.flag("swiglu", default=False)
    facts.take("model.gated_mlp", gated)
    ffn, hidden = options.number("ffn_hidden_size"), options.number("hidden_size")
    if ffn:
        facts.take("model.ffn_size", ffn)
    elif hidden and gated and "ffn_hidden_size" not in options.unknown:
        width = hidden.value * 4 * 2 // 3 // 64 * 64 if gated.value else 4 * hidden.value
        facts.say(
            "model.ffn_size",
            width,
            f"{options.absent}: ffn-hidden-size is {'8/3' if gated.value else '4'} h",
            default=True,
        )


def _read_kv_heads(options: Options, facts: Facts) -> None:
    """Groups count only with --group-query-attention (then 1 if not given); a config class has groups, or None, alone."""
    grouped, groups = options.flag("group_query_attention"), options.number("num_query_groups")
    heads = options.number("num_attention_heads")
    if grouped and grouped.value:
        facts.take("model.kv_heads", groups or options.default(1, "num_query_groups"))
    elif groups and grouped is None and options.absent.endswith("config class"):
        facts.take("model.kv_heads", groups)
    elif heads and not options.unknown & {"group_query_attention", "num_query_groups"}:
        facts.say("model.kv_heads", heads.value, f"{options.absent}: no group-query-attention", default=True)


def _read_embeddings(options: Options, facts: Facts, where: str) -> None:
    untied = options.flag("untie_embeddings_and_output_weights")
    shared = options.flag("share_embeddings_and_output_weights")
    if untied:
        facts.say("model.tied_embeddings", not untied.value, untied.origin)
    elif shared:
        facts.take("model.tied_embeddings", shared)
    else:
        facts.take("model.tied_embeddings", options.default(True, "untie_embeddings_and_output_weights"))
    vocab, padded = options.number("vocab_size"), options.number("padded_vocab_size", "pad_vocab_size_to")
    tp = options.number("tensor_model_parallel_size", default=1)
    if vocab:
        facts.take("model.vocab_size", vocab)
    elif padded:
        facts.say("model.vocab_size", padded.value, f"{padded.origin}: padded", default=True)
    else:
        facts.note(f"{where}: {NO_VOCABULARY}: give the model's config.json too, or model.vocab_size")
    kind = options.word("position_embedding_type")
    rotary = options.on("use_rotary_position_embeddings")
    length = options.number("max_position_embeddings")
    if kind or rotary:
        learned = bool(kind and kind.value.rpartition(".")[2] not in _ROTARY and not rotary)
        origin = kind.origin if kind else str(options.said["use_rotary_position_embeddings"].origin)
        facts.say("model.positions", length.value if learned and length else 0, origin)
    elif length and tp and not options.unknown & {"position_embedding_type", "use_rotary_position_embeddings"}:
        facts.say("model.positions", length.value, f"{options.absent}: learned position embeddings", default=True)


def _read_mla(options: Options, facts: Facts) -> None:
    """Multi-head latent attention; defaults of MLATransformerConfig."""
    if not options.on("multi_latent_attention") and not options.raw("qk_nope_head_dim"):  # a fork's name for it
        return
    facts.take("model.kv_lora_rank", options.number("kv_lora_rank", default=512))
    facts.take("model.q_lora_rank", options.number("q_lora_rank"))
    facts.take("model.qk_nope_head_dim", options.number("qk_head_dim", "qk_nope_head_dim", default=128))
    facts.take("model.qk_rope_head_dim", options.number("qk_pos_emb_head_dim", "qk_rope_head_dim", default=64))
    facts.take("model.v_head_dim", options.number("v_head_dim", default=128))


def _read_experts(options: Options, facts: Facts, where: str) -> None:
    experts = options.number("num_experts", "num_moe_experts")
    if not experts or experts.value == 0:
        return
    facts.take("model.experts", experts)
    facts.take("model.experts_per_token", options.number("moe_router_topk", "topk", default=2))
    width = options.number("moe_ffn_hidden_size")
    if width:
        facts.take("model.expert_ffn_size", width)
    elif "moe_ffn_hidden_size" not in options.unknown and facts.get("model.ffn_size"):
        facts.say(
            "model.expert_ffn_size",
            facts.get("model.ffn_size"),
            f"{options.absent}: moe-ffn-hidden-size is ffn-hidden-size",
            default=True,
        )
    shared, number = options.number("moe_shared_expert_intermediate_size"), options.number("num_shared_experts")
    facts.take("model.shared_ffn_size", shared)
    if number and width and not shared:
        facts.say("model.shared_ffn_size", number.value * width.value, number.origin)
    frequency, layers = options.raw("moe_layer_freq"), facts.get("model.layers")
    if not frequency or not layers:
        return
    dense = dense_layers(frequency.value, layers)
    if dense is None:
        facts.note(f"{where}: moe-layer-freq {frequency.value} is not understood: every layer is taken to have experts")
    else:
        facts.say("model.dense_layers", dense, frequency.origin)


def dense_layers(frequency: object, layers: int) -> int | None:
    """Layers without experts. `frequency`: N (one in N has experts, the first of them) or a list of 0 and 1 as in "([0]*3+[1]*58)"; None if it is neither.

    >>> dense_layers("([0]*3+[1]*58)", 61), dense_layers("2", 9), dense_layers([0, 1], 2)
    (3, 4, 1)
    """
    text = re.sub(r"[\s()'\"]", "", str(frequency)[:100_000])
    if text.isdigit() and int(text[:9]) > 0:
        return layers - -(-layers // int(text[:9]))
    pattern: list[str] = []
    for term in re.split(r"\+", text):
        match = re.fullmatch(r"\[([01](?:,[01])*)\](?:\*(\d{1,5}))?", term)
        if match is None or len(pattern) > MAX_LAYERS:
            return None
        pattern += match[1].split(",") * min(int(match[2] or 1), MAX_LAYERS)
    return pattern.count("0") if len(pattern) == layers else None


def _read_attention(options: Options, facts: Facts, *, local: bool) -> None:
    """Transformer Engine (the default) fuses attention; the local implementation does only with --use-flash-attn."""
    backend, kind = options.word("attention_backend"), options.word("transformer_impl")
    if options.on("use_flash_attn"):
        facts.say("training.attention", "flash", options.said["use_flash_attn"].origin)
    elif backend and backend.value.rpartition(".")[2] in _UNFUSED:
        facts.say("training.attention", "unfused", backend.origin)
    elif kind and kind.value == "local" and not (backend and backend.value.rpartition(".")[2] == "flash"):
        facts.say("training.attention", "unfused", kind.origin)
    elif local:
        facts.take("training.attention", options.default("unfused", "use_flash_attn"))
    else:
        facts.take("training.attention", options.default("flash", "attention_backend", "transformer_impl"))
