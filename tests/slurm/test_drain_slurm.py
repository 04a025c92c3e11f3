"""Draining, holding and the brake on a real Slurm of sixteen nodes on this machine."""

import subprocess
import sys

import pytest

from preflight.config import Brake, Site, SlurmSite
from preflight.errors import SlurmError
from preflight.slurm.brake import allowed
from preflight.slurm.commands import Slurm
from preflight.slurm.drain import drain
from tests.cluster.slurm import NEEDS, slurm_cluster
from tests.slurm.storms import REASON, storm

pytestmark = [each for each in NEEDS if each.name != "debian" or each.args[0] != "iproute2"]
NODES = [f"n{number}" for number in range(1, 17)]
RULES = Brake(nodes=3, percent=100, jitter_s=0, settle_s=30)
SITE = Site(slurm=SlurmSite(enforce=True), brake=RULES)


@pytest.fixture(scope="module")
def cluster():
    with slurm_cluster(nodes=16, gpus=4, namespaces=False) as running:
        yield running


@pytest.fixture
def slurm(cluster, monkeypatch):
    """All nodes idle, without reason or comment, and no job."""
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    asked = Slurm(deadline_s=60)
    cluster.run("scancel", "--user=root")
    for node in asked.nodes().values():
        if node.drained or node.absent:
            asked.update_node(node.name, state="resume")
        if node.extra or node.comment:
            asked.update_node(node.name, extra="", comment="")
    cluster.wait_until_idle()
    return asked


def test_a_node_is_drained_with_our_reason_and_its_announcement_is_gone(slurm):
    result = drain(slurm, ["n3"], REASON, SITE)
    assert (result.done, result.text) == (("n3",), f"drained n3: {REASON}")
    nodes = slurm.nodes()
    assert (nodes["n3"].reason, nodes["n3"].reason_by, nodes["n3"].extra) == (REASON, "root", None)
    assert nodes["n3"].reason_at_s is not None
    assert abs(slurm.now_s() - nodes["n3"].reason_at_s) < 600
    assert [name for name, node in nodes.items() if node.drained] == ["n3"]


def test_a_node_that_we_drained_is_not_drained_again_but_told_when_its_fabric_is_bad_too(slurm):
    drain(slurm, ["n3"], REASON, SITE)
    again = drain(slurm, ["n3"], REASON.replace("row_remap", "xid"), SITE)
    assert (again.kept, again.done) == (("n3",), ())
    assert slurm.nodes(["n3"])["n3"].reason == REASON
    worse = REASON.replace("row_remap", "slow_part").replace("local", "fabric")
    assert drain(slurm, ["n3"], worse, SITE).kept == ("n3",)
    assert slurm.nodes(["n3"])["n3"].reason == worse


@pytest.mark.parametrize("state", ["drain", *(pytest.param(each, marks=pytest.mark.soak) for each in ("fail", "down"))])
def test_a_reason_of_somebody_else_stays(slurm, cluster, state):
    cluster.run("scontrol", "update", "nodename=n4", f"state={state}", "reason=fan broken, ticket 12 State=IDLE")
    result = drain(slurm, ["n4", "n5"], REASON, SITE)
    assert result.done == ("n5",)
    assert result.foreign + result.absent == ("n4",)
    assert "n4 keeps the reason that root gave: fan broken" in result.text or "n4 is left alone: down" in result.text
    assert slurm.nodes(["n4"])["n4"].reason == "fan broken, ticket 12 State=IDLE"


@pytest.mark.soak
def test_a_node_under_maintenance_is_left_to_who_works_on_it(slurm, cluster):
    cluster.run(
        *("scontrol", "create", "reservation", "ReservationName=work", "Nodes=n10", "Users=root"),
        *("StartTime=now", "Duration=10", "Flags=MAINT,IGNORE_JOBS"),
    )
    try:
        cluster.wait_for(lambda: slurm.nodes(["n10"])["n10"].states & {"maintenance", "maint"}, "n10 in maintenance")
        result = drain(slurm, ["n10"], REASON, SITE)
        assert (result.done, result.absent) == ((), ("n10",))
        assert result.text.startswith("n10 is left alone: idle+maintenance")
    finally:
        cluster.run("scontrol", "delete", "ReservationName=work")
    cluster.wait_until_idle()


def test_a_node_that_slurm_does_not_know_is_said_and_the_others_are_drained(slurm):
    result = drain(slurm, ["nowhere", "n6"], REASON, SITE)
    assert (result.done, result.absent) == (("n6",), ("nowhere",))
    assert "nowhere is left alone: not known to Slurm" in result.text


def test_a_site_that_does_not_enforce_is_told_and_nothing_is_changed(slurm):
    before = slurm.nodes()
    result = drain(slurm, ["n7"], REASON, Site(brake=RULES))
    assert (result.planned, result.done) == (("n7",), ())
    assert result.text == f"would drain n7 (enforce is off): {REASON}"
    assert slurm.nodes() == before


def test_slurm_forgets_a_reason_that_comes_without_a_drain(slurm):
    """Why an announcement stands in another field, and why reason and state are set in one call."""
    slurm.update_node("n8", reason="alone")
    assert slurm.nodes(["n8"])["n8"].reason is None
    slurm.update_node("n8", extra="kept", comment="kept too")
    assert (slurm.nodes(["n8"])["n8"].extra, slurm.nodes(["n8"])["n8"].comment) == ("kept", "kept too")


def test_of_sixteen_nodes_that_fail_at_the_same_moment_three_are_drained(slurm):
    results = storm(slurm, NODES, RULES)
    nodes = slurm.nodes()
    drained = {name for name, node in nodes.items() if node.drained}
    assert {name for name, result in results.items() if result.done} == drained
    assert 1 <= len(drained) <= RULES.nodes
    assert all(results[name].text.startswith("brake: ") for name in set(NODES) - drained)
    assert not any(node.extra or node.comment for node in nodes.values())


def test_an_announcement_of_a_killed_process_holds_others_up_and_harms_nothing(slurm):
    one = RULES.__class__(nodes=1, percent=100, jitter_s=0, settle_s=1)
    site = Site(slurm=SlurmSite(enforce=True), brake=one)
    assert allowed(slurm, ["n2"], REASON, one).allowed == ("n2",)  # and then it is killed
    result = drain(slurm, ["n9"], REASON, site)
    assert (result.done, result.braked) == ((), ("n9",))
    assert not any(node.drained for node in slurm.nodes().values())


def test_the_gpus_of_a_job_on_each_node(slurm, cluster):
    job = cluster.sbatch("-w", "n1,n2", "-N2", "-n2", "--gres=gpu:3", "--job-name=x NodeList=n9", script="sleep 100")
    cluster.wait_for_job(job, "RUNNING")
    told = slurm.job(job)
    assert (told.nodes, told.user, told.gpu_numbers) == (("n1", "n2"), "root", {"n1": (0, 1, 2), "n2": (0, 1, 2)})
    with pytest.raises(SlurmError, match="Invalid job id"):
        slurm.job(4_000_000)
    assert set(slurm.partitions()["all"].nodes) == set(NODES)
    assert slurm.version() >= (20, 11)


PROLOG = """
import sys
from preflight.config import Brake, Site, SlurmSite
from preflight.slurm.commands import Slurm
from preflight.slurm.drain import drain
site = Site(slurm=SlurmSite(enforce=True), brake=Brake(nodes=int(sys.argv[2]), percent=100, settle_s=60))
print("ready", flush=True)
sys.stdin.readline()
print(drain(Slurm(deadline_s=60), [sys.argv[1]], "preflight:row_remap GPU 1: bad; mend it [r1, local]", site).text)
"""


@pytest.mark.soak
@pytest.mark.parametrize("times", range(5))
@pytest.mark.parametrize(("count", "limit"), [(1, 1), (4, 1), (4, 3), (8, 2), (16, 1), (16, 3)])
def test_prologs_that_fail_at_the_same_moment_drain_as_many_as_may_be(slurm, count, limit, times):
    commands = [[sys.executable, "-c", PROLOG, name, str(limit)] for name in NODES[:count]]
    prologs = [subprocess.Popen(each, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for each in commands]
    for prolog in prologs:
        assert prolog.stdout.readline() == "ready\n"
    for prolog in prologs:
        prolog.stdin.write("\n")
        prolog.stdin.flush()
    said = [prolog.communicate(timeout=200)[0] for prolog in prologs]
    nodes = slurm.nodes()
    assert sum(node.drained for node in nodes.values()) == min(count, limit), said
    assert not any(node.extra or node.comment for node in nodes.values())
