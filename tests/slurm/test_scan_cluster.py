"""`preflight scan` on a real Slurm of four nodes: all pairs in the end while users come and go, out of the way of users, nothing left behind, and a drain only after a repeat."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from preflight.fleet.history import History
from tests.cluster.box import SICK_MBIT
from tests.cluster.slurm import NEEDS, SlurmCluster, slurm_cluster
from tests.fleet.runs import PLAN

pytestmark = NEEDS
STANDIN = Path(__file__).with_name("standin_run.py")
CONFIG = """
[slurm]
state_dir = "{folder}/state"
textfile_dir = "{folder}/metrics"
enforce = ENFORCE
[scan]
command = ["PYTHON", "STANDIN"]
nodes_per_job = SIZE
max_jobs = 2
budget = "TAKES"
time_limit = "60s"
jitter = "0s"
[agent]
munge_socket = "SOCKET"
[brake]
settle = "0s"
jitter = "0s"
"""


@pytest.fixture(scope="module")
def cluster():
    with slurm_cluster(config="SchedulerParameters=sched_interval=2,bf_interval=2") as started:
        yield started


@pytest.fixture(autouse=True)
def fresh(cluster):
    yield
    cluster.run("scancel", "--user=root")
    cluster.wait_for(lambda: not cluster.run("squeue", "-h").strip(), "an empty queue")
    for name in cluster.drained():
        cluster.run("scontrol", "update", f"nodename={name}", "state=resume")
    cluster.wait_until_idle()
    for path in (*(cluster.place_of("head") / "state").glob("*.sqlite"), cluster.place_of("head") / "state" / "slow"):
        path.unlink(missing_ok=True)


def configure(cluster: SlurmCluster, *, takes: str = "0s", size: int = 2, enforce: bool = False) -> None:
    text = CONFIG.replace("PYTHON", sys.executable).replace("STANDIN", str(STANDIN)).replace("TAKES", takes)
    text = text.replace("SOCKET", str(cluster.folder / "munge" / "socket"))
    cluster.configure(text.replace("SIZE", str(size)).replace("ENFORCE", str(enforce).lower()), "head")


def begin(cluster: SlurmCluster, *options: str) -> "subprocess.Popen[str]":
    """A sweep, as a service at the head starts it."""
    command = (sys.executable, "-m", "preflight", "scan", "--format", "json", *options)
    config = str(cluster.place_of("head") / "preflight.toml")
    return subprocess.Popen(
        cluster.words(*command),
        env={**cluster.environment, "PREFLIGHT_CONFIG": config},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(sweep: "subprocess.Popen[str]") -> tuple[int, dict, str]:
    """Exit code, what it printed, what it said."""
    try:
        said, errors = sweep.communicate(timeout=240)
    finally:
        with contextlib.suppress(ProcessLookupError):
            sweep.kill()
    return sweep.returncode, json.loads(said) if said.strip() else {}, errors


def history(cluster: SlurmCluster) -> History:
    return History(cluster.place_of("head") / "state" / "history.sqlite")


def own_jobs(cluster: SlurmCluster) -> list[str]:
    return cluster.run("squeue", "-h", "--name=preflight-scan", "-o", "%i %T").split("\n")[:-1]


def wait_for_own_jobs(cluster: SlurmCluster, number: int) -> None:
    cluster.wait_for(lambda: sum("RUNNING" in job for job in own_jobs(cluster)) == number, f"{number} jobs of the scan")


def all_pairs(cluster: SlurmCluster) -> set[tuple[str, str]]:
    return {(a, b) for a in cluster.nodes for b in cluster.nodes if a < b}


def test_a_sweep_measures_what_is_idle_beside_a_job_of_a_user(cluster):
    configure(cluster, size=3)
    users = cluster.sbatch("--nodelist=n1", "--exclusive", script="sleep 600")
    cluster.wait_for_job(users, "RUNNING")
    code, swept, errors = end(begin(cluster))
    assert code == 0, errors
    assert swept["jobs"] == [[["n2", "n3", "n4"], "measured", "go"]]
    assert set(history(cluster).covered()) == {("n2", "n3"), ("n2", "n4"), ("n3", "n4")}
    assert (own_jobs(cluster), cluster.job(users)["JobState"]) == ([], "RUNNING")
    assert swept["coverage"] == 0.5


@pytest.mark.soak
def test_all_pairs_of_idle_nodes_are_covered_over_several_sweeps_while_users_come_and_go(cluster):
    configure(cluster, size=3)
    for busy in ("n1", "n3", None):
        users = cluster.sbatch(f"--nodelist={busy}", "--exclusive", script="sleep 60") if busy else None
        if users:
            cluster.wait_for_job(users, "RUNNING")
        code, swept, errors = end(begin(cluster))
        assert code == 0, errors
        assert all(busy not in nodes and outcome == "measured" for nodes, outcome, _ in swept["jobs"])
        if users:
            assert cluster.job(users)["JobState"] == "RUNNING"
            assert cluster.job(users)["Restarts"] == "0"
            cluster.run("scancel", str(users))
            cluster.wait_until_idle()
    assert set(history(cluster).covered()) == all_pairs(cluster)
    assert swept["coverage"] == 1.0
    code, swept, _ = end(begin(cluster))
    assert (code, swept.get("jobs", [])) == (3, []), "nothing was due any more"
    assert own_jobs(cluster) == []
    text = (cluster.place_of("head") / "metrics" / "preflight-scan-fleet.prom").read_text()
    assert "preflight_scan_coverage_ratio 1.0" in text
    assert 'preflight_scan_nodes{verdict="PASS"} 4.0' in text
    assert cluster.drained() == set()


@pytest.mark.soak
def test_a_sweep_gives_way_to_a_job_of_a_user_and_leaves_nothing_behind_when_it_is_ended(cluster):
    configure(cluster, takes="30s")
    sweep = begin(cluster)
    wait_for_own_jobs(cluster, 2)
    second, _, errors = end(begin(cluster))
    assert second == 3
    assert "another sweep is under way" in errors
    users = cluster.sbatch("-N3", "--exclusive", script="sleep 600")
    cluster.wait_for_job(users, "RUNNING")
    sweep.send_signal(signal.SIGTERM)
    code, swept, errors = end(sweep)
    assert code == 3, errors
    assert swept["problem"] == "interrupted"
    assert "gave way" in {outcome for _, outcome, _ in swept["jobs"]}
    cluster.wait_for(lambda: own_jobs(cluster) == [], "no job of the scan")
    assert cluster.job(users)["JobState"] == "RUNNING"


@pytest.mark.soak
def test_what_a_killed_sweep_left_is_cancelled_by_the_next(cluster):
    configure(cluster, takes="50s")
    sweep = begin(cluster)
    wait_for_own_jobs(cluster, 2)
    sweep.kill()
    end(sweep)
    assert len(own_jobs(cluster)) == 2
    configure(cluster, takes="0s")
    code, _, errors = end(begin(cluster, "--once"))
    assert code in {0, 3}, errors
    assert "jobs of an earlier sweep are cancelled" in errors
    assert own_jobs(cluster) == []


@pytest.mark.soak
def test_a_node_is_drained_only_when_a_second_sweep_agrees_with_a_reason_of_ours(cluster):
    configure(cluster, size=4, enforce=True)
    (cluster.place_of("head") / "state").mkdir(exist_ok=True)
    (cluster.place_of("head") / "state" / "slow").write_text("n3")
    code, swept, errors = end(begin(cluster))
    assert code == 10, errors
    assert {v["node"]: v["verdict"] for v in swept["verdicts"]} == {
        "n1": "PASS",
        "n2": "PASS",
        "n3": "FAIL",
        "n4": "PASS",
    }
    assert "n3 is suspected, and waits for a repeat" in errors
    assert cluster.drained() == set()
    code, swept, errors = end(begin(cluster))
    assert (code, swept["drained"]) == (10, ["n3"]), errors
    assert cluster.drained() == {"n3"}
    assert cluster.node("n3").reason.startswith("preflight:slow_part node: 0.5 GB/s")
    cluster.run("scontrol", "update", "nodename=n3", "state=resume")
    code, swept, errors = end(begin(cluster))
    assert cluster.drained() == set(), "what was found before an operator resumed the node no longer counts"
    assert history(cluster).verdicts("n3")[0].verdict == "FAIL"


@pytest.mark.soak
def test_without_enforcement_nothing_is_drained_and_it_is_said_what_would_be(cluster):
    configure(cluster, size=4)
    (cluster.place_of("head") / "state").mkdir(exist_ok=True)
    (cluster.place_of("head") / "state" / "slow").write_text("n3")
    end(begin(cluster))
    code, swept, errors = end(begin(cluster))
    assert code == 10
    assert "would drain n3 (enforce is off)" in errors
    assert swept.get("drained", []) == []
    assert cluster.drained() == set()


@pytest.mark.soak
def test_a_dry_run_names_the_sets_and_begins_nothing(cluster):
    configure(cluster)
    code, swept, errors = end(begin(cluster, "--dry-run"))
    assert code == 0, errors
    assert sorted(name for nodes, _, _ in swept["jobs"] for name in nodes) == cluster.nodes
    assert own_jobs(cluster) == []
    assert not (cluster.place_of("head") / "state" / "history.sqlite").exists()


@pytest.mark.soak
def test_nodes_that_are_drained_reserved_or_in_maintenance_are_left_alone(cluster):
    configure(cluster)
    cluster.run("scontrol", "update", "nodename=n1", "state=drain", "reason=mine")
    reservation = ("users=root", "starttime=now", "duration=10", "nodes=n2", "flags=maint")
    cluster.run("scontrol", "create", "reservation", "reservationname=works", *reservation)
    try:
        # Slurm marks the node a moment later; until then it would only keep our job from starting
        cluster.wait_for(lambda: cluster.node("n2").states & {"maintenance", "maint", "reserved"}, "n2 in maintenance")
        code, swept, errors = end(begin(cluster))
        assert code == 0, errors
        assert [nodes for nodes, _, _ in swept["jobs"]] == [["n3", "n4"]]
    finally:
        cluster.run("scontrol", "delete", "reservationname=works")
    assert cluster.node("n1").reason == "mine"


def really_measure(cluster: SlurmCluster, *, enforce: bool = False) -> None:
    """Jobs run `preflight run`: gloo, one rank a node."""
    configure(cluster, takes="150s", size=4, enforce=enforce)
    path, plan = cluster.place_of("head") / "preflight.toml", cluster.folder / "scan-plan.toml"
    text = PLAN.format(tp=1, dp=4, nodes=4, per_node=1)
    lines = [line for line in text.splitlines() if not line.startswith(("nodes", "dp"))]
    plan.write_text("\n".join([*lines, "[launch]", f'topology = "{cluster.folder}/topology.conf"']))
    told = path.read_text().replace(f'"{sys.executable}", "{STANDIN}"', f'"{sys.executable}", "-m", "preflight"')
    told = told.replace("[scan]", f'[scan]\nplan = "{plan}"').replace('time_limit = "60s"', 'time_limit = "300s"')
    path.write_text(told)


@pytest.mark.soak
@pytest.mark.fabric
def test_jobs_really_measure_with_preflight_run(cluster):
    really_measure(cluster)
    began = time.monotonic()
    code, swept, errors = end(begin(cluster))
    print(f"a sweep over four nodes took {time.monotonic() - began:.0f} s")
    logs = [path.read_text() for path in cluster.place_of("head").glob("state/scan/*/job.log")]
    assert [outcome for _, outcome, _ in swept["jobs"]] == ["measured"], "\n".join([errors, *logs])
    assert set(history(cluster).covered()) == all_pairs(cluster)
    assert "FAIL" not in {verdict["verdict"] for verdict in swept["verdicts"]}
    assert code in {0, 3}, swept["verdicts"]
    assert not [path for path in Path("/proc").glob("[0-9]*") if _runs_in(cluster, path)]


@pytest.mark.soak
@pytest.mark.fabric
def test_a_node_whose_link_is_slow_is_drained_by_the_second_sweep_that_measures_it(cluster):
    really_measure(cluster, enforce=True)
    cluster.box.limit("n3", SICK_MBIT, "both")
    try:
        first, swept, errors = end(begin(cluster, "--once"))
        assert first == 10, f"{swept}\n{errors}"
        assert cluster.drained() == set()
        second, swept, errors = end(begin(cluster, "--once"))
    finally:
        cluster.box.heal()
    assert (second, swept["drained"], cluster.drained()) == (10, ["n3"], {"n3"}), f"{swept}\n{errors}"
    print(cluster.node("n3").reason)


def _runs_in(cluster: SlurmCluster, process: Path) -> bool:
    with contextlib.suppress(OSError):
        return f"{cluster.folder}/head/state/scan" in (process / "cmdline").read_text()
    return False
