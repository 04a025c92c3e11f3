"""What other tools of the site said of this node is taken over: their failures are failures here.

A site that runs DCGM's diagnostic, or its own plug-ins, need not read two reports; and a node that another tool failed is not started on because ours looked elsewhere. Each finding
carries its origin. A tool's FAIL stays FAIL: what a site does not want to count, it lowers by the rule of this check.

Sources: `preflight/discover/verdicts` (forms that are read); NVIDIA/DCGM 145 (one failing GPU makes a group's run mark all as failed: results of single GPUs count).
"""

import re
from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Gpu, Node, OutsideVerdict, Part, Verdict
from preflight.model.per_gpu import gpu_name

NAME = "outside_verdicts"
_PCI = re.compile(r"^(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])$")
_MIN_UUID = 12  # "GPU-" and eight digits: shorter beginnings may fit several


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each verdict. Nothing where no other tool was asked."""
    for node in evidence.health or ():
        for verdict in node.verdicts:
            yield _finding(node, verdict)


def _finding(node: Node, said: OutsideVerdict) -> Finding:
    gpu = _gpu(node, said.gpu) if said.gpu is not None else None
    subject = gpu_name(node, gpu) if gpu else f"{node.name} GPU {said.gpu}" if said.gpu is not None else node.name
    verdict = Verdict(said.verdict)
    of_gpu = said.gpu is not None
    return Finding(
        check=NAME,
        subject=subject,
        verdict=verdict,
        observed=_words(said),
        expected=f"{said.origin} finds nothing wrong",
        remedy=_remedy(node, said, verdict),
        blames=Part(kind="gpu" if of_gpu else "node", name=subject, confidence="likely")
        if verdict is Verdict.FAIL
        else None,
        origin=said.origin,
    )


def _words(said: OutsideVerdict) -> str:
    """What was said, with the name of the test unless the text begins with it, as plug-ins' do ("DISK CRITICAL - ...")."""
    if not said.text:
        return f"{said.name}: {said.verdict}, without a word"
    return said.text if said.text.casefold().startswith(said.name.casefold()) else f"{said.name}: {said.text}"


def _remedy(node: Node, said: OutsideVerdict, verdict: Verdict) -> str:
    if verdict in {Verdict.PASS, Verdict.SKIP}:
        return ""
    if verdict is Verdict.UNKNOWN:
        return f"run {said.origin} on {node.name} again, and see why it gave no answer"
    what = f"what {said.origin} says of {said.name}" if said.name != said.origin else f"what {said.origin} says"
    return f"follow {what}, then run it on {node.name} again"


def _gpu(node: Node, name: str) -> Gpu | None:
    """The GPU of that index, UUID (or its beginning) or PCI id; None if none or more than one fits."""
    text = name.strip().casefold()
    fits = [gpu for gpu in node.gpus or () if _is(gpu, text)]
    return fits[0] if len(fits) == 1 else None


def _is(gpu: Gpu, text: str) -> bool:
    if text.isascii() and text.isdigit():
        return gpu.index == int(text[:9])
    if match := _PCI.match(text):
        return gpu.pci_bus_id == f"{int(match[1] or '0', 16):04x}:{match[2]:>02}:{match[3]:>02}.{match[4]}"
    uuid = (gpu.uuid or "").casefold()
    return bool(uuid) and (uuid == text or (len(text) >= _MIN_UUID and uuid.startswith(text)))


CHECK = Check(
    name=NAME,
    claim="What other tools of the site said of this node is taken over: their failures are failures here.",
    why="A node that another tool found broken must not get a job because this program looked elsewhere.",
    uses=("health",),
    judge=judge,
    source="The tools themselves: each finding names its origin. NVIDIA/DCGM 145 for reports about groups of GPUs.",
    remedy="Follow the tool that is named as the origin. To let its failures only warn, set this check's rule to warn.",
    need="advisory",
)
