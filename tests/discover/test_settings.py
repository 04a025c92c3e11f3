"""Settings with the place that each value comes from, in NCCL's order."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.discover.settings import MAX_VALUE, read_settings

HOME = Path("/home/user")


def tree(root, **files):
    """A root with the files that stand under short names here."""
    paths = {"etc": "etc/nccl.conf", "home": "home/user/.nccl.conf", "own": "opt/nccl.conf"}
    for name, content in files.items():
        path = root / paths[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def read(root, **environment):
    return {setting.name: setting for setting in read_settings(environment, root=root, home=HOME) or ()}


def test_the_environment_wins_and_tells_what_lost(tmp_path):
    root = tree(tmp_path, home="NCCL_DEBUG=INFO\n", etc="NCCL_DEBUG=WARN\nNCCL_IB_HCA=mlx5\n")
    settings = read(root, NCCL_DEBUG="TRACE")
    assert settings["NCCL_DEBUG"].value == "TRACE"
    assert settings["NCCL_DEBUG"].origin == "environment"
    assert settings["NCCL_DEBUG"].overrides == ("/home/user/.nccl.conf=INFO", "/etc/nccl.conf=WARN")
    assert (settings["NCCL_IB_HCA"].value, settings["NCCL_IB_HCA"].origin) == ("mlx5", "/etc/nccl.conf")


def test_the_users_file_comes_before_the_systems(tmp_path):
    root = tree(tmp_path, home="NCCL_DEBUG=INFO\n", etc="NCCL_DEBUG=WARN\n")
    assert read(root)["NCCL_DEBUG"].value == "INFO"


def test_a_file_that_the_environment_names_replaces_the_users(tmp_path):
    root = tree(tmp_path, own="NCCL_DEBUG=ABORT\n", home="NCCL_DEBUG=INFO\nNCCL_ALGO=Ring\n")
    settings = read(root, NCCL_CONF_FILE="/opt/nccl.conf")
    assert (settings["NCCL_DEBUG"].value, settings["NCCL_DEBUG"].origin) == ("ABORT", "/opt/nccl.conf")
    assert "NCCL_ALGO" not in settings
    assert settings["NCCL_CONF_FILE"].file_problem is None


def test_the_first_line_of_a_name_counts_and_an_empty_value_holds(tmp_path):
    root = tree(tmp_path, etc="NCCL_DEBUG=INFO\nNCCL_DEBUG=WARN\nNCCL_ALGO=Ring\n")
    settings = read(root, NCCL_ALGO="")
    assert settings["NCCL_DEBUG"].value == "INFO"
    assert settings["NCCL_ALGO"].value == ""
    assert settings["NCCL_ALGO"].overrides == ("/etc/nccl.conf=Ring",)


def test_comments_and_lines_without_a_value_are_left_out(tmp_path):
    root = tree(tmp_path, etc="#NCCL_DEBUG=INFO\nNCCL_ALGO\n\nNCCL_SOCKET_IFNAME==ens1f0")
    assert {name: setting.value for name, setting in read(root).items()} == {"NCCL_SOCKET_IFNAME": "=ens1f0"}


def test_lines_that_nccl_reads_otherwise_than_meant_keep_their_odd_name(tmp_path):
    root = tree(tmp_path, etc="export NCCL_P2P_DISABLE=1\nNCCL_DEBUG = INFO\n")
    assert sorted(read(root)) == ["NCCL_DEBUG ", "export NCCL_P2P_DISABLE"]


def test_a_carriage_return_can_be_seen(tmp_path):
    assert read(tree(tmp_path, etc="NCCL_IB_HCA=mlx5_0\r\n"))["NCCL_IB_HCA"].value == "mlx5_0\\r"


def test_only_what_steers_is_taken_and_no_secrets(tmp_path):
    settings = read(
        tmp_path,
        PATH="/bin",
        AWS_SECRET_ACCESS_KEY="x",
        NCCL_MY_TOKEN="hunter2",
        CUDA_VISIBLE_DEVICES="0,1",
        GLOO_SOCKET_IFNAME="eth0",
        TORCH_NCCL_ASYNC_ERROR_HANDLING="1",
        FI_PROVIDER="efa",
        UCX_TLS="rc",
    )
    assert sorted(settings) == [
        *("CUDA_VISIBLE_DEVICES", "FI_PROVIDER", "GLOO_SOCKET_IFNAME", "NCCL_MY_TOKEN"),
        *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "UCX_TLS"),
    ]
    assert settings["NCCL_MY_TOKEN"].value == "(not shown)"


def test_long_values_are_cut(tmp_path):
    assert len(read(tmp_path, NCCL_IB_HCA="m" * 5000)["NCCL_IB_HCA"].value) == MAX_VALUE


@pytest.mark.parametrize("name", ["NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_CONF_FILE", "NCCL_NET_PLUGIN"])
def test_a_file_that_is_not_there_is_told(tmp_path, name):
    assert read(tmp_path, **{name: "/opt/none.xml"})[name].file_problem == "does not exist"


def test_a_file_that_is_empty_or_no_file_is_told(tmp_path):
    (tmp_path / "empty.xml").touch()
    os.mkfifo(tmp_path / "pipe.xml")
    assert read(tmp_path, NCCL_TOPO_FILE="/empty.xml")["NCCL_TOPO_FILE"].file_problem == "is empty"
    assert read(tmp_path, NCCL_TOPO_FILE="/pipe.xml")["NCCL_TOPO_FILE"].file_problem == "is no regular file"


def test_a_plug_in_without_a_path_is_found_by_the_loader_not_by_us(tmp_path):
    assert read(tmp_path, NCCL_NET_PLUGIN="aws-ofi")["NCCL_NET_PLUGIN"].file_problem is None


TOPOLOGY = """<system version="1"><cpu numaid="0">
 <pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s">
  <pci busid="{}" class="0x030200"/><pci busid="0101:00:00.0" class="0x020700"/>
 </pci></cpu></system>"""  # the form of a cloud's topology file, with a switch that exists only there


@pytest.mark.parametrize(("gpu", "problem"), [("0001:00:00.0", None), ("0002:00:00.0", "is of another machine")])
def test_a_topology_of_another_machine_is_told(tmp_path, gpu, problem):
    (tmp_path / "sys/bus/pci/devices/0001:00:00.0").mkdir(parents=True)
    (tmp_path / "topo.xml").write_text(TOPOLOGY.format(gpu))
    found = read(tmp_path, NCCL_TOPO_FILE="/topo.xml")["NCCL_TOPO_FILE"].file_problem
    assert (found or "").startswith(problem or "") if problem else found is None


def test_without_sysfs_a_topology_is_not_called_stale(tmp_path):
    (tmp_path / "topo.xml").write_text(TOPOLOGY.format("0002:00:00.0"))
    assert read(tmp_path, NCCL_TOPO_FILE="/topo.xml")["NCCL_TOPO_FILE"].file_problem is None


def test_an_account_without_a_home_has_the_systems_settings(tmp_path):
    root = tree(tmp_path, etc="NCCL_DEBUG=WARN\n")
    assert [setting.name for setting in read_settings({}, root=root, home=None) or ()] == ["NCCL_DEBUG"]


@given(st.binary(max_size=200))
def test_no_file_raises(tmp_path_factory, data):
    root = tree(tmp_path_factory.getbasetemp() / "any", etc=b"NCCL_A=" + data)
    read_settings({"NCCL_TOPO_FILE": "/etc/nccl.conf", "NCCL_B": "\udc80"}, root=root, home=HOME)
