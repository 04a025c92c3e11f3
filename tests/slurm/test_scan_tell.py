"""Verdicts of a scan reach the resident agents, and the prolog of each node finds them; a node without an agent just knows less."""

import time
from pathlib import Path

import pytest

from preflight.config import AgentSite, Site, SlurmSite
from preflight.model import Verdict
from preflight.slurm.nodes import SlurmNode
from preflight.slurm.scan_tell import Told, tell_agents
from preflight.slurm.verdicts import read_verdict
from tests.fleet.agents import AgentProcess
from tests.slurm.standin_run import report_of


@pytest.fixture
def agent(tmp_path, monkeypatch):
    config = tmp_path / "preflight.toml"
    config.write_text(f'[agent]\naddress = "127.0.0.1"\n[slurm]\nstate_dir = "{tmp_path}/state"\n')
    config.chmod(0o600)
    monkeypatch.setenv("PREFLIGHT_CONFIG", str(config))
    (tmp_path / "state").mkdir(mode=0o700)
    running = AgentProcess(tmp_path / "agent", "n1")
    yield running
    running.kill_all()


def node(name: str) -> SlurmNode:
    return SlurmNode(name=name, states=frozenset({"idle"}), address="127.0.0.1")


def test_a_verdict_is_kept_where_the_nodes_prolog_looks_and_a_missing_agent_costs_only_that_node(agent, tmp_path):
    key_file = str(agent.key_file)
    site = Site(agent=AgentSite(port=agent.port, key_file=key_file), slurm=SlurmSite(verdict_age_s=3600))
    findings = report_of(("n1", "n2"), ["n1"]).findings
    told = {
        "n1": Told(run_id="r1", verdict=Verdict.FAIL, findings=findings, drained=True),
        "n2": Told(run_id="r1", verdict=Verdict.PASS),
    }
    failed = tell_agents(told, {name: node(name) for name in told}, site)
    assert list(failed) == ["n2"], "the agent there is that of n1, and says so"
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    kept, why = read_verdict(str(tmp_path / "state"), "n1", boot_id=boot_id, now_s=time.time())
    assert kept is not None, why
    assert (kept.verdict, kept.run_id, kept.drained, kept.findings) == (Verdict.FAIL, "r1", True, findings)
    assert 3000 < kept.expires_at_s - time.time() < 4000


def test_where_there_is_neither_key_nor_munge_all_are_told_of_as_not_reached(tmp_path):
    site = Site(agent=AgentSite(munge_socket=str(tmp_path / "none")))
    failed = tell_agents({"n1": Told(run_id="r", verdict=Verdict.PASS)}, {"n1": node("n1")}, site)
    assert list(failed) == ["n1"]
    gone = Site(agent=AgentSite(key_file=str(tmp_path / "no-key")))
    assert list(tell_agents({"n1": Told(run_id="r", verdict=Verdict.PASS)}, {}, gone)) == ["n1"]
