"""Every pair of a node's GPUs has the NVLinks that boards of its product have.

The number in "NV18" is compared with the layouts of the product's profile: an A800 with 8 everywhere is whole, an A100 with 8 is not; a DGX-1 has pairs without
any; a PCIe card without a bridge is no fault. What falls short blames the smallest part that explains it: one GPU whose every pair is odd
(https://github.com/vllm-project/vllm/issues/16336: 21 of 28 pairs whole, all others with one GPU), two GPUs, a bridge
(https://github.com/NVIDIA/nccl/issues/557), or, if all pairs are odd alike, none of them. Where no profile exists, GPUs of the same product are compared.

A text of `nvidia-smi topo -m` without any NVLink is no proof of a fault: the view may hide it (`-mp`), and what the driver says then is unknown.
"""

from collections.abc import Iterator, Sequence

from preflight.model import Check, Evidence, Finding, Gpu, Node, NvlinkLayout, Part, Profile, Record, Verdict
from preflight.model.finding import Confidence
from preflight.model.gpu_users import users_of
from preflight.model.layout_fit import Fit, Oddity, best_fit
from preflight.model.layouts import (
    WIRED,
    Numbers,
    by_product,
    guess_layout,
    link_sums,
    pair_numbers,
    pairs_text,
    show_numbers,
)
from preflight.model.per_gpu import count, gpu_name, gpu_part, gpus_subject
from preflight.model.rails import rails

NAME = "nvlink_pairs"

ASK_TOPO = "save the output of `nvidia-smi topo -m` (without -p), or run `preflight node` on the node"

ASK_HYPERVISOR = "ask who runs the hypervisor: NVSwitches and fabric manager are there; place no group on these GPUs that relies on NVLink"


Kind = tuple[str | None, int]  # product, number of GPUs


class _Set(Record, frozen=True):
    """The GPUs of one product on one node, and their pairs."""

    node: Node
    gpus: tuple[Gpu, ...]
    numbers: Numbers
    profile: Profile | None

    @property
    def subject(self) -> str:
        return _subject(self.node, self.gpus)

    @property
    def kind(self) -> Kind:
        return self.gpus[0].name, len(self.gpus)

    @property
    def product(self) -> str:
        return self.gpus[0].name or "a product that is not known"

    @property
    def all_links_active(self) -> bool:
        """By what the driver lists; False where it lists none, and for files, which list active links only."""
        listed = self.node.source == "node" and all(gpu.links for gpu in self.gpus)
        return listed and all(link.active for gpu in self.gpus for link in gpu.links or ())

    @property
    def to_switches(self) -> dict[int, int]:
        """GPU -> its active links, where all of them go to switches, so that a pair has as many as the GPU with fewer; empty if not all GPUs tell that."""
        found = {gpu.index: [link for link in gpu.links or () if link.active] for gpu in self.gpus}
        told = all(links and all(link.peer_kind == "switch" for link in links) for links in found.values())
        return {index: len(links) for index, links in found.items()} if told else {}

    @property
    def text(self) -> str:
        return pairs_text([gpu.index for gpu in self.gpus], self.numbers)

    @property
    def joined(self) -> bool:
        return any(self.numbers.values())


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each node and product: what differs from its layout, or one PASS. Nothing for nodes without GPUs."""
    assert evidence.inventory is not None
    if evidence.settings.cpu_declared:
        return
    sets = [each for node in evidence.inventory.nodes for each in _sets(evidence, node)]
    guesses = _guesses(sets)
    for each in sets:
        layouts = each.profile.nvlink_layouts if each.profile else None
        unclear = _text_unclear(each, layouts) or _unclear(each, layouts)
        if len(each.gpus) == 1:
            yield _finding(each, Verdict.PASS, "one GPU: there is no pair for NVLink to join")
        elif unclear:
            yield _finding(each, Verdict.UNKNOWN, unclear, remedy=ASK_TOPO)
        elif _given_without_switches(each, layouts):
            observed = f"no NVLink between any two of {count(each.gpus)}: this virtual machine was given them without the switches, or without a partition that joins them"
            yield _finding(each, Verdict.WARN, observed, remedy=ASK_HYPERVISOR)
        elif layouts is None:
            yield from _without_profile(evidence, each, guesses[each.kind])
        else:
            yield from _with_layouts(evidence, each, layouts)


def _sets(evidence: Evidence, node: Node) -> Iterator[_Set]:
    for name, same in by_product(node.open_gpus if node.tells_health else node.gpus or ()).items():
        profile = evidence.profile_of(same[0]) if name else evidence.profile
        yield _Set(node, tuple(same), pair_numbers(same), profile)


def _unclear(each: _Set, layouts: tuple[NvlinkLayout, ...] | None) -> str | None:
    """Why the pairs can't be judged, None if they can."""
    known = [number for number in each.numbers.values() if number is not None]
    if each.numbers and not known and layouts != ():
        told = [problem.text for problem in each.node.problems if problem.field in ("peers", "links")]
        asked = [gpu.why_unknown(field) for field in ("peers", "links") for gpu in each.gpus]
        untold = (
            "the driver tells nothing of peer access over them" if each.node.tells_health else "not in this snapshot"
        )
        reasons = dict.fromkeys([*told, *(why.text for why in asked if why.kind != "not told")]) or {untold: None}
        return f"NVLinks of all {len(each.numbers)} pairs unknown: {'; '.join(reasons)}"
    if each.joined or layouts == ():
        return None
    waiting = {gpu.fabric.state for gpu in each.gpus if gpu.fabric} & {"in progress", "not started"}
    if waiting and not any(gpu.fabric and gpu.fabric.state == "completed" for gpu in each.gpus):
        return f"no NVLink between any two GPUs yet: fabric registration is {' or '.join(sorted(waiting))}"
    wired = layouts is not None and all(layout.kind in WIRED for layout in layouts)
    if not each.node.tells_health and wired:
        return f"no NVLink between any two GPUs: on {each.product} this is either a view that hides it or a dead fabric"
    return None


def _text_unclear(each: _Set, layouts: tuple[NvlinkLayout, ...] | None) -> str | None:
    """Why the text of a topology can't be judged, None if it can."""
    if each.node.source == "topo -mp" and layouts != ():
        return "this view (`nvidia-smi topo -mp`) shows PCIe only and hides NVLink"
    one_way = [pair for pair in each.numbers if _is_one_way(each, *pair)]
    if one_way and not each.node.tells_health:
        (a, b), *more = one_way
        others = f", and {len(more)} more pairs alike" if more else ""
        return f"the file contradicts itself: between GPU {a} and GPU {b} there are NVLinks by the row of one, and none by the other's{others}"
    return None


def _is_one_way(each: _Set, a: int, b: int) -> bool:
    gpus = {gpu.index: gpu for gpu in each.gpus}
    there, back = gpus[a].peer(b), gpus[b].peer(a)
    if there is None or back is None or None in (there.num_nvlinks, back.num_nvlinks):
        return False
    return bool(there.num_nvlinks) != bool(back.num_nvlinks)


def _given_without_switches(each: _Set, layouts: tuple[NvlinkLayout, ...] | None) -> bool:
    """All GPUs of a virtual machine, of a product that boards join, without any NVLink: that is how it was made."""
    platform = each.node.platform
    virtual = platform is not None and platform.virtual_machine not in (None, "none")
    wired = any(layout.kind in WIRED for layout in layouts or ())
    return virtual and wired and not each.joined and len(each.gpus) == len(each.node.open_gpus)


def _with_layouts(evidence: Evidence, each: _Set, layouts: tuple[NvlinkLayout, ...]) -> Iterator[Finding]:
    if not layouts:
        yield _no_nvlink(each)
        return
    if not each.joined and any(layout.kind == "bridge" for layout in layouts):
        good = f"{count(each.gpus)} without NVLink between any two: cards without a bridge"
        yield _finding(each, Verdict.PASS, good, expected="a bridge is optional")
        return
    fit = best_fit(each.numbers, layouts)
    if fit is None:
        yield _no_layout_fits(each, layouts)
    else:
        yield from _findings(evidence, each, fit, f"profile {each.profile.name if each.profile else '?'}")


def _no_layout_fits(each: _Set, layouts: tuple[NvlinkLayout, ...]) -> Finding:
    """A board that the profile doesn't know: if each GPU has all links that the product has, nothing is missing."""
    sizes = show_numbers([layout.gpus for layout in layouts])
    expected = f"one of the profile's boards, which have {sizes} GPUs"
    sums, most = link_sums(each.numbers), max(layout.per_gpu for layout in layouts)
    if len(sums) == len(each.gpus) and all(total == most for total in sums.values()):
        observed = f"{count(each.gpus)}: {most} NVLinks from each, all that the product has, on a board that the profile doesn't know"
        return _finding(each, Verdict.PASS, observed, expected=expected)
    if len(each.gpus) < max(layout.gpus for layout in layouts) and each.all_links_active:
        observed = f"{count(each.gpus)}, {each.text}: part of a board, with every link of every GPU active"
        return _finding(each, Verdict.PASS, observed, expected=expected)
    observed = f"{count(each.gpus)}, {each.text}: no layout of the profile fits"
    return _finding(
        each,
        Verdict.UNKNOWN,
        observed,
        expected=expected,
        remedy="add the layout of this board to the product's profile",
    )


def _no_nvlink(each: _Set) -> Finding:
    if each.joined:
        observed = f"NVLink where {each.product} has none by its profile: {each.text}"
        return _finding(each, Verdict.WARN, observed, remedy="correct the profile or the product's name")
    return _finding(each, Verdict.PASS, f"{count(each.gpus)} without NVLink, as {each.product} is made")


def _guesses(sets: Sequence[_Set]) -> dict[Kind, NvlinkLayout | None]:
    """What machines of products without a profile seem to be like, each asked once."""
    alike: dict[Kind, list[Numbers]] = {}
    for each in sets:
        if each.profile is None or each.profile.nvlink_layouts is None:
            alike.setdefault(each.kind, []).append(each.numbers)
    return {kind: guess_layout(machines) for kind, machines in alike.items()}


def _without_profile(evidence: Evidence, each: _Set, guess: NvlinkLayout | None) -> Iterator[Finding]:
    """The same product elsewhere, and the other GPUs here, are the only measure."""
    missing = (
        f"no profile exists for {name}"
        if (name := each.gpus[0].name)
        else "no profile exists: the product is not known"
    )
    fit = best_fit(each.numbers, (guess,)) if guess else None
    if fit is not None:
        yield from _findings(evidence, each, fit, missing)
    elif not each.joined and _looks_like_a_board(each):
        yield _finding(
            each,
            Verdict.UNKNOWN,
            f"no NVLink between any of {count(each.gpus)}, though machines like this one (each GPU with an HCA of its own, or an SXM module) have it:"
            f" a view that hides it, a dead fabric, or a product without; {missing}",
            remedy=f"say which product it is; {ASK_TOPO}",
        )
    elif not each.joined:
        yield _finding(
            each,
            Verdict.PASS,
            f"{count(each.gpus)}, none joined by NVLink; {missing}, and nothing here speaks for NVLink",
        )
    elif _is_odd_bridge(each):
        yield _odd_bridge(evidence, each, missing)
    elif each.all_links_active:
        yield _finding(each, Verdict.PASS, f"{each.text}, with every link of every GPU active; {missing}")
    else:
        unlike = [f"GPU {index} has {number}" for index, number in each.to_switches.items()]
        own = f"; active links differ: {', '.join(unlike)}" if len(set(each.to_switches.values())) > 1 else ""
        observed = f"{each.text}{own}; {missing}, and too few alike are here to compare"
        yield _finding(each, Verdict.UNKNOWN, observed, remedy="name the product, or add a profile for it")


def _is_odd_bridge(each: _Set) -> bool:
    """Two GPUs alone, joined by 3, 5, ... links. Bridges have 2, 4, 6, 12 or 18, always an even number; single links and boards of more GPUs are another matter."""
    numbers = [number or 0 for number in each.numbers.values()]
    odd = len(numbers) == 1 and numbers[0] > 1 and numbers[0] % 2 == 1
    return odd and not each.all_links_active and not each.to_switches


def _odd_bridge(evidence: Evidence, each: _Set, missing: str) -> Finding:
    (number,) = each.numbers.values()
    found = f"{number} NVLinks between the only two GPUs, and no bridge has an odd number: partial contact"
    indices = tuple(gpu.index for gpu in each.gpus)
    oddity = Oddity("link", indices, found, f"{(number or 0) + 1} or more", certain=False)
    return _odd(evidence, each, oddity, missing, None)


def _looks_like_a_board(each: _Set) -> bool:
    """SXM modules, or four and more GPUs that have each an HCA of their own next to them: so are machines with NVSwitch built, and few others."""
    if "SXM" in (each.gpus[0].name or "").upper():
        return True
    found = rails(each.node)
    mine = [any(found.sharers(name) == (gpu.index,) for name in found.own.get(gpu.index, ())) for gpu in each.gpus]
    return each.gpus[0].name is None and len(mine) > 3 and all(mine)


def _findings(evidence: Evidence, each: _Set, fit: Fit, basis: str) -> Iterator[Finding]:
    guessed = each.profile is None
    for oddity in fit.oddities:
        yield _odd(evidence, each, oddity, basis, fit.layout if guessed else None)
    unknown = [pair for pair, number in each.numbers.items() if number is None]
    if unknown:
        named = ", ".join(f"{a}-{b}" for a, b in unknown[:8]) + (", ..." if len(unknown) > 8 else "")
        observed = f"NVLinks of {len(unknown)} of {len(each.numbers)} pairs unknown: {named}"
        yield _finding(
            each, Verdict.UNKNOWN, observed, remedy="run `preflight node` there: it says what can't be read, and why"
        )
    elif not fit.oddities:
        whole = _whole_text(each, fit.layout) + (f"; {basis}, compared with its peers" if guessed else "")
        yield _finding(each, Verdict.PASS, whole, expected=f"{_expected(fit.layout)} ({fit.layout.source})")


def _odd(evidence: Evidence, each: _Set, oddity: Oddity, basis: str, guess: NvlinkLayout | None) -> Finding:
    """`guess`: the layout, if it is only what the peers look like."""
    oddity = _of_one(each, oddity)
    gpus = tuple(gpu for gpu in each.gpus if gpu.index in oddity.gpus)
    confidence: Confidence = "certain" if oddity.certain and guess is None else "likely"
    together = oddity.kind in ("link", "bridge", "maybe bridge")
    users = users_of(evidence.plan, each.node, gpus, together=together)
    verdict = Verdict.WARN if oddity.kind in ("more", "maybe bridge") else users.lowered(Verdict.FAIL)
    blames: Part | None = None
    subject = _subject(each.node, gpus)
    if oddity.kind == "gpu":
        subject, blames = gpu_name(each.node, gpus[0]), gpu_part(each.node, gpus[0], confidence)
        if guess and guess.kind == "cube" and not link_sums(each.numbers).get(gpus[0].index):
            verdict, blames = Verdict.UNKNOWN, None
    elif oddity.kind == "board":
        blames = Part(kind="node", name=each.node.name, confidence="likely")
    elif oddity.kind in ("link", "bridge"):
        subject = f"{each.node.name} GPU {' - GPU '.join(str(gpu.index) for gpu in gpus)}"
        blames = Part(kind="link", name=subject, confidence=confidence)
    return Finding(
        check=NAME,
        subject=subject,
        verdict=verdict,
        observed=oddity.found + users.text(),
        expected=f"{oddity.expected} ({basis})",
        remedy=REMEDIES[oddity.kind].format(gpus=" and ".join(str(index) for index in oddity.gpus)),
        blames=blames,
    )


def _of_one(each: _Set, oddity: Oddity) -> Oddity:
    """All pairs fall short, and yet it may be one GPU's doing: a pair of GPUs on switches has no more links than the one with fewer."""
    own = each.to_switches
    short = [index for index, number in own.items() if number < max(own.values())]
    if oddity.kind != "board" or len(short) != 1 or len(own) != 2:
        return oddity
    found = f"{own[short[0]]} of its NVLinks active, {max(own.values())} on the other GPU"
    return Oddity("gpu", (short[0],), found, oddity.expected, certain=False)


def _subject(node: Node, gpus: Sequence[Gpu]) -> str:
    """Texts of topologies know GPUs by index only."""
    return node.name if len(gpus) == len(node.gpus or ()) else gpus_subject(node, gpus)


def _finding(each: _Set, verdict: Verdict, observed: str, *, expected: str = "", remedy: str = "") -> Finding:
    return Finding(
        check=NAME, subject=each.subject, verdict=verdict, observed=observed, expected=expected, remedy=remedy
    )


def _expected(layout: NvlinkLayout) -> str:
    if layout.kind == "cube":
        return f"{layout.per_gpu} NVLinks from each GPU"
    return f"{show_numbers(layout.per_pair)} NVLinks between {'bridged cards' if layout.kind == 'bridge' else 'any two GPUs'}"


def _whole_text(each: _Set, layout: NvlinkLayout) -> str:
    if layout.kind == "cube":
        bare = sum(not number for number in each.numbers.values())
        design = ", as this board is made" if each.profile else ""
        return f"{count(each.gpus)}: {layout.per_gpu} NVLinks from each; {bare} of {len(each.numbers)} pairs have none{design}"
    return f"{count(each.gpus)}: {each.text}"


REMEDIES = {
    "gpu": "look at this GPU's fabric registration and links (`nvidia-smi -q -i {gpus}`, `nvidia-smi nvlink -s -i {gpus}`) and at the fabric manager's log; "
    "reset it or reboot the node, and keep groups off GPU {gpus} until then",
    "link": "look at the links of GPUs {gpus} (`nvidia-smi nvlink -s`) and, if a bridge joins them, reseat it; place no group on both until then",
    "bridge": "reseat or replace the bridge between GPUs {gpus}, and place no group on both until then; if none is fitted there on purpose, set "
    '[rules] nvlink_pairs = "warn"',
    "maybe bridge": "",
    "board": "check that the product's name is right; then look at the fabric manager and the NVSwitches (`nvidia-smi nvlink -s`), or leave the node out",
    "more": "correct the layout in the product's profile, or the product's name",
}

CHECK = Check(
    name=NAME,
    claim="Every pair of a node's GPUs has the NVLinks that boards of its product have.",
    why="A GPU or pair without its NVLinks sends over PCIe, many times slower, and a whole tensor-parallel group waits for it; nothing fails.",
    source="Layouts: the product's profile, each with its source. Blame: vllm-project/vllm issue 16336, NVIDIA/nccl issues 557, 933 and 1617.",
    remedy="Look at the links and the fabric registration of the GPU that is named, reseat the bridge, or keep groups off the pair until it is repaired.",
    uses=("inventory",),
    judge=judge,
)
