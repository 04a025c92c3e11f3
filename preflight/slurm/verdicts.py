"""The cached verdict of this node: what a sweep of the whole fleet found, so that a prolog need not measure. Written by the resident agent or a scan, read by the prolog.

It counts until it expires, the node is booted anew, or an operator resumes the node that was drained for it.
"""

import contextlib

import msgspec

from preflight.errors import WorldError
from preflight.model.base import Noun, from_json, to_json
from preflight.model.finding import Finding, Verdict
from preflight.slurm.job import is_node_name
from preflight.slurm.state import StateFolder

FOLDER = "verdicts"
SCHEMA = "preflight.verdict/1"
EARLY_S = 300.0  # a clock may be set back by so much without making a verdict one of the future


class NodeVerdict(Noun, frozen=True, kw_only=True, tag_field="schema", tag=SCHEMA):
    """What the sweep `run_id` says of one node. FAIL only where that sweep pinned it on this very node; `findings` are those that blame it. Times are Unix time.

    `boot_id`: the kernel's, of the boot that was judged. `drained`: the node was drained for this verdict, `drained_at_s`: when.
    """

    node: str
    run_id: str
    verdict: Verdict
    boot_id: str
    written_at_s: float
    expires_at_s: float
    findings: tuple[Finding, ...] = ()
    drained: bool = False
    drained_at_s: float | None = None


def write_verdict(state_dir: str, verdict: NodeVerdict) -> None:
    """Keep it, in the place of an older one. Raises WorldError: the folder can't be written, or is somebody else's; ValueError: not a node's name."""
    with StateFolder(state_dir, FOLDER) as folder:
        folder.write(_name(verdict.node), to_json(verdict))


def read_verdict(state_dir: str, node: str, *, boot_id: str | None, now_s: float) -> tuple[NodeVerdict | None, str]:
    """The verdict that counts now, if there is one; and, if there is a file that doesn't count, why, in words. A verdict with `drained` is given as it is. Never raises.

    `boot_id`: of the running kernel; None (not known) makes no verdict count.
    """
    try:
        with StateFolder(state_dir, FOLDER) as folder:
            data = folder.read(_name(node))
        verdict = from_json(data, NodeVerdict) if data is not None else None
    except (WorldError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        kind = "" if isinstance(error, WorldError) else "the cached verdict can't be understood: "
        return None, f"{kind}{error}"
    if verdict is None:
        return None, ""
    why = _why_not(verdict, node, boot_id, now_s)
    return (None, f"the verdict of {verdict.run_id} doesn't count: {why}") if why else (verdict, "")


def drop_verdict(state_dir: str, node: str) -> None:
    """Forget it. Never raises: what can't be removed expires."""
    with contextlib.suppress(WorldError, ValueError), StateFolder(state_dir, FOLDER) as folder:
        folder.remove(_name(node))


def mark_drained(state_dir: str, verdict: NodeVerdict, *, now_s: float) -> None:
    """Note that the node was drained for it, so that it no longer counts once an operator has resumed the node. Raises WorldError."""
    write_verdict(state_dir, msgspec.structs.replace(verdict, drained=True, drained_at_s=now_s))


def _why_not(verdict: NodeVerdict, node: str, boot_id: str | None, now_s: float) -> str:
    if verdict.node != node:
        return f"it is about {verdict.node}"
    if boot_id is None:
        return "which boot this is can't be found out"
    if verdict.boot_id != boot_id:
        return "the node was booted since"
    if verdict.expires_at_s <= now_s:
        return "it has expired"
    if verdict.written_at_s > now_s + EARLY_S:
        return "it is from the future: a clock was wrong"
    return ""


def _name(node: str) -> str:
    if not is_node_name(node):
        raise ValueError(f"{node[:60]!r} is no node's name")
    return f"{node}.json"
