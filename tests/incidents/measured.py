"""Whole runs over machines of the incidents: the real agenda and localiser ask, a table of rates answers, and all checks judge."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from preflight.fleet import blame
from preflight.judge.localise import localise_evidence
from preflight.judge.run import judge
from preflight.model import (
    Baseline,
    BaselineEntry,
    Evidence,
    Failure,
    Inventory,
    Measurement,
    Node,
    Plan,
    Probe,
    Route,
    Samples,
    Settings,
    Topology,
    Transport,
    busbw_factor,
)
from preflight.model.bandwidth import ALONE
from preflight.model.ends import ends_of
from preflight.plan.profiles import profiles_of
from preflight.probe.schedule import Agenda
from preflight.registry import load_checks
from tests.builders import make_plan
from tests.incidents.boxes import changed, with_gpus
from tests.incidents.live import Judged

GB = 1e9
MATMUL = 700e12  # operations per second of one GPU by itself
STEADY = (1.0, 1.002, 0.998, 1.001, 0.999)  # of repeats, in turn
LONG_S = 1e6

Answer = float | Failure
Speed = Callable[[Probe], Answer]
Told = Callable[[int], dict[str, Any]]


def fleet(node: Node, number: int) -> list[Node]:
    """The machine so many times, as node1, node2, ..., each with GPUs of its own."""
    found = []
    for name in (f"node{i + 1}" for i in range(number)):
        own = {
            gpu.index: {"uuid": f"GPU-{name}-{gpu.index}", "nvlink_domain": _domain(gpu.nvlink_domain, name)}
            for gpu in node.gpus or ()
        }
        found.append(with_gpus(changed(node, name=name, hostname=name, boot_id=name), own))
    return found


def _domain(domain: str | None, name: str) -> str | None:
    return name if domain == "node1" else domain


def plan_of(nodes: Sequence[Node], **job: Any) -> Plan:
    """A job on all GPUs of the nodes, small enough for any of them. By default tp inside nodes and dp between them."""
    gpus = len(nodes[0].gpus or ())
    sizes = job or {"tp": gpus, "dp": len(nodes)}
    return make_plan(
        parameters=10**9,
        layers=80,
        hidden_size=1920,
        nodes=len(nodes),
        gpus_per_node=gpus,
        gpu=None,
        gpu_memory_bytes=10**11,
        global_batch_size=None,
        micro_batches=8,
        model={"attention_heads": 96} if "model" not in sizes else {},
        node_names=[node.name for node in nodes],
        gpu_uuids={node.name: [gpu.uuid for gpu in node.gpus or ()] for node in nodes},
        **sizes,
    )


def usual(
    plan: Plan, *, pair: float = 250.0, ring: float = 360.0, nic: float = 47.0, copy: float = 52.0
) -> Callable[[Probe], float]:
    """Healthy rates: two GPUs of a node, a group inside a node by ring, one GPU's way to the network, copies from and to the host, in GB/s. The function gives bytes per second."""

    def speed(probe: Probe) -> float:
        per_node = Counter(plan.placement.node_ranks[rank] for rank in probe.ranks)
        if probe.collective in ALONE:
            return MATMUL if probe.collective == "matmul" else copy * GB
        if len(probe.ranks) == 2 and probe.collective in ("send_recv", "send"):
            return (pair if len(per_node) == 1 else nic) * GB
        if len(per_node) == 1:
            return ring * GB * {"all_to_all": 0.9, "send_recv": 0.5}.get(probe.collective, 1.0)
        return _between(probe, per_node, ring, nic) * GB

    return speed


def _between(probe: Probe, per_node: Counter[int], ring: float, nic: float) -> float:
    number, least = len(probe.ranks), min(per_node.values())
    if probe.collective == "all_to_all":
        return nic * (number - 1) / (number - max(per_node.values()))
    if probe.collective == "send_recv":
        return nic / 2
    return min(least * nic, ring) if least > 1 else nic


def nodes_of(plan: Plan, probe: Probe) -> set[str]:
    """The nodes that a probe touches."""
    return {plan.placement.nodes[plan.placement.node_ranks[rank]] for rank in probe.ranks}


def hung(text: str = "first operation of rank 0 with rank 1 was not over after 20 s") -> Failure:
    """What a run keeps of an operation that never ends, with all its ranks at work."""
    return Failure(kind="timed_out", text=text, stage="first operation")


def measured(
    nodes: Sequence[Node],
    plan: Plan,
    speed: Speed | None = None,
    *,
    via: Callable[[int, int], str] | None = None,
    told: Told | None = None,
    topology: Topology | None = None,
    **facts: Any,
) -> Evidence:
    """A run to its end. `speed`: busbw in bytes per second, or why there is none; `via`: the way that NCCL says it takes between two ranks; `told`: what else a rank's NCCL says."""
    inventory = Inventory(nodes=tuple(nodes))
    evidence = Evidence(
        settings=Settings(backend="nccl"),
        inventory=inventory,
        plan=plan,
        topology=topology,
        profiles=profiles_of(inventory),
        **facts,
    )
    lab = _Lab(evidence, speed or usual(plan), via or _usual_via(plan), told or (lambda _rank: {}))
    return replace(evidence, measurements=tuple(lab.run()))


class _Lab:
    def __init__(self, evidence: Evidence, speed: Speed, via: Callable[[int, int], str], told: Told) -> None:
        assert evidence.plan is not None
        self.evidence, self.plan = evidence, evidence.plan
        self.speed, self.via, self.told = speed, via, told
        self.nodes = {rank.rank: rank.node for rank in evidence.plan.placement.ranks}
        self.found: list[Measurement] = []
        self.failing: set[str] = set()

    def run(self) -> list[Measurement]:
        ends = ends_of(self.plan, self.evidence.topology)
        agenda = Agenda(self.plan, "nccl", ends, inventory=self.evidence.inventory)
        while (probes := agenda.next_round(LONG_S)) is not None:
            failed = self._round(probe for probe in probes if probe.subject not in self.failing)
            if failed:
                self._again(failed)
            agenda.done(probes, 0.5)
            if agenda.judging_due:
                found = localise_evidence(replace(self.evidence, measurements=tuple(self.found)))
                agenda.ask(found.asks if found else ())
        return self.found

    def _again(self, failed: Sequence[Measurement]) -> None:
        """As the coordinator does: once more, and then each rank with a cleared partner."""
        trial = blame.trial_of(failed, self.found, self.nodes, (), "nccl")
        again = self._round(trial.probes)
        sure = blame.confirmation_of(again, self.found, self.nodes, (), "nccl")
        self._round(sure.probes)
        self.failing |= {m.probe.subject for m in again}

    def _round(self, probes: Iterable[Probe]) -> list[Measurement]:
        made = [self._measure(probe, self.speed(probe)) for probe in probes]
        self.found += made
        return [m for m in made if m.failure]

    def _measure(self, probe: Probe, answer: Answer) -> Measurement:
        if isinstance(answer, Failure):
            return Measurement(probe=probe, failure=answer)
        answer *= STEADY[(probe.repeat + probe.attempt) % len(STEADY)]
        size = probe.flops or probe.size_bytes
        seconds = size * busbw_factor(probe.collective, len(probe.ranks)) / answer
        samples = tuple(Samples(rank=rank, durations_s=(seconds,) * 3, first_call_s=0.1) for rank in probe.ranks)
        return Measurement(
            probe=probe, samples=samples, data_correct=True, members=probe.ranks, transports=self._transports(probe)
        )

    def _transports(self, probe: Probe) -> tuple[Transport, ...]:
        ranks = probe.ranks
        if len(ranks) < 2:
            return ()
        found = []
        for place, rank in enumerate(ranks):
            after = ranks[(place + 1) % len(ranks)]
            way = self.via(rank, after)
            routes = (Route(sender=rank, receiver=after, kind=_kind(way), via=way),)
            found.append(Transport(rank=rank, routes=routes, nvls_channels=0, **self.told(rank)))
        return tuple(found)


def _kind(way: str) -> Any:
    return way.partition("/")[0]


def _usual_via(plan: Plan) -> Callable[[int, int], str]:
    places = plan.placement.node_ranks
    return lambda a, b: "P2P/CUMEM" if places[a] == places[b] else "NET/IB/0/GDRDMA"


def all_judged(evidence: Evidence) -> Judged:
    """All checks over a run."""
    findings, _, answer = judge(evidence, load_checks())
    return Judged(answer, findings)


def history(group: str, size_bytes: int, *rates: float, collective: str = "all_reduce") -> Baseline:
    """What a group reached in earlier runs, in GB/s."""
    entry = BaselineEntry(
        subject=group,
        collective=collective,
        size_bytes=size_bytes,
        busbw_bytes_per_s=tuple(rate * GB for rate in rates),
    )
    return Baseline(entries=(entry,))
