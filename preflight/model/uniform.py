"""Comparing facts between the nodes of a run, and between the GPUs of one node (pure; the checks of uniformity need it).

A difference is at most a WARN here: a mixed partition is no fault, and whether one group of a job mixes its classes is for `group_uniform` to say.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from preflight.model.base import Record
from preflight.model.classes import Classes, classify, join_near
from preflight.model.evidence import Evidence
from preflight.model.finding import Finding, Part, PartKind, Verdict
from preflight.model.gpu import Gpu
from preflight.model.hostlist import fold, fold_numbers
from preflight.model.inventory import Node
from preflight.model.per_gpu import count, gpu_part, gpus_subject, setting_part

ALIKE = "the same on all nodes"
NO_MAJORITY = f"{ALIKE}; no majority, so which nodes are wrong is not identifiable"
UNSUPPORTED = "not supported"


class NodeFact(Record, frozen=True):
    """One fact that nodes should share. `read` gives None for unknown.

    `owed`: a node that doesn't tell it is UNKNOWN; others that don't are named beside those that do. `of_gpu`: of nodes with GPUs only, and not where a run without
    GPUs is meant. `tolerance_ratio`: numbers that differ by less count as one.
    """

    label: str
    read: Callable[[Node], Hashable | None]
    owed: bool = False
    of_gpu: bool = False
    show: Callable[[Hashable], str] = str
    tolerance_ratio: float = 0.0


class GpuFact(Record, frozen=True):
    """One fact that GPUs should share: those of one node, and so those of all nodes. `field`: the Gpu's field that it comes from, "power.limit_w"."""

    label: str
    field: str
    read: Callable[[Gpu], Hashable | None]
    owed: bool = False
    show: Callable[[Hashable], str] = str
    tolerance_ratio: float = 0.0


class Mixed(Record, frozen=True):
    """The values of a node whose GPUs differ."""

    values: tuple[Hashable, ...]


def compare_nodes(
    check: str, evidence: Evidence, nodes: Sequence[Node], facts: Iterable[NodeFact], *, settings: bool = False
) -> Iterator[Finding]:
    """For each fact: one PASS, or one WARN that names the classes and who is in them; and one UNKNOWN for those that owe it. Nothing for a single node.

    `settings`: the facts are somebody's choice, so that no hardware is suspected.
    """
    if len(nodes) < 2:
        return
    for fact in facts:
        if fact.of_gpu and evidence.settings.cpu_declared:
            continue
        asked = [node for node in nodes if not fact.of_gpu or node.gpus is None or node.gpus]
        values = _joined([fact.read(node) for node in asked], fact.tolerance_ratio)
        told = [(node.name, value) for node, value in zip(asked, values, strict=True) if value != UNSUPPORTED]
        classes = classify(told, lambda pair: pair[1], lambda pair: pair[0])
        yield from _across(check, fact, classes, settings=settings)


def of_nodes(fact: GpuFact) -> NodeFact:
    """The same fact, as nodes share it."""

    def read(node: Node) -> Hashable | None:
        values = {value: None for gpu in node.open_gpus if (value := value_of(gpu, fact)) is not None}
        known = sorted((value for value in values if value != UNSUPPORTED), key=str)
        return (known[0] if len(known) == 1 else Mixed(tuple(known))) if known else next(iter(values), None)

    return NodeFact(fact.label, read, fact.owed, True, _show_mixed(fact.show), fact.tolerance_ratio)


def value_of(gpu: Gpu, fact: GpuFact) -> Hashable | None:
    """The fact of one GPU; UNSUPPORTED where the product or driver has none."""
    value = fact.read(gpu)
    return UNSUPPORTED if value is None and set(fact.field.split(".")) & set(gpu.unsupported) else value


def compare_within(
    check: str, evidence: Evidence, nodes: Sequence[Node], facts: Sequence[GpuFact], *, settings: bool = False
) -> Iterator[Finding]:
    """One WARN for each fact in which the GPUs of one node differ; one PASS for all nodes in which they don't. Nothing where no node has two GPUs. `settings` as above."""
    if evidence.settings.cpu_declared:
        return
    several = [node for node in nodes if len(node.open_gpus) > 1]
    alike = 0
    known: dict[str, None] = {}
    for node in several:
        found = [
            finding for fact in facts if (finding := _within(check, node, fact, known, settings=settings)) is not None
        ]
        yield from found
        alike += not found
    if alike and known:
        yield Finding(
            check=check,
            subject=several[0].name if len(several) == 1 else "GPUs of one node",
            verdict=Verdict.PASS,
            observed=f"alike on {'each of ' * (alike > 1)}{alike} node{'s' * (alike > 1)}: {', '.join(known)}",
            expected="the GPUs of one node alike",
        )


def _within(check: str, node: Node, fact: GpuFact, known: dict[str, None], *, settings: bool) -> Finding | None:
    gpus = node.open_gpus
    values = _joined([value_of(gpu, fact) for gpu in gpus], fact.tolerance_ratio)
    if values.count(None) == len(values) or set(values) == {UNSUPPORTED}:
        return None
    known[fact.label] = None
    numbered = list(zip((str(gpu.index) for gpu in gpus), values, strict=True))
    classes = classify(numbered, lambda pair: pair[1], lambda pair: pair[0])
    if classes.uniform:
        return None
    odd = [gpu for gpu in gpus if str(gpu.index) in classes.unlike]
    usual = classes.majority
    blames = None
    if len(odd) == 1 and len(gpus) > 2:
        blames = setting_part(node, fact.label) if settings else gpu_part(node, odd[0], "possible")
    return Finding(
        check=check,
        subject=gpus_subject(node, odd) if odd else node.name,
        verdict=Verdict.WARN,
        observed=f"{fact.label}: {classes.text(fact.show, folded=_fold_gpus)}",
        expected=f"{fact.show(usual)}, as on {len(classes.members[usual])} of {count(gpus)} of the node"
        if odd
        else "the GPUs of one node alike",
        remedy=f"make the {fact.label} of the node's GPUs alike, or give no group both kinds",
        blames=blames,
    )


def _across(check: str, fact: NodeFact, classes: Classes, *, settings: bool) -> Iterator[Finding]:
    if fact.owed and classes.unknown:
        yield Finding(
            check=check,
            subject=fold(classes.unknown),
            verdict=Verdict.UNKNOWN,
            observed=f"{fact.label} unknown",
            expected=f"the {fact.label} of every node",
            remedy=f"run `preflight node` on {classes.unknown[0]}: it says what can't be read there, and why",
        )
        classes = classes.replace(unknown=())
    if classes.num_known < 2:
        return
    plain = {value: names for value, names in classes.members.items() if not isinstance(value, Mixed)}
    inside = ""
    if settings and classes.unlike and list(plain) == [classes.majority]:  # compare_within tells of the others
        inside = f"; GPUs of {fold(classes.unlike)} differ among themselves"
        classes = classes.replace(members=plain)
    if classes.uniform:
        value = next(iter(classes.members))
        rest = f"; unknown on {fold(classes.unknown)}" if classes.unknown else ""
        observed = f"{fact.show(value)} on {classes.num_known} nodes{inside}{rest}"
        yield Finding(check=check, subject=fact.label, verdict=Verdict.PASS, observed=observed, expected=ALIKE)
        return
    usual, odd = classes.majority, classes.unlike
    blames = None
    if len(odd) == 1:
        kind: PartKind = "environment" if settings else "node"
        blames = Part(kind=kind, name=f"{fact.label} of {odd[0]}" if settings else odd[0], confidence="possible")
    yield Finding(
        check=check,
        subject=fact.label,
        verdict=Verdict.WARN,
        observed=classes.text(fact.show),
        expected=f"{fact.show(usual)}, as on {classes.num_known - len(odd)} of {classes.num_known} nodes"
        if odd
        else NO_MAJORITY,
        remedy=f"ask for nodes of one kind (in Slurm: a partition or --constraint), or make the {fact.label} alike",
        blames=blames,
    )


def _joined(values: Sequence[Hashable | None], tolerance_ratio: float) -> list[Hashable | None]:
    """The values, near numbers as one."""
    if not tolerance_ratio:
        return list(values)
    near = join_near((value for value in values if isinstance(value, int | float)), tolerance_ratio)
    return [near[value] if isinstance(value, int | float) else value for value in values]


def _show_mixed(show: Callable[[Hashable], str]) -> Callable[[Hashable], str]:
    return lambda value: " and ".join(map(show, value.values)) if isinstance(value, Mixed) else show(value)


def _fold_gpus(indexes: Iterable[str]) -> str:
    numbers = [int(index) for index in indexes]
    return f"GPU{'s' * (len(numbers) > 1)} {fold_numbers(numbers).replace(',', ', ')}"
