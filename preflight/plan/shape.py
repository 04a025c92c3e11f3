"""From the shape of a model to its numbers of parameters: of the whole, of what one token uses, of one GPU.

Symbols: h hidden size, f MLP width, a attention heads, k key-value heads, d head size, V vocabulary, L layers, E experts, t tensor-parallel degree.

Left out, each far below a thousandth of any model: norms inside attention (QK norm), biases other than those of the GPT recipe, the bias of the
router, padding of the vocabulary to a multiple of the tensor-parallel degree.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from preflight.model import Job, ModelShape


class StageParameters(NamedTuple):
    """Weights on ONE GPU of a pipeline stage: dense ones (divided by tp) and those of experts (divided by etp x ep)."""

    dense: int
    expert: int


class Layer(NamedTuple):
    """Weights of one whole layer: split by tensor parallelism, kept by every rank of it (norms, router), of all routed experts."""

    split: int
    kept: int
    experts: int

    @property
    def total(self) -> int:
        """All weights of the layer."""
        return self.split + self.kept + self.experts


def count_parameters(model: ModelShape) -> int | None:
    """Weights of the whole model; None where the shape doesn't say enough.

    Worked examples: Llama 3 70B (h 8192, f 28672, a 64, k 8, V 128256, L 80, untied) 70.55e9; GPT-3 (h 12288, f 4 h, a 96, L 96, V 50257,
    2048 positions, tied, GPT recipe) 174.6e9.
    """
    embedding, dense, moe = embedding_parameters(model), layer_of(model, moe=False), layer_of(model, moe=True)
    first, rest = model.dense_layers if model.experts else model.layers, moe if model.experts else dense
    if embedding is None or rest is None or (first and dense is None):
        return None
    layers = first * (dense.total if dense else 0) + (model.layers - first) * rest.total
    both = embedding * (1 if model.tied_embeddings else 2) + model.positions * (model.hidden_size or 0)
    return layers + both + _norm(model) + model.mtp_layers * _mtp_parameters(model, rest)


def active_parameters(model: ModelShape) -> int | None:
    """Weights that one token uses: of routed experts only its own; the rest as in count_parameters. None where that is None.

    Worked example: Mixtral-8x7B has 46.70e9 of which 12.88e9 are active.
    """
    total, moe = count_parameters(model), layer_of(model, moe=True)
    if total is None or model.experts is None or moe is None:
        return total
    layers = model.layers - model.dense_layers + model.mtp_layers
    unused = model.experts - (model.experts_per_token or model.experts)
    return total - layers * moe.experts * unused // model.experts


def stage_parameters(job: Job, degrees: Mapping[str, int], stage: int) -> StageParameters:
    """Weights on one GPU of a stage, counted from 0. Where the shape isn't known: parameters / (tp x pp), no experts.

    The first stage has the embedding, the last one the output layer (a copy of the embedding where they are tied and p > 1).
    Worked example, Llama 3 70B, tp 8, pp 4: stage 0 has 20 layers and the embedding, 2.2708e9; stage 1 2.1394e9.
    """
    model, tp, pp = job.model, degrees["tp"], degrees["pp"]
    embedding, dense, moe = embedding_parameters(model), layer_of(model, moe=False), layer_of(model, moe=True)
    if count_parameters(model) is None or embedding is None:
        return StageParameters(math.ceil(model.parameters / (tp * pp)), 0)
    split = kept = experts = 0
    for layer, number in zip((dense, moe), layers_of_stage(job, degrees, stage), strict=True):
        if layer is not None:
            split, kept, experts = (
                split + number * layer.split,
                kept + number * layer.kept,
                experts + number * layer.experts,
            )
    last = stage == pp - 1
    if stage == 0:
        split += embedding + model.positions * (model.hidden_size or 0)
    if last and (pp > 1 or not model.tied_embeddings):
        split += embedding
    if last:
        kept += _norm(model)
        extra = moe if model.experts else dense
        if extra is not None:
            projection = 2 * (model.hidden_size or 0) ** 2
            split += model.mtp_layers * (extra.split + projection)
            experts += model.mtp_layers * extra.experts
    return StageParameters(math.ceil(split / tp) + kept, math.ceil(experts / expert_shards(degrees)))


def layers_of_stage(job: Job, degrees: Mapping[str, int], stage: int) -> tuple[int, int]:
    """Dense layers and MoE layers of a stage. Where pp does not divide the layers, the first stages have one more.

    Where embedding and output layer count as layers (torchtitan, unless told otherwise), layers + 2 are spread so, and the first and last stage have one less.
    """
    model, pp = job.model, degrees["pp"]
    ends = job.parallel.embedding_as_layer
    if ends is None:
        ends = job.parallel.framework == "torchtitan"
    ends = ends and pp > 1
    each, more = divmod(model.layers + (2 if ends else 0), pp)
    begin = stage * each + min(stage, more) - (1 if ends and stage else 0)
    number = each + (1 if stage < more else 0) - (1 if ends and stage in {0, pp - 1} else 0)
    if not model.experts:
        return number, 0
    dense = max(0, min(model.dense_layers, begin + number) - begin)
    return dense, number - dense


def expert_tp(degrees: Mapping[str, int]) -> int:
    """Ranks that share each matrix of an expert: etp; where the layout has none, tp without expert parallelism and 1 with it (torchtitan)."""
    return degrees.get("etp") or (degrees["tp"] if degrees["ep"] == 1 else 1)


def expert_shards(degrees: Mapping[str, int]) -> int:
    """Into how many parts the experts of a layer are divided: etp x ep."""
    return expert_tp(degrees) * degrees["ep"]


def embedding_parameters(model: ModelShape) -> int | None:
    """Weights of the token embedding: V h. None: the shape doesn't say."""
    if model.hidden_size is None or model.vocab_size is None:
        return None
    return model.vocab_size * model.hidden_size


def layer_of(model: ModelShape, *, moe: bool) -> Layer | None:
    """One dense layer or one MoE layer. None: there is none such, or the shape doesn't say enough.

    Attention: 2 h (a d) + 2 h (k d); MLP: 3 h f if gated, else 2 h f; MoE: E times that with the width of an expert, a router of h E, shared experts.
    GPT recipe (dropout): biases 3 h + h + f + h, two norms of 2 h each; else two norms of h.
    """
    h, attention = model.hidden_size, _attention(model)
    if h is None or attention is None or (moe and model.experts is None):
        return None
    matrices = 3 if model.gated_mlp else 2
    norms = 2 * (2 if model.dropout else 1) * h
    if moe:
        width = model.expert_ffn_size or model.ffn_size
        if width is None:
            return None
        shared = matrices * h * model.shared_ffn_size
        return Layer(attention + shared, norms + h * (model.experts or 0), (model.experts or 0) * matrices * h * width)
    if model.ffn_size is None:
        return None
    biases = 3 * h + model.ffn_size if model.dropout else 0  # of columns, which are split; those of rows are kept
    kept = norms + (2 * h if model.dropout else 0)
    return Layer(attention + matrices * h * model.ffn_size + biases, kept, 0)


def head_size(model: ModelShape) -> int | None:
    """Size of one attention head: given, else h / a."""
    if model.head_dim is not None or model.hidden_size is None or model.attention_heads is None:
        return model.head_dim
    return model.hidden_size // model.attention_heads


def _attention(model: ModelShape) -> int | None:
    """Weights of the attention of one layer.

    Multi-head latent attention (DeepSeek-V2): queries h to q_lora_rank to a (nope + rope), or straight; keys and values h to
    kv_lora_rank + rope, then kv_lora_rank to a (nope + v); output a v to h; one norm for each latent.
    """
    h, a, d = model.hidden_size, model.attention_heads, head_size(model)
    if h is None or a is None or d is None:
        return None
    if model.kv_lora_rank is None:
        return 2 * h * a * d + 2 * h * (model.kv_heads or a) * d
    nope, rope, v = model.qk_nope_head_dim or d, model.qk_rope_head_dim or 0, model.v_head_dim or d
    rank = model.q_lora_rank
    queries = h * a * (nope + rope) if rank is None else rank * (h + a * (nope + rope) + 1)
    latent = model.kv_lora_rank
    return queries + h * (latent + rope) + latent * (a * (nope + v) + 1) + a * v * h


def _norm(model: ModelShape) -> int:
    return (2 if model.dropout else 1) * (model.hidden_size or 0)


def _mtp_parameters(model: ModelShape, layer: Layer) -> int:
    """One multi-token-prediction layer: a layer, a projection of 2 h to h, three norms; embedding and head are shared (DeepSeek-V3)."""
    h = model.hidden_size or 0
    return layer.total + 2 * h * h + 3 * h
