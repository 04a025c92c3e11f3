"""Draining: under the brake, never over a reason that somebody else set, the reason and the state in one call, and read back afterwards.

Tried with Slurm 22.05: a reason alone is forgotten on a node that is neither drained nor down; a drain without a reason is refused; a prolog that fails afterwards leaves a reason alone that came with a drain, and writes its own
"Prolog error" over none. Between the look and the drain an operator may set a reason: that is some 20 ms, and Slurm offers no way to close it.
"""

import contextlib
import time
from collections.abc import Sequence

from preflight.config import Site
from preflight.errors import SlurmError
from preflight.model.base import Record
from preflight.model.hostlist import fold
from preflight.slurm import brake as brakes
from preflight.slurm.commands import Slurm
from preflight.slurm.nodes import SlurmNode
from preflight.slurm.reason import is_ours, kind_of

MAINTAINED = {"maintenance", "maint"}  # somebody works on it, and knows why it looks as it does


class Drained(Record, frozen=True):
    """What became of each node. `done`: drained now, with our reason, as read back. `kept`: was drained by us before, and is. `foreign`: has a reason of somebody else's, which stays.

    `absent`: down, switched off, rebooting, under maintenance, or not known to Slurm: left alone. `braked`: the brake forbids it. `failed`: Slurm did not do it, or did not say. `planned`: would be drained if
    the site enforced. `text`: one line that says all of it.
    """

    done: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    braked: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()
    text: str = ""


def drain(slurm: Slurm, names: Sequence[str], reason: str, site: Site, *, partition: str | None = None) -> Drained:
    """Drain these nodes for one reason of ours (reason.reason_of). Never raises SlurmError: what Slurm did not do is `failed`, with what it said.

    Where the site doesn't enforce, nothing is changed or announced. `partition`: see brake.allowed.
    """
    assert is_ours(reason)
    names = tuple(dict.fromkeys(names))
    try:
        nodes = slurm.nodes(names)
    except SlurmError as error:
        return Drained(failed=names, text=f"{fold(names)} not drained: {error}")
    sorted_out = {name: _standing(nodes.get(name)) for name in names}
    free = tuple(name for name, standing in sorted_out.items() if standing == "free")
    kept, foreign, absent = (
        tuple(name for name, each in sorted_out.items() if each == standing)
        for standing in ("kept", "foreign", "absent")
    )
    result = Drained(kept=kept, foreign=foreign, absent=absent)
    if site.slurm.enforce:
        _worsen(slurm, [nodes[name] for name in result.kept], reason)
    if free:
        decision = brakes.allowed(slurm, free, reason, site.brake, partition=partition, dry=not site.slurm.enforce)
        result = result.replace(braked=decision.refused)
        if not site.slurm.enforce:
            result = result.replace(planned=decision.allowed)
        elif decision.allowed:
            result, why = _do(slurm, decision, reason, result)
            return result.replace(text=_text(result, nodes, reason, decision.why, why))
        return result.replace(text=_text(result, nodes, reason, decision.why))
    return result.replace(text=_text(result, nodes, reason))


def _standing(node: SlurmNode | None) -> str:
    """What is to be done with a node as it is: "kept", "foreign", "absent", or "free" to be drained."""
    if node is None:
        return "absent"
    if node.drained:
        return "kept" if is_ours(node.reason) else "foreign"
    return "absent" if node.absent or node.states & MAINTAINED else "free"


def _worsen(slurm: Slurm, kept: Sequence[SlurmNode], reason: str) -> None:
    """A node that a local check drained must not be resumed by one when a fault of its fabric was found since."""
    mild = [node.name for node in kept if kind_of(node.reason) == "local"]
    if mild and kind_of(reason) == "fabric":
        with contextlib.suppress(SlurmError):
            slurm.update_node(mild, reason=reason)


def _do(slurm: Slurm, decision: "brakes.Decision", reason: str, result: Drained) -> tuple[Drained, str]:
    """Drain what is allowed, in one call for nodes that announced in the same field; and look what is true then."""
    complaint = ""
    for field in ("extra", "comment"):
        chosen = [name for name in decision.allowed if decision.claims[name].field == field]
        try:
            if chosen and time.monotonic() > decision.ends_at:
                complaint = "it took too long since it was allowed"
            elif chosen:
                slurm.update_node(chosen, state="drain", reason=reason, **{field: ""})
        except SlurmError as error:
            complaint = str(error)
    try:
        after = slurm.nodes(decision.allowed)
        true = {name for name, node in after.items() if node.drained and node.reason == reason}
    except SlurmError as error:
        true, complaint = set(), complaint or str(error)
    failed = tuple(name for name in decision.allowed if name not in true)
    if failed:
        brakes.release(slurm, decision)
    done = tuple(name for name in decision.allowed if name in true)
    return result.replace(done=done, failed=failed), complaint


def _text(result: Drained, nodes: dict[str, SlurmNode], reason: str, braked: str = "", complaint: str = "") -> str:
    said = []
    if result.done:
        said.append(f"drained {fold(result.done)}: {reason}")
    if result.planned:
        said.append(f"would drain {fold(result.planned)} (enforce is off): {reason}")
    if result.kept:
        said.append(f"{fold(result.kept)} drained by preflight before: {nodes[result.kept[0]].reason}")
    said += [
        f"{name} keeps the reason that {_whose(nodes[name])} gave: {nodes[name].reason or 'none that Slurm tells'}"
        for name in result.foreign
    ]
    for name in result.absent:
        state = "+".join(sorted(nodes[name].states)) if name in nodes else "not known to Slurm"
        said.append(f"{name} is left alone: {state}")
    if result.braked:
        said.append(braked)
    if result.failed:
        said.append(f"{fold(result.failed)} not drained: {complaint or 'Slurm shows no drain with this reason'}")
    return "; ".join(said)


def _whose(node: SlurmNode) -> str:
    return node.reason_by or "somebody"
