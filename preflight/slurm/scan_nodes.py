"""Which nodes a sweep may use, and which of them may be measured together (pure)."""

from collections.abc import Iterable, Mapping

from preflight.model.base import Record
from preflight.slurm.nodes import SlurmNode

# how a node came to be, not what it does now: a cloud node that is off carries another flag besides
HARMLESS = {"cloud", "dynamic_norm"}


class Kind(Record, frozen=True):
    """Nodes that may be measured together: reached through one partition, with the same GPUs, under the same topmost switch. `gpus`: as Slurm has it, "gpu:h100:8"; "": none."""

    partition: str
    gpus: str
    root: str


def is_free(node: SlurmNode) -> bool:
    """Idle, and nothing else: a flag that we don't know keeps us away, as one does that says planned, reserved, draining, powered down or not answering."""
    return "idle" in node.states and node.states - HARMLESS == {"idle"}


def kinds_of(
    nodes: Iterable[SlurmNode],
    partitions: Iterable[str],
    roots: Mapping[str, str] | None = None,
    *,
    free: bool = True,
) -> dict[Kind, tuple[str, ...]]:
    """The free nodes (or all that are there, if not `free`) by kind, sorted by name. `partitions`: those that may be used, the one to prefer first. `roots`: node -> topmost switch; None: not known, so that all count as joined.

    Nodes without GPUs are left out where others of these partitions have some. A node that a known topology doesn't name stays alone.
    """
    wanted = list(partitions)
    inside = [node for node in nodes if set(node.partitions) & set(wanted)]
    any_gpus = any(gpus_of(node) for node in inside)
    found: dict[Kind, list[str]] = {}
    for node in inside:
        gpus = gpus_of(node)
        if (is_free(node) if free else not node.absent) and (gpus or not any_gpus):
            partition = next(each for each in wanted if each in node.partitions)
            root = "" if roots is None else roots.get(node.name, f"unknown, {node.name}")
            found.setdefault(Kind(partition, gpus, root), []).append(node.name)
    return {kind: tuple(sorted(names)) for kind, names in sorted(found.items())}


def gpus_of(node: SlurmNode) -> str:
    """Its GPUs as `--gres` takes them: "gpu:8", "gpu:a100:4,gpu:h100:4"; "": none. Where they sit ("(S:0-1)") and other resources are left out."""
    items = []
    depth, item = 0, ""
    for letter in f"{node.gres or ''},":
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            items.append(item)
            item = ""
        elif depth == 0 and letter != ")":
            item += letter
    return ",".join(sorted(item for item in items if item.split(":")[0] == "gpu" and not item.endswith(":0")))
