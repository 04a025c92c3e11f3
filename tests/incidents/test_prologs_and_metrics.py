"""Incidents of tools themselves: a prolog that drains a partition because it broke, metrics that poison the exporter."""

import os
import re
import stat
import subprocess
import sys

import pytest

from preflight.cli.main import run_command_line
from preflight.model import Problem, to_json
from tests.incidents.boxes import changed, healthy
from tests.incidents.live import judge_file
from tests.trees import Tree

SLURM = {"SLURM_JOB_ID": "4711", "SLURM_JOB_UID": "1000", "SLURM_JOB_GPUS": "0-7", "SLURMD_NODENAME": "node1"}


def prolog(*arguments, **environ):
    """A run as slurmd makes it: no PATH, no HOME, only SLURM_* variables."""
    code = "import sys; from preflight.cli.main import run_command_line; sys.exit(run_command_line(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", code, "node", *arguments],
        env={**SLURM, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )


@pytest.mark.parametrize("environ", [{}, {"PATH": ""}, {"PATH": "/nowhere", "HOME": "/nowhere"}])
def test_an_empty_environment_breaks_nothing(environ, tmp_path):
    """NVIDIA/deepops issue 919, mknoxnv/ubuntu-slurm issue 4: a program was not found through PATH, and every node of the partition was drained."""
    tree = Tree(tmp_path / "root")
    tree.gpu("pci0000:10/0000:10:01.0/0000:11:00.0")
    done = prolog("--root", str(tree.root), **environ)
    assert done.returncode == 3, done.stderr  # undecided: a GPU on the bus that no driver serves; never 1, never no-go
    assert "Traceback" not in done.stderr
    assert "no working driver" in done.stdout
    assert "undecided" in done.stdout


def test_a_plug_in_that_is_missing_is_named_and_judges_no_node(tmp_path, capsys):
    """The same: which program was missing, and that the node's health was not judged by it."""
    (tmp_path / "node.json").write_bytes(to_json(healthy("HGX H100")))
    code, found = judge_file(tmp_path / "node.json", capsys, "--plugin", "/usr/lib/nagios/plugins/check_gone -w 5")
    assert code == 0  # the check of other tools is advisory
    (said,) = found.of("outside_verdicts")
    assert (said.verdict.value, said.blames) == ("UNKNOWN", None)
    assert "/usr/lib/nagios/plugins/check_gone" in said.observed + said.origin
    assert "no such" in said.observed.lower() or "not found" in said.observed.lower()


def series(text):
    """Metric lines without their values."""
    return [line.rpartition(" ")[0] for line in text.splitlines() if line and not line.startswith("#")]


def write_metrics(tmp_path, node, file):
    (tmp_path / "node.json").write_bytes(to_json(node))
    arguments = ["node", "--from", str(tmp_path / "node.json"), "--metrics", str(file)]
    return run_command_line(arguments)


def test_metrics_hold_each_series_once_with_one_help_and_can_be_read(tmp_path, capsys):
    """prometheus/client_python issues 607 and 1044, node_exporter 946, 1885, 1980 and 2317: duplicates, two HELP texts, modes 0600, files left behind."""
    folder = tmp_path / "textfile"
    folder.mkdir()
    target = folder / "preflight.prom"
    for _ in range(2):
        write_metrics(tmp_path, healthy("HGX H100"), target)
    capsys.readouterr()
    text = target.read_text()
    assert len(series(text)) == len(set(series(text)))
    for word in ("HELP", "TYPE"):
        names = re.findall(rf"^# {word} (\S+)", text, re.MULTILINE)
        assert len(names) == len(set(names))
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert [path.name for path in folder.iterdir()] == ["preflight.prom"]
    assert re.search(r"timestamp_seconds", text)  # its own sign of when it last succeeded


def test_what_a_gpu_does_not_have_is_left_out_of_the_metrics(tmp_path, capsys):
    """NVIDIA/gpu-monitoring-tools issue 4: an empty value, or N/A, makes the exporter refuse the whole file."""
    target = tmp_path / "preflight.prom"
    problem = Problem(source="nvmlDeviceGetMemoryInfo", text="Not Supported", field="memory_bytes")
    node = healthy("RTX 4090")
    gpus = tuple(changed(gpu, serial=None, problems=(problem,), memory_bytes=None) for gpu in node.gpus)
    write_metrics(tmp_path, changed(node, gpus=gpus), target)
    capsys.readouterr()
    for line in target.read_text().splitlines():
        if not line.startswith("#"):
            assert re.fullmatch(r"\S+(\{.*\})? [-+0-9.eE]+|\S+(\{.*\})? (NaN|[+-]Inf)", line), line
    assert "N/A" not in target.read_text()


def test_a_target_that_cannot_be_written_leaves_the_old_file(tmp_path, capsys):
    """The writer fails half way: the old file stays, and nothing temporary is left."""
    target = tmp_path / "preflight.prom"
    write_metrics(tmp_path, healthy("RTX 4090"), target)
    before = target.read_bytes()
    blocked = tmp_path / "folder.prom"
    blocked.mkdir()
    code = write_metrics(tmp_path, healthy("HGX H100"), blocked)
    captured = capsys.readouterr()
    assert code not in (0, 1)
    assert "Traceback" not in captured.err
    assert target.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"node.json", "preflight.prom", "folder.prom"}
