"""`nvidia-smi topo` as people paste it: odd layouts are read, and what can't be told stays unknown."""

import dataclasses

import pytest

from preflight.discover.snapshots.topo_text import read_topo
from preflight.model.rails import rails
from tests.topology_texts import LEGEND, NVLINK_LEGEND, load, p2p_text, render

PAIR = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-15\t0\nGPU1\tNV4\t X \t16-31\t1\n"
BARE = "\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n"


def read(text, product=None):
    node = read_topo(text, "n1", product)
    assert node is not None
    return node


def cells(node, index):
    """num_nvlinks or the PCIe word of each peer."""
    (gpu,) = (gpu for gpu in node.gpus if gpu.index == index)
    return {peer.index: peer.num_nvlinks or peer.ancestor for peer in gpu.peers}


def texts(node):
    return [problem.text for problem in node.problems]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: text,
        lambda text: "INFO 05-01 12:00:00 starting\nGPU 0: some card (UUID: GPU-1)\n\n" + text,
        lambda text: "## Environment\n```\n" + text + "```\nthanks",
        lambda text: "".join(f"> {line}\n" for line in text.splitlines()),
        lambda text: "".join(f"> > {line}\n" for line in text.splitlines()),
        lambda text: "".join(f"n1: 2024-05-01 12:00:00 {line}\n" for line in text.splitlines()),
        lambda text: "".join(f"{line} | |\n" for line in text.splitlines()),
        lambda text: "".join(f"`{line}`\n" for line in text.splitlines()),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\nGPU1", "\nGPU0\nGPU1"),
        lambda text: text.replace("\nGPU1", "\nSYS SYS\nGPU1"),
        lambda text: text + "\nLegend:\n  X    = Self\n  SYS  = far\n\nWhen it hangs:\nGPU1 OK\n",
        lambda text: "\x1b[4m" + text.replace("\n", "\x1b[0m\n", 1),
        lambda text: "[4m" + text.replace("\n", "[0m\n", 1),
        lambda text: "^[[4m" + text.replace("\n", "^[[0m\n", 1),
        lambda text: text.expandtabs(8),
        lambda text: "|".join(text.split("\t")),
        lambda text: text + "\nGPU0 is the one that hangs, GPU1 too\n",
    ],
)
def test_a_table_is_found_however_it_was_pasted(wrap):
    node = read(wrap(PAIR))
    assert [cells(node, 0), cells(node, 1)] == [{1: 4}, {0: 4}]
    assert [gpu.cpus for gpu in node.gpus] == ["0-15", "16-31"]
    assert [gpu.numa_node for gpu in node.gpus] == [0, 1]
    assert node.problems == ()


def test_columns_that_run_together_are_taken_apart():
    text = """
        GPU0    GPU1    NIC8NIC9    NIC10   NIC11NIC12CPU Affinity     NUMA AffinityGPU NUMA ID
GPU0     X      NV18    SYSPXB      NODE    NODENODE0-15  0               N/A
GPU1    NV18     X      SYSSYS      NODE    PIXNODE 16-31  1               N/A
NIC8    SYS SYS  X  SYS SYS SYS SYS
NIC10NODENODE SYS SYS X SYS SYS
"""
    node = read(text)
    assert [hca.name for hca in node.hcas] == ["NIC8", "NIC9", "NIC10", "NIC11", "NIC12"]
    assert list(node.gpus[0].nics.values()) == ["SYS", "PXB", "NODE", "NODE", "NODE"]
    assert list(node.gpus[1].nics.values()) == ["SYS", "SYS", "NODE", "PIX", "NODE"]
    assert [(gpu.cpus, gpu.numa_node) for gpu in node.gpus] == [("0-15", 0), ("16-31", 1)]
    assert node.problems == ()


WRAPPED = """
        GPU0    GPU1    NIC0    NIC1    CPU Affi
nity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    PIX     SYS     0-15    0
        N/A
GPU1    NV18     X      SYS
PIX     16-31   1               N/A
"""
WRAPPED_NAMES = """
        GPU0    GPU1
NIC0    NIC1    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18
PIX     SYS     0-15    0               N/A
GPU1    NV18     X
SYS     PIX     16-31   1               N/A
"""


@pytest.mark.parametrize("text", [WRAPPED, WRAPPED_NAMES])
def test_wrapped_lines_are_joined(text):
    node = read(text)
    assert [gpu.nics for gpu in node.gpus] == [{"NIC0": "PIX", "NIC1": "SYS"}, {"NIC0": "SYS", "NIC1": "PIX"}]
    assert [(gpu.cpus, gpu.numa_node) for gpu in node.gpus] == [("0-15", 0), ("16-31", 1)]


def test_names_of_hcas_come_from_the_legend_and_from_the_header_in_its_order():
    text = "GPU0 NIC0 NIC1 CPU Affinity\nGPU0 X PIX SYS 0-7\n\nNIC Legend:\n\n  NIC0: mlx5_2\n  NIC1: mlx5_bond_0\n"
    assert read(text).gpus[0].nics == {"mlx5_2": "PIX", "mlx5_bond_0": "SYS"}
    node = read("GPU0 mlx5_1 mlx5_0 CPU Affinity\nGPU0 X SYS PIX 0-7\nmlx5_1 SYS X SYS\n")
    assert node.gpus[0].nics == {"mlx5_1": "SYS", "mlx5_0": "PIX"}
    assert rails(node).own == {0: ("mlx5_0",)}


def test_a_legend_that_names_two_hcas_alike_is_not_believed():
    text = "GPU0 NIC0 NIC1 CPU Affinity\nGPU0 X PIX SYS 0-7\nNIC0: mlx5_0\nNIC1: mlx5_0\n"
    assert [hca.name for hca in read(text).hcas] == ["NIC0", "NIC1"]


@pytest.mark.parametrize("before", [True, False])
def test_hcas_are_unknown_where_the_command_left_some_out(before):
    table, notice = "GPU0 NIC0 CPU Affinity\nGPU0 X PIX 0-7\n", "76 NICs found, only displaying 56\n"
    node = read(notice + table if before else table + notice)
    assert node.hcas is None
    assert node.gpus[0].nics == {}
    assert rails(node).unknown_gpus == (0,)
    assert node.problems[0].field == "hcas"
    assert "76 NICs found, only displaying 56" in texts(node)[0]


def test_without_nic_columns_there_are_none_and_interfaces_are_unknown():
    node = read(PAIR)
    assert (node.hcas, node.nics) == ((), None)


@pytest.mark.parametrize(
    ("text", "num_nvlinks", "source"),
    [
        ("$ nvidia-smi topo -m\n" + BARE, 0, "topo"),
        ("root@n1:~# nvidia-smi topo --matrix\n\n" + BARE, 0, "topo"),
        (BARE + LEGEND + NVLINK_LEGEND, 0, "topo"),
        ("$ nvidia-smi topo -mp\n" + BARE, None, "topo -mp"),
        ("$ nvidia-smi topo -mp\n" + BARE + LEGEND, None, "topo -mp"),
        (BARE, None, "topo"),
        (BARE + LEGEND, None, "topo"),
        ("we never ran nvidia-smi topo -mp\n" + "log\n" * 9 + BARE, None, "topo"),
    ],
)
def test_a_view_that_hides_nvlink_or_may_says_nothing_about_it(text, num_nvlinks, source):
    node = read(text, product="NVIDIA H100 80GB HBM3")
    assert [peer.num_nvlinks for gpu in node.gpus for peer in gpu.peers] == [num_nvlinks] * 2
    assert [peer.ancestor for gpu in node.gpus for peer in gpu.peers] == ["SYS"] * 2
    assert node.source == source
    assert {gpu.nvlink_domain for gpu in node.gpus} == ({"none"} if num_nvlinks == 0 else {None})
    assert bool(node.problems) == (num_nvlinks is None and source == "topo")


def test_one_nvlink_shows_that_the_view_is_the_whole_one():
    text = "GPU0 GPU1 GPU2\nGPU0 X NV2 SYS\nGPU1 NV2 X SYS\nGPU2 SYS SYS X\n"
    node = read(text)
    assert [peer.num_nvlinks for peer in node.gpus[2].peers] == [0, 0]
    assert [gpu.nvlink_domain for gpu in node.gpus] == ["n1", "n1", "none"]


def test_of_both_views_the_whole_one_is_read():
    for text in ("$ nvidia-smi topo -mp\n" + BARE + "$ nvidia-smi topo -m\n" + PAIR,):
        node = read(text)
        assert cells(node, 0) == {1: 4}
        assert texts(node) == ["the text holds 2 matrices; one of them is read"]


def test_peer_access_is_read_with_the_matrix_and_alone():
    table = p2p_text((("X", "CNS"), ("OK", "X")), "r") + p2p_text((("X", "NS"), ("DR", "X")), "n")
    node = read("$ nvidia-smi topo -m\n" + PAIR + table)
    assert [gpu.peers[0].p2p for gpu in node.gpus] == [
        {"read": "chipset", "nvlink": "not supported"},
        {"read": "ok", "nvlink": "disabled"},
    ]
    assert cells(node, 0) == {1: 4}
    alone = read(table)
    assert alone.gpus[0].peers[0].p2p == {"read": "chipset", "nvlink": "not supported"}
    assert (alone.hcas, alone.gpus[0].peers[0].num_nvlinks, alone.gpus[0].nvlink_domain) == (None, None, None)
    assert alone.gpus[0].problems == ()


def test_gns_of_a_consumer_card_is_its_own_status():
    node = read(render(load("2gpu-phb-p2p-gns")))
    assert node.gpus[0].peers[0].p2p == {"read": "gpu", "write": "gpu"}


def test_a_table_of_peer_access_without_its_command_says_nothing_and_says_so():
    node = read("GPU0 GPU1\nGPU0 X TNS\nGPU1 TNS X\n")
    assert [gpu.peers for gpu in node.gpus] == [(), ()]
    assert node.problems[0].field == "p2p"


def test_a_missing_row_leaves_its_facts_unknown():
    node = read("$ nvidia-smi topo -m\nGPU0 GPU1 GPU2 CPU Affinity\nGPU0 X NV1 SYS 0-7\nGPU2 SYS NV2 X 8-15\n")
    assert [gpu.index for gpu in node.gpus] == [0, 1, 2]
    assert node.gpus[1].peers == ()
    assert node.gpus[1].why_unknown("peers").text == "topo: no row for GPU1"
    assert node.gpus[1].nvlink_domain == "n1"  # the others' rows name it


def test_rows_beyond_the_header_are_seen_too():
    node = read("GPU0 GPU1\nGPU0 X NV1\nGPU1 NV1 X\nGPU7 NV1 NV1\n")
    assert [gpu.index for gpu in node.gpus] == [0, 1, 7]


@pytest.mark.parametrize(
    ("row", "peer", "nics"),
    [
        ("GPU1 NV4 X", 4, {"NIC1": "SYS"}),  # cut after the GPUs; NIC1's own row tells the rest
        ("GPU1 NV4 X 8-15 1", 4, {"NIC1": "SYS"}),
        ("GPU1 NV4 X PIX", 4, {"NIC0": "PIX", "NIC1": "SYS"}),
        ("GPU1 NV4 X PIX 8-15 1", None, {"NIC1": "SYS"}),  # which of the NICs is missing can't be told
        ("GPU1 NV4 X PIX SYS SYS 8-15 1", 4, {"NIC1": "SYS"}),  # one more than the header names
        ("GPU1 X NV4 PIX SYS 8-15 1", None, {"NIC1": "SYS"}),  # "X" is not its own column
    ],
)
def test_a_row_that_does_not_fit_its_header_says_only_what_is_certain(row, peer, nics):
    text = f"GPU0 GPU1 NIC0 NIC1 CPU Affinity NUMA Affinity\nGPU0 X NV4 PIX SYS 0-7 0\n{row}\nNIC1 SYS SYS PIX X\n"
    gpu = read(text).gpus[1]
    assert [found.num_nvlinks for found in gpu.peers] == ([peer] if peer else [])
    assert gpu.nics == nics
    assert bool(gpu.problems) == (row not in ("GPU1 NV4 X", "GPU1 NV4 X 8-15 1", "GPU1 NV4 X PIX"))


def test_both_sides_of_a_pair_that_disagree_are_kept_and_told():
    node = read("GPU0 GPU1 NIC0\nGPU0 X NV18 PIX\nGPU1 SYS X SYS\nNIC0 PXB SYS X\n")
    assert cells(node, 0) == {1: 18}
    assert cells(node, 1) == {0: "SYS"}
    assert texts(node) == ["GPU0 to GPU1 is NV18, GPU1 to GPU0 is SYS", "GPU0 to NIC0 is PIX, NIC0 to GPU0 is PXB"]
    assert node.gpus[0].nics == {"NIC0": "PIX"}


def test_a_second_row_is_passed_over_and_told():
    node = read("GPU0 GPU1\nGPU0 X NV18\nGPU1 NV18 X\nGPU1 NV1 X\n")
    assert cells(node, 1) == {0: 18}
    assert texts(node) == ["a second row for GPU1 was passed over"]


@pytest.mark.parametrize(
    ("behind", "cpus", "numa", "own"),
    [
        ("0-7\t0\t\tN/A", "0-7", 0, None),
        ("0,8,16\t3\t\t10", "0,8,16", 3, 10),
        ("N/A\tN/A\t\tN/A", None, None, None),
        ("\t1\t\tN/A", None, 1, None),
        ("0\t0-1\t\tN/A", "0", None, None),  # a cgroup over two NUMA nodes: not one of them
        ("0-7\t0", None, None, None),  # which column is missing can't be told
        ("1\t\t10", None, None, None),
        ("", None, None, None),
    ],
)
def test_the_columns_behind_the_devices(behind, cpus, numa, own):
    gpu = read(f"\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t{behind}\n").gpus[0]
    assert (gpu.cpus, gpu.numa_node, gpu.own_numa_node) == (cpus, numa, own)


def test_two_columns_with_two_values_are_those():
    gpu = read("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t1\tN/A\n").gpus[0]
    assert (gpu.cpus, gpu.numa_node) == ("1", None)


def test_a_command_counts_for_one_table():
    node = read(
        p2p_text((("X", "OK"), ("OK", "X")), "r").split("\n\nLegend")[0] + "\nGPU0 GPU1\nGPU0 X NS\nGPU1 NS X\n"
    )
    assert [gpu.peers[0].p2p for gpu in node.gpus] == [{"read": "ok"}, {"read": "ok"}]
    assert node.problems[0].field == "p2p"


def test_the_words_of_old_releases_and_of_errors():
    node = read("$ nvidia-smi topo -m\nGPU0 GPU1 GPU2 GPU3\nGPU0 X SOC PSB ERR!\n")
    assert cells(node, 0) == {1: "SYS", 2: "internal"}


def test_any_number_of_nvlinks_is_read():
    for number in (3, 5, 7, 9, 16, 24, 36, 100):
        assert read(f"GPU0 GPU1\nGPU0 X NV{number}\nGPU1 NV{number} X\n").gpus[0].peers[0].num_nvlinks == number


@pytest.mark.parametrize("text", ["", "GPU0\n", "GPU0 GPU1 CPU Affinity\n", "X = Self\n", "GPU0: busy\nGPU1: idle\n"])
def test_a_text_without_rows_is_no_table(text):
    assert read_topo(text, "n1", None) is None


def test_a_header_of_thousands_of_devices_costs_nothing():
    many = " ".join(f"GPU{i}" for i in range(1000))
    assert read_topo(f"{many}\nGPU0 X {'SYS ' * 999}\n", "n1", None) is None
    tables = "GPU0 GPU1\nGPU0 X NV1\n" * 20_000
    assert texts(read(tables)) == ["the text holds 64 matrices; one of them is read"]


def test_a_sick_machine_stays_sick():
    machine = load("b200-8gpu-12nic-gpu2-no-nvlink")
    node = read(render(machine), machine.product)
    assert {peer.num_nvlinks for peer in node.gpus[2].peers} == {0}
    assert [gpu.nvlink_domain for gpu in node.gpus].count("n1") == 7
    assert node.gpus[2].nvlink_domain == "none"
    changed = dataclasses.replace(machine, command=None)
    assert read(render(changed)).gpus[2].nvlink_domain == "none"  # the others' NV18 tell the view


def test_grace_has_lists_of_numa_nodes_and_gpus_that_are_numa_nodes():
    """As in https://github.com/sgl-project/sglang/issues/11208."""
    text = """NVIDIA Topology:
        GPU0    GPU1    NIC0    NIC1    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    SYS     SYS     0-71    0,3-9,11-17             2
GPU1    NV18     X      SYS     SYS     72-143  1,19-25,27-33           18
"""
    node = read(text)
    assert [(gpu.cpus, gpu.numa_node, gpu.own_numa_node) for gpu in node.gpus] == [
        ("0-71", None, 2),
        ("72-143", None, 18),
    ]
    found = rails(node)
    assert (found.unknown_gpus, found.unknown_hcas, found.without) == ((0, 1), ("NIC0", "NIC1"), ())
