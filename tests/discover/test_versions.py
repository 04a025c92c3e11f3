"""Versions by names and small files, without loading anything."""

import os
import sys

import pytest

from preflight.discover.versions import closed_device_files, read_device_files, read_versions
from tests.trees import Tree


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "root")


def library(folder, version):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"libnccl.so.{version}").write_bytes(b"")
    (folder / "libnccl.so.2").symlink_to(f"libnccl.so.{version}")


def package(prefix, version):
    folder = prefix / "lib/python3.11/site-packages"
    (folder / f"nvidia_nccl_cu12-{version}.dist-info").mkdir(parents=True)
    (folder / "nvidia/nccl/lib").mkdir(parents=True)
    (folder / "nvidia/nccl/lib/libnccl.so.2").write_bytes(b"")
    return folder / "nvidia/nccl/lib"


def test_the_systems_nccl_is_known_by_the_name_of_its_file(tree):
    library(tree.root / "usr/lib/x86_64-linux-gnu", "2.21.5")
    assert read_versions(tree.root, {}) == {"nccl": "2.21.5"}


def test_the_loaders_path_comes_first_and_the_systems_is_told_too(tree, tmp_path):
    library(tree.root / "usr/lib64", "2.18.3")
    library(tmp_path / "opt", "2.22.3")
    found = read_versions(tree.root, {"LD_LIBRARY_PATH": f"relative::/nowhere:{tmp_path}/opt"})
    assert found == {"nccl": "2.22.3", "nccl (system)": "2.18.3"}


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_the_python_environments_package_names_what_its_file_hides(tree, tmp_path, variable):
    package(tmp_path / "venv", "2.23.4")
    assert read_versions(tree.root, {variable: str(tmp_path / "venv")})["nccl"] == "2.23.4"


def test_a_package_on_the_loaders_path_is_known_too(tree, tmp_path):
    folder = package(tmp_path / "venv", "2.23.4.post1")
    assert read_versions(tree.root, {"LD_LIBRARY_PATH": str(folder)})["nccl"] == "2.23.4"


def test_a_library_whose_name_does_not_say_is_unknown_and_hides_those_behind_it(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/libnccl.so.2").write_bytes(b"")
    library(tmp_path / "second", "2.22.3")
    package(tmp_path / "venv", "2.23.4")
    environ = {"LD_LIBRARY_PATH": f"{tmp_path}/opt:{tmp_path}/second", "VIRTUAL_ENV": str(tmp_path / "venv")}
    assert read_versions(tree.root, environ) == {}


def test_another_systems_tree_is_not_read_by_way_of_this_one(tree, tmp_path):
    library(tmp_path / "elsewhere/lib64", "2.22.3")
    (tmp_path / "elsewhere/version.json").write_text('{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}')
    (tree.root / "usr/local").mkdir(parents=True)
    (tree.root / "usr/local/cuda").symlink_to(tmp_path / "elsewhere")
    assert read_versions(tree.root, {}) == {}


def test_toolkit_driver_stack_and_modules_tell_their_versions(tree):
    tree.write(
        "usr/local/cuda-12.4/version.json",
        '{\n "cuda" : {\n  "name" : "CUDA SDK",\n  "version" : "12.4.1"\n },\n "nccl": {}}',
    )
    tree.link("usr/local/cuda", "usr/local/cuda-12.4")
    tree.write("usr/bin/ofed_info", '#!/bin/bash\necho\n# "MLNX_OFED_LINUX-24.10-1.1.4.0 (OFED-24.10-1.1.4):"\n')
    tree.write("sys/module/mlx5_core/version", "24.10-1.1.4\n")
    tree.write("sys/module/efa/version", "2.13.0g\n")
    assert read_versions(tree.root, {}) == {
        "cuda": "12.4.1",
        "ofed": "24.10-1.1.4.0",
        "mlx5_core": "24.10-1.1.4",
        "efa": "2.13.0g",
    }


def test_an_older_toolkit_says_it_in_one_line(tree):
    tree.write("usr/local/cuda/version.txt", "CUDA Version 10.2.89\n")
    assert read_versions(tree.root, {}) == {"cuda": "10.2.89"}


def test_device_files_are_counted_by_their_numbers(tree):
    for name in ("nvidia0", "nvidia3", "nvidia10", "nvidiactl", "nvidia-uvm", "null"):
        tree.write(f"dev/{name}", "")
    assert read_device_files(tree.root) == (0, 3, 10)


def test_without_dev_the_device_files_are_unknown(tree):
    assert read_device_files(tree.root) is None


def test_devices_that_this_process_may_not_open_are_told_without_opening_one(tree, monkeypatch):
    for minor in range(4):
        tree.write(f"dev/nvidia{minor}", "")
    assert closed_device_files(tree.root) == ()
    asked = []
    monkeypatch.setattr("os.access", lambda path, mode: asked.append((path, mode)) or not path.endswith(("1", "2")))
    assert closed_device_files(tree.root) == (1, 2)
    assert asked[0] == (f"{tree.root}/dev/nvidia0", os.R_OK | os.W_OK)
