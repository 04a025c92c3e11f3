"""From the shape of a model to its number of parameters.

Symbols: h hidden size, f MLP width, a attention heads, k key-value heads, V vocabulary, L layers.
"""

from preflight.model import ModelShape


def count_parameters(model: ModelShape) -> int | None:
    """Weights of the whole model; None where the shape doesn't say enough.

    Attention of one layer: 2 h (a d) + 2 h (k d) with head size d; MLP: 3 h f if gated, else 2 h f; two norms of h (2 h each with biases).
    Worked example, Llama 3 70B (h 8192, f 28672, a 64, k 8, V 128256, L 80, untied): 70.55e9.
    """
    h, f, heads, vocab = model.hidden_size, model.ffn_size, model.attention_heads, model.vocab_size
    if h is None or f is None or heads is None or vocab is None:
        return None
    d = model.head_dim or h // heads
    attention = 2 * h * heads * d + 2 * h * (model.kv_heads or heads) * d
    mlp = (3 if model.gated_mlp else 2) * h * f
    embeddings = vocab * h * (1 if model.tied_embeddings else 2) + model.positions * h
    return model.layers * (attention + mlp + 2 * h) + embeddings + h
