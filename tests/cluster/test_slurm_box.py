"""The Slurm in a box itself: what it starts ends with it, and its programs see what those of a real node see."""

import re
from pathlib import Path

import pytest

from preflight.slurm.directive import read_directive
from preflight.slurm.job import read_job
from tests.cluster.box import sh
from tests.cluster.slurm import NEEDS, slurm_cluster
from tests.plan.launchers.slurm_box import processes

# what would change what Python, the loader, a shell or preflight does
OF_THE_USER = ("LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV", "ENV", "IFS", "SLURM_CONF")
OF_THE_USER += (
    "PREFLIGHT_CONFIG",
    "PREFLIGHT_SLURM_PROLOG_ROOT",
    "PREFLIGHT_SLURM_PROLOG_TEXTFILE_DIR",
    "SPANK_X",
    "SLURM_JOB_COMMENT",
    "SLURMD_NODENAME",
)

pytestmark = [*NEEDS, pytest.mark.soak]


def gone(cluster):
    assert not cluster.folder.exists()
    assert processes(cluster.folder) == []
    assert cluster.box.mark not in sh("ip", "netns", "list")
    assert str(cluster.folder) not in Path("/proc/mounts").read_text()


def test_nothing_outlives_the_cluster_though_jobs_and_a_prolog_are_under_way():
    with slurm_cluster(prolog="/bin/sh -c 'if [ $SLURMD_NODENAME = n3 ]; then exec /bin/sleep 600; fi'") as cluster:
        cluster.start_agents()
        job = cluster.sbatch("-w", "n1", script="sleep 600")
        cluster.sbatch("-w", "n3")
        cluster.wait_for_job(job, "RUNNING")
        cluster.wait_for(lambda: cluster.processes("n3").values(), "a prolog under way")
        assert len(processes(cluster.folder)) > 6
    gone(cluster)


def test_nothing_is_left_of_a_cluster_that_did_not_start(monkeypatch):
    seen = []
    from tests.cluster import slurm

    lay_out = slurm.lay_out
    monkeypatch.setattr(slurm, "lay_out", lambda cluster: (seen.append(cluster), lay_out(cluster)))
    with (
        pytest.raises(AssertionError, match="ended at once"),
        slurm_cluster(config="SelectType=select/nonsense"),
    ):
        pass
    gone(seen[0])


def test_programs_of_slurm_see_what_is_written_down_about_them():
    dump = '/bin/sh -c \'/usr/bin/tr "\\\\0" "\\\\n" </proc/self/environ >{cluster}/env-$SLURM_SCRIPT_CONTEXT-$SLURMD_NODENAME\''
    with slurm_cluster(prolog=dump, prolog_slurmctld=dump, health=dump) as cluster:
        hostile = ",".join(f"{name}=/of/the/user" for name in OF_THE_USER)
        job = cluster.sbatch(
            "-N2", "--gres=gpu:4", "--comment=preflight: on, tp=8", "-J", "a name", f"--export=ALL,{hostile}"
        )
        cluster.wait_for_job(job, "COMPLETED")
        files = {path.name: path.read_text() for path in cluster.folder.glob("env-*")}
    assert not [text for text in files.values() if "/of/the/user" in text]  # nothing of his reaches root
    seen = {name: dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)) for name, text in files.items()}
    for name in ("n1", "n2"):
        prolog = seen[f"env-prolog_slurmd-{name}"]
        assert "PATH" not in prolog
        assert "HOME" not in prolog
        assert "SLURM_JOB_NODELIST" not in prolog  # 22.05
        context = read_job(prolog)
        assert (context.node, context.nodes, context.gpus) == (name, ("n1", "n2"), (0, 1, 2, 3))
        assert (context.job_id, context.restart_count, context.user, context.uid) == (job, 0, "root", 0)
        assert (context.script, context.cluster, context.partition) == ("prolog_slurmd", "box", "all")
        assert read_directive(context.comment, context.extra, context.constraints).degrees == {"tp": 8}
        assert context.problems == ()
    controller = read_job(seen["env-prolog_slurmctld-"])
    assert (controller.node, controller.nodes, controller.gpus) == (None, ("n1", "n2"), None)
    assert (controller.job_id, controller.account, controller.comment) == (job, None, "preflight: on, tp=8")
    health = seen["env--n4"]
    of_the_box = {"PWD", "SLURM_CONF", "PREFLIGHT_CONFIG", "LD_LIBRARY_PATH"}
    assert set(health) - of_the_box == {"SLURMD_NODENAME"}
    assert read_job(health).node == "n4"
