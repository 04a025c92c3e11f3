"""The agent's /metrics: what is not known is not there, nothing that hangs holds a page, and asking for pages hurts nobody."""

import asyncio
import http.client
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from preflight.errors import WorldError
from preflight.fleet import agent_metrics, node_watch
from preflight.fleet.agent_metrics import AgentMetrics
from preflight.fleet.node_watch import GaveWayError, NodeWatch
from preflight.model import to_json
from tests.builders import make_inventory
from tests.fleet.agents import WAIT_S, AgentProcess
from tests.prometheus.fleet import judgement

NODE = make_inventory(1, 2).nodes[0]


def samples(page: bytes | str) -> dict[str, dict[tuple[str, ...], float]]:
    """Name -> values of all labels but the node's -> figure."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    text = page if isinstance(page, str) else page.decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(value for name, value in sorted(sample.labels.items()) if name != "node")
            found.setdefault(sample.name.removeprefix("preflight_"), {})[labels] = sample.value
    return found


def fresh(agent: AgentMetrics) -> dict[str, dict[tuple[str, ...], float]]:
    agent._made = float("-inf")
    return samples(agent.page())


def judged(bad: bool = False) -> AgentMetrics:
    agent = AgentMetrics(NODE.name)
    agent.judgement(judgement(NODE, bad=bad))
    return agent


def test_an_agent_that_has_not_judged_yet_says_nothing_of_its_node():
    found = fresh(AgentMetrics("n1"))
    assert not {"check_status", "run_answer", "findings", "gpu_info", "run_completion_timestamp_seconds"} & found.keys()
    assert found["collector_success"] == {(): 1.0}


def test_the_worst_verdict_of_each_check_is_1_and_the_others_0():
    status = fresh(judged(bad=True))["check_status"]
    assert status["hca_ports", "FAIL"] == 1
    assert status["hca_ports", "PASS"] == 0
    assert status["xid", "PASS"] == 1
    assert sum(status.values()) == 6


def test_after_a_judgement_that_failed_every_check_is_unknown_and_none_is_healthy_still():
    agent = judged()
    succeeded_s = agent.success_s
    agent.no_judgement(time.time())
    found = fresh(agent)
    assert {key: figure for key, figure in found["check_status"].items() if figure} == {
        (check, "UNKNOWN"): 1.0
        for check in ("clock_sync", "ecc_errors", "gpu_census", "hca_ports", "nvlink_links", "xid")
    }
    assert found["run_answer"]["undecided", "agent"] == 1
    assert found["collector_success"] == {(): 0.0}
    assert found["run_success_timestamp_seconds"] == {("agent",): succeeded_s}
    assert "gpu_info" not in found


def test_a_failed_judgement_before_the_first_one_invents_no_checks():
    agent = AgentMetrics("n1")
    agent.no_judgement(time.time())
    found = fresh(agent)
    assert "check_status" not in found
    assert found["collector_success"] == {(): 0.0}


def test_a_page_is_made_once_a_second_however_often_it_is_asked_for(monkeypatch):
    agent, made = judged(), []
    whole = agent._families
    monkeypatch.setattr(agent, "_families", lambda: made.append(1) or whole())
    monkeypatch.setattr(agent_metrics, "FRESH_S", 60.0)
    assert len({agent.page() for _ in range(1000)}) == 1
    assert len(made) == 1


def test_strangers_paths_make_no_series_of_their_own():
    agent = judged()
    for number in range(1000):
        agent.count(f"/{number}", 404)
        agent.count("/metrics", 200 + number)
    assert len(fresh(agent)["agent_requests_total"]) <= agent_metrics.MAX_CODES


def watch(agent: AgentMetrics, code: str, **facts) -> NodeWatch:
    """A watch whose child is this program."""
    told = {"busy": lambda: False, **facts}
    return NodeWatch(agent, 60.0, command=[sys.executable, "-I", "-c", code], **told)


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(60)",
        "print('no report')",
        "pass",
        "print('{}')",
        "import os; os.kill(os.getpid(), 9)",
        "import sys\nwhile True: sys.stdout.write('x' * 65536)",
        "import os, time; os.fork() or time.sleep(60)",  # its child holds the pipe
    ],
)
def test_a_child_that_hangs_or_breaks_leaves_nothing_but_unknown(code, monkeypatch):
    monkeypatch.setattr(node_watch, "DEADLINE_S", 1.5)
    monkeypatch.setattr(node_watch, "MAX_BYTES", 2**20)
    agent, said = judged(), []
    asyncio.run(watch(agent, code, say=said.append).judge_once())
    assert agent.failed
    assert set(agent.judged.checks.values()) == {"UNKNOWN"}
    assert len(said) == 1


def test_what_the_child_reports_is_shown_and_kept_and_a_history_that_cannot_be_written_is_said_once(tmp_path):
    (tmp_path / "report.json").write_bytes(to_json(judgement(NODE, bad=True)))
    code = f"print(open({str(tmp_path / 'report.json')!r}).read())"
    agent, kept, said = AgentMetrics("n1"), [], []

    def keep(report):
        kept.append(report.answer)
        raise WorldError("the disk is full")

    async def twice():
        looking = watch(agent, code, judged=keep, say=said.append)
        await looking.judge_once()
        await looking.judge_once()

    asyncio.run(twice())
    assert kept == ["no-go", "no-go"]
    assert len(said) == 1
    assert fresh(agent)["check_status"]["hca_ports", "FAIL"] == 1


def test_a_judgement_gives_way_to_a_run():
    agent, looks = judged(), []
    watching = watch(agent, "import time; time.sleep(60)", busy=lambda: len(looks) > 1 or looks.append(1))
    with pytest.raises(GaveWayError):
        asyncio.run(watching.judge_once())
    assert not agent.failed
    assert set(agent.judged.checks.values()) == {"PASS"}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_child_that_judges_does_not_outlive_an_agent_that_is_killed(tmp_path):
    """And one whose agent died before it could ask to be told leaves by itself."""
    told = tmp_path / "pid"
    hang = f"import os, time; open({str(told)!r}, 'w').write(f'{{os.getpid()}}\\n'); time.sleep(600)"
    agent = (
        "import asyncio; from preflight.fleet import node_watch as w; from preflight.fleet.agent_metrics import AgentMetrics; "
        f"asyncio.run(w.NodeWatch(AgentMetrics('n1'), 60.0, busy=lambda: False, command=w.child_command({hang!r})).judge_once())"
    )
    with subprocess.Popen([sys.executable, "-c", agent], cwd=Path(__file__).parents[2]) as process:
        try:
            ends_at = time.monotonic() + WAIT_S
            while not told.exists() or not (text := told.read_text()).endswith("\n"):
                assert time.monotonic() < ends_at
                time.sleep(0.02)
            child = int(text)
            assert alive(child)
        finally:
            process.kill()
    ends_at = time.monotonic() + WAIT_S
    while alive(child):
        assert time.monotonic() < ends_at
        time.sleep(0.02)
    words = node_watch.child_command("print('it lives')")
    words[4] = str(process.pid)  # nobody's parent any more
    orphan = subprocess.run(words, capture_output=True, timeout=WAIT_S, check=False)
    assert (orphan.returncode, orphan.stdout) == (0, b"")


def test_the_judge_of_an_agent_is_such_a_child():
    start = node_watch.child_command("")[3]
    assert NodeWatch(AgentMetrics("n1"), 60.0, busy=lambda: False).command[3].startswith(start)


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """A resident agent that judges its node at once."""
    folder = tmp_path_factory.mktemp("agent")
    agent = AgentProcess(folder, "n1", check_every_s=1.0)
    try:
        yield agent
    finally:
        agent.process.terminate()
        agent.process.wait(WAIT_S)
        agent.process.stdout.close()


def get(agent: AgentProcess, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=WAIT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_real_agent_judges_its_node_and_shows_it_to_anyone(process):
    ends_at = time.monotonic() + 60
    while "check_status" not in (found := samples(get(process, "/metrics")[1])):
        assert time.monotonic() < ends_at
        time.sleep(0.1)
    assert sum(found["check_status"].values()) == len({check for check, _ in found["check_status"]})
    assert found["agent_workers"] == {(): 0.0}
    assert get(process, "/metrics", "HEAD") == (200, "")
    assert get(process, "/metrics", "POST")[0] == 405
    assert get(process, "/v1/discover", "POST")[0] == 401


def test_a_flood_of_readers_keeps_nobody_from_being_answered(process):
    stop, served = threading.Event(), []

    def flood():
        while not stop.is_set():
            served.append(get(process, "/metrics", "HEAD")[0])

    threads = [threading.Thread(target=flood, daemon=True) for _ in range(16)]
    for thread in threads:
        thread.start()
    try:
        answers = [get(process, "/healthz")[0] for _ in range(20)]
    finally:
        stop.set()
        for thread in threads:
            thread.join(WAIT_S)
    assert answers == [200] * 20
    assert set(served) == {200}
