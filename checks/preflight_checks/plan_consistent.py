"""The framework will accept the layout.

A plan that breaks one of its framework's divisibility rules ends at start-up, after the nodes have been waited for. Source of the rules:
Megatron-Core, arguments and parallel_state (interleaving needs pp > 1 and micro-batches in multiples of pp; context parallelism cuts
the sequence into 2 x cp pieces; tensor parallelism cuts the hidden size into tp; layers are dealt evenly to stages unless a pipeline layout says otherwise).
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Part, Plan, Verdict

NAME = "plan_consistent"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding per broken rule, one PASS if none is broken."""
    if evidence.plan is None:
        return
    faults = [*_layer_faults(evidence.plan), *_size_faults(evidence.plan)]
    for subject, verdict, observed, expected, remedy in faults:
        yield Finding(
            check=NAME,
            subject=subject,
            verdict=verdict,
            observed=observed,
            expected=expected,
            remedy=remedy,
            blames=Part(kind="plan", name=subject),
        )
    if not faults:
        shown = " x ".join(f"{axis} {evidence.plan.degrees[axis]}" for axis in ("tp", "cp", "dp", "pp"))
        yield Finding(
            check=NAME,
            subject="plan",
            verdict=Verdict.PASS,
            observed=f"{shown} = {evidence.plan.world_size} ranks",
            expected="every divisibility rule of the framework holds",
        )


Fault = tuple[str, Verdict, str, str, str]  # subject, verdict, observed, expected, remedy


def _layer_faults(plan: Plan) -> Iterator[Fault]:
    """Rules about layers and stages."""
    pp, chunks, layers = plan.degrees["pp"], plan.job.parallel.virtual_stages, plan.job.model.layers
    pieces = pp * chunks
    shown = f"pp {pp} x virtual_stages {chunks} = {pieces}"
    if chunks > 1 and pp == 1:
        yield (
            "parallel.virtual_stages",
            Verdict.FAIL,
            f"{chunks} virtual stages without a pipeline",
            "pp above 1",
            "set virtual_stages = 1, or raise pp",
        )
    elif layers < pieces:
        yield (
            "model.layers",
            Verdict.FAIL,
            f"{layers} layers for {shown} pieces",
            "at least one layer each",
            f"lower pp or virtual_stages until their product is at most {layers}",
        )
    elif layers % pieces:
        # an explicit pipeline layout may deal layers unevenly, so this alone doesn't stop the job
        yield (
            "model.layers",
            Verdict.WARN,
            f"{layers} layers do not divide by {shown}",
            "as many layers in each piece",
            "change pp or virtual_stages, or give the framework an explicit pipeline layout",
        )


def _size_faults(plan: Plan) -> Iterator[Fault]:
    """Rules about micro-batches, the sequence and the hidden size."""
    job, degrees = plan.job, plan.degrees
    tp, cp, pp, chunks = degrees["tp"], degrees["cp"], degrees["pp"], job.parallel.virtual_stages
    micro_batches = plan.estimate.micro_batches
    if pp > 1 and chunks > 1 and micro_batches is not None and micro_batches % pp:
        yield (
            "training.micro_batches",
            Verdict.FAIL,
            f"{micro_batches} micro-batches with an interleaved schedule of {pp} stages",
            f"a multiple of {pp}",
            f"use {-(-micro_batches // pp) * pp} micro-batches, or set virtual_stages = 1",
        )
    if cp > 1 and job.training.seq_length is not None and job.training.seq_length % (2 * cp):
        yield (
            "training.seq_length",
            Verdict.FAIL,
            f"{job.training.seq_length} tokens with cp {cp}",
            f"a multiple of 2 x cp = {2 * cp}",
            f"use a sequence of {-(-job.training.seq_length // (2 * cp)) * 2 * cp} tokens, or another cp",
        )
    if job.model.hidden_size is not None and job.model.hidden_size % tp:
        yield (
            "model.hidden_size",
            Verdict.FAIL,
            f"hidden size {job.model.hidden_size} with tp {tp}",
            f"a multiple of tp = {tp}",
            f"choose a tp that divides {job.model.hidden_size}",
        )


CHECK = Check(
    name=NAME,
    claim="The framework will accept the layout.",
    why="A plan that breaks a divisibility rule ends at start-up, after the nodes have been waited for.",
    uses=("plan",),
    judge=judge,
)
