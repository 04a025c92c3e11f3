"""`preflight node`: what a person and a script get."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from preflight.cli.main import run_command_line
from preflight.cli.node import command, describe
from preflight.model import Gpu, Nic, Node, Problem, from_json, to_json
from tests.builders import make_gpu, make_node
from tests.trees import Tree


def show(node):
    return "\n".join(describe(node))


def test_this_node_is_shown_and_a_missing_driver_is_no_error(tmp_path):
    result = CliRunner().invoke(command, ["--root", str(Tree(tmp_path).root)], standalone_mode=False)
    assert result.return_value == 0
    assert "node cn07" in result.output
    assert "4 x Example CPU 9000" in result.output
    if "NVML" not in result.output:
        assert "no NVIDIA driver: no GPUs on this node" in result.output
        assert "problem" not in result.output


def test_a_snapshot_round_trips_through_save_and_from(tmp_path, capsys):
    snapshot, copy = tmp_path / "node.json", tmp_path / "copy.json"
    tree = Tree(tmp_path / "root")
    assert run_command_line(["node", "--root", str(tree.root), "--save", str(snapshot)]) == 0
    capsys.readouterr()
    assert run_command_line(["node", "--from", str(snapshot), "--save", str(copy), "--format", "json"]) == 0
    printed = capsys.readouterr().out
    assert copy.read_bytes() == snapshot.read_bytes() == printed.encode()
    assert from_json(printed, Node).hostname == "cn07"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--from", "missing.json"], 78, "missing.json"),
        (["--from", "."], 78, "not a regular file"),
        (["--from", "bad.json"], 78, "not a saved Node"),
        (["--from", "bad.json", "--root", "/"], 64, "give one of them"),
        (["--root", "nowhere"], 64, "no such directory"),
        (["--timeout", "soon"], 64, "not a number"),
        (["--timeout", "0"], 64, "between"),
        (["--timeout", "2h"], 64, "between"),
        (["--format", "xml"], 64, "xml"),
        (["--from", "good.json", "--save", "nowhere/file.json"], 3, "can't be written"),
    ],
)
def test_wrong_usage_and_bad_files_are_one_message_with_their_own_exit_code(
    *, tmp_path, monkeypatch, capsys, arguments, code, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text('{"name": 3}')
    (tmp_path / "good.json").write_bytes(to_json(make_node()))
    assert run_command_line(["node", *arguments]) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err


def test_gpus_are_listed_with_links_domain_and_problems():
    gone = Gpu(index=1, problems=(Problem(source="nvmlDeviceGetHandleByIndex", text="GPU is lost (NVML 15)"),))
    node = make_node("n1", gpus=None)
    text = show(Node(name="n1", driver_version="550.54.15", gpus=(make_gpu("n1", 0), gone)))
    assert "driver    550.54.15" in text
    assert "GPU-n1-0" in text
    assert "85.5 GB" in text
    assert "problem   GPU 1: nvmlDeviceGetHandleByIndex: GPU is lost (NVML 15)" in text
    assert "unknown: no reason given" in show(node)


def test_unknown_facts_are_question_marks_never_zeros():
    text = show(Node(name="n1", nics=(Nic(name="eth0"),), gpus=(Gpu(index=0),)))
    assert "? x ?" in text
    assert [word for word in text.split() if word == "0"] == ["0"]  # the GPU's index
    assert "NICs      unknown" in show(Node(name="n1"))


def test_a_snapshot_cannot_send_control_sequences_to_the_terminal():
    nasty = "a\x1b[2Jb\nc"
    node = Node(
        name=nasty,
        cpu_model=nasty,
        gpu_note=nasty,
        nics=(Nic(name=nasty, addresses=(nasty,)),),
        problems=(Problem(source=nasty, text=nasty),),
    )
    assert all(char.isprintable() or char == "\n" for char in show(node))
    assert nasty not in show(node)


@pytest.mark.parametrize("name", ["node", "topology"])
def test_the_prolog_path_imports_nothing_heavy(name):
    code = (
        "import sys; from preflight.cli.main import run_command_line; code = run_command_line(sys.argv[1:]);"
        "heavy = {'torch', 'numpy', 'aiohttp', 'rich', 'pynvml', 'prometheus_client'} & set(sys.modules);"
        "print(sorted(heavy), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"


def test_json_is_the_saved_noun(tmp_path, capsys):
    assert run_command_line(["node", "--root", str(Tree(tmp_path).root), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["name"] == "cn07"
    assert document["numa_nodes"] == [0, 1]
