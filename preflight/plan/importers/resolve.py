"""What follows from several facts together, as the framework itself would work it out; and contradictions that only show together."""

import math
import re

from preflight.errors import ConfigError
from preflight.plan.importers.facts import Fact, Facts
from preflight.plan.values import show

_TRIVIAL = {
    "parallel.cp": 1,
    "parallel.ep": 1,
    "parallel.optimizer_instances": 1,
    "parallel.virtual_stages": 1,
    "model.positions": 0,
    "model.mtp_layers": 0,
}


def resolve(facts: Facts) -> None:
    """Replaces every "said.*" by what it means. Raises ConfigError where numbers contradict one another."""
    _world(facts)
    _virtual_stages(facts)
    _hybrid(facts)
    _zero_stage(facts)
    _local_batch(facts)
    _batch(facts)
    framework = facts.get("parallel.framework")
    if framework == "deepspeed" and "parallel.tp" not in facts.values:
        facts.note("tensor and pipeline parallel degrees of a DeepSpeed job stand in its program: they are taken as 1")
    if framework in {"deepspeed", "fsdp"} and "training.recompute" not in facts.values:
        facts.note(
            'recomputation of activations stands in the program: none is reckoned with; write recompute = "full" under [training] if there is'
        )
    for key, trivial in _TRIVIAL.items():
        fact = facts.values.get(key)
        if fact and fact.value == trivial and (fact.default or key in {"model.mtp_layers", "parallel.virtual_stages"}):
            del facts.values[key]


def _fact(facts: Facts, key: str) -> Fact | None:
    return facts.values.get(key)


def _world(facts: Facts) -> None:
    """World size against nodes x GPUs per node, and whichever of the three is missing."""
    world, nodes, gpus = (_fact(facts, key) for key in ("said.world_size", "hardware.nodes", "hardware.gpus_per_node"))
    for fact in (world, nodes, gpus):
        if fact and fact.value < 1:
            raise ConfigError(fact.origin, f"{show(fact.value)} is less than 1", remedy="correct it there")
    if world and nodes and gpus and nodes.value * gpus.value != world.value:
        if not (nodes.default or gpus.default):
            raise ConfigError(
                world.origin,
                f"says {world.value} ranks, but {nodes.value} nodes ({nodes.origin}) x {gpus.value} per node ({gpus.origin}) = {nodes.value * gpus.value}",
                key="hardware",
                remedy="give files of one and the same job",
            )
        key = "hardware.nodes" if nodes.default else "hardware.gpus_per_node"
        facts.note(f"{key}: the default {facts.get(key)} gives way to {world.origin}")
        del facts.values[key]
        nodes, gpus = _fact(facts, "hardware.nodes"), _fact(facts, "hardware.gpus_per_node")
    if world and bool(nodes) != bool(gpus):
        given = nodes or gpus
        key = "hardware.gpus_per_node" if nodes else "hardware.nodes"
        if given and world.value % given.value == 0:
            facts.say(key, world.value // given.value, f"{world.origin}, over {given.value} ({given.origin})")
        elif given:
            raise ConfigError(
                world.origin, f"says {world.value} ranks, which {given.value} ({given.origin}) does not divide", key=key
            )
    elif world and not nodes:
        facts.note(
            f"{world.origin}: nodes and GPUs per node are not said: give the job script too, or [hardware] by hand"
        )
    _degrees(facts)


def _degrees(facts: Facts) -> None:
    """A written dp against the world size."""
    world, dp = world_size(facts), _fact(facts, "parallel.dp")
    inner = _inner(facts)
    if (
        world
        and dp
        and not dp.default
        and inner
        and facts.get("parallel.framework") == "megatron"
        and inner * dp.value != world
    ):
        shown = " x ".join(f"{axis} {facts.get(f'parallel.{axis}') or 1}" for axis in ("tp", "cp", "pp"))
        origin = _fact(facts, "said.world_size") or _fact(facts, "hardware.nodes")
        raise ConfigError(
            dp.origin,
            f"{shown} x dp {dp.value} = {inner * dp.value} ranks, but there are {world} ({origin.origin if origin else ''})",
            key="parallel.dp",
            remedy="give files of one and the same job",
        )


def world_size(facts: Facts) -> int | None:
    """Ranks of the job, None where that can't be told."""
    nodes, gpus = facts.get("hardware.nodes"), facts.get("hardware.gpus_per_node")
    world: int | None = nodes * gpus if nodes and gpus else facts.get("said.world_size")
    return world


def _inner(facts: Facts) -> int:
    return math.prod(int(facts.get(f"parallel.{axis}") or 1) for axis in ("tp", "cp", "pp"))


def data_parallel(facts: Facts) -> int | None:
    """The data-parallel degree, None where it can't be told."""
    if facts.get("parallel.dp"):
        return int(facts.get("parallel.dp"))
    if facts.get("parallel.dp_shard"):
        return int(facts.get("parallel.dp_shard")) * (facts.get("parallel.dp_replicate") or 1)
    world, inner = world_size(facts), _inner(facts)
    return world // inner if world and inner > 0 and world % inner == 0 else None


def _virtual_stages(facts: Facts) -> None:
    """v from layers per virtual stage n: v = layers / (pp n); 80 layers, pp 4, n 5: v = 4. Megatron-LM's flag is n, not v."""
    per_stage, given, layout = (
        _fact(facts, f"said.{name}") for name in ("layers_per_virtual_stage", "virtual_stages", "layout")
    )
    layers, pp = facts.get("model.layers"), facts.get("parallel.pp") or 1
    uneven = _fact(facts, "said.uneven_stages")
    if given:
        facts.say("parallel.virtual_stages", given.value, given.origin)
    if per_stage and not uneven and layers and per_stage.value > 0 and pp > 0:
        if layers % (pp * per_stage.value):
            raise ConfigError(
                per_stage.origin,
                f"{layers} layers do not divide by pp {pp} x {per_stage.value} layers per virtual stage",
                key="parallel.virtual_stages",
                remedy="Megatron-LM refuses that: choose another number of layers per stage, or give the file that holds the right one",
            )
        facts.say(
            "parallel.virtual_stages",
            layers // (pp * per_stage.value),
            f"{per_stage.origin}: {layers} / ({pp} x {per_stage.value})",
        )
    elif per_stage and not given:
        facts.note(f"{per_stage.origin}: the number of virtual stages does not follow from it here")
    if layout and not given:
        stages = stages_of_layout(str(layout.value))
        if stages and stages % pp == 0:
            facts.say("parallel.virtual_stages", stages // pp, layout.origin)
    if layout or uneven:
        facts.note(
            f"{(layout or uneven or Fact(0, '')).origin}: stages of different depth; the plan counts layers / pp for each"
        )


def stages_of_layout(layout: str) -> int | None:
    """Stages of Megatron-LM's pipeline layout such as "Et*3|(tt|)*29,m|L": what stands between bars; None if it is not understood.

    >>> stages_of_layout("Et*3|(tt|)*29,m|L")
    32
    """
    text = re.sub(r"[\s,'\"]", "", layout)
    if len(text) > 10_000 or not re.fullmatch(r"[A-Za-z|*()0-9]+", text):
        return None
    bars = sum(
        group.count("|") * min(int(times), 10_000)
        for group, times in re.findall(r"\(([A-Za-z|*0-9]*)\)\*(\d{1,5})", text)
    )
    rest = re.sub(r"\([A-Za-z|*0-9]*\)\*\d{1,5}", "", text)
    rest = re.sub(r"\|\*(\d{1,4})", lambda match: "|" * int(match[1]), rest)
    stages = bars + rest.count("|") + 1
    return stages if "(" not in rest else None


def _hybrid(facts: Facts) -> None:
    """HYBRID_SHARD shards inside a node and replicates over nodes."""
    hybrid, nodes, gpus = (
        _fact(facts, key) for key in ("said.hybrid_shard", "hardware.nodes", "hardware.gpus_per_node")
    )
    if hybrid and nodes and gpus:
        facts.say("parallel.dp_shard", gpus.value, f"{hybrid.origin}: inside a node")
        facts.say("parallel.dp_replicate", nodes.value, f"{hybrid.origin}: over nodes")


def _zero_stage(facts: Facts) -> None:
    """DeepSpeed's stage. Stage 0 with bf16 in a pipeline, or with fp32 gradients, is served by an optimizer of its own that shards its state
    over the data-parallel ranks and keeps fp32 gradients: stage 1 in all but name (runtime/engine.py and runtime/bf16_optimizer.py).
    """
    stage = _fact(facts, "said.zero_stage")
    if stage is None:
        return
    kept = facts.get("training.gradient_bytes")
    bf16 = facts.get("training.precision") == "bf16"
    if stage.value == 0 and bf16 and ((facts.get("parallel.pp") or 1) > 1 or kept == 4):
        facts.say("parallel.zero_stage", 1, f"{stage.origin}: DeepSpeed's bf16 optimizer shards its state itself")
        facts.say(
            "training.gradient_bytes",
            4,
            f"{stage.origin}: DeepSpeed's bf16 optimizer keeps fp32 gradients",
            default=True,
        )
        facts.note(f"{stage.origin}: with bf16, DeepSpeed then uses an optimizer that works as stage 1 does")
    else:
        facts.say("parallel.zero_stage", stage.value, stage.origin, default=stage.default)


def _local_batch(facts: Facts) -> None:
    """torchtitan: a pipeline cuts the local batch into micro-batches of pipeline_parallel_microbatch_size (1); without one it is one micro-batch.

    Worked example: local batch 8, pp 2: 8 micro-batches of 1; pp 1: one of 8. Without a pipeline its schedule means nothing.
    """
    if facts.get("parallel.framework") != "torchtitan":
        return
    pipelined = (facts.get("parallel.pp") or 1) > 1
    if not pipelined:
        for key in ("parallel.schedule", "parallel.virtual_stages"):
            facts.values.pop(key, None)
    local, pieces, piece = (_fact(facts, f"said.{key}") for key in ("local_batch", "pipeline_pieces", "pipeline_piece"))
    whole = "training.global_batch_size" in facts.values
    if local and pipelined and pieces and pieces.value > 0:
        facts.take("training.micro_batches", pieces)
        facts.say("training.micro_batch_size", max(local.value // pieces.value, 1), local.origin)
    elif local and pipelined and piece and piece.value > 0:
        facts.take("training.micro_batch_size", piece)
        if not whole:
            facts.say("training.micro_batches", local.value // piece.value, local.origin)
    elif local:
        facts.take("training.micro_batch_size", local)
        if not whole:
            facts.say("training.micro_batches", 1, f"{local.origin}: torchtitan accumulates no gradients", default=True)


def _batch(facts: Facts) -> None:
    """DeepSpeed's rule, true for all: global batch = micro batch x accumulation steps x dp. Two of the three give the third."""
    whole, micro, steps = (
        _fact(facts, key) for key in ("training.global_batch_size", "training.micro_batch_size", "said.accumulation")
    )
    dp = data_parallel(facts)
    for fact in (whole, micro, steps, _fact(facts, "training.micro_batches")):
        if fact and fact.value < 1:
            raise ConfigError(fact.origin, f"{show(fact.value)} is less than 1", remedy="correct it there")
    _check_batch(whole, micro, steps, dp)
    if whole and steps and not micro and dp:
        size = whole.value // (steps.value * dp)
        facts.say("training.micro_batch_size", size, f"{whole.origin} / ({steps.value} x dp {dp})")
    elif steps and not (whole and micro):
        facts.say("training.micro_batches", steps.value, steps.origin, default=steps.default)
    _choose_batch(facts, dp)


def _check_batch(whole: Fact | None, micro: Fact | None, steps: Fact | None, dp: int | None) -> None:
    if not whole or not steps or not dp or whole.default or steps.default:
        return
    size = micro.value if micro else 1
    product = size * steps.value * dp
    if whole.value % product or (micro and whole.value != product):
        shown = f"micro-batch {micro.value} ({micro.origin}) x " if micro else ""
        raise ConfigError(
            whole.origin,
            f"is {whole.value}, but {shown}{steps.value} accumulation steps ({steps.origin}) x dp {dp} = {product}",
            key="training.global_batch_size",
            remedy="give two of the three numbers, or files of one and the same job",
        )


def _choose_batch(facts: Facts, dp: int | None) -> None:
    """A plan has either the global batch, which needs the size of a micro-batch, or the number of micro-batches."""
    whole, micro, batches = (
        _fact(facts, f"training.{key}") for key in ("global_batch_size", "micro_batch_size", "micro_batches")
    )
    if not whole:
        return
    if not micro:
        facts.note(f"{whole.origin}: means nothing without the micro-batch size, which is not said")
        del facts.values["training.global_batch_size"]
    elif batches:
        del facts.values["training.micro_batches"]
        if dp and not batches.default and whole.value != micro.value * batches.value * dp:
            facts.note(
                f"{batches.origin}: {batches.value} micro-batches do not give {whole.value} ({whole.origin}), which counts"
            )
