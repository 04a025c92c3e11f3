"""Floating-point operations of one step of the whole job, by the conventions in use. They differ by up to a third: a figure without its convention says nothing.

Symbols: B sequences per step, s tokens each, L layers, h hidden size, V vocabulary, N parameters.
"""

from collections.abc import Callable

from preflight.model import Job, ModelShape, Recompute
from preflight.plan.matmuls import Work, expert_layers, layer_work, output_work
from preflight.plan.shape import active_parameters

MODEL = (
    "model FLOPs: matrix products and whole attention (of which causal kernels compute half), forward once and backward twice;"
    " 72BsLh^2(1+s/6h+V/12Lh) for GPT"
)
_ONE_GPU = {"tp": 1, "cp": 1, "ep": 1, "etp": 1, "dp": 1, "pp": 1}


def model_flops(job: Job, sequences: float) -> float:
    """Operations without recomputation, of `sequences` sequences, whatever the layout: attention whole (not halved for causality), MoE by active experts.

    For GPT it is 72BsLh^2(1 + s/6h + V/12Lh) (Korthikanti et al. 2022, appendix A). Worked example, 22B (h 6144, L 48, V 51200, s 2048), B = 4:
    1.1436e15, which takes 1.10 s on 8 A100 at 41.7 % of peak.
    """
    return 3 * (_layers(job, sequences) + _forward(_output(job, sequences)))


def hardware_flops(job: Job, sequences: float) -> float:
    """Operations with what is recomputed: all layers forward again ("full"), or the attention's core ("selective", unfused), which the paper counts as the
    whole attention once more, forward and backward: s/3h in place of s/6h.

    Worked example: the same step with selective recomputation 1.2029e15: 43.8 %.
    """
    total = model_flops(job, sequences)
    if job.training.recompute == "full":
        return total + _layers(job, sequences)
    if job.training.recompute == "selective" and job.training.attention == "unfused":
        return total + 3 * _attention(job, sequences)
    return total


def gpt_flops(model: ModelShape, *, sequences: float, seq_length: int, recompute: Recompute) -> float:
    """Korthikanti et al. 2022 for GPT: 72BsLh^2(1 + s/6h + V/12Lh), with s/3h if selective; SC'21's 96BsLh^2(1 + s/6h + V/16Lh) if full."""
    h, vocab, layers = model.hidden_size, model.vocab_size, model.layers
    assert h is not None
    assert vocab is not None
    if recompute == "full":
        return 96 * sequences * seq_length * layers * h**2 * (1 + seq_length / (6 * h) + vocab / (16 * layers * h))
    attention = seq_length / ((3 if recompute == "selective" else 6) * h)
    return 72 * sequences * seq_length * layers * h**2 * (1 + attention + vocab / (12 * layers * h))


def sc21_flops(model: ModelShape, *, sequences: float, seq_length: int) -> float:
    """Narayanan et al., SC'21, which counts full recomputation. BigScience's logs use it too. Worked example: 1008B, B = 3072: 5.14e19."""
    return gpt_flops(model, sequences=sequences, seq_length=seq_length, recompute="full")


def torchtitan_flops(model: ModelShape, *, sequences: float, seq_length: int) -> float:
    """torchtitan: 6 (N - input embedding) + 12 L (heads x head size) s per token. Worked example: 8B, s 8192: 5.79e10 per token, 33.7 % at 5762
    tokens/s on H100.
    """
    h, vocab, heads = model.hidden_size, model.vocab_size, model.attention_heads
    assert h is not None
    assert vocab is not None
    width = h if model.head_dim is None or heads is None else heads * model.head_dim
    return sequences * seq_length * (6 * (model.parameters - vocab * h) + 12 * model.layers * width * seq_length)


def six_n_flops(model: ModelShape, *, sequences: float, seq_length: int) -> float:
    """PaLM (Chowdhery et al. 2022, appendix B): 6 N + 12 L h s per token, N with embeddings."""
    h = model.hidden_size
    assert h is not None
    return (
        sequences
        * seq_length
        * (6 * (active_parameters(model) or model.parameters) + 12 * model.layers * h * seq_length)
    )


def eight_n_flops(model: ModelShape, *, sequences: float, seq_length: int) -> float:
    """BLOOM's rule of thumb with full recomputation: 8 N per token, attention left out."""
    return 8 * model.parameters * sequences * seq_length


CONVENTIONS: dict[str, Callable[..., float]] = {
    "SC'21: 96BsLh^2(1+s/6h+V/16Lh), with full recomputation": sc21_flops,
    "torchtitan: 6(N-embedding)+12Lhs per token": torchtitan_flops,
    "PaLM: 6N+12Lhs per token": six_n_flops,
    "BLOOM: 8N per token, with full recomputation": eight_n_flops,
}


def _forward(work: Work) -> float:
    return sum(matmul.flops for matmul in work.matmuls) + work.attention_flops


def _one(job: Job, sequences: float) -> tuple[Job, float]:
    """The job with one micro-batch of one sequence and balanced experts on one GPU, and how often that is."""
    import msgspec

    training = msgspec.structs.replace(job.training, micro_batch_size=1, capacity_factor=None, expert_skew=1.0)
    return msgspec.structs.replace(job, training=training), sequences


def _layers(job: Job, sequences: float) -> float:
    one, times = _one(job, sequences)
    sparse = expert_layers(job.model)
    dense = job.model.layers - sparse
    total = dense * _forward(layer_work(one, _ONE_GPU)) if dense else 0.0
    if sparse:
        total += sparse * _forward(layer_work(one, _ONE_GPU, with_experts=True))
    return total * times


def _attention(job: Job, sequences: float) -> float:
    one, times = _one(job, sequences)
    with_experts = job.model.layers == expert_layers(job.model)
    return job.model.layers * layer_work(one, _ONE_GPU, with_experts=with_experts).attention_flops * times


def _output(job: Job, sequences: float) -> Work:
    one, times = _one(job, sequences)
    work = output_work(one, _ONE_GPU)
    return work._replace(matmuls=tuple(matmul._replace(times=times) for matmul in work.matmuls))
