"""`preflight node`: what a person and a script get."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from preflight.cli.main import run_command_line
from preflight.cli.node import command
from preflight.cli.node_text import describe, describe_all
from preflight.model import Gpu, Nic, Node, OutsideVerdict, Problem, Report, from_json, to_json
from tests.builders import make_gpu, make_node
from tests.trees import Tree


def show(node):
    return "\n".join(describe(node))


def test_this_node_is_shown_and_a_missing_driver_is_no_error(tmp_path):
    result = CliRunner().invoke(command, ["--root", str(Tree(tmp_path).root)], standalone_mode=False)
    assert result.return_value in (0, 3)  # nothing of this machine is bad, and little is known
    assert "node cn07" in result.output
    assert "4 x Example CPU 9000" in result.output
    if "NVML" not in result.output:
        assert "no NVIDIA driver: no GPUs on this node" in result.output
        assert "problem" not in result.output


def test_a_snapshot_round_trips_through_save_and_from(tmp_path, capsys):
    snapshot, copy = tmp_path / "node.json", tmp_path / "copy.json"
    tree = Tree(tmp_path / "root")
    code = run_command_line(["node", "--root", str(tree.root), "--save", str(snapshot)])
    capsys.readouterr()
    assert run_command_line(["node", "--from", str(snapshot), "--save", str(copy), "--format", "json"]) == code
    printed = from_json(capsys.readouterr().out, Report)
    (node,) = printed.evidence.inventory.nodes
    assert from_json(copy.read_bytes(), Node) == from_json(snapshot.read_bytes(), Node) == node
    assert printed.evidence.inventory.nodes[0].hostname == "cn07"


@pytest.mark.parametrize("option", ["--save", "--metrics"])
@pytest.mark.parametrize(("sick", "code"), [(False, 3), (True, 10)])
def test_a_file_that_cannot_be_written_costs_neither_the_answer_nor_a_sick_node_s_verdict(
    *, tmp_path, capsys, option, sick, code
):
    verdict = OutsideVerdict(origin="acme", name="disk", verdict="FAIL" if sick else "PASS", text="x")
    (tmp_path / "good.json").write_bytes(to_json(make_node(verdicts=(verdict,))))
    arguments = ["node", "--from", str(tmp_path / "good.json"), option, str(tmp_path / "nowhere" / "file.prom")]
    assert run_command_line(arguments) == code
    told = capsys.readouterr()
    assert told.err.count("can't be written") == 1
    assert "outside_verdicts" in told.out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--from", "missing.json"], 78, "missing.json"),
        (["--from", "."], 78, "not a regular file"),
        (["--from", "bad.json"], 78, "not a saved node"),
        (["--from", "bad.json", "--root", "/"], 64, "give one of them"),
        (["--root", "nowhere"], 64, "no such directory"),
        (["--timeout", "soon"], 64, "not a number"),
        (["--timeout", "0"], 64, "between"),
        (["--timeout", "2h"], 64, "between"),
        (["--format", "xml"], 64, "xml"),
        (["--from", "good.json", "--save", "nowhere/file.json"], 3, "can't be written"),
        (["--from", "good.json", "--from", "good.json"], 64, "two of the files tell of a node named node0"),
        (["--product", "H100 SXM"], 64, "--product goes with --from"),
        (["--from", "good.json", "--from", "other.json", "--save", "x.json"], 64, "--save writes one node"),
        (["--from", "good.json", "--from", "other.json", "--plugin", "/bin/true"], 64, "tell of one node"),
        (["--from", "good.json", "--profiles", "nowhere"], 64, "no such directory"),
        (["--from", "good.json", "--rules", "bad.json"], 78, "bad.json"),
        (["--from", "good.json", "--rules", "rules.toml"], 78, "unknown check"),
        (["--from", "good.json", "--plugin", "check_disk -w 5"], 64, "the whole path"),
        (["--from", "good.json", "--plugin", "/bin/echo 'open"], 64, "No closing quotation"),
        (["--from", "good.json", "--since", "bad.json"], 78, "bad.json"),
        (["--from", "good.json", "--import", "bad.json"], 78, "bad.json"),
    ],
)
def test_wrong_usage_and_bad_files_are_one_message_with_their_own_exit_code(
    *, tmp_path, monkeypatch, capsys, arguments, code, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text('{"name": 3}')
    (tmp_path / "good.json").write_bytes(to_json(make_node()))
    (tmp_path / "other.json").write_bytes(to_json(make_node("node1")))
    (tmp_path / "rules.toml").write_text('[rules]\nno_such_check = "warn"\n')
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
    assert done.returncode in (0, 3)
    assert done.stderr.strip() == "[]"


def test_json_is_a_report_that_can_be_judged_again(tmp_path, capsys):
    code = run_command_line(["node", "--root", str(Tree(tmp_path / "root").root), "--format", "json"])
    text = capsys.readouterr().out
    document = json.loads(text)
    assert document["schema"] == "preflight.report/1"
    assert document["command"] == "node"
    (node,) = document["evidence"]["inventory"]["nodes"]
    assert (node["name"], node["numa_nodes"]) == ("cn07", [0, 1])
    (tmp_path / "report.json").write_text(text)
    assert run_command_line(["judge", str(tmp_path / "report.json")]) == code
    assert "differ" not in capsys.readouterr().err


def write(path, *nodes):
    """A snapshot file of each node."""
    files = []
    for node in nodes:
        files.append(path / f"{node.name}.json")
        files[-1].write_bytes(to_json(node))
    return [argument for file in files for argument in ("--from", str(file))]


def test_snapshots_of_several_nodes_are_compared(tmp_path, capsys):
    nodes = [make_node(f"n{i}", driver_version="550.1" if i == 3 else "570.1") for i in range(4)]
    run_command_line(["node", *write(tmp_path, *nodes)])
    out = capsys.readouterr().out
    assert all(f"  n{i} " in out for i in range(4))
    assert "550.1" in out[out.index("Findings") :]


def test_rules_of_the_site_change_a_verdict(tmp_path, capsys):
    nodes = [make_node("n0"), make_node("n1", kernel="5.15")]
    arguments = ["node", *write(tmp_path, *nodes)]
    run_command_line(arguments)
    assert "WARN    node_uniform" in capsys.readouterr().out
    (tmp_path / "rules.toml").write_text('[rules]\nnode_uniform = "off"\n')
    run_command_line([*arguments, "--rules", str(tmp_path / "rules.toml")])
    assert "SKIP    node_uniform: switched off in the rules" in capsys.readouterr().out


def test_a_report_of_a_node_can_be_metrics_and_junit_and_nagios(tmp_path, capsys):
    arguments = ["node", *write(tmp_path, make_node("n0"))]
    metrics = tmp_path / "node.prom"
    code = run_command_line([*arguments, "--metrics", str(metrics)])
    assert "preflight_" in metrics.read_text()
    capsys.readouterr()
    assert run_command_line([*arguments, "--format", "junit"]) == code
    assert capsys.readouterr().out.startswith("<?xml")
    capsys.readouterr()
    code = run_command_line([*arguments, "--exit-style", "nagios"])
    word = ("OK", "WARNING", "CRITICAL", "UNKNOWN")[code]
    assert capsys.readouterr().out.startswith(f"PREFLIGHT {word} - ")


def test_the_form_that_the_documentation_shows_can_be_imported(tmp_path, capsys):
    text = (Path(__file__).parents[2] / "deploy/verdicts/README.md").read_text()
    (tmp_path / "health.json").write_text(text.split("```json\n")[1].split("```")[0])
    arguments = ["node", *write(tmp_path, make_node("n0"))]
    run_command_line(arguments)
    before = capsys.readouterr().out
    assert run_command_line([*arguments, "--import", str(tmp_path / "health.json")]) == 10
    out = capsys.readouterr().out
    assert "wrong sum" in out
    assert "GPU-n0-3" in out
    assert "91 % full" in out
    assert "wrong sum" not in before


def test_a_plugin_is_run_and_its_verdict_is_a_finding(tmp_path, capsys):
    script = tmp_path / "check_it"
    script.write_text('#!/bin/sh\necho "DISK CRITICAL - $1 is full | used=99"\nexit 2\n')
    script.chmod(0o755)
    code = run_command_line(["node", *write(tmp_path, make_node("n0")), "--plugin", f"{script} '/scratch space'"])
    assert code == 10
    assert "/scratch space is full" in capsys.readouterr().out


def test_files_may_follow_from_as_a_shell_writes_them(tmp_path, capsys):
    files = [tmp_path / f"n{i}.json" for i in range(3)]
    for file in files:
        file.write_bytes(to_json(make_node(name=file.stem)))
    assert run_command_line(["node", "--from", *map(str, files)]) in (0, 3)
    shown = capsys.readouterr().out
    assert [name for name in ("n0", "n1", "n2") if name in shown] == ["n0", "n1", "n2"]
    assert run_command_line(["node", str(files[0])]) == 64
    assert "comes after --from" in capsys.readouterr().err


def test_every_option_is_an_environment_variable_of_its_own_name(tmp_path, capsys, monkeypatch):
    files = [tmp_path / f"n{i}.json" for i in range(2)]
    for file in files:
        file.write_bytes(to_json(make_node(name=file.stem)))
    monkeypatch.setenv("PREFLIGHT_NODE_FROM", " ".join(map(str, files)))
    monkeypatch.setenv("PREFLIGHT_TOPOLOGY_FROM", str(files[0]))
    assert run_command_line(["node"]) in (0, 3)
    shown = capsys.readouterr().out
    assert "n0" in shown
    assert "n1" in shown
    assert run_command_line(["topology"]) == 0
    assert "node n0" in capsys.readouterr().out
    monkeypatch.setenv("PREFLIGHT_NODE_TIMEOUT", "soon")
    assert run_command_line(["node"]) == 64
    assert "'soon'" in capsys.readouterr().err


def test_plug_ins_in_the_environment_stand_one_on_a_line(tmp_path, capsys, monkeypatch):
    file = tmp_path / "n0.json"
    file.write_bytes(to_json(make_node(name="n0")))
    monkeypatch.setenv("PREFLIGHT_NODE_PLUGIN", "/bin/echo DISK OK - 3 % used\n/bin/echo LOAD OK - calm")
    run_command_line(["node", "--from", str(file), "--format", "json"])
    said = from_json(capsys.readouterr().out, Report).evidence.inventory.nodes[0].verdicts
    assert ["OK - 3 % used" in one.text or "calm" in one.text for one in said] == [True, True]


def test_many_nodes_are_a_table_of_one_row_each():
    nodes = [make_node(f"n{i}", gpus=None if i == 2 else 8) for i in range(5)]
    lines = describe_all(nodes).splitlines()
    assert lines[0] == "5 nodes"
    assert len(lines) == 2 + 1 + 5
    assert "NVIDIA H100 80GB HBM3" in lines[3]
    assert lines[5].split()[:2] == ["n2", "?"]
    assert describe_all(nodes[:2]).count("  host ") == 2
