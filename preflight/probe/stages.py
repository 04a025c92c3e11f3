"""A stage of a probe in words, for failures and incidents: "the first operation of pair 0-3 (send_recv with rank 0)"."""

from preflight.model import Probe
from preflight.probe.breadcrumbs import Stage

MANY = 2  # members; a pair's partner is named, the members of a larger group are not


def describe_stage(stage: Stage, probe: Probe, rank: int, *, peer: int | None = None, operation: int = 0) -> str:
    """Where a rank was in a probe.

    `peer`: whom it waited for; `operation`: counted from 1 within its stage, 0: none.
    """
    if stage == "rendezvous":
        whom = f"rank {peer}" if peer is not None and peer != rank else "the other ranks"
        return f"the rendezvous of {probe.subject}, waiting for {whom}"
    where = {
        "first operation": "the first operation",
        "warm-up": "the warm-up",
        "operation": f"operation {operation}" if operation else "an operation",
        "agreement": "the agreement after a window",
        "verification": "verifying the data",
        "joining": "joining the communicator",
        "membership": "the roll call",
        "preparing": "preparing the buffers",
        "start of the round": "waiting for the round's other probes to get ready for",
        "teardown": "leaving the communicator",
    }.get(stage, stage)
    link = " " if where.endswith("for") else " of "
    return f"{where}{link}{probe.subject} ({probe.collective}{_with(probe, rank)})"


def _with(probe: Probe, rank: int) -> str:
    others = [other for other in probe.ranks if other != rank]
    if not others:
        return ""
    return f" with rank {others[0]}" if len(others) < MANY else f" over {len(probe.ranks)} ranks"
