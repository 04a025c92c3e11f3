"""A whole node around its GPUs, from recorded trees; and what remains of it where little may be read."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from preflight.discover.around import read_around
from preflight.discover.gathering import Gathering
from preflight.discover.hca_run import HcaRun
from preflight.discover.node import discover_node
from preflight.model import Node, from_json, to_json
from tests.config_spaces import config_space
from tests.machines import hgx
from tests.trees import Tree


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def around(tree, environ=None):
    gathering = Gathering(20.0)
    with contextlib.closing(HcaRun(tree.root)) as hca_run, contextlib.closing(gathering):
        found = read_around(tree.root, environ or {}, gathering, hca_run)
    assert gathering.problems == []
    return found


def test_a_machine_with_eight_gpus_and_eight_cards_is_read_whole(tree):
    hgx(tree)
    found = around(tree)
    assert len(found.on_bus) == len(found.hcas) == 8
    facts = found.facts
    assert (facts["dead_on_bus"], facts["device_files"]) == ((), tuple(range(8)))
    assert facts["iommu"].mode == "off"
    assert (facts["gpu_direct"].peermem, facts["gpu_direct"].dmabuf) == ("nvidia_peermem", True)
    assert next((service.name, service.running) for service in facts["services"]) == ("nv-fabricmanager", True)
    assert [nic.name for nic in facts["nics"] if nic.default_route] == ["eth0"]
    assert facts["clock"] is None  # ours, not that of the tree


def test_the_bridges_above_gpus_and_their_cards_are_all_there(tree):
    hgx(tree)
    bridges = {bridge.bus_id: bridge for bridge in around(tree).facts["pci_bridges"]}
    # for each GPU: the root port, the switch, its port to the GPU and its port to the card; nothing above eth0
    assert len(bridges) == 8 * 4
    assert bridges["0000:10:01.0"].acs_control == 0x001D
    assert bridges["0000:20:00.0"].acs_control == 0


def test_a_gpu_that_fell_off_is_still_on_the_bus_and_called_dead(tree):
    hgx(tree, dead=(3,))
    found = around(tree)
    assert len(found.on_bus) == 8
    assert found.facts["dead_on_bus"] == ("0000:43:00.0",)


def test_a_node_without_gpus_is_not_asked_for_their_daemons_and_bridges(tree):
    tree.port(tree.hca("mlx5_0", tree.pci("pci0000:10/0000:10:01.0/0000:11:00.0", config=config_space(size=64))))
    facts = around(tree).facts
    assert (facts["gpus_on_bus"], facts["pci_bridges"], facts["services"]) == ((), (), ())


def test_a_container_without_sysfs_leaves_the_bus_unknown_and_tells_the_rest(tree, tmp_path):
    hgx(tree)
    (tmp_path / "sys").rename(tmp_path / "away")
    found = around(tree)
    assert (found.on_bus, found.hcas) == (None, None)
    assert [found.facts[name] for name in ("gpus_on_bus", "pci_bridges", "nics")] == [None, None, None]
    assert found.facts["device_files"] == tuple(range(8))
    assert found.host.memory_bytes == 64 * 2**30
    assert {problem.source for problem in found.problems} == {"/sys/class/net", "/sys/class/infiniband"}


def test_a_virtual_machine_with_passed_through_cards_keeps_what_its_bus_tells(tree):
    """No bridges above the devices, no IOMMU of its own, and the makers' names of the firmware."""
    tree.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Example CPU\nflags\t\t: fpu hypervisor\n\n")
    tree.write("sys/class/dmi/id/sys_vendor", "QEMU\n")
    tree.folder("sys/class/iommu")
    tree.gpu("pci0000:00/0000:00:05.0", config=config_space())
    tree.port(tree.hca("mlx5_0", tree.pci("pci0000:00/0000:00:06.0", config=config_space(max_read_request=512))))
    found = around(tree)
    facts = found.facts
    assert (facts["platform"].virtual_machine, facts["iommu"].mode, facts["pci_bridges"]) == ("qemu", "off", ())
    assert (found.on_bus, found.hcas[0].pci_upstream) == (("0000:00:05.0",), ("pci0000:00",))
    assert found.hcas[0].max_read_request_bytes == 512


def test_settings_are_those_of_the_job_and_of_the_systems_file(tree):
    tree.write("etc/nccl.conf", "NCCL_P2P_DISABLE=1\nNCCL_DEBUG=WARN\n")
    settings = {setting.name: setting for setting in around(tree, {"NCCL_DEBUG": "INFO"}).facts["settings"]}
    assert (settings["NCCL_P2P_DISABLE"].value, settings["NCCL_P2P_DISABLE"].origin) == ("1", "/etc/nccl.conf")
    assert (settings["NCCL_DEBUG"].value, settings["NCCL_DEBUG"].origin) == ("INFO", "environment")


def test_an_empty_root_gives_a_node_of_unknowns(tmp_path):
    node = discover_node("n1", root=tmp_path)
    assert (node.name, node.num_cpus, node.memory_bytes, node.nics, node.hcas, node.gpus_on_bus) == (
        "n1",
        None,
        None,
        None,
        None,
        None,
    )
    assert {service.running for service in node.services or ()} <= {None}
    assert from_json(to_json(node), Node) == node


def test_a_tree_full_of_garbage_gives_a_node_of_unknowns(tree, tmp_path):
    hgx(tree)
    for path in sorted(tmp_path.rglob("*")):
        if path.is_file() and not path.is_symlink():
            path.write_bytes(b"\xff\x00garbage\n" * 50)
    node = discover_node("n1", root=tmp_path)
    assert node.memory_bytes is None
    assert len(node.hcas) == 8
    assert {port.state for hca in node.hcas for port in hca.ports} == {None}
    assert from_json(to_json(node), Node) == node


def test_the_callers_work_is_done_while_the_driver_is_asked():
    done = []
    node = discover_node("n1", meanwhile=lambda: done.append(1))
    assert (node.name, done) == ("n1", [1])


SCRIPT = """
import os, sys
from pathlib import Path
from preflight.discover.hca_run import HcaRun
from preflight.discover.node import discover_node
from preflight.model import to_json
if sys.argv[1] != "-":
    discover_node()  # imports all that it needs: this Python may lie where others can't read
    os.setgroups([])
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))
os.environ.clear()
sys.stdout.write(to_json(discover_node(root=Path(sys.argv[2]))).decode())
"""


def in_child(user="-", tree="/"):
    """A node, read by a process without any environment; `user`: as whom; `tree`: whose."""
    command = [sys.executable, "-c", SCRIPT, str(user), str(tree)]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command,
        cwd=root,
        env={"PYTHONPATH": os.pathsep.join(map(str, (root, *sys.path)))},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    json.loads(done.stdout)
    return from_json(done.stdout, Node)


def test_without_environment_and_search_path_the_node_is_read_as_ever():
    node = in_child()
    assert node.num_cpus
    assert node.memory_bytes
    assert node.nics
    assert node.mask is None


@pytest.mark.root
def test_an_ordinary_user_gets_all_that_such_a_user_may_read():
    node, own = in_child(65534), in_child()
    assert (node.num_cpus, node.memory_bytes, node.hcas) == (own.num_cpus, own.memory_bytes, own.hcas)
    assert [nic.name for nic in node.nics] == [nic.name for nic in own.nics]
    assert node.limits.privileged is False
    assert node.clock.max_error_s is not None


@pytest.mark.root
@pytest.mark.parametrize(
    "closed", ["sys/class/net", "sys/class/infiniband", "sys/devices", "sys/bus/pci", "proc", "run", "etc", "dev"]
)
def test_a_folder_that_is_closed_to_the_user_costs_what_is_in_it(closed):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        tree = Tree(Path(folder))
        hgx(tree)
        for name in ("run/secrets/x", "etc/passwd"):
            tree.write(name, "x")
        (tree.root / closed).chmod(0)
        node = in_child(65534, tree.root)
    assert (node.memory_bytes is None) == (closed == "proc")
    assert (node.nics is None) == (closed == "sys/class/net")
    assert (node.hcas is None) == (closed == "sys/class/infiniband")
    assert (node.gpus_on_bus is None) == (closed == "sys/bus/pci")
    assert (node.device_files is None) == (closed == "dev")
    if closed == "sys/devices":
        assert {problem.not_allowed for problem in node.problems if problem.field == "hcas"} == {True}
