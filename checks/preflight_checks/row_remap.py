"""No GPU waits for a reset to replace a bad memory row, and none has failed to replace one.

Ampere and newer replace a bad row by a spare one at the next reset. "Pending": until then the driver keeps the page that it knows out of use; the row may hold more. "Failed": a row
could not be replaced, and only replacing the GPU helps; such a GPU was seen to go on corrupting jobs while it looked alive. Rows that have been replaced are healthy again: their number
is no fault. NVIDIA lets new work start while a row is pending, so that a site may lower this: [rules] row_remap = "warn"; a reset before a long job costs less than its loss.
Source: NVIDIA, GPU Memory Error Management (a reset applies pending remappings; page offlining; the failure flag is the condition for a return); gpud pull requests 80 and 108; awsome-distributed-ai pull request 1190.
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Gpu, Node, RowRemap, Verdict
from preflight.model.per_gpu import Fault, judge_gpus

NAME = "row_remap"
_EXPECTED = "no pending and no failed row remapping"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """Failed comes before pending, since a reset doesn't heal it."""
    good = "no pending and no failed row remapping"
    yield from judge_gpus(NAME, evidence, "row_remap", _fault, good=good, expected=_EXPECTED, note=_note)


def _fault(node: Node, gpu: Gpu, rows: RowRemap) -> Fault | None:
    if rows.failed:
        remedy = f"drain {node.name} and have GPU {gpu.index} replaced; a reset doesn't help"
    elif rows.pending:
        remedy = f"drain {node.name}, then reset GPU {gpu.index} or reboot, which puts spare rows in the place of the bad ones"
    else:
        return None
    flags = f"pending {_yes_no(rows.pending)}, failed {_yes_no(rows.failed)}"
    return Fault(Verdict.FAIL, f"row remapping {flags}; {_counts(rows)}", _EXPECTED, remedy)


def _note(_gpu: Gpu, rows: RowRemap) -> str | None:
    return _counts(rows) if rows.uncorrectable or rows.correctable else None


def _counts(rows: RowRemap) -> str:
    return f"rows replaced for uncorrectable errors {rows.uncorrectable}, for correctable ones {rows.correctable}"


def _yes_no(flag: bool) -> str:
    return "yes" if flag else "no"


CHECK = Check(
    name=NAME,
    claim="No GPU waits for a reset to replace a bad memory row, and none has failed to replace one.",
    why="A row that waits has cost one job and may cost the next; a GPU that can't replace a row ends job after job while it looks alive.",
    source="NVIDIA, GPU Memory Error Management: row remapping and RMA policy; gpud pull requests 80 and 108.",
    remedy="Pending: drain the node and reset the GPU, or reboot. Failed: have the GPU replaced.",
    uses=("health",),
    judge=judge,
)
