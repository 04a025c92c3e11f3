"""`preflight plan --advise`: the cyclic accident with the flag that repairs it, files to use, and layouts for a plan without degrees."""

import json

import pytest

from preflight.cli.main import run_command_line

MODEL = """
[model]
layers = 80
hidden_size = 8192
ffn_size = 28672
attention_heads = 64
kv_heads = 8
vocab_size = 128256
[hardware]
nodes = 8
gpus_per_node = 8
gpu = "H100-80GB"
[training]
global_batch_size = 256
micro_batch_size = 1
seq_length = 4096
"""
DEGREES = """
[parallel]
tp = 8
pp = 4
dp = 2
zero_stage = 1
sequence_parallel = true
"""


@pytest.fixture
def advise(tmp_path, capsys):
    """Runs `preflight plan --advise` on a text: exit code and document."""

    def run(text, *options):
        path = tmp_path / "job.toml"
        path.write_text(text)
        code = run_command_line(["plan", str(path), "--advise", "--format", "json", *options])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_the_cyclic_accident_is_no_go_with_its_flag_and_go_after_it(advise):
    code, document = advise(MODEL + DEGREES + '[launch]\nlauncher = "slurm"\ndistribution = "cyclic"\n')
    [advice] = document["advice"]
    [change] = advice["changes"]
    assert (code, change["paste"], advice["complete"]) == (10, "srun --distribution=block", True)
    assert (advice["before"]["fail"], advice["after"]["fail"]) == (8, 0)
    assert advice["step_after_s"] < advice["step_before_s"] / 2
    keys = "".join(f"{key.removeprefix('launch.')} = {value}\n" for key, value in change["keys"].items())
    code, document = advise(MODEL + DEGREES + f'[launch]\nlauncher = "slurm"\n{keys}')
    assert (code, document["answer"], document["advice"]) == (0, "go", [])


def test_files_are_written_where_they_are_wanted(advise, tmp_path):
    """Nodes of two leaves taken in turn; the hostfile lists them leaf by leaf, and the plan with it is judged better."""
    table = "node leaf\n" + "".join(f"n{i} leaf{i % 2}\n" for i in range(8))
    (tmp_path / "leaves.txt").write_text(table)
    launch = '[launch]\nlauncher = "slurm"\ndistribution = "block"\nhosts = "n[0-7]"\n'
    degrees = DEGREES.replace("pp = 4", "pp = 2").replace("dp = 2", "dp = 4")
    folder = tmp_path / "made" / "advice"
    options = ("--topology", str(tmp_path / "leaves.txt"))
    _, document = advise(MODEL + degrees + launch, *options, "--advise-dir", str(folder))
    files = {change["filename"] for advice in document["advice"] for change in advice["changes"]}
    assert "hosts.txt" in files
    assert (folder / "hosts.txt").read_text().splitlines()[::8] == ["n0", "n2", "n4", "n6", "n1", "n3", "n5", "n7"]
    repaired = launch.replace('"block"', '"arbitrary"') + 'hostfile = "made/advice/hosts.txt"\n'
    _, document = advise(MODEL + degrees + repaired, *options)
    assert not [f for f in document["findings"] if f["check"] == "leaf_spread" and f["verdict"] == "WARN"]
    assert document["advice"] == []


def test_a_plan_without_degrees_gets_layouts_and_is_judged_by_the_best(advise):
    code, document = advise(MODEL)
    layouts = document["layouts"]
    assert (code, document["answer"]) == (0, "go")
    assert 2 <= len(layouts) <= 8
    assert document["degrees"]["tp"] == layouts[0]["degrees"]["tp"] == 4
    assert all(layout["why_behind"] for layout in layouts[1:])


def test_no_advice_without_being_asked(tmp_path, capsys):
    path = tmp_path / "job.toml"
    path.write_text(MODEL + DEGREES)
    assert run_command_line(["plan", str(path), "--format", "json"]) == 0
    assert "advice" not in json.loads(capsys.readouterr().out)
