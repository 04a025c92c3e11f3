"""Every GPU has all NVLinks of its board active.

The number is compared with the layouts of the product's profile; without one, with the other GPUs of that product. "No traffic" is not active. An inactive link is
a fault only where it is wired into a board, or where other cards have a bridge: a PCIe card without a bridge lists its links as inactive
(https://github.com/NVIDIA/NVSentinel/issues/1481), and an H800 lists 8. Two of six inactive on one V100: https://github.com/Azure/azhpc-diagnostics/issues/73.

On boards that join GPUs directly a link has both ends on GPUs, so both should be inactive: where the far ends say otherwise, the finding says so.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from preflight.model import Check, Evidence, Finding, Gpu, Node, NvlinkLayout, Part, Record, Verdict
from preflight.model.gpu_users import users_of
from preflight.model.layouts import WIRED, by_product, shared_deficits
from preflight.model.per_gpu import count, gpu_name, gpu_part, gpus_subject, product_names

NAME = "nvlink_links"

REMEDY = "look at the links (`nvidia-smi nvlink -s -i {gpus}`) and the kernel log; reset the GPU or reboot the node, and keep groups off it until all its links are active"


class _Wanted(Record, frozen=True):
    """How many active links a GPU should have. `bare`: none at all is no fault. `direct`: both ends of a link are on GPUs."""

    links: int
    basis: str
    certain: bool
    bare: bool = False
    direct: bool = False


class _Set(Record, frozen=True):
    """GPUs of one product on one node whose links are known."""

    evidence: Evidence
    node: Node
    gpus: tuple[Gpu, ...]
    wanted: _Wanted

    def missing(self, gpu: Gpu) -> int:
        return self.wanted.links - _active(gpu)

    @property
    def short(self) -> tuple[Gpu, ...]:
        """Those that surely lack links, whatever the links of unknown state are."""
        return tuple(
            gpu
            for gpu in self.gpus
            if self.missing(gpu) > _unknown(gpu) and not (self.wanted.bare and not _active(gpu))
        )

    @property
    def bare(self) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self.gpus if self.wanted.bare and not _active(gpu) and not _unknown(gpu))


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each node and product: what lacks links, or one PASS. Nothing for nodes without GPUs."""
    if evidence.settings.cpu_declared:
        return
    peers = _Peers(evidence)
    for node in evidence.health or ():
        for gpus in by_product(node.open_gpus).values():
            yield from _judge_product(evidence, node, gpus, peers)


def _judge_product(evidence: Evidence, node: Node, gpus: Sequence[Gpu], peers: "_Peers") -> Iterator[Finding]:
    known = tuple(gpu for gpu in gpus if gpu.links is not None)
    reasons: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        if gpu.links is None and gpu.why_unknown("links").kind != "unsupported":
            reasons.setdefault(gpu.why_unknown("links").text, []).append(gpu)
    for text, without in reasons.items():
        yield _finding(node, without, Verdict.UNKNOWN, f"links unknown: {text}")
    profile = evidence.profile_of(gpus[0])
    layouts = profile.nvlink_layouts if profile else None
    has_none = not any(gpu.links for gpu in known)
    if layouts == () or (has_none and not _wired(layouts)):
        if not reasons:
            yield _finding(node, gpus, Verdict.SKIP, f"{product_names(gpus)}: this product or driver has no NVLink")
        return
    if not known:
        return
    wanted = _from_layouts(layouts, known) if layouts else peers.wanted(gpus[0].name)
    if wanted is None:
        yield _alone(node, known, f"no profile exists for {product_names(gpus)}, and too few alike are here to compare")
    else:
        unfit = _without_links(node, known, wanted)
        yield from [unfit] if unfit else _judge_set(_Set(evidence, node, known, wanted))


def _without_links(node: Node, gpus: Sequence[Gpu], wanted: _Wanted) -> Finding | None:
    """What is to be said where no GPU has a link, and for a reason that no GPU is to blame for."""
    if any(_active(gpu) or _unknown(gpu) for gpu in gpus):
        return None
    if len(node.gpus or ()) == 1 and len(node.gpus_on_bus or ()) < 2:
        return _finding(
            node, gpus, Verdict.SKIP, "no link active, and no other GPU on this machine that they could lead to"
        )
    states = {gpu.fabric.state if gpu.fabric else None for gpu in gpus}
    if states <= {"in progress", "not started"}:  # `fabric_state` judges that
        waiting = " or ".join(sorted(map(str, states)))
        observed = f"no link active on any of {count(gpus)} yet: fabric registration is {waiting}"
        return _finding(node, gpus, Verdict.UNKNOWN, observed, expected=_expected(wanted))
    virtual = node.platform is not None and node.platform.virtual_machine not in (None, "none")
    if virtual and not wanted.bare and len(gpus) == len(node.open_gpus):
        observed = f"no link active on any of {count(gpus)}: this virtual machine was given them without the switches, or without a partition that joins them"
        remedy = "ask who runs the hypervisor: NVSwitches and fabric manager are there; place no group on these GPUs that relies on NVLink"
        return _finding(node, gpus, Verdict.WARN, observed, expected=_expected(wanted), remedy=remedy)
    return None


def _wired(layouts: tuple[NvlinkLayout, ...] | None) -> bool:
    return any(layout.kind in WIRED for layout in layouts or ())


def _from_layouts(layouts: tuple[NvlinkLayout, ...], gpus: Sequence[Gpu]) -> _Wanted:
    """Of the boards that have a place for so many GPUs, the one with the fewest links: more than that is no fault."""
    number = len(gpus)
    boards = [layout for layout in layouts if layout.kind in WIRED]
    fitting = [layout for layout in boards if layout.gpus == number] or [
        layout for layout in boards if number < layout.gpus or number % layout.gpus == 0
    ]
    layout = min(fitting or boards or layouts, key=lambda layout: layout.per_gpu)
    ends = {link.peer_kind for gpu in gpus for link in gpu.links or () if link.active}
    return _Wanted(
        links=layout.per_gpu,
        basis=layout.source,
        certain=True,
        bare=any(layout.kind == "bridge" for layout in layouts),
        direct=layout.kind in ("mesh", "cube") and number == layout.gpus and ends == {"gpu"},
    )


class _Peers:
    """GPUs of one product on all nodes, counted once."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._known: dict[str | None, _Wanted | None] = {}

    def wanted(self, product: str | None) -> _Wanted | None:
        """What more than half of three or more GPUs of this product have. None: no such majority."""
        if product not in self._known:
            self._known[product] = _majority(
                [
                    gpu
                    for node in self._evidence.health or ()
                    for gpu in node.open_gpus
                    if gpu.name == product and gpu.links is not None and not gpu.mig_enabled
                ]
            )
        return self._known[product]


def _majority(alike: Sequence[Gpu]) -> _Wanted | None:
    numbers = Counter(_active(gpu) for gpu in alike if not _unknown(gpu))
    links, times = numbers.most_common(1)[0] if numbers else (0, 0)
    if len(alike) < 3 or 2 * times <= len(alike):
        return None
    switched = any(link.peer_kind == "switch" for gpu in alike for link in gpu.links or ())
    basis = f"as {times} of {len(alike)} GPUs of this product here; no profile exists for it"
    return _Wanted(links=links, basis=basis, certain=False, bare=not switched)


def _alone(node: Node, gpus: Sequence[Gpu], why: str) -> Finding:
    """Without a measure: if every link that the driver lists is active, nothing is missing."""
    if all(gpu.links and all(link.active for link in gpu.links) for gpu in gpus):
        return _finding(node, gpus, Verdict.PASS, f"{count(gpus)}: every link that the driver lists is active; {why}")
    observed = f"{'; '.join(dict.fromkeys(_state_text(gpu, len(gpu.links or ())) for gpu in gpus))}; {why}"
    return _finding(node, gpus, Verdict.UNKNOWN, observed, remedy="add a profile for this product")


def _judge_set(each: _Set) -> Iterator[Finding]:
    short, bare = each.short, each.bare
    yield from _short_findings(each, short)
    bridged = [gpu for gpu in each.gpus if _active(gpu)]
    bridge_gone = bool(bridged) and len(bare) > (1 if each.wanted.certain else 0)
    if bridge_gone:
        yield _bridge_finding(each, bare, bridged)
    doubtful = [gpu for gpu in each.gpus if gpu not in short and 0 < each.missing(gpu) <= _unknown(gpu)]
    for gpu in doubtful:
        observed = f"{_active(gpu)} links active, the state of {_unknown(gpu)} unknown"
        yield _finding(each.node, [gpu], Verdict.UNKNOWN, observed, expected=_expected(each.wanted))
    good = [gpu for gpu in each.gpus if gpu not in short and gpu not in doubtful]
    if not (short or doubtful or bridge_gone):
        yield _finding(each.node, good, Verdict.PASS, _good_text(good), expected=_expected(each.wanted))


def _short_findings(each: _Set, short: tuple[Gpu, ...]) -> Iterator[Finding]:
    """One finding for all of a node if all are alike; else one for each GPU, or for what explains several."""
    texts = {_state_text(gpu, each.wanted.links) for gpu in short}
    if len(short) == len(each.gpus) > 2 and len(texts) == 1:
        part = Part(kind="node", name=each.node.name, confidence="likely")
        yield _fault(each, short, f"on each of {count(short)}: {texts.pop()}", part)
        return
    missing = {gpu.index: each.missing(gpu) for gpu in short}
    shared = shared_deficits(missing) if each.wanted.direct and not any(map(_unknown, each.gpus)) else None
    guilty, far = shared or (tuple(missing), ())
    blamed = [gpu for gpu in short if gpu.index in guilty]
    if len(blamed) == 2 and shared:
        name = f"{each.node.name} GPU {guilty[0]} - GPU {guilty[1]}"
        text = "; ".join(f"GPU {gpu.index} {_state_text(gpu, each.wanted.links)}" for gpu in blamed)
        yield _fault(
            each, blamed, f"{text}; the other GPUs have all", Part(kind="link", name=name, confidence="likely")
        )
        return
    for gpu in blamed:
        yield _fault(
            each,
            [gpu],
            _state_text(gpu, each.wanted.links) + _far_text(each, short, far),
            gpu_part(each.node, gpu, "certain" if each.wanted.certain and (shared or len(short) == 1) else "likely"),
        )


def _far_text(each: _Set, short: Sequence[Gpu], far: Sequence[int]) -> str:
    """What the other ends of links between GPUs say."""
    if far:
        return f"; the far ends, on GPUs {', '.join(map(str, far))}, are inactive too"
    others = [gpu for gpu in each.gpus if gpu not in short]
    if each.wanted.direct and len(short) == 1 and not any(map(_unknown, others)):
        return "; the two ends disagree: the other GPUs report all their links active, though the far ends are on some of them"
    return ""


def _bridge_finding(each: _Set, bare: Sequence[Gpu], bridged: Sequence[Gpu]) -> Finding:
    """Most have a bridge: a missing one is a fault. Most have none: someone should look."""
    most = len(bridged) >= len(bare) and each.wanted.certain
    verdict = (
        users_of(each.evidence.plan, each.node, bare, together=True).lowered(Verdict.FAIL) if most else Verdict.WARN
    )
    name = f"{each.node.name} GPU {' - GPU '.join(str(gpu.index) for gpu in bare)}"
    have = ", ".join(str(gpu.index) for gpu in bridged)
    return Finding(
        check=NAME,
        subject=name,
        verdict=verdict,
        observed=f"no link active, while a bridge joins GPUs {have}",
        expected="a working bridge, as the others have",
        remedy='reseat or replace the bridge; if none is fitted there on purpose, set [rules] nvlink_links = "warn"',
        blames=Part(kind="link", name=name, confidence="likely") if most else None,
    )


def _fault(each: _Set, gpus: Sequence[Gpu], observed: str, part: Part) -> Finding:
    users = users_of(each.evidence.plan, each.node, gpus)
    return Finding(
        check=NAME,
        subject=gpu_name(each.node, gpus[0]) if part.kind == "gpu" else part.name,
        verdict=users.lowered(Verdict.FAIL),
        observed=observed + users.text(),
        expected=_expected(each.wanted),
        remedy=REMEDY.format(gpus=",".join(str(gpu.index) for gpu in gpus)),
        blames=part,
    )


def _finding(
    node: Node, gpus: Sequence[Gpu], verdict: Verdict, observed: str, *, expected: str = "", remedy: str = ""
) -> Finding:
    subject = gpus_subject(node, gpus)
    return Finding(check=NAME, subject=subject, verdict=verdict, observed=observed, expected=expected, remedy=remedy)


def _active(gpu: Gpu) -> int:
    return sum(bool(link.active) and link.state != "no traffic" for link in gpu.links or ())


def _unknown(gpu: Gpu) -> int:
    return sum(link.active is None and link.state not in ("inactive", "no traffic") for link in gpu.links or ())


def _expected(wanted: _Wanted) -> str:
    bare = ", or none on a card without a bridge" if wanted.bare else ""
    return f"{wanted.links} links active{bare} ({wanted.basis})"


def _good_text(gpus: Sequence[Gpu]) -> str:
    counts = Counter(_active(gpu) for gpu in gpus)
    if len(counts) == 1:
        return f"{count(gpus)}: {_active(gpus[0])} links active on each"
    return f"{count(gpus)}: " + ", ".join(
        f"{links} links active on {number}" for links, number in sorted(counts.items())
    )


def _state_text(gpu: Gpu, wanted: int) -> str:
    """As in "4 of 6 links active, links 3 and 5 inactive"."""
    closed = [link.index for link in gpu.links or () if link.state == "no traffic"]
    inactive = [link.index for link in gpu.links or () if link.active is False and link.index not in closed]
    text = f"{_active(gpu)} of {wanted} links active"
    if inactive and _active(gpu):
        text += f", {_links_text(inactive)} inactive"
    return f"{text}, {_links_text(closed)} up but closed to traffic" if closed else text


def _links_text(indices: Sequence[int]) -> str:
    shown = [str(index) for index in indices]
    return f"link {shown[0]}" if len(shown) == 1 else f"links {', '.join(shown[:-1])} and {shown[-1]}"


CHECK = Check(
    name=NAME,
    claim="Every GPU has all NVLinks of its board active.",
    why="Each link that is down takes its share of the bandwidth to every peer, and the slowest GPU sets the pace of its groups; nothing fails.",
    source="Numbers: the layouts of the product's profile. Inactive links without fault: NVIDIA/NVSentinel issue 1481. Case: Azure/azhpc-diagnostics issue 73.",
    remedy="Look at the links with `nvidia-smi nvlink -s` and at the kernel log, reset the GPU or reboot the node, reseat a bridge; keep groups off until then.",
    uses=("health",),
    judge=judge,
)
