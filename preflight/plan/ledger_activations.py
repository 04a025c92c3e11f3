"""Rows of the ledger that carry activations: tensor, pipeline, context and expert parallelism. They grow with the number of micro-batches."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from preflight.model import Job
from preflight.plan.bubble import schedule_of
from preflight.plan.defaults import element_bytes, overlaps_tp, sequence_parallel
from preflight.plan.ledger_row import Cover, Row
from preflight.plan.matmuls import expert_layers, key_value_width, tokens_per_rank


class _Step(NamedTuple):
    """T tokens of one micro-batch on one rank; layers of a stage; micro-batches; bytes of an element; t; hidden size; their product's text."""

    tokens: int
    layers: float
    micro_batches: int
    element: int
    tp: int
    hidden: int
    text: str

    @property
    def message(self) -> int:
        """Activations of one micro-batch, whole: element x T x h."""
        return self.element * self.tokens * self.hidden


def activation_rows(job: Job, degrees: Mapping[str, int], micro_batches: int) -> Iterator[Row]:
    """TP, PP, CP and EP rows. The job gives hidden size, micro-batch size and sequence length."""
    tokens, hidden = tokens_per_rank(job, degrees), job.model.hidden_size
    assert tokens is not None
    assert hidden is not None
    size, length, element = job.training.micro_batch_size, job.training.seq_length, element_bytes(job)
    context = f" / cp {degrees['cp']}" if degrees["cp"] > 1 else ""
    text = f"{size} x {length}{context} tokens x {hidden} x {element} bytes"
    step = _Step(tokens, job.model.layers / degrees["pp"], micro_batches, element, degrees["tp"], hidden, text)
    if degrees["tp"] > 1:
        divided = _divides_experts(job, degrees) and not _routes_first(job, step.tp)
        yield from _tensor_rows(job, step, divided_experts=divided, last_and_first=degrees["pp"] == 1)
    if degrees["pp"] > 1:
        yield from _pipeline_rows(job, degrees, step)
    if degrees["cp"] > 1:
        yield _context_row(job, degrees, step)
    if job.model.experts is not None and job.model.experts_per_token is not None:
        yield from _expert_rows(job, degrees, step)


def _divides_experts(job: Job, degrees: Mapping[str, int]) -> bool:
    """Whether the tp ranks share each expert: without expert parallelism and with etp = tp, experts have no layout of their own."""
    return job.model.experts is not None and degrees["tp"] > 1 and degrees["ep"] == 1 and "etp" not in degrees


def _routes_first(job: Job, tp: int) -> bool:
    """Whether a rank sorts its own tokens by expert before those that share an expert gather them: Megatron's dispatcher, with sequence parallelism."""
    return job.parallel.framework == "megatron" and sequence_parallel(job, tp)


def _tensor_rows(job: Job, step: _Step, *, divided_experts: bool, last_and_first: bool) -> Iterator[Row]:
    """Two all-reduces per layer forward and two backward, after attention and MLP; with sequence parallelism each is a reduce-scatter and an
    all-gather, and Megatron gathers the inputs once more for the weights' gradients. Of a layer with routed experts only the attention half (and
    shared experts) is tensor-parallel, unless tp divides each expert as it does a dense MLP (`divided_experts`).
    """
    sparse = expert_layers(job.model) / job.model.layers
    halves = 2 - sparse * (0 if job.model.shared_ffn_size or divided_experts else 1)
    calls = halves * step.layers * step.micro_batches
    parallel, message, text = sequence_parallel(job, step.tp), step.message, step.text
    cover: Cover = "weight_gradients" if overlaps_tp(job) else ""
    passes = ["forward"] + (["forward again, recomputed"] if job.training.recompute == "full" else [])
    for name in passes:
        if parallel:
            yield Row("tp", step.tp, f"{name}: inputs of attention and MLP", "all_gather", calls, message, text)
            yield Row("tp", step.tp, f"{name}: outputs of attention and MLP", "reduce_scatter", calls, message, text)
        else:
            yield Row("tp", step.tp, f"{name}: outputs of attention and MLP", "all_reduce", calls, message, text)
    if parallel:
        yield Row("tp", step.tp, "backward: gradients of outputs", "all_gather", calls, message, text)
        yield Row("tp", step.tp, "backward: gradients of inputs", "reduce_scatter", calls, message, text, cover)
        if job.parallel.framework == "megatron":
            again: Cover = "input_gradients" if cover else ""
            yield Row("tp", step.tp, "backward: inputs gathered again", "all_gather", calls, message, text, again)
    else:
        yield Row("tp", step.tp, "backward: gradients of inputs", "all_reduce", calls, message, text, cover)
    yield from _vocabulary_rows(job, step, ends=2 if last_and_first else 1)


def _vocabulary_rows(job: Job, step: _Step, *, ends: int) -> Iterator[Row]:
    """Output layer (last stage) and embedding (first), whose vocabulary is divided; the loss needs maximum, sum and target logit in fp32."""
    where = "embedding and output layer" if ends == 2 else "output layer, last stage"
    count = step.micro_batches
    if sequence_parallel(job, step.tp):
        yield Row("tp", step.tp, f"{where}: gather", "all_gather", ends * count, step.message, step.text)
        yield Row("tp", step.tp, f"{where}: scatter", "reduce_scatter", ends * count, step.message, step.text)
    else:
        yield Row("tp", step.tp, where, "all_reduce", ends * count, step.message, step.text)
    yield Row(
        "tp",
        step.tp,
        "vocabulary-parallel loss, last stage",
        "all_reduce",
        3 * count,
        4 * step.tokens,
        f"{step.tokens} tokens x 4 bytes",
    )


def _pipeline_rows(job: Job, degrees: Mapping[str, int], step: _Step) -> Iterator[Row]:
    """An inner stage sends activations on and gradients back, for each chunk; each rank its part of the sequence if that is divided already."""
    chunks = job.parallel.virtual_stages
    if schedule_of(job) in {"dualpipe", "zbv"}:
        chunks = max(chunks, 2)  # both directions, or both halves, pass every stage
    divided = step.tp if sequence_parallel(job, step.tp) or job.parallel.scatter_gather else 1
    text = step.text + (f" / tp {divided}" if divided > 1 else "")
    calls = step.micro_batches * chunks
    # Megatron overlaps sending with compute when interleaving; zero-bubble schedules and DualPipe are built for it
    cover: Cover = "" if schedule_of(job) in {"1f1b", "gpipe"} else "micro_batches"
    for purpose in ("activations to the next stage", "gradients to the stage before"):
        yield Row("pp", degrees["pp"], purpose, "send_recv", calls, step.message / divided, text, cover)


def _context_row(job: Job, degrees: Mapping[str, int], step: _Step) -> Row:
    """Keys and values go once around the ring forward; backward they do again, and their gradients with them."""
    width = key_value_width(job.model)
    assert width is not None
    hops = (3 + (job.training.recompute == "full")) * (degrees["cp"] - 1)
    message = step.element * step.tokens * width / step.tp
    text = f"{step.tokens} tokens x {width} key and value elements x {step.element} bytes" + (
        f" / tp {step.tp}" if step.tp > 1 else ""
    )
    calls = hops * step.layers * step.micro_batches
    return Row("cp", degrees["cp"], "keys and values around the ring", "send_recv", calls, message, text, "attention")


def _expert_rows(job: Job, degrees: Mapping[str, int], step: _Step) -> Iterator[Row]:
    """Dispatch and combine, forward and backward, of tokens x top-k x h; padded by the capacity factor, or as skewed as the plan file says.

    Worked examples, 4096 tokens: DeepSeek-V3 (top-8, h 7168) fp8 over 64 ranks 224 MiB x 63/64 = 220.5 MiB; Mixtral (top-2, h 4096) 64 MiB x 7/8 = 56 MiB.
    """
    model, training = job.model, job.training
    top = model.experts_per_token
    assert top is not None
    divided = step.tp if sequence_parallel(job, step.tp) else 1
    tokens = -(-step.tokens // divided)
    factor = max(training.capacity_factor or 1.0, training.expert_skew)
    elements = tokens * top * step.hidden * factor
    calls = step.layers * expert_layers(model) / model.layers * step.micro_batches
    text = f"{tokens} tokens x top-{top} x {step.hidden}" + (f" x {factor:g} (padding or skew)" if factor > 1 else "")
    again = 1 + (training.recompute == "full")
    dispatch, ep = training.dispatch_bytes or step.element, degrees["ep"]
    copies = top if training.dispatch_once_per_node else 0
    # DualPipe is built to send one micro-batch's tokens while it computes another's (DeepSeek-V3 report, section 3.2.1)
    cover: Cover = "micro_batches" if schedule_of(job) == "dualpipe" else ""
    yield Row(
        "ep",
        ep,
        "tokens to their experts",
        "all_to_all",
        again * calls,
        dispatch * elements,
        f"{text} x {dispatch} bytes",
        cover,
        copies,
    )
    text += f" x {step.element} bytes"
    combine = (1 + again) + 1  # back from the experts, and both again for gradients
    yield Row(
        "ep",
        ep,
        "back from the experts, and both for gradients",
        "all_to_all",
        combine * calls,
        step.element * elements,
        text,
        cover,
        copies,
    )
    axis, etp = "etp", degrees.get("etp", 1)
    if _divides_experts(job, degrees) and _routes_first(job, step.tp):
        axis, etp = "tp", step.tp  # Megatron's default: etp = tp, on the same ranks
    if etp > 1:
        message = step.element * elements * etp
        shared = (1 + again) * calls
        yield Row(axis, etp, "routed tokens gathered", "all_gather", shared, message, f"{text} x etp {etp}")
        yield Row(axis, etp, "experts' outputs summed", "reduce_scatter", shared, message, f"{text} x etp {etp}")
