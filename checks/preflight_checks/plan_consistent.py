"""The framework will accept the layout.

A plan that breaks one of its framework's rules ends at start-up, after the nodes have been waited for. What breaks the arithmetic of ranks is
refused when the plan is read; here stand the rules about layers, micro-batches, the sequence, widths and experts. Sources:
Megatron-Core, transformer_config.py, parallel_state.py, schedules.py, moe_layer.py; torchtitan, parallel_dims.py (seq_len_divisor), with torch's
pipelining/schedules.py; DeepSpeed, runtime/pipe/engine.py, moe/layer.py; DualPipe, dualpipe.py; accelerate, context parallelism.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from preflight.model import Check, Evidence, Finding, Part, Plan, Verdict

NAME = "plan_consistent"


class Fault(NamedTuple):
    """A broken rule, and the smallest change that keeps it. WARN: the framework may accept it after all, depending on what the plan doesn't say."""

    subject: str
    observed: str
    expected: str
    remedy: str
    verdict: Verdict = Verdict.FAIL


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding per broken rule, one PASS if none is broken."""
    plan = evidence.plan
    if plan is None:
        return
    rules = (_layer_faults, _schedule_faults, _sequence_faults, _width_faults, _expert_faults, _framework_faults)
    faults = [fault for rule in rules for fault in rule(plan)]
    for fault in faults:
        yield Finding(
            check=NAME,
            subject=fault.subject,
            verdict=fault.verdict,
            observed=fault.observed,
            expected=fault.expected,
            remedy=fault.remedy,
            blames=Part(kind="plan", name=fault.subject),
        )
    if not faults:
        shown = " x ".join(f"{axis} {plan.degrees[axis]}" for axis in ("tp", "cp", "dp", "pp"))
        experts = " x ".join(f"{axis} {plan.degrees[axis]}" for axis in ("etp", "ep", "edp") if "etp" in plan.degrees)
        yield Finding(
            check=NAME,
            subject="plan",
            verdict=Verdict.PASS,
            observed=f"{shown} = {plan.world_size} ranks" + (f", experts {experts} in each stage" if experts else ""),
            expected="every divisibility rule of the framework holds",
        )


def _layer_faults(plan: Plan) -> Iterator[Fault]:
    """Rules about layers and stages."""
    framework, pp = plan.job.parallel.framework, plan.degrees["pp"]
    chunks, layers = plan.job.parallel.virtual_stages, plan.job.model.layers
    pieces = pp * chunks
    shown = f"pp {pp} x virtual_stages {chunks} = {pieces}"
    if chunks > 1 and (pp == 1 or framework == "deepspeed"):
        why = "without a pipeline" if pp == 1 else "with DeepSpeed, whose pipeline has no interleaved schedule"
        yield Fault(
            "parallel.virtual_stages",
            f"{chunks} virtual stages {why}",
            "pp above 1" if pp == 1 else "1",
            "set virtual_stages = 1, or raise pp" if pp == 1 else "set virtual_stages = 1",
        )
    elif layers < pieces:
        yield Fault(
            "model.layers",
            f"{layers} layers for {shown} pieces",
            "at least one layer each",
            f"lower pp or virtual_stages until their product is at most {layers}",
        )
    elif layers % pieces and framework == "megatron":
        # an explicit pipeline layout may deal layers unevenly, so this alone doesn't stop the job; the others deal unevenly by themselves
        yield Fault(
            "model.layers",
            f"{layers} layers do not divide by {shown}",
            "as many layers in each piece",
            "change pp or virtual_stages, or give the framework an explicit pipeline layout",
            Verdict.WARN,
        )


def _schedule_faults(plan: Plan) -> Iterator[Fault]:
    """Rules about micro-batches and stages of a schedule."""
    parallel, pp, micro_batches = plan.job.parallel, plan.degrees["pp"], plan.estimate.micro_batches
    if parallel.schedule == "dualpipe" and pp % 2:
        yield Fault(
            "parallel.pp",
            f"{pp} stages with DualPipe, which sends micro-batches from both ends",
            "an even number of stages",
            f"use pp = {pp + 1} or another schedule",
        )
    if pp > 1:
        yield from _chunk_faults(plan)
    if pp == 1 or micro_batches is None:
        return
    if parallel.schedule == "dualpipe" and (micro_batches % 2 or micro_batches < 2 * pp):
        yield Fault(
            "training.micro_batches",
            f"{micro_batches} micro-batches with DualPipe on {pp} stages",
            f"an even number of at least 2 x pp = {2 * pp}",
            f"use {max(2 * pp, micro_batches + micro_batches % 2)} micro-batches, or another schedule",
        )
    if parallel.virtual_stages == 1 or parallel.schedule not in {None, "interleaved"}:
        return
    if parallel.framework == "megatron" and micro_batches % pp:
        yield Fault(
            "training.micro_batches",
            f"{micro_batches} micro-batches with an interleaved schedule of {pp} stages",
            f"a multiple of {pp}",
            f"use {-(-micro_batches // pp) * pp} micro-batches, or set virtual_stages = 1",
        )
    rounds = max(1, micro_batches // pp)
    if parallel.framework == "torchtitan" and micro_batches % rounds:
        yield Fault(
            "training.micro_batches",
            f"{micro_batches} micro-batches with an interleaved schedule of {pp} stages, in {rounds} rounds",
            f"a multiple of the number of rounds, {rounds}",
            f"use {-(-micro_batches // pp) * pp} micro-batches, or set virtual_stages = 1",
        )


def _chunk_faults(plan: Plan) -> Iterator[Fault]:
    """A schedule that is named has as many stages on a rank as it has, whatever virtual_stages says. DualPipe and ZBV have two of their own."""
    schedule, chunks = plan.job.parallel.schedule, plan.job.parallel.virtual_stages
    if chunks > 1 and schedule in {"gpipe", "1f1b", "zb-h1", "zb-h2"}:
        yield Fault(
            "parallel.schedule",
            f"{schedule} with {chunks} virtual stages",
            f"one stage per rank, since {schedule} has no more",
            'set virtual_stages = 1, or schedule = "interleaved"',
        )
    if chunks == 1 and schedule == "interleaved":
        yield Fault(
            "parallel.schedule",
            "an interleaved schedule with one virtual stage",
            "two or more stages per rank",
            "set virtual_stages = 2 or more, or leave schedule out",
        )


def _sequence_faults(plan: Plan) -> Iterator[Fault]:
    """Rules about the sequence: context parallelism cuts it into 2 x cp pieces to even out causal attention, sequence parallelism into tp."""
    parallel, tokens = plan.job.parallel, plan.job.training.seq_length
    tp, cp = plan.degrees["tp"], plan.degrees["cp"]
    if tokens is None:
        return
    pieces, shown = (2 * cp, "2 x cp") if cp > 1 else (1, "")
    if parallel.framework == "torchtitan":
        pieces, shown = tp * 2 * cp, "tp x 2 x cp"
    # Megatron wants both: a length that keeps one rule alone would be refused by the other
    both = math.lcm(pieces, tp * cp) if parallel.framework == "megatron" and parallel.sequence_parallel else pieces
    if tokens % pieces:
        yield Fault(
            "training.seq_length",
            f"{tokens} tokens with " + (f"tp {tp} and cp {cp}" if parallel.framework == "torchtitan" else f"cp {cp}"),
            f"a multiple of {shown} = {pieces}",
            f"use a sequence of {-(-tokens // both) * both} tokens, or another cp",
        )
    elif parallel.framework == "megatron" and parallel.sequence_parallel and tokens % (tp * cp):
        yield Fault(
            "training.seq_length",
            f"{tokens} tokens with sequence parallelism over tp {tp} and cp {cp}",
            f"a multiple of tp x cp = {tp * cp}",
            f"use a sequence of {-(-tokens // both) * both} tokens, or another tp",
        )


def _width_faults(plan: Plan) -> Iterator[Fault]:
    """Rules about what tensor parallelism cuts."""
    model, tp = plan.job.model, plan.degrees["tp"]
    widths = (
        ("model.hidden_size", "hidden size", model.hidden_size),
        ("model.ffn_size", "ffn size", model.ffn_size),
        ("model.attention_heads", "attention heads:", model.attention_heads),
    )
    for subject, what, width in widths:
        if width is not None and width % tp:
            shown = f"{what} {width} with tp {tp}"
            yield Fault(subject, shown, f"a multiple of tp = {tp}", f"choose a tp that divides {width}")
    heads = model.kv_heads
    if heads is not None and heads % tp and (tp % heads or plan.job.parallel.framework != "megatron"):
        megatron = " or a divisor" if plan.job.parallel.framework == "megatron" else ""
        yield Fault(
            "model.kv_heads",
            f"{heads} key-value heads with tp {tp}",
            f"a multiple{megatron} of tp = {tp}",
            f"choose a tp that divides {heads}",
        )


def _expert_faults(plan: Plan) -> Iterator[Fault]:
    """Rules about experts."""
    model, ep, etp = plan.job.model, plan.degrees["ep"], plan.degrees.get("etp", plan.degrees["tp"])
    if model.experts is None and ep > 1 and model.ffn_size is not None and model.attention_heads is not None:
        yield Fault(
            "model.experts",
            f"ep {ep}, but the shape in the plan file is of a model without experts",
            "experts: Megatron asserts that num_experts is given, and without them memory and traffic are those of a dense model",
            "write experts, experts_per_token and expert_ffn_size under [model], or set ep = 1",
            Verdict.WARN,
        )
    if model.experts is not None and model.experts % ep:
        yield Fault(
            "model.experts",
            f"{model.experts} experts with ep {ep}",
            f"a multiple of ep = {ep}",
            f"choose an ep that divides {model.experts}",
        )
    if model.experts is not None and model.expert_ffn_size is not None and model.expert_ffn_size % etp:
        yield Fault(
            "model.expert_ffn_size",
            f"expert ffn size {model.expert_ffn_size} with etp {etp}",
            f"a multiple of etp = {etp}",
            f"choose an etp that divides {model.expert_ffn_size}",
        )


def _framework_faults(plan: Plan) -> Iterator[Fault]:
    """Rules that only one framework has, and defaults that we can't know."""
    parallel, degrees = plan.job.parallel, plan.degrees
    tp, pp, order = degrees["tp"], degrees["pp"], parallel.order or plan.order
    experts = degrees["ep"] > 1 or plan.job.model.experts is not None
    if parallel.framework == "megatron":
        if tp > 1 and experts and not parallel.sequence_parallel:
            said = (
                "is off" if parallel.sequence_parallel is False else "is not said to be on, and Megatron leaves it off"
            )
            yield Fault(
                "parallel.sequence_parallel",
                f"tp {tp} with experts, and sequence parallelism {said}",
                "sequence parallelism, which Megatron's MoE layer wants for training with tp above 1",
                "set sequence_parallel = true (--sequence-parallel)",
                Verdict.FAIL if parallel.sequence_parallel is False else Verdict.WARN,
            )
        if pp > 1 and order[-1] != "pp" and "etp" not in degrees and degrees["cp"] > 1:
            replicas = degrees["dp"] * degrees["cp"]
            yield Fault(
                "parallel.order",
                f"{'-'.join(order)} does not end in pp, and with cp {degrees['cp']} Megatron-Core counts {replicas} expert replicas (also"
                f" without experts) beside dp {degrees['dp']}",
                "an order that ends in pp, or as many expert replicas as dp",
                "let pp be the outermost axis of the order, or set cp = 1",
                Verdict.WARN if order[-1] == "ep" else Verdict.FAIL,  # nanotron's order, where the rule doesn't hold
            )
    if parallel.optimizer_instances > 1 and not parallel.zero_stage:
        yield Fault(
            "parallel.optimizer_instances",
            f"{parallel.optimizer_instances} instances of the distributed optimizer, which is not in use",
            "the distributed optimizer",
            "set zero_stage = 1 (--use-distributed-optimizer), or leave optimizer_instances out",
            Verdict.WARN,
        )
    if parallel.framework == "deepspeed" and pp > 1 and (parallel.zero_stage or 0) > 1:
        yield Fault(
            "parallel.zero_stage",
            f"ZeRO-{parallel.zero_stage} with pp {pp}",
            "ZeRO stage 0 or 1: ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism",
            "set zero_stage = 1, or pp = 1",
        )
    if parallel.framework == "deepspeed" and degrees["ep"] > 1 and tp > 1 and parallel.etp is parallel.auto_ep is None:
        yield Fault(
            "parallel.etp",
            f"not given with tp {tp}: laid out as with expert tensor parallelism, etp {tp}",
            "etp or auto_ep given, since DeepSpeed's MoE layer and AutoEP put experts elsewhere",
            f"write etp = {tp} (enable_expert_tensor_parallelism), auto_ep = true, or auto_ep = false",
            Verdict.WARN,
        )
    if parallel.framework == "torchtitan" and degrees.get("etp", 1) > 1:
        yield Fault(
            "parallel.etp",
            f"{degrees['etp']} with torchtitan, which no longer has expert tensor parallelism",
            "etp 1, unless an older torchtitan is used",
            "leave etp out",
            Verdict.WARN,
        )


CHECK = Check(
    name=NAME,
    claim="The framework will accept the layout.",
    why="A plan that breaks a rule of its framework ends at start-up, after the nodes have been waited for.",
    source="Megatron-Core, torchtitan, DeepSpeed, DualPipe and accelerate: the files are named in the check's header",
    remedy="change the degree or size that the finding names",
    uses=("plan",),
    judge=judge,
)
