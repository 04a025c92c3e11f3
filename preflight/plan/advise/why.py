"""Why one layout comes before another, in words."""

from preflight.model.units import show_bytes
from preflight.plan.advise.score import Score

_TERMS = {
    "compute": "smaller matrices per GPU, so slower arithmetic",
    "recompute": "activations computed again",
    "bubble": "the pipeline's bubble",
    "optimizer": "the optimizer's step",
    "tp": "communication of tensor parallelism",
    "cp": "communication of context parallelism",
    "ep": "the experts' dispatch",
    "dp": "the gradients' reduction",
    "dp_cp": "the gradients' reduction",
    "dp_replicate": "the gradients' reduction over replicas",
    "edp": "the reduction of the experts' gradients",
    "fsdp": "gathering weights and reducing gradients",
    "efsdp": "gathering the experts' weights and reducing their gradients",
    "embedding": "the gradients of tied embeddings",
    "pp": "transfers between stages",
}


def strength(score: Score) -> str:
    """What speaks for a layout: its memory, its bubble, its share of arithmetic."""
    parts = []
    if score.fits is False:
        parts.append(_too_large(score))
    elif score.capacity is not None and score.fits:
        spare = show_bytes(score.capacity - score.memory_bytes)
        parts.append(
            f"fits with {spare} to spare"
            if score.memory
            else f"its state leaves {spare} for activations, which are not estimated"
        )
    parts.append(f"{score.idle_share:.1%} idle" if score.degrees["pp"] > 1 else "no pipeline bubble")
    if score.step is not None:
        exposed = {name: value for name, value in score.step.terms.items() if name not in {"compute", "recompute"}}
        if exposed and max(exposed.values()) > 0:
            name = max(exposed, key=lambda term: exposed[term])
            parts.append(
                f"most lost to {_TERMS.get(name, name)} ({exposed[name] / score.step.total_s:.1%} of the step)"
            )
    return ", ".join(parts)


def why_behind(before: Score, score: Score) -> str:
    """Why a layout comes after the one before it: memory, else the term of the step that grew most per token, else what it has more of."""
    if score.fits is False:
        return _too_large(score)
    if score.tight and not before.tight:
        assert score.capacity is not None
        assert score.memory is not None
        return (
            f"memory: {show_bytes(score.memory_bytes)} of {show_bytes(score.capacity)} is within the error of the estimate"
            f" ({score.memory.error_share:.0%})"
        )
    if score.step is not None and before.step is not None and score.tokens_per_s and before.tokens_per_s:
        return _slower(before, score)
    return _coarser(before, score)


def _too_large(score: Score) -> str:
    assert score.capacity is not None
    largest = ""
    if score.memory is not None:
        line = max(score.memory.lines, key=lambda line: line.size_bytes)
        largest = f", {show_bytes(line.size_bytes)} of it {line.part}"
    return f"memory: needs {show_bytes(score.memory_bytes)} of {show_bytes(score.capacity)}{largest}"


def _slower(before: Score, score: Score) -> str:
    """The term whose seconds per token grew most."""
    assert before.step is not None
    assert score.step is not None
    slower = 1 - (score.tokens_per_s or 0) / (before.tokens_per_s or 1)
    if slower < 0.0005:
        return "as fast, with more pieces"
    # per sample, since global batches may differ
    old = {name: value / before.global_batch_size for name, value in before.step.terms.items()}
    new = {name: value / score.global_batch_size for name, value in score.step.terms.items()}
    name = max(new, key=lambda term: new[term] - old.get(term, 0.0))
    share, was = (
        score.step.terms[name] / score.step.total_s,
        before.step.terms.get(name, 0.0) / before.step.total_s,
    )
    return f"{slower:.1%} slower: {_TERMS.get(name, name)} ({share:.1%} of the step, before {was:.1%})"


def _coarser(before: Score, score: Score) -> str:
    """Without step times: what it has more of."""
    if score.idle_share > before.idle_share:
        return f"bubble: {score.idle_share:.1%} idle, before {before.idle_share:.1%}"
    for axis, cost in (
        ("pp", "stages"),
        ("tp", "ranks that talk in every layer"),
        ("cp", "parts of a sequence"),
    ):
        if score.degrees[axis] > before.degrees[axis]:
            return f"{axis} {score.degrees[axis]} in place of {before.degrees[axis]}: more {cost} than needed"
    if score.degrees["ep"] != before.degrees["ep"]:
        return f"ep {score.degrees['ep']} in place of {before.degrees['ep']}"
    return f"memory: {show_bytes(score.memory_bytes)}, before {show_bytes(before.memory_bytes)}"
