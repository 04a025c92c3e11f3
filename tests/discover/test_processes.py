"""Daemons and processes on GPUs, from /proc: only what can be seen is judged."""

import os
import pwd
from pathlib import Path

import pytest

from preflight.discover.processes import account_home, name_processes, read_services
from preflight.model import Gpu, GpuProcess
from tests.trees import Tree

HERTZ = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def tree(tmp_path):
    made = Tree(tmp_path)
    made.write("proc/stat", "cpu  1 2 3\nbtime 1700000000\nprocesses 5\n")
    return made


def process(tree, pid, comm, *, state="S", start_s=10):
    tree.write(f"proc/{pid}/comm", f"{comm}\n")
    before, after = " ".join("0" for _ in range(18)), " ".join("0" for _ in range(30))
    tree.write(f"proc/{pid}/stat", f"{pid} ({comm}) {state} {before} {start_s * HERTZ} {after}\n")


def running(tree):
    return {service.name: service.running for service in read_services(tree.root)}


def test_daemons_are_known_by_the_fifteen_letters_that_the_kernel_keeps(tree):
    for pid, comm in (
        (1, "systemd"),
        (2, "kthreadd"),
        (812, "nv-fabricmanage"),
        (813, "nvidia-persiste"),
        (900, "python3"),
    ):
        process(tree, pid, comm)
    assert running(tree) == {
        "nv-fabricmanager": True,
        "nvidia-imex": False,
        "nvidia-persistenced": True,
        "nvlsm": False,
    }


def test_a_daemon_that_died_and_was_not_buried_does_not_run(tree):
    process(tree, 2, "kthreadd")
    process(tree, 812, "nv-fabricmanage", state="Z")
    assert running(tree)["nv-fabricmanager"] is False


def test_a_name_with_brackets_and_blanks_does_not_confuse_the_fields(tree):
    process(tree, 2, "kthreadd")
    process(tree, 5, "nvlsm")
    tree.write("proc/5/stat", f"5 (a) S (b) S {' 0' * 19} 0\n")
    assert running(tree)["nvlsm"] is True


@pytest.mark.parametrize("second", [None, "bash"])
def test_in_a_container_or_with_hidden_processes_nothing_is_said_of_daemons(tree, second):
    process(tree, 1, "sleep")
    if second:
        process(tree, 2, second)
    process(tree, 3, "nvlsm")
    assert set(running(tree).values()) == {None}


def on_gpu(pid):
    return (Gpu(index=0, uuid="GPU-0", processes=(GpuProcess(pid=pid, memory_bytes=1 << 30),)),)


def test_a_process_on_a_gpu_gets_its_name_user_and_start(tree):
    process(tree, 2, "kthreadd")
    process(tree, 4711, "python3", start_s=500)
    owner = (tree.root / "proc/4711").stat().st_uid
    tree.write("etc/passwd", f"root:x:9999:0::/root:/bin/sh\nalice:x:{owner}:1::/home/alice:/bin/sh\n")
    ((gpu,)) = name_processes(tree.root, on_gpu(4711))
    (found,) = gpu.processes
    assert (found.name, found.user, found.started_at_s) == ("python3", "alice", 1700000500.0)
    assert found.memory_bytes == 1 << 30


def test_a_user_of_the_network_is_shown_by_number(tree):
    process(tree, 2, "kthreadd")
    process(tree, 4711, "python3")
    (gpu,) = name_processes(tree.root, on_gpu(4711))
    assert gpu.processes[0].user == f"uid {(tree.root / 'proc/4711').stat().st_uid}"


def test_a_process_that_ended_or_is_of_another_namespace_keeps_its_number(tree):
    process(tree, 2, "kthreadd")
    assert name_processes(tree.root, on_gpu(4711)) == on_gpu(4711)
    process(tree, 2, "bash")  # not the machine's own numbers: 4711 is somebody else here
    process(tree, 4711, "nginx")
    assert name_processes(tree.root, on_gpu(4711)) == on_gpu(4711)


def test_gpus_without_processes_stay_as_they_are(tree):
    gpus = (Gpu(index=0, processes=()), Gpu(index=1))
    assert name_processes(tree.root, gpus) == gpus


def test_the_home_directory_is_that_of_the_account_whatever_the_environment_says(tree, monkeypatch):
    monkeypatch.setenv("HOME", "/elsewhere")
    assert account_home(Path("/")) == Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert account_home(tree.root) is None
