"""Where probes begin and end, what they gave, and which parts explain the slow ones: what schedule, localiser and simulated fabric say to one another.

An end is one rank's GPU with its way to the network. Where the ranks of a whole node were measured together (nccl-tests between two nodes) an end is a node. Columns, one
entry per end or per shot, since a fleet has tens of thousands of both.
"""

from typing import Literal

from preflight.model.base import Noun
from preflight.model.finding import Confidence, PartKind


class Ends(Noun, frozen=True, kw_only=True):
    """The ends, by number from 0 (in a run: the rank).

    `nodes`: node names in node-rank order; `leaves`: the leaf switch of each node, None as a whole: nobody told, None for a node: not told for that one. `node`, `slot`: of each
    end, the index of its node in `nodes` and its position among the GPUs of that node. `whole_nodes`: an end is a whole node (its slot is 0 and means nothing).
    `classes`: software facts by name ("driver": "570.86.15", ...), one value per node, None: unknown; a class that explains slow or hung probes is named by them.
    """

    nodes: tuple[str, ...]
    node: tuple[int, ...]
    slot: tuple[int, ...]
    leaves: tuple[str | None, ...] | None = None
    whole_nodes: bool = False
    classes: dict[str, tuple[str | None, ...]] = {}

    def name(self, end: int) -> str:
        """The end for people: "n3 GPU 2"; "n3" where ends are nodes."""
        node = self.nodes[self.node[end]]
        return node if self.whole_nodes else f"{node} GPU {self.slot[end]}"


class Shots(Noun, frozen=True, kw_only=True):
    """What pair probes gave, one entry per probe and repeat, in the order in which they were run.

    `a`, `b`: ends (the same one for what a GPU does alone: op "host_to_device", "device_to_host", "matmul"). `op`: what was done, an opaque word; shots of different ops are never compared in rate. "send_recv" goes both ways at once,
    "send" from a to b only. `bytes_per_s`: None: it failed. `failure`: "" or the kind (Failure.kind). `round`: probes of one round ran at the same time. `key`: Probe.key or another name for
    the evidence.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]
    op: tuple[str, ...]
    bytes_per_s: tuple[float | None, ...]
    failure: tuple[str, ...]
    round: tuple[int, ...]
    key: tuple[str, ...]


Direction = Literal["both", "sending", "receiving"]


class Culprit(Noun, frozen=True, kw_only=True):
    """One explanation of slow or failed shots, the smallest that they support.

    `kind`: "gpu" (slow with partners on its own node too), "nic" (one end, only between nodes: the NIC or the GPU's way to it), "slot" (the same position on many nodes), "rail",
    "node", "link" (one pair of ends), "leaf" (inside one leaf), "uplink" (a leaf's way to other leaves; with `slot`: that slot's way out; with `share`: part of it), "path" (between two sets of nodes), "class" (nodes
    with one value of a software fact), "environment" (all alike). None: not identifiable; then `candidates` lists the explanations that remain and `next_probes` of the
    Localisation would separate them.
    `ends`: of "gpu", "nic", "link" (the sender first where directed). `nodes`, `other_nodes`: names, of "node", "leaf", "uplink", "class"; the two sets of a "path". `direction`: seen from `ends`, `nodes` or the leaf.
    `share`: of the shots across it, those that are slow, where not all are. `ops`: the operations in which it shows. `depth`: 1 - observed / reference. `reference`: which of the references it was held
    against, in words. `failed`: it shows in failures, not in rates. `reason`: the inference in a sentence or two, with figures. `evidence`: keys of shots, the most telling first.
    """

    kind: PartKind | None
    confidence: Confidence = "likely"
    ends: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    other_nodes: tuple[str, ...] = ()
    leaf: str | None = None
    slot: int | None = None
    fact: str | None = None  # of "class": "driver 570.86.15"
    direction: Direction = "both"
    share: float | None = None
    ops: tuple[str, ...] = ()
    observed_bytes_per_s: float | None = None
    reference_bytes_per_s: float | None = None
    depth: float | None = None
    reference: str = ""
    failed: bool = False
    reason: str = ""
    evidence: tuple[str, ...] = ()
    candidates: tuple["Culprit", ...] = ()


class RouteReference(Noun, frozen=True, kw_only=True):
    """What healthy probes of one op over one class of routes give, learned from the run.

    `route`: "inside nodes", "same leaf, like slots", "other leaf, like slots", "unlike slots", "leaves not known, like slots", ... `noise`: relative, of one shot (0.02 for 2 %), None: nothing was repeated. `source`: how it was found
    ("upper mode of 64 ends' best", "formula: ...", "history: ..."). `expected_bytes_per_s`: what a formula allows, None: no formula.
    """

    op: str
    route: str
    bytes_per_s: float
    shots: int
    source: str
    noise: float | None = None
    expected_bytes_per_s: float | None = None
    expected_source: str = ""


LONE = "lone"  # Probe.size_name, and the last word of Shots.op: no other probe ran at that time


class Ask(Noun, frozen=True, kw_only=True):
    """A probe that would tell remaining explanations apart: `op` between two ends (a to b for "send"; a == b for what a GPU does alone). Smaller `priority` first.

    `lone`: in a round of its own, so that the ways between switches carry nothing else: what is slow then is slow by itself, and not shared out.
    """

    a: int
    b: int
    op: str = "send_recv"
    priority: int = 0
    reason: str = ""
    lone: bool = False


class Localisation(Noun, frozen=True, kw_only=True):
    """What the shots say of the fabric.

    `culprits`: worst first. `asks`: what would decide more, the most telling first; empty: nothing would. `unjudged`: why no rate is judged at all ("too noisy ...", "3 pairs: too few ..."), empty: rates are judged. `floor`: the smallest depth
    that is called: max(8 x noise, 10 %), 15 % where route classes are not known. `notes`: what is reported and blamed on nothing: gaps between route classes, a leaf map that the
    rates contradict, transients. `cleared_ends`: ends with at least one probe at the reference.
    """

    ends: Ends
    references: tuple[RouteReference, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    asks: tuple[Ask, ...] = ()
    notes: tuple[str, ...] = ()
    unjudged: str = ""
    floor: float | None = None
    cleared_ends: int = 0
    shots: int = 0
