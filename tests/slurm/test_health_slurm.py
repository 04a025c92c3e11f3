"""The health program on a real Slurm: it drains by itself, and gives back only what is its own to give."""

import pytest

from preflight.model.finding import Finding, Part, Verdict
from preflight.slurm.reason import reason_of
from tests.cluster.slurm import NEEDS, slurm_cluster
from tests.slurm import prologs

pytestmark = NEEDS


@pytest.fixture(scope="module")
def running():
    with slurm_cluster(nodes=2, namespaces=False) as cluster:
        yield cluster


@pytest.fixture
def cluster(running):
    running.reset()
    return running


def health(cluster, name="n1", slurm="enforce = true\nresume = true"):
    """One run on a node, as slurmd makes it; what it said."""
    config = cluster.place_of(name) / "health.toml"
    config.write_text(f'[slurm]\nstate_dir = "{cluster.place_of(name)}/state"\n{slurm}\n')
    config.chmod(0o644)
    done = prologs.run(
        *("--config", str(config), "--jitter", "0"),
        command="health",
        library=cluster.place_of(name) / "nvml",
        SLURMD_NODENAME=name,
        SLURM_CONF=str(cluster.folder / "slurm.conf"),
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "SLURM_NODELIST"), ""),
    )
    assert "Traceback" not in done.stderr
    return done.stderr


def drained_for(cluster, name="n1"):
    node = cluster.node(name)
    return node.reason if "drain" in node.states else None


def test_a_sick_node_is_drained_and_given_back_when_two_runs_found_it_well(cluster):
    cluster.set_gpus("n1", "sick")
    assert "drained n1" in health(cluster)
    assert drained_for(cluster).startswith("preflight:row_remap GPU 7")
    assert "drained by preflight before" in health(cluster)
    cluster.set_gpus("n1", "healthy")
    assert "stays drained until two runs in a row" in health(cluster)
    assert drained_for(cluster)
    assert "; resumed, it was drained for: preflight:row_remap" in health(cluster)
    assert drained_for(cluster) is None
    assert cluster.node("n1").reason is None
    assert drained_for(cluster, "n2") is None


@pytest.mark.soak
def test_a_run_that_finds_it_sick_or_unknown_begins_the_count_anew(cluster):
    cluster.set_gpus("n1", "sick")
    health(cluster)
    for kind in ("healthy", "sick", "healthy", "missing", "healthy"):
        cluster.set_gpus("n1", kind)
        health(cluster)
        assert drained_for(cluster), kind
    assert "; resumed" in health(cluster)


@pytest.mark.soak
@pytest.mark.parametrize("slurm", ["enforce = true", "resume = true"])
def test_nothing_is_resumed_unless_the_site_wants_that_and_enforces(cluster, slurm):
    cluster.set_gpus("n1", "sick")
    health(cluster)
    cluster.set_gpus("n1", "healthy")
    for _ in range(3):
        health(cluster, slurm=slurm)
    assert drained_for(cluster).startswith("preflight:row_remap")


@pytest.mark.soak
def test_in_a_dry_run_nothing_is_drained(cluster):
    cluster.set_gpus("n1", "sick")
    assert "would drain n1 (enforce is off): preflight:row_remap" in health(cluster, slurm="")
    assert drained_for(cluster) is None


def fabric():
    bad = Finding(
        check="slow_part",
        subject="n1",
        verdict=Verdict.FAIL,
        observed="12 GB/s to all",
        remedy="look at its NIC",
        blames=Part(kind="node", name="n1"),
    )
    return reason_of([bad], "scan-7", node="n1")


@pytest.mark.parametrize(
    "reason",
    [
        pytest.param("fan is loud, Ann", marks=pytest.mark.soak),
        pytest.param("NHC: check_hw_eth", marks=pytest.mark.soak),
        "Prolog error",
        pytest.param(None, marks=pytest.mark.soak),
    ],
)
def test_what_a_local_check_of_ours_did_not_drain_stays_drained(cluster, reason):
    reason = reason or fabric()
    cluster.run("scontrol", "update", "nodename=n1", "state=drain", f"reason={reason}")
    for _ in range(3):
        health(cluster)
    assert drained_for(cluster) == reason


@pytest.mark.soak
def test_a_sick_node_with_a_foreign_reason_keeps_it(cluster):
    cluster.run("scontrol", "update", "nodename=n1", "state=drain", "reason=fan is loud, Ann")
    cluster.set_gpus("n1", "sick")
    assert "keeps the reason" in health(cluster)
    assert drained_for(cluster) == "fan is loud, Ann"
