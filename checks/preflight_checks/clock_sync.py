"""The clocks of the nodes are kept in step.

Logs of many nodes are read side by side to find who failed first; signed requests of agents carry a time; checkpoints are chosen by theirs.

Source: adjtimex(2): STA_UNSYNC and TIME_ERROR mean that no daemon keeps the clock; maxerror is the kernel's bound on the error.
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Part, Verdict
from preflight.model.units import show_seconds

NAME = "clock_sync"
# the kernel's own bound on the error grows by 0.5 ms a second (adjtimex(2)): 3 s after 100 minutes without an update, more than any daemon waits
LIMITS = {"max_error_s": 3.0}
EXPECTED = "a clock that the kernel calls synchronised"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each node that tells."""
    limit_s = evidence.limits(NAME, LIMITS)["max_error_s"]
    for node in evidence.health or ():
        clock = node.clock
        if clock is None or clock.synchronised is None:
            yield Finding(
                check=NAME,
                subject=node.name,
                verdict=Verdict.UNKNOWN,
                observed="the kernel does not tell",
                expected=EXPECTED,
                remedy="run `timedatectl` on the node",
            )
            continue
        error = "" if clock.max_error_s is None else f", possible error {show_seconds(clock.max_error_s)}"
        far = clock.max_error_s is not None and clock.max_error_s > limit_s
        if clock.synchronised and not far:
            yield Finding(
                check=NAME, subject=node.name, verdict=Verdict.PASS, observed=f"synchronised{error}", expected=EXPECTED
            )
        else:
            yield Finding(
                check=NAME,
                subject=node.name,
                verdict=Verdict.WARN,
                observed=("synchronised" if clock.synchronised else "not synchronised") + error,
                expected=f"{EXPECTED}, to within {show_seconds(limit_s)}",
                remedy="start chrony, systemd-timesyncd or ntpd (in a virtual machine or container: on the host)",
                blames=Part(kind="environment", name=f"clock of {node.name}"),
            )


CHECK = Check(
    name=NAME,
    claim="The clocks of the nodes are kept in step.",
    why="Without that, logs of several nodes can't be compared, and signed requests between agents are refused.",
    source="adjtimex(2): STA_UNSYNC, TIME_ERROR, maxerror",
    remedy="run a time daemon (chrony, systemd-timesyncd, ntpd)",
    uses=("health",),
    judge=judge,
    need="advisory",
    limits=LIMITS,
)
