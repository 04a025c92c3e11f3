"""`preflight run --hosts` over agents that somebody started: what a cluster without a launcher does."""

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from tests.fleet.agents import AgentProcess
from tests.fleet.runs import Run

pytestmark = [pytest.mark.fabric, pytest.mark.timeout(180)]


@pytest.fixture
def agents(tmp_path) -> Iterator[list[AgentProcess]]:
    """Two, with the same key; as root their workers become nobody."""
    first = AgentProcess(tmp_path / "n1", name="n1")
    second = AgentProcess(tmp_path / "n2", name="n2", key=first.key)
    yield [first, second]
    for agent in (first, second):
        agent.kill_all()


@contextlib.contextmanager
def run_over(agents: list[AgentProcess], folder, *options: str) -> Iterator[Run]:
    hosts = ",".join(f"{agent.name}=127.0.0.1:{agent.port}" for agent in agents)
    run = Run(folder, "--hosts", hosts, "--key-file", str(agents[0].key_file), "--budget", "60s", *options)
    try:
        yield run
    finally:
        run.kill_all()


@pytest.mark.root
def test_a_whole_run_over_agents_of_root_whose_workers_are_nobody(agents, tmp_path):
    with run_over(agents, tmp_path) as run:
        assert run.wait() == 0, run.errors.read_text()
        report = run.report()
    assert [node.name for node in report.evidence.inventory.nodes] == ["n1", "n2"]
    assert report.coverage.pairs_measured == report.coverage.pairs_planned == 6
    assert all(m.data_correct for m in report.evidence.measurements)
    assert not report.evidence.settings.local
    for agent in agents:
        assert set(agent.processes()) == {agent.process.pid}  # the agents stay, the workers don't
        assert agent.stop() == 0
        assert agent.errors.read_text() == "preflight agent: ended\n"
        assert agent.key not in report_bytes(run)


def report_bytes(run: Run) -> bytes:
    return b"".join(path.read_bytes() for path in run.out.iterdir())


@pytest.mark.soak
def test_a_coordinator_that_is_interrupted_frees_the_agents_for_the_next_run(agents, tmp_path):
    with run_over(agents, tmp_path) as run:
        agents[1].find("pf-rank-3")
        os.kill(run.process.pid, signal.SIGINT)
        assert run.wait(30) == 3
        for agent in agents:
            assert set(agent.processes()) == {agent.process.pid}
            assert agent.signed("/v1/end", {"run_id": "r"})[0] == 409
