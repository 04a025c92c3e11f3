"""The speed-up from one plan to another, and which part of the step eats the difference to the ideal one."""

from preflight.errors import ConfigError
from preflight.model import Comparison, Plan, StepTime, TermChange
from preflight.model.units import show_bytes

_NAMES = {
    "compute": "compute",
    "recompute": "recomputation",
    "bubble": "the pipeline bubble",
    "optimizer": "the optimizer",
}


def compare(before: Plan, after: Plan) -> Comparison:
    """From `before` to `after`, by tokens per second. Raises ConfigError, naming the plan, where one has no estimate of its step.

    A step that spends the same GPU-seconds on each token scales ideally. Each term's GPU-seconds per thousand tokens are compared; the one that grows
    most is named. Worked example: 8 GPUs with tp 8, then 64 with tp 8, pp 4, dp 2 placed cyclically: ideal 8, the difference is tp communication.
    """
    first, second = _step(before), _step(after)
    rate, other = _tokens(before) / first.total_s, _tokens(after) / second.total_s
    ideal = after.world_size / before.world_size * second.peak_flops_per_gpu / first.peak_flops_per_gpu
    names = dict.fromkeys((*first.terms, *second.terms))
    terms = sorted((_change(name, before, after) for name in names), key=lambda change: -change.added)
    eaten = other / rate < ideal and terms[0].added > 0
    culprit = terms[0].term if eaten else None
    return Comparison(
        tokens_per_s_before=rate,
        tokens_per_s_after=other,
        gpus_before=before.world_size,
        gpus_after=after.world_size,
        speedup=other / rate,
        ideal=ideal,
        terms=tuple(terms),
        culprit=culprit,
        text=_sentences(before, after, other / rate, ideal, terms if eaten else []),
    )


def name_of(term: str) -> str:
    """A term of the step for a sentence: "tp" is "communication along tp"."""
    return _NAMES.get(term, f"communication along {term}")


def _step(plan: Plan) -> StepTime:
    if plan.estimate.step_time is None:
        raise ConfigError(
            plan.job.source,
            "doesn't say enough to predict the time of a step",
            remedy="it needs the model's shape (hidden_size, ffn_size, attention_heads, vocab_size), the batch, seq_length and a known gpu",
        )
    return plan.estimate.step_time


def _tokens(plan: Plan) -> float:
    """Tokens of one step."""
    training, micro_batches = plan.job.training, plan.estimate.micro_batches
    assert micro_batches is not None  # without it there is no step time
    return micro_batches * plan.degrees["dp"] * (training.micro_batch_size or 0) * (training.seq_length or 0)


def _change(term: str, before: Plan, after: Plan) -> TermChange:
    def cost(plan: Plan) -> float:
        return 1000 * _step(plan).terms.get(term, 0.0) * plan.world_size / _tokens(plan)

    return TermChange(term=term, before=cost(before), after=cost(after))


def _sentences(before: Plan, after: Plan, speedup: float, ideal: float, terms: list[TermChange]) -> tuple[str, ...]:
    gpus = f"from {before.world_size} to {after.world_size} GPUs"
    said = [f"{gpus}: {speedup:.2f} times the tokens per second, {ideal:.2f} would be ideal ({speedup / ideal:.0%})"]
    if before.job.model != after.job.model:
        said.append("the two plans train different models, so that tokens per second mean different work")
    if not terms:
        return (*said, *_too_large(before, after))
    grown = sum(change.added for change in terms if change.added > 0)
    most = terms[0]
    share = "" if grown <= 0 else f", {most.added / grown:.0%} of what is lost"
    said.append(
        f"{name_of(most.term)} eats most of the difference: {most.before:.3g} GPU-seconds per thousand tokens before,"
        f" {most.after:.3g} after{share}{_where(after, most.term)}"
    )
    return (*said, *_too_large(before, after))


def _too_large(*plans: Plan) -> tuple[str, ...]:
    """A sentence for each plan that its GPUs could not hold: its step time is then that of larger ones."""
    said: dict[str, None] = {}
    for plan in plans:
        memory, capacity = plan.estimate.memory, plan.estimate.gpu_memory_bytes
        if memory is not None and capacity is not None and memory.total_bytes > capacity:
            sizes = f"{show_bytes(memory.total_bytes)} of the {show_bytes(capacity)} of a GPU"
            said[f"{plan.job.source} could not run on {plan.world_size} GPUs as it is: it takes {sizes}"] = None
    return tuple(said)


def _where(plan: Plan, term: str) -> str:
    """For an axis whose groups leave their NVLink domain: how many nodes they touch."""
    footprint = plan.footprints.get(term)
    if footprint is None or max(footprint.domains, default=1) <= 1:
        return ""
    return f"; its groups span up to {max(footprint.nodes)} nodes and {max(footprint.domains)} NVLink domains"
