"""`preflight ranks`: one line or one file for each rank, which the planner reads back."""

import json
import os
import subprocess
import sys

import pytest

from preflight.cli.main import run_command_line
from preflight.plan.measured import measured_placement, read_ranks

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "JOB_COMPLETION_INDEX")
PREFIXES = ("SLURM", "OMPI", "PMI", "MPI", "PREFLIGHT", "CUDA")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in list(os.environ):
        if name in LAUNCHERS or name.startswith(PREFIXES):
            monkeypatch.delenv(name)


def run_rank(rank, *options, **kwargs):
    environ = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank)}
    return subprocess.Popen([sys.executable, "-m", "preflight", "ranks", *options], env=environ, **kwargs)


def test_lines_of_all_ranks_in_one_file_are_read_back(tmp_path):
    path = tmp_path / "ranks.jsonl"
    with path.open("ab") as file:
        ranks = [run_rank(rank, stdout=file) for rank in range(3)]
        assert [rank.wait(60) for rank in ranks] == [0, 0, 0]
    facts = read_ranks(path)
    assert [one.rank for one in facts] == [0, 1, 2]
    placement = measured_placement(facts)
    assert (placement.node_ranks, placement.local_ranks) == ((0, 0, 0), (0, 1, 2))


def test_a_folder_gets_one_file_for_each_rank(tmp_path):
    ranks = [run_rank(rank, "--out", str(tmp_path / "deep/ranks.d"), stdout=subprocess.PIPE) for rank in range(3)]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == [b"", b"", b""]
    assert sorted(path.name for path in (tmp_path / "deep/ranks.d").iterdir()) == [
        f"rank-{rank:06d}.json" for rank in range(3)
    ]
    assert len(read_ranks(tmp_path / "deep/ranks.d")) == 3


def test_one_line_tells_the_launcher_host_and_boot_id(monkeypatch, capsys):
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_LOCALID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert run_command_line(["ranks"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    said = json.loads(out)
    assert {key: said[key] for key in ("schema", "rank", "world_size", "local_rank", "numbered_by")} == {
        "schema": "preflight.rank/1",
        "rank": 3,
        "world_size": 4,
        "local_rank": 1,
        "numbered_by": "SLURM_PROCID",
    }
    assert said["host"]


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "words"),
    [
        ([], {}, 78, "no launcher numbers this process"),
        ([], {"RANK": "x"}, 78, "RANK: 'x' is no number"),
        (["--timeout", "0"], {"RANK": "0"}, 64, "--timeout 0"),
        (["--timeout", "nan"], {"RANK": "0"}, 64, "--timeout nan"),
        (["--out", "file/ranks.d"], {"RANK": "0"}, 64, "--out file/ranks.d"),
    ],
)
def test_what_can_not_be_said_is_one_message_with_its_exit_code(
    *, tmp_path, monkeypatch, capsys, arguments, environ, code, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert run_command_line(["ranks", *arguments]) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_a_line_fits_a_pipe_in_one_piece_whatever_the_environment_holds(monkeypatch, capsys):
    from preflight.discover import rank

    for name in rank._KEPT:
        monkeypatch.setenv(name, "x" * 200)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert run_command_line(["ranks"]) == 0
    assert len(capsys.readouterr().out) <= 4096
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-," * 20_000)
    monkeypatch.setenv("SLURMD_NODENAME", "n" * 5000)
    assert run_command_line(["ranks"]) == 0
    out = capsys.readouterr().out
    assert len(out) <= 4096
    assert '"rank":0,' in out


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from preflight.cli.main import run_command_line; run_command_line(['ranks']); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "RANK": "0"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {"torch", "numpy", "aiohttp", "rich", "psutil"}


def test_a_plan_is_judged_where_its_ranks_really_are(tmp_path, capsys):
    from preflight.model import RankFacts, to_json

    (tmp_path / "job.toml").write_text(
        '[model]\nparameters = "7B"\nlayers = 32\n[parallel]\ntp = 4\n[training]\nmicro_batches = 8\n'
        '[hardware]\ngpu = "H100-80GB"\n[launch]\nlauncher = "slurm"\ndistribution = "block"\n'
    )

    def write(node_of):
        (tmp_path / "ranks.d").mkdir(exist_ok=True)
        for rank in range(8):
            facts = RankFacts(rank=rank, host=f"n{node_of(rank)}", boot_id=f"b{node_of(rank)}", world_size=8)
            (tmp_path / f"ranks.d/rank-{rank:06d}.json").write_bytes(
                json.dumps(json.loads(to_json(facts)), separators=(",", ":")).encode()
            )

    def plan():
        code = run_command_line(
            ["plan", str(tmp_path / "job.toml"), "--ranks", str(tmp_path / "ranks.d"), "--format", "json"]
        )
        said = json.loads(capsys.readouterr().out)
        return code, said, {f["check"]: f for f in said["findings"] if f["verdict"] == "FAIL"}

    write(lambda rank: rank // 4)
    code, said, failed = plan()
    assert (code, failed, said["placement"]["source"]) == (0, {}, "measured")
    write(lambda rank: rank % 2)
    code, said, failed = plan()
    assert code == 10
    assert set(failed) == {"tp_in_nvlink_domain", "ranks_match"}
    assert failed["ranks_match"]["observed"].startswith("rank 1: predicted node n0 local rank 1, found node n1")


def test_the_help_keeps_one_example_a_line(capsys):
    run_command_line(["ranks", "--help"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "srun preflight ranks > ranks.jsonl" in lines
    assert "mpirun ... preflight ranks > ranks.jsonl" in lines
