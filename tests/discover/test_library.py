"""A real shared library in the place of NVIDIA's, found through LD_LIBRARY_PATH: healthy, hanging, crashing."""

import subprocess

import pytest

from preflight.discover.node import discover_node
from tests.trees import Tree

pytestmark = pytest.mark.cc

SOURCE = r"""
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char gpus[2];
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
struct memory { unsigned long long total, free, used; };

static int index_of(void *handle) { return (int)((char *)handle - gpus); }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "some error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { snprintf(out, size, "570.1"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count)
{
#ifdef HANG
    for (;;) pause();
#endif
    *count = 2;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **handle) { *handle = gpus + i; return 0; }
int nvmlDeviceGetUUID(void *handle, char *out, unsigned size)
{
#ifdef CRASH
    if (index_of(handle) == 1) raise(SIGSEGV);
#endif
    printf("a library that prints must not spoil the answer\n");
    snprintf(out, size, "GPU-c-%d", index_of(handle));
    return 0;
}
int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *out)
{
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:1%d:00.0", index_of(handle) + 1);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *out) { (void)handle; out->total = 1ull << 36; return 0; }
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *on)
{
    (void)handle;
    if (link >= 4) return 2;
    *on = 1;
    return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, unsigned *kind)
{
    (void)handle; (void)link;
    *kind = 0;
    return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, struct pci *out)
{
    (void)link;
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:1%d:00.0", 2 - index_of(handle));
    return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, int *level) { (void)a; (void)b; *level = 30; return 0; }
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Build the library with one fault compiled in, and let child processes find it."""

    def build(fault=None):
        folder = tmp_path / "lib"
        folder.mkdir()
        (folder / "nvml.c").write_text(SOURCE)
        define = [f"-D{fault}"] if fault else []
        soname = "libnvidia-ml.so.1"
        command = ["cc", "-shared", "-fPIC", *define, f"-Wl,-soname,{soname}", "-o", str(folder / soname)]
        subprocess.run([*command, str(folder / "nvml.c")], check=True, timeout=60)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))

    return build


def test_two_joined_gpus_are_read_through_the_real_loader(library, tmp_path):
    library()
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
    assert node.problems == ()


def test_a_gpu_on_the_bus_that_the_driver_does_not_show_is_a_problem(library, tmp_path):
    library()
    tree = Tree(tmp_path / "root")
    for index in (1, 2, 3):
        tree.gpu(f"pci0000:10/0000:10:0{index}.0/0000:1{index}:00.0")
    node = discover_node(root=tree.root)
    assert len(node.gpus) == 2
    assert node.problems[0].text.startswith("3 NVIDIA GPUs on the PCI bus, 2 shown by the driver")


def test_a_call_that_never_returns_leaves_a_node_with_everything_but_gpus(library):
    library("HANG")
    node = discover_node(deadline_s=2.0)
    assert node.gpus is None
    assert "did not answer within 2 s" in node.gpu_note
    assert node.num_cpus
    assert node.nics


def test_a_call_that_kills_the_process_leaves_a_node_with_everything_but_gpus(library):
    library("CRASH")
    node = discover_node()
    assert node.gpus is None
    assert "SIGSEGV" in node.gpu_note
    assert node.num_cpus
