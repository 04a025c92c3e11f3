"""Jobs for tests of memory: a model by name and what the arguments say."""

from typing import Any

import msgspec

from preflight.model import Job, ModelShape
from preflight.plan.memory_setup import Setup, resolve
from preflight.plan.shape import count_parameters
from tests.builders import make_job
from tests.plan.shapes import SHAPES


def make_degrees(**given: int) -> dict[str, int]:
    """Degrees of a layout, 1 where nothing is said."""
    return {"tp": 1, "cp": 1, "ep": 1, "dp": 1, "pp": 1, **given}


def make_memory_job(shape: str | dict[str, Any], *, training: dict[str, Any] | None = None, **parallel: Any) -> Job:
    """One micro-batch of 4096 tokens at a time, 32 micro-batches, unless `training` says otherwise."""
    facts = SHAPES[shape] if isinstance(shape, str) else shape
    model = ModelShape(**{"parameters": 1, **facts})
    model = msgspec.structs.replace(model, parameters=count_parameters(model) or 1)
    size = {key: (training or {}).pop(key) for key in ("micro_batch_size", "seq_length") if key in (training or {})}
    return msgspec.structs.replace(make_job(training=training, **size, **(parallel or {"tp": 1})), model=model)


def make_setup(job: Job, degrees: dict[str, int], micro_batches: int = 32) -> Setup:
    """The resolved setup, which exists."""
    setup = resolve(job, degrees, micro_batches)
    assert setup is not None
    return setup


def gpt(h: int, a: int, layers: int) -> dict[str, Any]:
    """The GPT recipe without embeddings to speak of: 12 h^2 per layer, as in Korthikanti et al."""
    return {
        "layers": layers,
        "hidden_size": h,
        "ffn_size": 4 * h,
        "attention_heads": a,
        "vocab_size": 1,
        "gated_mlp": False,
        "dropout": True,
        "tied_embeddings": True,
    }
