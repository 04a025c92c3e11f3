"""`--ranks`: what ranks say of where they are, and of who put them there, goes before what would be predicted; and what is refused before anything is measured."""

import msgspec
import pytest

from preflight.cli.main import run_command_line
from preflight.model import RankFacts
from preflight.plan.measured import launch_of
from tests.builders import make_job

PLAN = """
[model]
parameters = "8B"
layers = 8
hidden_size = 1024
[parallel]
tp = 2
dp = 2
[training]
micro_batches = 8
micro_batch_size = 1
seq_length = 512
[hardware]
nodes = 2
gpus_per_node = 2
gpu = "H100-80GB"
"""


def facts(*, numbered_by: str = "SLURM_PROCID", **variables: str) -> list[RankFacts]:
    """Four ranks that srun dealt to two nodes in turn."""
    return [
        RankFacts(
            rank=rank,
            world_size=4,
            local_rank=rank // 2,
            numbered_by=numbered_by,
            host=f"n{rank % 2 + 1}",
            node=f"n{rank % 2 + 1}",
            boot_id=f"boot{rank % 2}",
            environment={"SLURM_STEP_TASKS_PER_NODE": "2(x2)", **variables},
        )
        for rank in range(4)
    ]


def test_ranks_that_srun_numbered_tell_the_launcher_and_how_it_dealt_them():
    launch = launch_of(make_job(), facts(SLURM_DISTRIBUTION="cyclic")).launch
    assert (launch.launcher, launch.distribution) == ("slurm", "cyclic")
    plane = launch_of(make_job(), facts(SLURM_DISTRIBUTION="plane", SLURM_DIST_PLANESIZE="2")).launch
    assert plane.distribution == "plane=2"


@pytest.mark.parametrize(
    "told",
    [
        facts(numbered_by="RANK"),
        facts(SLURM_DISTRIBUTION="arbitrary"),
        facts(SLURM_STEP_TASKS_PER_NODE="2,1,1"),
        [*facts()[:3], msgspec.structs.replace(facts()[3], numbered_by="RANK")],
    ],
)
def test_where_they_can_not_know_the_launcher_nothing_is_made_up(told):
    assert launch_of(make_job(), told) == make_job()


def test_the_plan_files_own_launcher_stays():
    job = make_job(launch={"launcher": "torchrun"})
    assert launch_of(job, facts()) == job


def test_a_cyclic_step_is_refused_with_the_flag_that_mends_it_where_the_plan_file_names_no_launcher(capsys, tmp_path):
    plan, ranks = tmp_path / "plan.toml", tmp_path / "ranks.jsonl"
    plan.write_text(PLAN)
    ranks.write_bytes(b"\n".join(msgspec.json.encode(one) for one in facts(SLURM_DISTRIBUTION="cyclic")))
    assert run_command_line(["plan", str(plan), "--ranks", str(ranks)]) == 10
    assert "srun -m block (--distribution=block)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--keep", "2", "--ranks", "r"], "--keep and --ranks don't go together"),
        (["--keep", "2", "--local", "2x2"], "--keep chooses among nodes, and --local has one machine"),
        (["--keep", "2", "--budget", "50s"], "--keep measures twice: give a --budget of at least 60s"),
        (["--keep-dir", "d"], "--keep-dir needs --keep"),
        (["--keep", "0"], "0 is not in the range"),
        (["--hosts", "n1"], "--hosts needs --key-file or --munge"),
    ],
)
def test_wrong_usage_is_exit_64_and_says_what_would_be_right(capsys, tmp_path, arguments, text):
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    assert run_command_line(["run", str(plan), *arguments]) == 64
    assert text in capsys.readouterr().err


def test_ranks_of_another_job_are_refused_before_anything_is_measured(capsys, tmp_path):
    plan, ranks = tmp_path / "plan.toml", tmp_path / "ranks.jsonl"
    plan.write_text(PLAN)
    ranks.write_text("nothing\n")
    assert run_command_line(["run", str(plan), "--local", "2x2", "--ranks", str(ranks)]) == 78
    assert "holds no rank" in capsys.readouterr().err


def test_more_nodes_than_there_are_can_not_be_kept(capsys, tmp_path):
    plan, key = tmp_path / "plan.toml", tmp_path / "key"
    plan.write_text(PLAN)
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    where = ["--hosts", "n1=127.0.0.1:1,n2=127.0.0.1:2", "--key-file", str(key)]
    assert run_command_line(["run", str(plan), "--keep", "3", *where]) == 64
    assert "--keep 3, but there are 2 nodes" in capsys.readouterr().err
    assert run_command_line(["run", str(plan), "--keep", "1", *where]) == 64
    assert "is for 2 nodes: give --keep 2" in capsys.readouterr().err
