"""A fleet to scrape: one process serves /metrics of N agents (the agents' own code over simulated nodes) and of one coordinator (a simulated run of all of them), each on a port of its own on loopback.

    with simulated_fleet(tmp_path, nodes=64) as fleet:
        fleet.targets        # "127.0.0.1:PORT" of each agent, in the order of fleet.names
        fleet.coordinator    # of the page of the fleet's last run, of its history, and of its last sweep
        fleet.exporter       # what `preflight exporter` shows; only with history=True, which takes some seconds more
        fleet.degrade()      # node n17 loses 40 % on all its ways out: FAIL there, ratio 0.6
        fleet.heal()

Every series of the coordinator carries simulated="true", since a modelled cluster gave it; agents' and exporter's don't. The run is repeated every `every_s`: its times move on; its figures, and when nodes and leaves were measured, change with `degrade` and `heal`.
"""

import asyncio
import contextlib
import platform
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from preflight import __version__
from preflight.fleet.agent_metrics import AgentMetrics
from preflight.fleet.cluster_file import read_cluster
from preflight.fleet.exporter import Exporter
from preflight.fleet.history import History
from preflight.fleet.run import run
from preflight.fleet.simulated import simulated_world
from preflight.metrics import exposition
from preflight.model import CheckRun, Environment, Evidence, Finding, Inventory, Node, Report, Verdict
from preflight.model.finding import Part
from preflight.model.history import NodeVerdict
from preflight.plan.planfile import read_job
from preflight.registry import load_checks
from preflight.report.prometheus import metrics_text
from preflight.slurm.scan_metrics import scan_metrics

LEAVES = 4
SLOW_NODE, SLOW_LEAF, SLOW_PAIR = "n17", "leaf3", ("n05:3", "n05:4")
FAULTS = {
    "node": f'kind = "node"\nhosts = "{SLOW_NODE}"\ndepth = 0.4',
    "uplink": f'kind = "uplink"\nleaf = "{SLOW_LEAF}"\ndepth = 0.3',
    "link": f'kind = "link"\ngpus = ["{SLOW_PAIR[0]}", "{SLOW_PAIR[1]}"]\ndepth = 0.5',
}
PLAN = """[model]
parameters = "8B"
layers = 32
hidden_size = 4096
[parallel]
tp = 8
[training]
micro_batches = 8
micro_batch_size = 1
seq_length = 8192
"""
BUDGET_S = 45.0  # simulated seconds: some rounds of the tournament


def simulated_report(folder: Path, nodes: int, faults: Sequence[str] = ()) -> Report:
    """The report of a run on all nodes, eight GPUs each. `faults`: names of FAULTS. Takes some seconds for 64 nodes."""
    (folder / "plan.toml").write_text(PLAN)
    cluster = f'[cluster]\nnodes = {nodes}\nleaves = {min(nodes, LEAVES)}\ngpu = "H100-80GB"\nother_leaf_loss = 0.03\n[noise]\nvariation = 0.01\n'
    path = folder / f"cluster-{'-'.join(faults) or 'healthy'}.toml"
    path.write_text(cluster + "".join(f"[[faults]]\n{FAULTS[name]}\n" for name in faults))
    world, agents = simulated_world(read_cluster(path), 0, str(path))
    job = read_job(folder / "plan.toml")
    return run(job, load_checks(), progress=lambda *_: None, budget_s=BUDGET_S, agents=agents, world=world)


def judgement(node: Node, bad: bool) -> Report:
    """What the agent of a node found: all is well, or one HCA port is down."""
    verdicts = [
        Finding(check=check, subject=node.name, verdict=Verdict.PASS, observed="as it should be")
        for check in ("clock_sync", "ecc_errors", "gpu_census", "hca_ports", "nvlink_links", "xid")
    ]
    if bad:
        port = Part(kind="nic", name=f"{node.name} mlx5_0")
        verdicts[3] = Finding(
            check="hca_ports", subject=port.name, verdict=Verdict.FAIL, observed="port 1 is down", blames=port
        )
    return Report(
        run_id="node",
        command="node",
        started_at_s=time.time() - 0.5,
        duration_s=0.5,
        answer="no-go" if bad else "go",
        findings=tuple(verdicts),
        evidence=Evidence(inventory=Inventory(nodes=(node,))),
        checks=(CheckRun(check="xid", duration_s=0.01, num_findings=1),),
        environment=Environment(versions={"preflight": "0.1.0"}),
    )


class Fleet:
    """See above. `every_s`: how often the fleet is measured again."""

    def __init__(self, folder: Path, nodes: int, every_s: float) -> None:
        self.folder, self.every_s, self.nodes = folder, every_s, nodes
        self._reports: dict[tuple[str, ...], tuple[Report, str]] = {}
        self.faults: tuple[str, ...] = ()
        self.measured_s = time.time()  # nodes and leaves: each change is another measurement
        self._first = time.time() // every_s
        first, self._text = self._measured(())
        inventory = first.evidence.inventory
        assert inventory
        self.by_name = {node.name: node for node in inventory.nodes}
        self.names = list(self.by_name)
        self.agents = {name: AgentMetrics(name) for name in self.names}
        self.targets: list[str] = []
        self.coordinator = self.exporter = ""
        self._judge()

    def history(self) -> Exporter:
        """The exporter's page of a history with the figures of now, as if they had been measured."""
        report, _ = self._measured(self.faults)
        plan = report.evidence.plan
        assert plan
        assert plan.placement.leaves or report.evidence.topology
        settings = msgspec.structs.replace(report.evidence.settings, simulated=False)
        real = msgspec.structs.replace(
            report, evidence=msgspec.structs.replace(report.evidence, settings=settings), started_at_s=time.time() - 60
        )
        History(self.folder / "history.sqlite").add(real)
        switches = report.evidence.topology.switches if report.evidence.topology else None
        leaves = {node: above[0] for node, above in (switches or {}).items()}
        exporter = Exporter(self.folder / "history.sqlite", age_s=86400.0, leaves=leaves)
        exporter.look()
        return exporter

    def degrade(self, *faults: str) -> None:
        """From now on the fleet has these faults, by default "node"; on its own page the node's agent says that a port is down."""
        self._become(faults or ("node",))

    def heal(self) -> None:
        """From now on all is well."""
        self._become(())

    def _become(self, faults: tuple[str, ...]) -> None:
        _, text = self._measured(faults)
        self.faults, self._text, self.measured_s = faults, text, time.time()
        self._judge()

    def _measured(self, faults: tuple[str, ...]) -> tuple[Report, str]:
        if faults not in self._reports:
            report = simulated_report(self.folder, self.nodes, faults)
            self._reports[faults] = report, metrics_text(report)
        return self._reports[faults]

    def _judge(self) -> None:
        for name, metrics in self.agents.items():
            metrics.judgement(judgement(self.by_name[name], "node" in self.faults and name == SLOW_NODE))

    def coordinator_page(self) -> bytes:
        """The run's own file, with times as of its last repetition, and the last sweep's."""
        now_s = time.time()
        ended_s = now_s - now_s % self.every_s
        text = re.sub(
            r"^(preflight_run_(?:completion|success)_timestamp_seconds\{.*\}) \S+$",
            rf"\g<1> {ended_s!r}",
            self._text,
            flags=re.MULTILINE,
        )
        text = re.sub(
            r"^(preflight_(?:node|leaf_pair)_measured_timestamp_seconds\{.*\}) \S+$",
            rf"\g<1> {self.measured_s!r}",
            text,
            flags=re.MULTILINE,
        )
        ratio = ended_s / self.every_s
        own = exposition(
            (
                ("build_info", [((__version__, platform.python_version()), 1.0)]),
                ("collector_success", [((), 1.0)]),
                ("collector_duration_seconds", [((), 0.1)]),
                ("pairs_measured_total", [(("run",), 3000 * (ratio - self._first))]),
                ("pairs_withheld_total", [(("run",), 10 * (ratio - self._first))]),
            ),
            {"simulated": "true"},
        )
        return (text + self._sweep(ended_s) + own).encode()

    def _sweep(self, ended_s: float) -> str:
        verdicts = [
            NodeVerdict(
                node=name,
                verdict=Verdict.FAIL if "node" in self.faults and name == SLOW_NODE else Verdict.PASS,
                at_s=ended_s,
                run_id="r",
            )
            for name in self.names
        ]
        text = scan_metrics(
            ended_s=ended_s,
            duration_s=60.0,
            coverage=0.9,
            jobs={"measured": len(self.names) // 4},
            last=verdicts,
            drained=0,
            failed=False,
        )
        return "\n".join(_marked(line) for line in text.splitlines()) + "\n"


def _marked(line: str) -> str:
    """A series with simulated="true" among its labels."""
    if line.startswith("#"):
        return line
    name, _, rest = line.rpartition(" ")
    labels = name.partition("{")[2].rstrip("}")
    return f'{name.partition("{")[0]}{{{labels + "," if labels else ""}simulated="true"}} {rest}'


@contextlib.contextmanager
def simulated_fleet(folder: Path, nodes: int = 64, every_s: float = 2.0, *, history: bool = False) -> Iterator[Fleet]:
    """The fleet, served until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    fleet = Fleet(folder, nodes, every_s)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    servers: list[asyncio.Server] = []

    def listen(page: Callable[[], bytes]) -> str:
        servers.append(asyncio.run_coroutine_threadsafe(_listen(page), loop).result(10))
        host, port = servers[-1].sockets[0].getsockname()
        return f"{host}:{port}"

    try:
        fleet.targets = [listen(metrics.page) for metrics in fleet.agents.values()]
        fleet.coordinator = listen(fleet.coordinator_page)
        if history:
            fleet.exporter = listen(fleet.history().page)
        yield fleet
    finally:
        asyncio.run_coroutine_threadsafe(_close(servers), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _listen(page: Callable[[], bytes]) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            request = await reader.readuntil(b"\r\n\r\n")
            found = request.startswith((b"GET /metrics ", b"GET /metrics?"))
            body = page() if found else b""
            status = b"200 OK" if found else b"404 Not Found"
            writer.write(
                b"HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
                % (status, len(body), body)
            )
            await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


async def _close(servers: Sequence[asyncio.Server]) -> None:
    """Nothing listens any more, and no answer is under way."""
    for server in servers:
        server.close()
    answers = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in answers:
        task.cancel()
    await asyncio.gather(*answers, return_exceptions=True)
