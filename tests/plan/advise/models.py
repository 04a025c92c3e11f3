"""Published models as jobs without degrees."""

from typing import Any

import msgspec

from preflight.model import Job
from preflight.plan.shape import count_parameters
from tests.builders import make_job
from tests.plan.shapes import SHAPES

LLAMA_70B = {
    "layers": 80,
    "hidden_size": 8192,
    "ffn_size": 28672,
    "attention_heads": 64,
    "kv_heads": 8,
    "vocab_size": 128256,
}
DEEPSEEK_V3 = SHAPES["deepseek-v3"]


def gpt(layers: int, hidden_size: int, heads: int) -> dict[str, Any]:
    """A GPT of Narayanan et al. (SC'21): vocabulary 51,200, sequences of 2048."""
    return {
        "layers": layers,
        "hidden_size": hidden_size,
        "ffn_size": 4 * hidden_size,
        "attention_heads": heads,
        "vocab_size": 51200,
        "positions": 2048,
        "gated_mlp": False,
        "dropout": True,
        "tied_embeddings": True,
    }


def job_for(model: dict[str, Any], *, batch: int | None, **job: Any) -> Job:
    """The model on a cluster, degrees open; parameters counted from its shape."""
    facts = {"micro_batches": None, "global_batch_size": batch, "tp": 1} | job
    layers, hidden_size = model["layers"], model["hidden_size"]
    rest = {key: value for key, value in model.items() if key not in {"layers", "hidden_size"}}
    made = make_job(parameters=1, layers=layers, hidden_size=hidden_size, model=rest, **facts)
    counted = count_parameters(made.model)
    assert counted is not None
    return msgspec.structs.replace(made, model=msgspec.structs.replace(made.model, parameters=counted))
