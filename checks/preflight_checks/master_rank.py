"""Rank 0 sits on the node that launch.master (MASTER_ADDR) names.

Rank 0 opens the store at which all ranks meet, and everyone looks for it at MASTER_ADDR: if rank 0 is elsewhere, the job waits until it times out. torchrun's c10d
is different: it hands out the address of whatever node it ranks first, so the job starts, but rank 0, with its logs and checkpoints, is not on the node that the
script calls the master. Sources: torch/distributed/rendezvous.py (env://, rank 0 is the server), elastic/rendezvous/static_tcp_rendezvous.py, dynamic_rendezvous.py.
"""

import re
from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Launch, Part, Verdict

NAME = "master_rank"

_ADDRESS = re.compile(r"[0-9.]+|[0-9a-f:.%]*:[0-9a-f:.%]*", re.IGNORECASE)
_LOOPBACK = re.compile(r"localhost(\..*)?|127\.[0-9.]+|::1", re.IGNORECASE)


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding where the plan file names the master."""
    plan = evidence.plan
    assert plan is not None
    launch, placement = plan.job.launch, plan.placement
    if launch.master is None:
        return
    master, first = launch.master.strip().rstrip("."), placement.nodes[placement.node_ranks[0]]
    verdict, remedy, observed = Verdict.PASS, "", f"rank 0 is on {first}"
    if _LOOPBACK.fullmatch(master):
        if len(placement.nodes) > 1:
            verdict = Verdict.FAIL
            observed = (
                f"{master} is another machine on each of the {len(placement.nodes)} nodes: each would wait for itself"
            )
            remedy = f"set MASTER_ADDR (or --rdzv-endpoint) to {first}"
    elif not any(_same(master, node) for node in placement.nodes):
        kind = "an address" if _ADDRESS.fullmatch(master) else "none of the plan's nodes by name"
        verdict = Verdict.UNKNOWN
        observed = f"{master} is {kind}, so it can't be compared with {first}, where rank 0 is"
        remedy = f"write the node's name as launch.master; for rank 0 to be there it has to be {first}"
    elif not _same(master, first):
        verdict, observed, remedy = _elsewhere(launch, master, first)
    yield Finding(
        check=NAME,
        subject="rank 0",
        verdict=verdict,
        observed=observed,
        expected=f"rank 0 on {master}, which launch.master names",
        remedy=remedy,
        blames=Part(kind="plan", name="launch.master") if verdict in {Verdict.FAIL, Verdict.WARN} else None,
    )


def _elsewhere(launch: Launch, master: str, first: str) -> tuple[Verdict, str, str]:
    """Verdict, what is observed and the remedy, where rank 0 is on another node of the job."""
    if launch.launcher in {"torchrun", "kubernetes"} and launch.rendezvous == "c10d":
        return (
            Verdict.WARN,
            f"rank 0 is on {first}: c10d ranks nodes by name as text, not by the rendezvous endpoint, and ignores --node-rank",
            f"use {first} as the endpoint, or static rendezvous with --node-rank=0 on {master}",
        )
    observed = f"rank 0 is on {first}, and all ranks look for it on {master}: they wait until they time out"
    remedy = f"set MASTER_ADDR to {first}, or put {master} first"
    if launch.launcher is None:
        return (
            Verdict.WARN,
            f"{observed} (block placement assumed: no launcher is said)",
            f"write launch.launcher; {remedy}",
        )
    return Verdict.FAIL, observed, remedy


def _same(a: str, b: str) -> bool:
    """Whether two host names mean one host: equal, or one is the other without its domain."""
    a, b = a.lower(), b.lower()
    return a == b or a == b.partition(".")[0] or b == a.partition(".")[0]


CHECK = Check(
    name=NAME,
    claim="Rank 0 sits on the node that launch.master names.",
    why="All ranks look for rank 0 at MASTER_ADDR: elsewhere the job waits until it times out, or its logs and checkpoints do.",
    source="torch/distributed/rendezvous.py (env://: rank 0 is the server), static_tcp_rendezvous.py, dynamic_rendezvous.py",
    remedy="set MASTER_ADDR to the node of rank 0, or put that node first",
    uses=("plan",),
    judge=judge,
    need="advisory",
)
