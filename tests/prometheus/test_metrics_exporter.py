"""`preflight exporter`: the newest figures of the fleet, while others write; of a history that can't be read no figures at all."""

import http.client
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from preflight.cli.main import run_command_line
from preflight.fleet import exporter as exporter_module
from preflight.fleet.exporter import Exporter
from preflight.fleet.history import History
from preflight.model import Report, Settings
from tests.prometheus.test_metrics import real_run
from tests.prometheus.test_metrics_agent import samples

WAIT_S = 30.0


@pytest.fixture
def history(tmp_path) -> History:
    return History(tmp_path / "history.sqlite")


def now_run(number: int = 0, **facts) -> Report:
    return real_run(time.time() - 100 + number, run_id=f"r{number}", **facts)


def page(history: History, **facts) -> dict[str, dict[tuple[str, ...], float]]:
    exporter = Exporter(history.path, **{"age_s": 86400.0, "leaves": {}, **facts})
    exporter.look()
    return samples(exporter.page())


FIGURES = ("bandwidth", "run_", "scan_", "pairs_", "worst")


def figures(found: dict[str, object]) -> list[str]:
    return [name for name in found if name.startswith(FIGURES) or "bandwidth" in name]


def test_the_newest_figure_of_each_pair_counts_and_the_slow_node_is_told(history):
    history.add(now_run(0, slow=0.3))
    history.add(now_run(1, slow=0.6))
    found = page(history, leaves={f"node{i}": f"leaf{i // 2}" for i in range(4)})
    low = found["pair_bus_bandwidth_minimum_bytes_per_second"]
    assert low["between",] == pytest.approx(30e9)  # of the node that stands last, node3
    assert found["collector_success"] == {(): 1.0}
    assert found["leaf_pair_bandwidth_ratio"]
    assert found["run_answer"]["go", "run"] == 1


def test_a_node_that_got_slow_today_is_slow_whatever_its_other_partners_were_days_ago(history):
    first, second = now_run(0), now_run(1, slow=0.6)
    history.add(first)
    history.add(second)
    found = page(history)
    ratios, measured = found["node_bandwidth_ratio"], found["node_measured_timestamp_seconds"]
    assert ratios["between",] == pytest.approx(0.6)  # of node3, which stands last
    assert measured["between",] == measured["inside",] == second.started_at_s + second.duration_s


def test_there_is_no_history_yet_and_then_there_is_one(history):
    exporter = Exporter(history.path, age_s=86400.0, leaves={})
    exporter.look()
    found = samples(exporter.page())
    assert found["collector_success"] == {(): 0.0}
    assert figures(found) == []
    history.add(now_run())
    exporter.look()
    exporter._page = (float("-inf"), b"")
    assert samples(exporter.page())["collector_success"] == {(): 1.0}


@pytest.mark.parametrize("kind", ["text", "another program's", "folder", "cut off"])
def test_a_history_that_is_broken_gives_no_figures(kind, history):
    path = history.path
    if kind == "text":
        path.write_text("no database " * 1000)
    elif kind == "folder":
        path.mkdir()
    elif kind == "cut off":
        history.add(now_run())
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        Path(f"{path}-wal").unlink(missing_ok=True)
        Path(f"{path}-shm").unlink(missing_ok=True)
    else:
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE runs (number INTEGER)")
        db.close()
    found = page(history)
    assert found["collector_success"] == {(): 0.0}
    assert figures(found) == []


def test_a_reading_that_hangs_is_told_and_its_old_figures_go(history, monkeypatch):
    history.add(now_run())
    exporter = Exporter(history.path, age_s=86400.0, leaves={})
    exporter.look()
    monkeypatch.setattr(exporter_module, "STUCK_S", 0.0)
    found = samples(exporter.page())
    assert found["collector_success"] == {(): 0.0}
    assert figures(found) == []


def test_simulated_runs_are_left_out(history):
    report = now_run()
    evidence = msgspec.structs.replace(report.evidence, settings=Settings(simulated=True))
    history.add(msgspec.structs.replace(report, evidence=evidence))
    assert figures(page(history)) == []


def test_where_half_of_the_nodes_are_slow_nobody_can_say_what_is_healthy(history):
    history.add(now_run(slow=0.5, slow_nodes=(2, 3)))
    assert ("between",) not in page(history)["node_bandwidth_ratio"]
    history.add(now_run(1, slow=0.5))
    assert ("between",) in page(history)["node_bandwidth_ratio"]


def test_what_a_clock_far_ahead_told_is_not_the_last_run(history):
    history.add(now_run())
    history.add(real_run(time.time() + 30 * 86400, run_id="ahead", answer="no-go"), sweep="s")
    found = page(history)
    assert found["run_answer"]["go", "run"] == 1
    assert found["run_completion_timestamp_seconds"]["run",] < time.time()
    assert "scan_completion_timestamp_seconds" not in found


@pytest.mark.parametrize(("far", "expected"), [(1.0, 1.0), (0.9, 1.0), (0.5, None)])
def test_the_only_way_between_two_leaves_is_no_measure_of_itself(far, expected, history):
    history.add(now_run(far=far))
    found = page(history, leaves={f"node{i}": f"leaf{i // 2}" for i in range(4)})
    ratio = found.get("leaf_pair_bandwidth_ratio", {}).get(("leaf0", "leaf1"))
    assert ratio == (expected and pytest.approx(expected))
    assert found["leaf_pair_bus_bandwidth_median_bytes_per_second"]["leaf0", "leaf1"] == pytest.approx(far * 50e9)
    assert list(found["node_bandwidth_ratio"].values()) == pytest.approx([1.0] * len(found["node_bandwidth_ratio"]))


def test_counters_count_what_comes_after_the_start_and_never_shrink(history):
    history.add(now_run(0))
    exporter = Exporter(history.path, age_s=86400.0, leaves={})
    exporter.look()
    assert "pairs_measured_total" not in samples(exporter.page())
    history.add(now_run(1))
    exporter.look()
    first = exporter._counts["run"][0]
    assert first == 16
    History(history.path, max_rows=1).add(now_run(2))  # which drops what is older
    exporter.look()
    assert exporter._counts["run"][0] == 32


def test_it_reads_while_others_write_and_sees_whole_runs(history):
    stop, problems, seen = threading.Event(), [], []
    exporter = Exporter(history.path, age_s=86400.0, leaves={})
    history.add(now_run(0))

    def write():
        number = 1
        while not stop.is_set():
            history.add(now_run(number))
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        ends_at = time.monotonic() + WAIT_S
        while exporter._counts.get("run", [0])[0] < 16 * 5 and time.monotonic() < ends_at:
            exporter.look()
            problems.append(exporter.problem)
            seen.append(exporter._counts.get("run", [0])[0])
    finally:
        stop.set()
        writer.join(WAIT_S)
    exporter.look()
    assert exporter._counts["run"][0] == 16 * (len(history.runs(10_000)) - 1)  # each run once
    assert set(problems) == {None}
    assert seen == sorted(seen)
    assert {count % 16 for count in seen} == {0}
    assert seen[-1] >= 16 * 5


def test_a_real_exporter_serves_says_where_and_ends_at_once(history, tmp_path):
    history.add(now_run())
    words = ["-m", "preflight", "exporter", "--web.listen-address", "127.0.0.1:0", "--history", str(history.path)]
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        try:
            assert process.stdout
            port = int(re.fullmatch(r"listens on 127\.0\.0\.1 port (\d+)\n", process.stdout.readline())[1])
            until(lambda: ask(port)[1].get("collector_success") == {(): 1.0})
            assert "node_bandwidth_ratio" in ask(port)[1]
            assert ask(port, "/else")[0] == 404
        finally:
            process.terminate()
        assert process.wait(WAIT_S) == 0


_AS_NOBODY = """
import asyncio, os, sys
from pathlib import Path
import numpy
import preflight.fleet.exporter_pairs
from preflight.fleet.exporter import Exporter, listening_socket, serve
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
asyncio.run(serve(Exporter(Path(sys.argv[1]), age_s=86400.0, leaves={}), listening_socket("127.0.0.1", 0)))
"""


@pytest.fixture
def roots_folder():
    """That others may look into, and root alone may write to."""
    folder = Path(tempfile.mkdtemp(prefix="preflight-exporter-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.soak
@pytest.mark.root
def test_an_exporter_that_may_only_read_keeps_up_with_writers_that_are_root(roots_folder):
    """What is loaded late is loaded first: the interpreter may lie where others can't look."""
    history = History(roots_folder / "history.sqlite")
    history.add(now_run(0))
    before = sorted((each.name, each.stat().st_uid) for each in roots_folder.iterdir())
    program = _AS_NOBODY.replace("asyncio.run", "import preflight.fleet.exporter as e; e.LOOK_S = 0.05; asyncio.run")
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", program, str(history.path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    ) as process:
        try:
            assert process.stdout
            port = int(re.fullmatch(r"listens on 127\.0\.0\.1 port (\d+)\n", process.stdout.readline())[1])
            assert "Uid:\t65534\t65534\t65534\t65534" in Path(f"/proc/{process.pid}/status").read_text()
            until(lambda: ask(port)[1].get("collector_success") == {(): 1.0})
            for number in range(1, 9):  # of both kinds: those who wait for the disk, and hasty ones
                (history if number % 2 else History(history.path, within_s=5)).add(now_run(number))
                until(lambda n=number: ask(port)[1].get("pairs_measured_total") == {("run",): n * 16.0})
                assert ask(port)[1]["collector_success"] == {(): 1.0}
            until(lambda: ask(port)[1]["pairs_measured_total"] == {("run",): 8 * 16.0})
            other = sqlite3.connect(history.path)  # another program of root's, whose end takes the log away
            other.execute("SELECT count(*) FROM runs").fetchone()
            other.close()
            assert not Path(f"{history.path}-wal").exists()
            history.add(now_run(9))
            until(lambda: ask(port)[1].get("pairs_measured_total") == {("run",): 9 * 16.0})
            assert ask(port)[1]["collector_success"] == {(): 1.0}
        finally:
            process.terminate()
        assert process.wait(WAIT_S) == 0
    assert sorted((each.name, each.stat().st_uid) for each in roots_folder.iterdir()) == before


def until(found: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + WAIT_S
    while not found():
        assert time.monotonic() < ends_at
        time.sleep(0.05)


def ask(port: int, path: str = "/metrics") -> tuple[int, dict[str, dict[tuple[str, ...], float]]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, samples(text) if answer.status == 200 else {}
    finally:
        connection.close()


@pytest.mark.parametrize(
    "listen", ["9948", ":9948", "127.0.0.1:x", "127.0.0.1:99999", "nowhere:9948", "192.0.2.1:9948"]
)
def test_what_can_not_be_listened_on_is_wrong_usage(listen, capsys):
    assert run_command_line(["exporter", "--listen", listen]) == 64
    assert "listen" in capsys.readouterr().err


def test_nonsense_in_a_history_ends_neither_the_exporter_nor_its_looking(history):
    history.add(now_run())
    with sqlite3.connect(history.path) as db:
        db.execute("UPDATE figures SET busbw = 'fast'")
    db.close()
    exporter = Exporter(history.path, age_s=86400.0, leaves={})
    exporter.look()
    assert exporter.problem
    assert samples(exporter.page())["collector_success"] == {(): 0.0}
    with sqlite3.connect(history.path) as db:
        db.execute("UPDATE figures SET busbw = 1e9")
    db.close()
    exporter.look()
    assert exporter.problem is None
