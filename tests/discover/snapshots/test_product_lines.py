"""The product that stands beside a pasted topology is read; names that are cut short, or contradict each other, are not."""

from preflight.discover.snapshots.product_lines import products_in
from preflight.discover.snapshots.topo_text import read_topo

LISTED = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a78)
  MIG 1g.10gb     Device  0: (UUID: MIG-5d5ba0d6)
"""
TABLE = """\
| NVIDIA-SMI 535.104.05             Driver Version: 535.104.05   CUDA Version: 12.2     |
|   0  NVIDIA H100 80GB HBM3          On  | 00000000:19:00.0 Off |                    0 |
| N/A   31C    P0              71W / 700W |      2MiB / 81559MiB |      0%      Default |
|   1  NVIDIA A100-SXM...  On   | 00000000:1A:00.0 Off |                    0 |
|   2  Tesla V100-SXM2-16GB           Off | 00000000:3B:00.0 Off |                    0 |
"""
TOPOLOGY = """
        GPU0    GPU1    CPU Affinity
GPU0     X      NV12    0-15
GPU1    NV12     X      0-15
"""


def test_the_list_names_every_gpu_and_leaves_mig_slices_out():
    assert products_in(LISTED) == {0: "NVIDIA A100-SXM4-80GB", 1: "NVIDIA A100-SXM4-80GB"}
    assert products_in("> " + LISTED.replace("\n", "\n> ")) == products_in(LISTED)


def test_the_table_names_gpus_but_for_names_that_are_cut_short():
    assert products_in(TABLE) == {0: "NVIDIA H100 80GB HBM3", 2: "Tesla V100-SXM2-16GB"}


def test_lists_of_two_nodes_that_differ_tell_nothing():
    assert products_in(LISTED + LISTED.replace("A100-SXM4-80GB", "H100 80GB HBM3")) == {}
    assert products_in("no GPU 0: here") == {}


def test_a_topology_takes_the_product_that_stands_beside_it_and_a_given_one_goes_before():
    node = read_topo(LISTED + TOPOLOGY, "n", None)
    assert [gpu.name for gpu in node.gpus] == ["NVIDIA A100-SXM4-80GB"] * 2
    assert [gpu.name for gpu in read_topo(LISTED + TOPOLOGY, "n", "NVIDIA A800-SXM4-80GB").gpus] == [
        "NVIDIA A800-SXM4-80GB"
    ] * 2
    assert [gpu.name for gpu in read_topo(TOPOLOGY, "n", None).gpus] == [None, None]
    of_one = LISTED.splitlines()[0]
    assert [gpu.name for gpu in read_topo(of_one + TOPOLOGY, "n", None).gpus] == [None, None]


def test_a_line_without_end_is_read_in_no_time():
    assert products_in("GPU 0: " + "x " * 500_000) == {}
    assert products_in("|   0  NVIDIA " + " " * 500_000) == {}
    assert products_in(">" * 500_000) == {}
    assert products_in("> \n" * 300_000) == {}
