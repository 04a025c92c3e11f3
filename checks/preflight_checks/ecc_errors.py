"""No GPU has had memory errors that its ECC could not correct since its driver was loaded.

An uncorrected error ends the process that meets it, and the spot may not be out of use before the next reset. Corrected errors cost nothing: their total grows with age and
never fails a GPU, only their rate tells (`counter_growth`). Errors of earlier loads of the driver have been dealt with by row remapping (`row_remap`).
Source: NVIDIA, GPU Memory Error Management (the driver's answer to uncorrected errors; RMA policy: the SRAM threshold flag qualifies for replacement); gcm and
CycleCloud fail volatile uncorrected errors above 0. Totals of 5.47e10 corrected errors have been seen on a GPU without any uncorrected one (DCGM issue 313).
"""

from collections.abc import Iterator

from preflight.model import Check, Ecc, Evidence, Finding, Gpu, Node, Verdict
from preflight.model.per_gpu import Fault, count, gpus_subject, judge_gpus, missing_fault, setting_part

NAME = "ecc_errors"
_EXPECTED = "no uncorrected memory errors since the driver was loaded"
_OFF = "ECC is switched off, so that memory errors go unseen"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """Uncorrected errors and the SRAM mark fail a GPU. ECC that is off on some GPUs of a product and on for others of the node is a warning."""
    yield from judge_gpus(
        NAME, evidence, "ecc", _fault, good="no uncorrected errors", expected=_EXPECTED, note=_note, unless=_off
    )
    if not evidence.settings.cpu_declared:
        for node in evidence.health or ():
            yield from _uneven(node)


def _off(gpu: Gpu) -> str | None:
    return _OFF if gpu.ecc_enabled is False else None


def _fault(node: Node, gpu: Gpu, ecc: Ecc) -> Fault | None:
    life = "" if ecc.uncorrected_aggregate is None else f", {ecc.uncorrected_aggregate} over its life"
    if ecc.sram_threshold_exceeded:
        return Fault(
            Verdict.FAIL,
            f"the driver says that uncorrected errors of its SRAM exceed the vendor's threshold for replacing it{life}",
            _EXPECTED,
            f"drain {node.name} and have GPU {gpu.index} replaced: run the vendor's field diagnostic, which the return needs",
        )
    if ecc.uncorrected_volatile is None and gpu.mig_enabled:
        return Fault(Verdict.SKIP, "in MIG mode, where the driver doesn't tell the errors of a whole GPU")
    if ecc.uncorrected_volatile is None:
        return missing_fault(gpu, "uncorrected_volatile", "ecc")
    if ecc.uncorrected_volatile > 0:
        return Fault(
            Verdict.FAIL,
            f"uncorrected memory errors since the driver was loaded: {ecc.uncorrected_volatile}{life}",
            _EXPECTED,
            f"drain {node.name}, then reset GPU {gpu.index} or reboot, so that bad memory goes out of use; if errors come back, run the "
            "vendor's diagnostic and replace it",
        )
    return None


def _note(_gpu: Gpu, ecc: Ecc) -> str | None:
    parts = []
    if ecc.uncorrected_aggregate:
        parts.append(f"{ecc.uncorrected_aggregate} uncorrected over its life, none since the driver was loaded")
    if ecc.corrected_volatile:
        parts.append(f"{ecc.corrected_volatile} corrected")
    return ", ".join(parts) or None


def _uneven(node: Node) -> Iterator[Finding]:
    """GPUs without ECC beside others of the same product that have it on."""
    on = {gpu.name for gpu in node.open_gpus if gpu.ecc_enabled}
    off = [gpu for gpu in node.open_gpus if gpu.ecc_enabled is False and gpu.name in on]
    if off:
        yield Finding(
            check=NAME,
            subject=gpus_subject(node, off),
            verdict=Verdict.WARN,
            observed=f"{count(off)}: {_OFF}, while others of this product on the node have it on",
            expected="ECC on for all GPUs of a product, or for none",
            remedy="switch it on with `nvidia-smi -e 1` for these GPUs and reset them",
            blames=setting_part(node, "ECC mode"),
        )


CHECK = Check(
    name=NAME,
    claim="No GPU has had memory errors that its ECC could not correct since its driver was loaded.",
    why="An uncorrected memory error ends the process that meets it, and with it the job; the bad memory may still be in use until the GPU is reset.",
    source="NVIDIA, GPU Memory Error Management; gcm and CycleCloud (above 0 fails); DCGM issue 313 (corrected totals say nothing).",
    remedy="Drain the node and reset the GPU, which takes bad memory out of use; replace a GPU whose errors come back or that exceeds the SRAM threshold.",
    uses=("health",),
    judge=judge,
)
