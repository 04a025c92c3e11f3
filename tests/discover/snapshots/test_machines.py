"""All 33 machines as text and back: nothing is lost, nothing is added; and whose HCA is whose."""

import pytest

from preflight.discover.snapshots import read_node
from preflight.model.rails import OWN, rails
from tests.topology_texts import load, names, render

STYLES = [{}, {"spaces": True}, {"escapes": True}, {"legend": False}, {"command": False}]


@pytest.mark.parametrize("style", STYLES, ids=str)
@pytest.mark.parametrize("name", names())
def test_a_machine_comes_back_as_it_was_printed(name, style, tmp_path):
    machine = load(name)
    path = tmp_path / f"{name}.txt"
    path.write_text(render(machine, **style))
    node = read_node(path, product=machine.product)
    assert (node.name, node.source) == (name, "topo")
    assert [hca.name for hca in node.hcas] == list(machine.nic_names)
    assert len(node.gpus) == len(machine.gpus)
    for gpu, row, nics, behind in zip(node.gpus, machine.gpus, machine.nics, machine.behind, strict=True):
        assert (gpu.name, gpu.uuid) == (machine.product, None)
        assert [as_word(peer, told=machine.command) for peer in gpu.peers] == [word for word in row if word != "X"]
        assert [peer.index for peer in gpu.peers] == [i for i in range(len(row)) if i != gpu.index]
        expected = dict(zip(machine.nic_names, nics, strict=True))
        assert gpu.nics == {name: word for name, word in expected.items() if word is not None}
        assert gpu.cpus == number_list(behind.get("cpu"))
        assert gpu.numa_node == number(behind.get("numa"))
        assert gpu.own_numa_node == number(behind.get("own numa"))
        assert gpu.problems == ()
    linked = {frozenset((gpu.index, peer.index)) for gpu in node.gpus for peer in gpu.peers if peer.num_nvlinks}
    assert len(linked) == machine.nvlink_pairs


def as_word(peer, *, told):
    """The cell that the peer was read from; without the command nobody knows whether PIX hides NVLinks."""
    if peer.num_nvlinks:
        assert peer.ancestor is None
        return f"NV{peer.num_nvlinks}"
    assert peer.num_nvlinks == (0 if told else None)
    return peer.ancestor


def number(text):
    return int(text) if text and text.isdigit() else None


def number_list(text):
    return None if text in (None, "N/A") else text


@pytest.mark.parametrize("name", [name for name in names() if load(name).nearest])
def test_rails_are_the_nearest_of_each_gpu_and_only_behind_its_switches(name, tmp_path):
    machine = load(name)
    path = tmp_path / "topo.txt"
    path.write_text(render(machine))
    found = rails(read_node(path))
    own = {gpu: nics for gpu, (relation, nics) in machine.nearest.items() if relation in OWN}
    assert found.own == own
    assert set(found.without) == set(machine.nearest) - set(own)
    assert set(found.unknown_gpus) == set(range(len(machine.gpus))) - set(machine.nearest)


@pytest.mark.parametrize(
    ("name", "nobodys"),
    [
        ("a800-8gpu-9nic-nv8-healthy", {"NIC0": "behind no GPU's PCIe switches: NODE at best"}),
        (
            "b200-8gpu-13nic-reversed",
            dict.fromkeys(("NIC0", "NIC1", "NIC2", "NIC3"), "SYS to every GPU")
            | {"NIC12": "behind no GPU's PCIe switches: NODE at best"},
        ),
        (
            "h100-8gpu-6nic-two-storage",
            dict.fromkeys(("NIC2", "NIC3"), "behind no GPU's PCIe switches: NODE at best"),
        ),
        ("h100-8gpu-6nic-odd-gpus", dict.fromkeys(("NIC1", "NIC2"), "behind no GPU's PCIe switches: NODE at best")),
        ("h100-vm-8gpu-9nic-reversed-rails", {"NIC0": "SYS to every GPU"}),
        ("h100-sxm-8gpu-10nic-permuted", dict.fromkeys(("NIC3", "NIC4"), "SYS to every GPU")),
        ("h100-sxm-4gpu-4nic-nv6", {}),
        (
            "nv18-8gpu-12nic-dgx-h100-like",
            dict.fromkeys(("NIC1", "NIC2", "NIC7", "NIC8"), "behind no GPU's PCIe switches: NODE at best"),
        ),
        ("nv18-8gpu-9nic-uneven-numa", {"NIC3": "behind no GPU's PCIe switches: NODE at best"}),
        ("h100-8gpu-2nic-phb", dict.fromkeys(("NIC0", "NIC1"), "behind no GPU's PCIe switches: PHB at best")),
        ("dgx1-v100-8gpu-hybrid-cube", {}),
        ("dgx2-v100-16gpu-10nic", {}),  # the distance of most GPUs is unknown, so nothing is known to be nobody's
    ],
)
def test_what_is_nobodys_rail_is_told_with_its_reason(name, nobodys, tmp_path):
    path = tmp_path / "topo.txt"
    path.write_text(render(load(name)))
    assert rails(read_node(path)).not_rails == nobodys
