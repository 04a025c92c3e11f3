"""`preflight topology`: the matrix, its words, and nodes without GPUs."""

import json

import msgspec

from preflight.cli.main import run_command_line
from preflight.cli.topology import describe, gpu_label
from preflight.discover.nvlink import nvlink_domains
from preflight.discover.nvml import read_gpus
from preflight.model import Gpu, GpuPeer, Hca, Nic, Node, to_json
from tests.fakes import FakeNvml, a100_pcie_bridged, h100_sxm
from tests.topology_texts import load, render
from tests.trees import Tree


def node_of(monkeypatch, gpus, *, ancestor=50, **facts):
    FakeNvml(gpus, ancestor=ancestor).install(monkeypatch)
    reading = read_gpus()
    domains = nvlink_domains("n1", reading.gpus)
    joined = tuple(msgspec.structs.replace(gpu, nvlink_domain=domains[gpu.index]) for gpu in reading.gpus)
    return Node(name="n1", gpus=joined, **facts)


def row_of(node, index):
    lines = [line.split() for line in describe(node)]
    start = next(number for number, line in enumerate(lines) if line[:2] == ["GPU", "GPU0"])
    return lines[start + 1 + index]


def test_an_hgx_board_shows_nv18_everywhere(monkeypatch):
    node = node_of(monkeypatch, h100_sxm())
    assert row_of(node, 2)[:9] == ["2", "NV18", "NV18", "X", "NV18", "NV18", "NV18", "NV18", "NV18"]
    assert "a path over # NVLinks" in "\n".join(describe(node))


def test_bridged_pairs_show_nvlink_inside_and_the_pcie_path_outside(monkeypatch):
    node = node_of(monkeypatch, a100_pcie_bridged(), ancestor=40)
    assert row_of(node, 0)[:5] == ["0", "X", "NV12", "NODE", "NODE"]


def test_a_pair_whose_nvlinks_are_unknown_is_not_called_a_pcie_pair():
    gpu = Gpu(index=0, peers=(GpuPeer(index=1, ancestor="PIX"), GpuPeer(index=2)))
    assert [gpu_label(gpu, Gpu(index=i)) for i in (0, 1, 2, 3)] == ["X", "PIX?", "?", "?"]
    text = "\n".join(describe(Node(name="n1", gpus=(gpu, Gpu(index=1)))))
    assert "whether there are NVLinks could not be found out" in text


def test_only_interfaces_on_a_bus_are_columns(monkeypatch):
    nics = (Nic(name="ib0", pci_bus_id="0000:20:00.0"), Nic(name="lo", kind="loopback"))
    header = row_of(node_of(monkeypatch, h100_sxm(2), nics=nics), -1)
    assert header == ["GPU", "GPU0", "GPU1", "ib0", "NUMA", "NVLinks", "domain"]


def test_a_node_without_gpus_says_so_and_shows_the_rest(tmp_path, capsys):
    tree = Tree(tmp_path)
    tree.nic("ib0", device=tree.pci("pci0000:20/0000:20:02.0"), hardware_type=32)
    assert run_command_line(["topology", "--root", str(tree.root)]) == 0
    text = capsys.readouterr().out
    assert "NUMA      nodes 0-1" in text
    assert "ib0" in text
    if "NVML" not in text:
        assert "no GPUs on this node" in text


def test_json_holds_matrix_domains_and_the_node(tmp_path, monkeypatch, capsys):
    snapshot = tmp_path / "node.json"
    snapshot.write_bytes(to_json(node_of(monkeypatch, a100_pcie_bridged(), ancestor=40)))
    assert run_command_line(["topology", "--from", str(snapshot), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "preflight.topology/1"
    assert document["columns"] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert document["matrix"]["GPU2"] == ["NODE", "NODE", "X", "NV12"]
    assert document["topology"]["nvlink_domains"]["n1:gpu2"] == ["GPU-a100-2", "GPU-a100-3"]
    assert document["node"]["name"] == "n1"


def test_hcas_are_the_columns_where_there_are_some(monkeypatch):
    nics = (Nic(name="ib0", pci_bus_id="0000:20:00.0"),)
    header = row_of(node_of(monkeypatch, h100_sxm(2), nics=nics, hcas=(Hca(name="mlx5_0"),)), -1)
    assert header[3] == "mlx5_0"


def shown(tmp_path, capsys, name, *options, **style):
    path = tmp_path / "cn07.txt"
    path.write_text(render(load(name), **style))
    assert run_command_line(["topology", "--from", str(path), *options]) == 0
    return capsys.readouterr().out


def test_a_text_of_nvidia_smi_shows_matrix_rails_and_what_is_nobodys(tmp_path, capsys):
    text = shown(tmp_path, capsys, "a800-8gpu-9nic-nv8-healthy")
    lines = [line.split() for line in text.splitlines()]
    assert "  source    the text of `nvidia-smi topo`; nothing is known of health" in text.splitlines()
    assert lines[5][:10] == ["0", "X", *["NV8"] * 7, "NODE"]
    assert ["4", "NIC1", "PIX"] in lines
    assert "NIC0      behind no GPU's PCIe switches: NODE at best" in text


def test_shared_hcas_are_told(tmp_path, capsys):
    lines = [line.split() for line in shown(tmp_path, capsys, "dgx-a100-8gpu-10nic").splitlines()]
    assert ["3", "NIC2", "NIC3", "PXB", "GPU", "2"] in lines


def test_gpus_without_an_hca_and_machines_without_any(tmp_path, capsys):
    lines = [line.split() for line in shown(tmp_path, capsys, "a100-sxm-4gpu-2nic").splitlines()]
    assert ["0", "none"] in lines
    assert "rails     none: this source shows no HCA" in shown(tmp_path, capsys, "l20-8gpu-pcie")
    assert ["12", "?"] in [line.split() for line in shown(tmp_path, capsys, "dgx2-v100-16gpu-10nic").splitlines()]


def test_peer_access_is_told_in_words(tmp_path, capsys):
    text = shown(tmp_path, capsys, "2gpu-phb-p2p-gns")
    assert "peer access, read: not supported by the GPU for all pairs" in text


def test_the_json_of_a_text_has_rails_and_no_domains_that_it_cannot_name(tmp_path, capsys):
    document = json.loads(shown(tmp_path, capsys, "h100-sxm-4gpu-4nic-nv6", "--format", "json"))
    assert document["columns"] == ["GPU0", "GPU1", "GPU2", "GPU3", "NIC0", "NIC1", "NIC2", "NIC3"]
    assert document["rails"]["own"] == {str(i): [f"NIC{i}"] for i in range(4)}
    assert document["topology"] == {}
    assert document["node"]["source"] == "topo"
    path = tmp_path / "again.json"
    path.write_text(json.dumps(document))
    assert run_command_line(["topology", "--from", str(path)]) == 0
    assert "NV6" in capsys.readouterr().out


def test_a_file_that_tells_of_no_gpus_is_one_message(tmp_path, capsys):
    path = tmp_path / "cn07.txt"
    path.write_text("hello")
    assert run_command_line(["topology", "--from", str(path)]) == 78
    assert "tells of no GPUs in a form that we know" in capsys.readouterr().err
    assert run_command_line(["topology", "--from", str(path), "--from", str(path)]) == 64
