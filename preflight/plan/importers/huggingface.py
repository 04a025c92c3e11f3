"""The shape of a model from config.json of Hugging Face transformers.

A saved configuration leaves out what equals the default of its class, so defaults are taken only for families whose class is known here.
Source: transformers, models/*/configuration_*.py.
"""

from collections.abc import Mapping
from typing import Any

from preflight.plan.importers.facts import Fact, Facts, Options
from preflight.plan.importers.tree import Lines

# families with rotary positions and three MLP matrices; the value: whether embeddings are tied unless said otherwise
_GATED = {
    **dict.fromkeys(
        (
            "llama",
            "mistral",
            "mixtral",
            "qwen2",
            "qwen3",
            "qwen2_moe",
            "qwen3_moe",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek",
        ),
        False,
    ),
    **dict.fromkeys(
        ("phi3", "olmo2", "gpt_oss", "kimi_k2", "glm4", "glm4_moe", "smollm3", "minimax", "ernie4_5", "dbrx"), False
    ),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "cohere"), True),
}
# families with two MLP matrices: whether positions are learned
_PLAIN = {
    "gpt2": True,
    "opt": True,
    "gpt_neox": False,
    "bloom": False,
    "falcon": False,
    "gptj": False,
    "phi": False,
    "starcoder2": False,
    "gpt_bigcode": True,
}
_TIED_PLAIN = {"gpt2", "opt", "bloom", "falcon", "gpt_bigcode"}
_MARKERS = {"model_type", "architectures", "num_hidden_layers", "n_layer", "hidden_size", "n_embd"}


def is_huggingface(document: Mapping[str, Any]) -> bool:
    """Whether a JSON file describes a model of transformers."""
    return "model_type" in document or "text_config" in document or len(_MARKERS & set(document)) >= 2


def read_shape(document: Mapping[str, Any], lines: Lines, path: tuple[str, ...] = ()) -> Facts:
    """The keys of [model]. `path`: where the mapping stands in its file. Raises ConfigError for values that are none."""
    inner = document.get("text_config")
    if isinstance(inner, Mapping):
        facts = read_shape(inner, lines, (*path, "text_config"))
        facts.note(f"{lines.name}: the language model of a model with more parts: the others are not counted")
        return facts
    facts = Facts()
    said = {
        str(key): Fact(value, lines.origin((*path, str(key)), value))
        for key, value in document.items()
        if not isinstance(value, Mapping)
    }
    options = Options(said, f"{lines.name} default of its class")
    family = str(document.get("model_type") or ("llama" if path else "")).lower()[:60]
    if str(document.get("is_llama_config", "")) == "True":
        family = "llama"
    facts.take("model.layers", options.number("num_hidden_layers", "n_layer", "num_layers"))
    hidden = options.number("hidden_size", "n_embd", "d_model")
    heads = options.number("num_attention_heads", "n_head")
    facts.take("model.hidden_size", hidden)
    facts.take("model.attention_heads", heads)
    facts.take("model.vocab_size", options.number("vocab_size"))
    mla = options.number("kv_lora_rank")
    if mla:
        _read_mla(options, facts, mla)
    else:
        groups = options.number("num_key_value_heads", "multi_query_group_num")
        facts.take("model.kv_heads", groups or (heads and heads._replace(default=True)))
        facts.take("model.head_dim", options.number("head_dim"))
    _read_family(family, options, facts, lines.name)
    _read_mlp(options, facts, hidden, family)
    _read_experts(options, facts, lines.name)
    extra = options.number("num_nextn_predict_layers")
    if extra and extra.value > 0:
        facts.note(
            f"{extra.origin}: layers that predict further tokens are in the checkpoint, but most trainers (Transformers, and Megatron-LM without"
            " --mtp-num-layers) leave them out, and so does the plan: write model.mtp_layers where they are trained"
        )
    return facts


def _read_family(family: str, options: Options, facts: Facts, where: str) -> None:
    """What the class of the model decides: three or two MLP matrices, learned positions, tied embeddings."""
    tied, origin = options.flag("tie_word_embeddings"), f"{where} model_type {family or 'not given'}"
    if family in _GATED:
        facts.say("model.gated_mlp", True, origin)
        facts.say("model.positions", 0, origin)
        facts.take("model.tied_embeddings", tied or options.default(_GATED[family], "tie_word_embeddings"))
    elif family in _PLAIN:
        facts.say("model.gated_mlp", False, origin)
        length = options.number("n_positions", "max_position_embeddings", default=1024 if family == "gpt2" else None)
        facts.say(
            "model.positions", length.value if length and _PLAIN[family] else 0, length.origin if length else origin
        )
        facts.take("model.tied_embeddings", tied or options.default(family in _TIED_PLAIN, "tie_word_embeddings"))
        facts.say("model.dropout", True, origin, default=True)
    else:
        facts.take("model.tied_embeddings", tied)
        facts.note(
            f"{where}: the family {family!r} is not known here: gated_mlp, positions and tied embeddings are as a plan file has them by default"
        )


def _read_mlp(options: Options, facts: Facts, hidden: Fact | None, family: str) -> None:
    width = options.number("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    if width:
        facts.take("model.ffn_size", width)
    elif hidden and family in {"gpt2", "bloom", "falcon", "gptj", "gpt_bigcode"}:
        facts.say("model.ffn_size", 4 * hidden.value, f"{options.absent}: 4 h", default=True)


def _read_mla(options: Options, facts: Facts, rank: Fact) -> None:
    facts.take("model.kv_lora_rank", rank)
    facts.take("model.q_lora_rank", options.number("q_lora_rank"))
    for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        facts.take(f"model.{name}", options.number(name))


def _read_experts(options: Options, facts: Facts, where: str) -> None:
    experts = options.number("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
    if not experts or experts.value <= 1:
        return
    facts.take("model.experts", experts)
    facts.take("model.experts_per_token", options.number("num_experts_per_tok", "num_experts_per_token", "moe_topk"))
    width = options.number("moe_intermediate_size")
    facts.take("model.expert_ffn_size", width or options.number("intermediate_size"))
    shared = options.number("shared_expert_intermediate_size")
    number = options.number("n_shared_experts")
    if shared:
        facts.take("model.shared_ffn_size", shared)
    elif number and width:
        facts.say("model.shared_ffn_size", number.value * width.value, number.origin)
    dense = options.number("first_k_dense_replace")
    only = options.raw("mlp_only_layers")
    step = options.number("decoder_sparse_step", "moe_layer_freq")
    if dense:
        facts.take("model.dense_layers", dense)
    elif only and isinstance(only.value, list):
        facts.say("model.dense_layers", len(only.value[:100_000]), only.origin)
    if step and step.value > 1:
        facts.note(
            f"{where}: only one layer in {step.value} has experts ({step.origin}): set model.dense_layers by hand"
        )
