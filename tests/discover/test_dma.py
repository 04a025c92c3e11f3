"""IOMMU and GPUDirect RDMA, from trees: what translates, what doesn't, and what only a command line tells."""

import pytest

from preflight.discover.dma import offers_dmabuf, read_gpu_direct, read_iommu
from preflight.model import GpuDirect
from tests.trees import Tree

PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version:  gcc\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (builder@host)\nGCC version:  gcc\n"


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def add_group(tree, number, kind, device=None):
    tree.write(f"sys/kernel/iommu_groups/{number}/type", f"{kind}\n")
    tree.folder(f"sys/class/iommu/dmar{number}")
    if device:
        tree.link(f"{device}/iommu_group", f"sys/kernel/iommu_groups/{number}")


@pytest.mark.parametrize(
    ("kind", "mode"), [("DMA", "translated"), ("DMA-FQ", "translated"), ("identity", "passthrough")]
)
def test_the_group_of_a_gpu_tells_how_its_traffic_is_treated(tree, kind, mode):
    add_group(tree, 1, kind, tree.gpu("pci0000:10/0000:10:01.0/0000:11:00.0"))
    add_group(tree, 2, "identity")
    iommu = read_iommu(tree.root, ["0000:11:00.0"])
    assert (iommu.mode, iommu.source) == (mode, f"/sys/bus/pci/devices/0000:11:00.0/iommu_group/type: {kind}")


def test_one_device_that_is_translated_outweighs_others(tree):
    add_group(tree, 1, "identity", tree.gpu("pci0000:10/0000:10:01.0/0000:11:00.0"))
    add_group(tree, 2, "DMA", tree.pci("pci0000:10/0000:10:02.0/0000:12:00.0"))
    iommu = read_iommu(tree.root, ["0000:11:00.0", "0000:12:00.0"])
    assert (iommu.mode, "0000:12:00.0" in iommu.source) == ("translated", True)


def test_without_devices_to_ask_about_all_groups_count(tree):
    add_group(tree, 0, "identity")
    assert read_iommu(tree.root, []).mode == "passthrough"


def test_a_device_outside_of_all_groups_is_not_judged_by_those_of_others(tree):
    tree.gpu("pci0000:10/0000:10:01.0/0000:11:00.0")
    add_group(tree, 1, "DMA", tree.pci("pci0000:10/0000:10:02.0/0000:12:00.0"))
    assert read_iommu(tree.root, ["0000:11:00.0"]).mode is None


def test_no_units_and_no_groups_mean_off(tree):
    tree.folder("sys/class/iommu")
    assert read_iommu(tree.root, ["0000:11:00.0"]).mode == "off"


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ("quiet iommu=pt", "passthrough"),
        ("intel_iommu=on iommu=pt", "passthrough"),
        ("iommu.passthrough=0", "translated"),
        ("iommu=off", "off"),
        ("intel_iommu=off", None),  # says nothing of a machine by the other maker
        ("quiet", None),
    ],
)
def test_where_sysfs_tells_nothing_the_command_line_may(tree, words, mode):
    tree.write("proc/cmdline", f"BOOT_IMAGE=/vmlinuz {words}\n")
    assert read_iommu(tree.root, []).mode == mode


def test_units_without_readable_groups_are_not_called_off(tree):
    tree.folder("sys/class/iommu/dmar0")
    assert read_iommu(tree.root, []).mode is None


def test_peer_memory_that_is_loaded_and_registered_is_seen(tree):
    tree.write("proc/modules", "nvidia_peermem 16384 0 - Live 0x0\nib_core 512 1 nvidia_peermem, Live 0x0\n")
    tree.folder("sys/kernel/mm/memory_peers/nv_mem")
    tree.write("proc/driver/nvidia/version", PROPRIETARY)
    assert read_gpu_direct(tree.root, "5.15.0-1-generic") == GpuDirect(
        peermem="nvidia_peermem", memory_peers=("nv_mem",), open_driver=False, dmabuf=False
    )


def test_a_module_that_is_loaded_but_not_registered_has_no_entry(tree):
    """NVIDIA/nccl issue 1939."""
    tree.write("proc/modules", "nvidia_peermem 16384 0 - Live 0x0\n")
    direct = read_gpu_direct(tree.root, None)
    assert (direct.peermem, direct.memory_peers) == ("nvidia_peermem", None)


def test_the_older_module_is_named(tree):
    tree.folder("sys/module/nv_peer_mem")
    assert read_gpu_direct(tree.root, None).peermem == "nv_peer_mem"


def test_neither_module_is_said_only_where_modules_can_be_seen(tree, tmp_path):
    assert read_gpu_direct(tree.root, None).peermem is None
    tree.write("proc/modules", "mlx5_core 512 1 - Live 0x0\n")
    assert read_gpu_direct(tree.root, None).peermem == "none"


def test_the_open_driver_on_a_new_kernel_offers_dmabuf(tree):
    tree.write("proc/driver/nvidia/version", OPEN)
    direct = read_gpu_direct(tree.root, "6.8.0-45-generic")
    assert (direct.open_driver, direct.dmabuf) == (True, True)


@pytest.mark.parametrize(
    ("kernel", "open_driver", "offered"),
    [
        ("5.12.0", True, True),
        ("5.10.0-30-amd64", True, False),
        ("4.18.0-553.el8_10.x86_64", True, None),  # carries newer RDMA code under an old number
        ("6.8.0", False, False),
        ("6.8.0", None, None),
        (None, True, None),
        ("nonsense", True, None),
    ],
)
def test_dmabuf_wants_the_open_driver_and_linux_5_12(kernel, open_driver, offered):
    assert offers_dmabuf(kernel, open_driver=open_driver) is offered
