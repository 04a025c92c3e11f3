"""master_rank catches a rank 0 that is not on the master, and leaves alone one that is."""

import pytest

from preflight.model import Finding, Part, Verdict
from preflight_checks.master_rank import CHECK
from tests.builders import make_evidence, make_plan

HOSTS = ("b1", "a1")


def judge(master: str | None, *, launcher: str | None = "slurm", hosts=HOSTS, **launch) -> list[Finding]:
    launch = {"launcher": launcher, "hosts": hosts, "master": master, **launch}
    return list(CHECK.judge(make_evidence(plan=make_plan(nodes=None, tp=8, launch=launch))))


@pytest.mark.parametrize("master", ["b1", "B1", "b1.cluster.local", "b1."])
def test_rank_0_on_the_master_passes(master):
    [finding] = judge(master)
    assert (finding.verdict, finding.remedy, finding.blames) == (Verdict.PASS, "", None)


@pytest.mark.parametrize(
    ("launcher", "launch"),
    [
        ("slurm", {}),
        ("torchrun", {"rendezvous": "static"}),
        ("torchrun", {}),
        ("mpi", {}),
        ("deepspeed", {}),
        ("kubernetes", {}),
    ],
)
def test_a_master_on_another_node_stops_the_job(launcher, launch):
    [finding] = judge("a1", launcher=launcher, **launch)
    assert (finding.verdict, finding.blames) == (Verdict.FAIL, Part(kind="plan", name="launch.master"))
    assert finding.observed == "rank 0 is on b1, and all ranks look for it on a1: they wait until they time out"
    assert finding.remedy == "set MASTER_ADDR to b1, or put a1 first"


@pytest.mark.parametrize("launcher", ["torchrun", "kubernetes"])
def test_under_c10d_the_job_starts_but_rank_0_is_elsewhere(launcher):
    [finding] = judge("b1", launcher=launcher, rendezvous="c10d")
    assert finding.verdict is Verdict.WARN
    assert finding.observed.startswith("rank 0 is on a1: c10d ranks nodes by name as text")
    assert finding.remedy == "use a1 as the endpoint, or static rendezvous with --node-rank=0 on b1"


def test_the_first_host_of_a_hostfile_is_rank_0(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("a1\n" * 8 + "b1\n" * 8)
    [finding] = judge("b1", distribution="arbitrary", hostfile=str(path))
    assert finding.verdict is Verdict.FAIL
    assert judge("a1", distribution="arbitrary", hostfile=str(path))[0].verdict is Verdict.PASS


@pytest.mark.parametrize("master", ["localhost", "127.0.0.1", "::1"])
def test_a_loopback_master_is_only_good_for_one_node(master):
    [finding] = judge(master)
    assert finding.verdict is Verdict.FAIL
    assert "each would wait for itself" in finding.observed
    assert judge(master, hosts=("b1",))[0].verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("master", "kind"), [("10.0.0.1", "an address"), ("fe80::1", "an address"), ("head", "none of")]
)
def test_a_master_that_is_no_node_by_name_is_unknown(master, kind):
    [finding] = judge(master)
    assert (finding.verdict, finding.blames) == (Verdict.UNKNOWN, None)
    assert kind in finding.observed
    assert "has to be b1" in finding.remedy


def test_without_a_launcher_it_is_a_warning_that_says_what_was_assumed():
    [finding] = judge("a1", launcher=None)
    assert finding.verdict is Verdict.WARN
    assert "block placement assumed" in finding.observed


def test_without_a_master_there_is_nothing_to_judge():
    assert judge(None) == []
