"""A real shared library in the place of NVIDIA's, found through LD_LIBRARY_PATH: healthy, hanging, crashing."""

import os
import subprocess
import sys
import time

import pytest

from preflight.discover.node import discover_node
from preflight.discover.nvml_run import REAP_S
from preflight.model import Node, Report, from_json
from tests.nvml_library import build
from tests.trees import Tree

pytestmark = pytest.mark.cc
START_S = 30.0  # what a busy machine may take to start and end two interpreters


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """The folder of a library with these definitions, built once."""
    built = {}

    def folder(*defines):
        if defines not in built:
            built[defines] = build(tmp_path_factory.mktemp("lib"), *defines)
        return os.fspath(built[defines])

    return folder


@pytest.fixture
def library(folder_of, monkeypatch):
    """Let child processes find that library."""
    return lambda *defines: monkeypatch.setenv("LD_LIBRARY_PATH", folder_of(*defines))


def test_two_joined_gpus_are_read_through_the_real_loader(library, tmp_path):
    library("GPUS=2", "LINKS=4", "DIRECT")
    tree = Tree(tmp_path / "root")
    for index in (1, 2):
        tree.gpu(f"pci0000:10/0000:10:0{index}.0/0000:1{index}:00.0", numa=index - 1)
    node = discover_node("n1", root=tree.root)
    assert node.driver_version == "570.1"
    assert [gpu.uuid for gpu in node.gpus] == ["GPU-c-0", "GPU-c-1"]
    assert [gpu.nvlink_domain for gpu in node.gpus] == ["n1", "n1"]
    assert [gpu.peers[0].num_nvlinks for gpu in node.gpus] == [4, 4]
    assert [gpu.numa_node for gpu in node.gpus] == [0, 1]
    assert node.gpus[0].pci_upstream == ("0000:10:01.0", "pci0000:10")
    assert node.gpus[0].memory_bytes == 2**36
    assert [problem for problem in node.problems if problem.source in {"NVML", "PCI"}] == []


def test_eight_switched_gpus_tell_everything_across_the_pipe(library):
    library()
    node = discover_node("n1")
    assert len(node.gpus) == 8
    assert {peer.num_nvlinks for gpu in node.gpus for peer in gpu.peers} == {18}
    gpu = node.gpus[5]
    assert gpu.problems == ()
    assert (gpu.ecc.uncorrected_volatile, gpu.row_remap.failed, gpu.recovery_action) == (0, False, "none")
    assert (gpu.clocks.throttle_reasons, gpu.power.enforced_limit_w, gpu.temperature.margin_c) == (("idle",), 700.0, 56)
    assert (gpu.pcie.width, gpu.cpus, gpu.fabric.health_summary) == (16, "64-127", "healthy")
    assert gpu.links[17].counters == {"replay": 0, "recovery": 0, "crc": 0}
    assert {"own_numa_node", "retired_pages"} <= set(gpu.unsupported)


def test_a_gpu_on_the_bus_that_the_driver_does_not_show_is_a_problem(library, tmp_path):
    library("GPUS=2", "LINKS=4", "DIRECT")
    tree = Tree(tmp_path / "root")
    for index in (1, 2, 3):
        tree.gpu(f"pci0000:10/0000:10:0{index}.0/0000:1{index}:00.0")
    node = discover_node(root=tree.root)
    assert len(node.gpus) == 2
    assert any(p.text.startswith("3 NVIDIA GPUs on the PCI bus, 2 shown by the driver") for p in node.problems)


@pytest.mark.parametrize("fault", ["HANG_INIT", "HANG_COUNT", "HANG_GPU"])
def test_a_call_that_never_returns_leaves_a_node_with_everything_but_gpus(library, fault):
    library(fault)
    node = discover_node(deadline_s=2.0)
    assert node.gpus is None
    assert "did not answer within 2 s" in node.gpu_note
    assert ("when asked about GPU 7" in node.gpu_note) == (fault == "HANG_GPU")
    assert node.num_cpus
    assert node.nics


def test_a_call_that_kills_the_process_leaves_a_node_with_everything_but_gpus(library):
    library("CRASH")
    node = discover_node()
    assert node.gpus is None
    assert "killed its reader (SIGSEGV) when asked about GPU 7" in node.gpu_note
    assert node.num_cpus


def test_a_driver_that_takes_a_while_is_waited_for(library):
    library("LATE", "GPUS=1")
    assert len(discover_node(deadline_s=60.0).gpus) == 1


@pytest.mark.parametrize("fault", ["HANG_INIT", "HANG_GPU"])
def test_the_command_over_a_driver_that_hangs_ends_in_time_and_says_that_gpus_are_unknown(folder_of, fault):
    timeout_s = 2.0
    command = [sys.executable, "-m", "preflight", "node", "--timeout", f"{timeout_s:g}s", "--format", "json"]
    began = time.monotonic()
    done = subprocess.run(
        command,
        env={**os.environ, "LD_LIBRARY_PATH": folder_of(fault)},
        capture_output=True,
        timeout=timeout_s + REAP_S + START_S,
        check=False,
    )
    assert time.monotonic() - began < timeout_s + REAP_S + START_S
    node = node_in(done.stdout)
    assert node.gpus is None
    assert "did not answer within 2 s" in node.gpu_note
    assert node.num_cpus
    assert b"Traceback" not in done.stderr


def node_in(output: bytes) -> Node:
    """The node in the report that the command printed."""
    (node,) = from_json(output, Report).evidence.inventory.nodes
    return node
