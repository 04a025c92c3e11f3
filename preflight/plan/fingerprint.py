"""A short name for a resolved plan, for checkpoints and caches to carry: equal plans have equal ones, whoever wrote them down and how.

"pf1-" and 32 hexadecimal digits. The first 16 are the layout, the last 16 the placement, so that a job that moves to other nodes, or to
other ranks on them, keeps the first half.

Layout: the model's shape; what of [training] decides what is computed; framework, axis order, all degrees as resolved (a default that is written out
changes nothing), what is sharded and scheduled how. Placement: which ranks share a node, their local ranks, and which nodes share an
NVLink domain. Not in it: names of hosts and domains, GPU UUIDs, leaves and racks, the launcher (its effect is the placement), hardware and its rates,
[rules], the estimate, the file's name.

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

RECIPE = "pf1"
HALF_DIGITS = 16

_DEGREES = ("tp", "cp", "ep", "etp", "edp", "dp", "dp_replicate", "dp_shard", "pp")  # the other axes follow from these

# of [parallel]: the degrees are taken as resolved, and a wish for a rule (ep_needs_domain) computes nothing
_PARALLEL = (
    *("framework", "virtual_stages", "schedule", "zero_stage", "sequence_parallel", "optimizer_instances"),
    *("hierarchical_cp", "data_before_expert", "auto_ep", "reshard_after_forward"),
)


def fingerprint(plan: Plan) -> str:
    """The name of a plan: "pf1-5c1d...". The same on every machine, Python version and run; 131,072 ranks take a few milliseconds."""
    return f"{RECIPE}-{_layout_half(plan)}{_placement_half(plan.placement)}"


def same_layout(one: str, other: str) -> bool:
    """Whether two fingerprints are of one layout, wherever its ranks sit. False also where one is of another recipe."""
    length = len(RECIPE) + 1 + HALF_DIGITS
    return one[:length] == other[:length] and one.startswith(f"{RECIPE}-") and len(one) >= length


def _layout_half(plan: Plan) -> str:
    parallel, training = _told(plan.job.parallel), _told(plan.job.training)
    if plan.estimate.micro_batches is not None:
        # micro_batches = 32, or the global batch from which 32 follow: one thing
        training.pop("global_batch_size", None)
        training["micro_batches"] = plan.estimate.micro_batches
    content = {
        "model": _told(plan.job.model),
        "training": training,
        "parallel": {key: parallel[key] for key in _PARALLEL if key in parallel},
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
    nodes = {node: number for number, node in enumerate(dict.fromkeys(placement.node_ranks))}
    columns: list[Sequence[int]] = [[nodes[node] for node in placement.node_ranks], placement.local_ranks]
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
