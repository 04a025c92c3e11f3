"""What can happen to a local run, one fault at a time, and what must be true afterwards whatever it was."""

import contextlib
import os
import random
import resource
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from preflight.model import Finding, Report, Verdict
from tests.fleet.runs import Run, until

BUDGET_S = 60
NODES, PER_NODE = 2, 2
LEFT_IN_OUT = {"report.json", "preflight.prom"}

# target -> what can happen to it; "pause" is a stop that ends after some seconds
KINDS = {
    "worker": ("stop", "kill", "pause"),
    "agent": ("stop", "kill"),
    "zygote": ("stop", "kill", "pause"),
    "store": ("stop", "kill"),
    "coordinator": ("kill", "pause", "interrupt", "full disk"),
}
PHASES = {"starting": (0.0, 0.5), "early": (0.0, 2.0), "middle": (2.0, 6.0), "late": (6.0, 14.0)}
PAUSE_S = 3.0
ANSWERS = {0: "go", 10: "no-go", 3: "undecided"}


@dataclass(frozen=True)
class Injection:
    """One fault: what happens (`kind`) to whom (`target`, the `index`-th of its like), `delay_s` after it is there (starting) or at work (else)."""

    target: str
    kind: str
    phase: str
    index: int
    delay_s: float

    def __str__(self) -> str:
        return f"{self.kind} {self.target} {self.index} {self.phase} {self.delay_s:.1f}s"

    @property
    def victims(self) -> tuple[set[int], set[str]]:
        """Ranks and nodes that may be named, and blamed."""
        if self.target == "worker":
            return {self.index}, {f"node{self.index // PER_NODE}"}
        if self.target in {"agent", "zygote"}:
            ranks = range(self.index * PER_NODE, (self.index + 1) * PER_NODE)
            return set(ranks), {f"node{self.index}"}
        return set(), set()


def random_injections(number: int, seed: int) -> list[Injection]:
    """Every kind in turn, at random moments and on random victims."""
    chance = random.Random(seed)
    kinds = [(target, kind) for target, kinds in KINDS.items() for kind in kinds]
    found = []
    for turn in range(number):
        target, kind = kinds[turn % len(kinds)]
        phase = chance.choice([name for name in PHASES if target != "store" or name != "starting"])
        index = chance.randrange({"worker": NODES * PER_NODE, "agent": NODES, "zygote": NODES}.get(target, 1))
        found.append(Injection(target, kind, phase, index, chance.uniform(*PHASES[phase])))
    return found


def inject(run: Run, injection: Injection) -> bool:
    """Do it to a run that has just been started. Gives whether the victim was still there."""
    if injection.phase != "starting" or injection.target == "coordinator":
        # a coordinator that has a zygote has come so far that its handlers of signals are in place
        awaited = _find_or_end(run, "pf-zygote" if injection.phase == "starting" else "pf-rank-3")
        if awaited is None:
            return False  # the machine is so busy that no worker came up in time, which the run told of
        if injection.phase != "starting":
            run.until_busy(awaited)
    pid = until(lambda: _victim(run, injection), 60, f"a {injection.target}") if injection.phase == "starting" else None
    time.sleep(injection.delay_s)
    pid = pid or _victim(run, injection)
    if pid is None or run.process.poll() is not None:
        return False
    with contextlib.suppress(ProcessLookupError):
        _do(pid, injection.kind)
        return True
    return False


def _find_or_end(run: Run, name: str) -> int | None:
    """The process of that name; None: the run ended without one."""

    def seen() -> int | None:
        return next((pid for pid, comm in run.processes().items() if comm == name), None)

    found = until(lambda: seen() or (0 if run.process.poll() is not None else None), BUDGET_S + 10, name)
    return int(found) or None


def _victim(run: Run, injection: Injection) -> int | None:
    if injection.target == "coordinator":
        return run.process.pid
    if injection.target == "agent":
        agents = run.agents()
        return agents[injection.index] if len(agents) == NODES else None
    name = {"worker": f"pf-rank-{injection.index}", "store": "pf-store", "zygote": "pf-zygote"}[injection.target]
    found = sorted(pid for pid, comm in run.processes().items() if comm == name)
    if injection.target != "zygote":
        return found[0] if found else None
    agents = run.agents()
    return next((pid for pid in found if len(agents) == NODES and _parent(pid) == agents[injection.index]), None)


def _parent(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def _do(pid: int, kind: str) -> None:
    if kind == "full disk":  # no byte can be written to any file from now on
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))
        return
    number = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT}.get(kind, signal.SIGSTOP)
    os.kill(pid, number)
    if kind == "pause":
        time.sleep(PAUSE_S)
        os.kill(pid, signal.SIGCONT)


def verify(run: Run, injection: Injection, *, happened: bool, scratch: Path) -> None:
    """After the injection: ended in time, victim named, nothing left behind, nobody else blamed."""
    code = run.wait(BUDGET_S + 10)
    run.gone()
    assert not list(scratch.iterdir()), "files are left in the folder for temporary ones"
    killed = injection.target == "coordinator" and injection.kind == "kill" and happened
    full = injection.kind == "full disk" and happened
    assert code in ({-signal.SIGKILL} if killed else {0, 3, 10})
    assert {path.name for path in run.out.iterdir()} <= (set() if killed else LEFT_IN_OUT), list(run.out.iterdir())
    if killed:
        return
    if full:
        assert not list(run.out.iterdir())
        assert "Findings" in run.stdout
        assert run.stdout.strip().splitlines()[-1].startswith(ANSWERS[code])
        return
    report = run.report()
    assert report.duration_s < BUDGET_S + 10
    assert report.partial == (injection.kind == "interrupt" and happened)
    _verify_blame(report, injection)
    if happened:
        _verify_named(report, injection)


def _verify_blame(report: Report, injection: Injection) -> None:
    ranks, nodes = injection.victims
    for finding in report.findings:
        if finding.verdict is Verdict.FAIL:
            assert _is_about(finding, ranks, nodes), finding


def _is_about(finding: Finding, ranks: set[int], nodes: set[str]) -> bool:
    told = [finding.subject] + ([finding.blames.name] if finding.blames else [])
    return any(name in words for words in told for name in [*nodes, *(f"rank {rank}" for rank in ranks)])


def _verify_named(report: Report, injection: Injection) -> None:
    """Who was hurt is told of, unless the run was over as far as it is concerned: then nothing is missing that it could have given."""
    ranks, nodes = injection.victims
    if injection.kind == "pause" or not ranks:
        return  # what went on again within seconds may have cost nothing; a rendezvous server is no part of the cluster
    told = [i for i in report.evidence.incidents if i.rank in ranks or i.node in nodes]
    about = [f for f in report.findings if f.verdict is not Verdict.PASS and _is_about(f, ranks, nodes)]
    assert told or about or _unhurt(report, ranks), report.evidence.incidents
    if told and not all(i.kind == "budget_ended" for i in told):
        assert about, told


def _unhurt(report: Report, ranks: set[int]) -> bool:
    return not [m for m in report.evidence.measurements or () if m.failure and ranks.intersection(m.probe.ranks)]
