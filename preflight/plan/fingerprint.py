"""A short name for a resolved plan, for checkpoints and caches to carry: equal plans have equal ones, whoever wrote them down and how.

"pf1-" and 32 hexadecimal digits. The first 16 are the layout, the last 16 the placement, so that a job that moves to other nodes, or to
other ranks on them, keeps the first half.

Layout: the model's shape; [training] and [parallel] as far as they decide what is computed, with degrees, axis order, ZeRO stage, sequence
parallelism and schedule as resolved, so that a default that is written out changes nothing; the world size. Placement: which ranks share a node,
their local ranks, and which nodes share an NVLink domain. Not in it: what only decides how fast it goes (overlap, skew of experts, rates, the hardware), names of
hosts and domains, GPU UUIDs, leaves and racks, the launcher (its effect is the placement), [rules], the estimate, the file's name.

"pf1" stands for this recipe: a change to it takes another number. Keys that a later version adds, with the default that an older plan means, change nothing.
"""

import hashlib
import json
import sys
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from preflight.model import Placement, Plan
from preflight.model.pipeline import schedule_of
from preflight.plan.defaults import sequence_parallel, zero_stage

RECIPE = "pf1"
HALF_DIGITS = 16

_DEGREES = ("tp", "cp", "ep", "etp", "edp", "dp", "dp_replicate", "dp_shard", "pp")  # the other axes follow from these

# keys that compute nothing: how sure a dispatcher is, how the same is sent or hidden; the degrees are taken as resolved
_PARALLEL_LEFT_OUT = {*_DEGREES, "order", "ep_needs_domain", "scatter_gather"}
_TRAINING_LEFT_OUT = {"expert_skew", "overlap_tp", "overlap_gradients", "overlap_parameters"}


def fingerprint(plan: Plan) -> str:
    """The name of a plan: "pf1-5c1d...". The same on every machine, Python version and run; 131,072 ranks take some 10 ms."""
    return f"{RECIPE}-{_layout_half(plan)}{_placement_half(plan.placement)}"


def same_layout(one: str, other: str) -> bool:
    """Whether two fingerprints are of one layout, wherever its ranks sit. False also where one is of another recipe."""
    length = len(RECIPE) + 1 + HALF_DIGITS
    return one[:length] == other[:length] and one.startswith(f"{RECIPE}-") and len(one) >= length


def _layout_half(plan: Plan) -> str:
    job = plan.job
    parallel = {key: value for key, value in _told(job.parallel).items() if key not in _PARALLEL_LEFT_OUT}
    parallel["zero_stage"] = zero_stage(job)
    parallel["sequence_parallel"] = sequence_parallel(job, plan.degrees["tp"])
    parallel["schedule"] = schedule_of(job)
    training = {key: value for key, value in _told(job.training).items() if key not in _TRAINING_LEFT_OUT}
    if plan.estimate.micro_batches is not None:
        # micro_batches = 32, or the global batch from which 32 follow: one thing
        training.pop("global_batch_size", None)
        training["micro_batches"] = plan.estimate.micro_batches
    content = {
        "model": _told(job.model),
        "training": training,
        "parallel": parallel,
        "degrees": {axis: plan.degrees[axis] for axis in _DEGREES if plan.degrees.get(axis, 1) != 1},
        "order": [axis for axis in plan.order if plan.degrees.get(axis, 1) != 1],
        "world_size": plan.world_size,
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:HALF_DIGITS]


def _told(section: msgspec.Struct) -> dict[str, Any]:
    """The keys that differ from their defaults. (msgspec's own omit_defaults compares texts by identity.)"""
    values = {field.name: (getattr(section, field.name), field.default) for field in msgspec.structs.fields(section)}
    return {name: msgspec.to_builtins(value) for name, (value, default) in values.items() if value != default}


def _placement_half(placement: Placement) -> str:
    """Nodes and domains as numbers in the order in which ranks first reach them; little-endian 32-bit words, each column with its length before it."""
    if placement.is_block and all(placement.ranks_per_node):  # the usual case: reached in their own order
        nodes = dict(enumerate(range(len(placement.nodes))))
    else:
        nodes = {node: number for number, node in enumerate(dict.fromkeys(placement.node_ranks))}
    in_order = list(nodes) == list(range(len(nodes)))
    reached_by = placement.node_ranks if in_order else [nodes[node] for node in placement.node_ranks]
    columns: list[Sequence[int]] = [reached_by, placement.local_ranks]
    if placement.domains is not None:
        reached = [placement.domains[node] for node in nodes]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(reached))}
        columns.append([numbers[name] for name in reached])
    digest = hashlib.sha256()
    for column in columns:
        words = array("I", (len(column),)) + array("I", column)
        if sys.byteorder == "big":
            words.byteswap()
        digest.update(words)
    return digest.hexdigest()[:HALF_DIGITS]
