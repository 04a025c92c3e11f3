"""Rails: which HCA is whose, from PCIe relations and the signals that tell rails from storage and management."""

import msgspec
import pytest

from preflight.model import Gpu, Hca, Nic, Node, Port
from preflight.model.rails import fill_nics, nic_affinity, pci_relation, rails

ROOT = "pci0000:10"
GPU = Gpu(index=0, pci_upstream=("0000:12:00.0", "0000:11:00.0", "0000:10:01.0", ROOT), numa_node=0)


def machine(*rows, names=None, **facts):
    """A node whose GPU i has the relations of row i ("PIX NODE", "?" unknown) to hca0, hca1, ..."""
    cells = [row.split() for row in rows]
    names = names or [f"hca{i}" for i in range(len(cells[0]))]
    gpus = tuple(
        Gpu(index=i, nics={name: cell for name, cell in zip(names, row, strict=True) if cell != "?"})
        for i, row in enumerate(cells)
    )
    hcas = facts.pop("hcas", None) or tuple(Hca(name=name) for name in names)
    return Node(name="n1", gpus=gpus, hcas=hcas, **facts)


def hca(name, *, layer=None, rate=None, interface=None, **facts):
    port = Port(number=1, link_layer=layer, rate_bytes_per_s=rate, interface=interface)
    return Hca(name=name, ports=(port,), **facts)


@pytest.mark.parametrize(
    ("upstream", "numa", "word"),
    [
        (("0000:12:01.0", "0000:11:00.0", "0000:10:01.0", ROOT), 0, "PIX"),
        (("0000:12:00.0", "0000:11:00.0", "0000:10:01.0", ROOT), 0, "PIX"),
        (("0000:15:00.0", "0000:14:00.0", "0000:12:02.0", "0000:11:00.0", "0000:10:01.0", ROOT), 0, "PXB"),
        (("0000:10:02.0", ROOT), 0, "PHB"),
        (("0000:20:01.0", "pci0000:20"), 0, "NODE"),
        (("0000:20:01.0", "pci0000:20"), 1, "SYS"),
        (("0000:20:01.0", "pci0000:20"), None, None),
        (None, 0, None),
    ],
)
@pytest.mark.parametrize("kind", [Nic, Hca])
def test_an_hca_is_as_close_as_the_bridges_it_shares_with_the_gpu(kind, upstream, numa, word):
    device = kind(name="ib0", pci_bus_id="0000:20:00.0", pci_upstream=upstream, numa_node=numa)
    assert nic_affinity(GPU, device, (0, 1)) == word
    (filled,) = fill_nics((GPU,), (device,) if kind is Hca else None, (device,), (0, 1))
    assert filled.nics == ({"ib0": word} if word else {})


def test_with_a_single_numa_node_the_kernels_silence_is_no_riddle():
    nic = Nic(name="ib0", pci_bus_id="0000:20:00.0", pci_upstream=("0000:20:01.0", "pci0000:20"))
    assert nic_affinity(GPU, nic, (0,)) == "NODE"


def test_where_a_switch_is_one_bridge_the_second_shared_one_is_another_switch():
    assert pci_relation(("s2", "s1", "cpu"), ("s3", "s1", "cpu"), switch_bridges=1) == "PXB"
    assert pci_relation(("s1", "cpu"), ("s1", "cpu"), switch_bridges=1) == "PIX"
    assert pci_relation((), ("s1",)) is None


def test_interfaces_count_only_where_there_is_no_hca():
    eth = Nic(name="eth0", pci_bus_id="0000:12:01.0", pci_upstream=GPU.pci_upstream)
    ib = Hca(name="mlx5_0", pci_bus_id="0000:12:02.0", pci_upstream=GPU.pci_upstream)
    assert fill_nics((GPU,), (ib,), (eth,), None)[0].nics == {"mlx5_0": "PIX"}
    for none in ((), None):
        assert fill_nics((GPU,), none, (eth, Nic(name="lo")), None)[0].nics == {"eth0": "PIX"}


def test_numbering_says_nothing():
    found = rails(machine("SYS NODE PIX", "SYS PIX NODE"))
    assert found.own == {0: ("hca2",), 1: ("hca1",)}
    assert found.not_rails == {"hca0": "SYS to every GPU"}
    assert (found.without, found.unknown_gpus, found.unknown_hcas) == ((), (), ())


def test_two_gpus_of_one_switch_share_its_two_hcas():
    found = rails(machine("PXB PXB SYS", "PXB PXB SYS"))
    assert found.own == {0: ("hca0", "hca1"), 1: ("hca0", "hca1")}
    assert found.sharers("hca1") == (0, 1)


def test_the_closer_of_two_wins_and_the_other_may_be_somebody_elses():
    found = rails(machine("PIX PXB", "PXB PIX"))
    assert found.own == {0: ("hca0",), 1: ("hca1",)}
    found = rails(machine("PIX PXB"))
    assert found.not_rails == {"hca1": "PXB to GPU 0, which has a closer one"}


def test_beyond_the_host_bridge_an_hca_is_nobodys_and_the_gpu_has_none():
    found = rails(machine("SYS NODE", "PHB NODE"))
    assert found.own == {}
    assert found.without == (0, 1)
    assert found.not_rails == {
        "hca0": "behind no GPU's PCIe switches: PHB at best",
        "hca1": "NODE to every GPU",
    }


def test_what_is_unknown_makes_nobody_poor_and_nothing_nobodys():
    found = rails(machine("PIX SYS SYS", "? ? ?"))
    assert found.own == {0: ("hca0",)}
    assert found.unknown_gpus == (1,)
    assert found.unknown_hcas == ("hca1", "hca2")
    assert found.without == ()


def test_unknown_hcas_and_no_hcas_are_two_things():
    gpus = (Gpu(index=0), Gpu(index=1))
    assert rails(Node(name="n", gpus=gpus)).unknown_gpus == (0, 1)
    assert rails(Node(name="n", gpus=gpus, hcas=())).without == (0, 1)
    far = tuple(msgspec.structs.replace(gpu, nics={"eth0": "SYS"}) for gpu in gpus)
    nics = (Nic(name="eth0", pci_bus_id="0000:01:00.0"),)
    assert rails(Node(name="n", gpus=far, nics=nics)).unknown_gpus == (0, 1)
    assert rails(Node(name="n", gpus=far, nics=nics, hcas=())).without == (0, 1)
    assert rails(Node(name="n", gpus=None)).own == {}
    assert rails(Node(name="n", gpus=())).without == ()


def test_a_node_read_before_there_was_nics_is_derived_from_its_pci_places():
    node = Node(name="n", gpus=(GPU,), hcas=(Hca(name="m", pci_bus_id="x", pci_upstream=GPU.pci_upstream),))
    assert rails(node).own == {0: ("m",)}


def test_ethernet_among_infiniband_is_nobodys_even_as_close_as_a_rail():
    hcas = (hca("mlx5_0", layer="InfiniBand"), hca("mlx5_1", layer="InfiniBand"), hca("mlx5_2", layer="Ethernet"))
    found = rails(machine("PXB SYS PIX", "SYS PXB SYS", names=["mlx5_0", "mlx5_1", "mlx5_2"], hcas=hcas))
    assert found.own == {0: ("mlx5_0",), 1: ("mlx5_1",)}
    assert found.not_rails == {"mlx5_2": "Ethernet, where the HCAs of the GPUs are InfiniBand"}


def test_infiniband_for_storage_among_roce_rails_is_nobodys():
    hcas = (hca("r0", layer="Ethernet"), hca("r1", layer="Ethernet"), hca("st", layer="InfiniBand"))
    found = rails(machine("PIX SYS PIX", "SYS PIX SYS", names=["r0", "r1", "st"], hcas=hcas))
    assert found.own == {0: ("r0",), 1: ("r1",)}
    assert list(found.not_rails) == ["st"]


def test_a_link_layer_that_is_unknown_or_evenly_split_excludes_nothing():
    for layer in (None, "Ethernet"):
        hcas = (hca("a", layer="InfiniBand"), hca("b", layer=layer))
        found = rails(machine("PIX SYS", "SYS PIX", names=["a", "b"], hcas=hcas))
        assert found.own == {0: ("a",), 1: ("b",)}


def test_a_bond_beside_plain_rails_is_nobodys_but_rails_may_all_be_bonds():
    names = ["mlx5_0", "mlx5_1", "mlx5_bond_0"]
    found = rails(machine("PIX SYS PIX", "SYS PIX SYS", names=names))
    assert found.not_rails == {"mlx5_bond_0": "bonded, where the HCAs of the GPUs are not bonded"}
    found = rails(machine("PIX SYS", "SYS PIX", names=["mlx5_bond_0", "mlx5_bond_1"]))
    assert found.own == {0: ("mlx5_bond_0",), 1: ("mlx5_bond_1",)}


def test_virtual_functions_give_way_to_their_cards_and_stand_where_there_are_only_they():
    hcas = (hca("pf", is_virtual_function=False), hca("vf", is_virtual_function=True))
    assert rails(machine("PIX PIX", names=["pf", "vf"], hcas=hcas)).own == {0: ("pf",)}
    only = (hca("vf0", is_virtual_function=True), hca("vf1", is_virtual_function=True))
    assert rails(machine("PIX SYS", "SYS PIX", names=["vf0", "vf1"], hcas=only)).own == {0: ("vf0",), 1: ("vf1",)}


def test_the_default_route_marks_management_where_the_gpu_has_another_or_the_rest_is_faster():
    nics = (Nic(name="eth0", pci_bus_id="0000:01:00.0", default_route=True),)
    mgmt, rail = hca("m", rate=3_125_000_000, interface="eth0"), hca("r", rate=50_000_000_000)
    found = rails(machine("PIX PIX", names=["m", "r"], hcas=(mgmt, rail), nics=nics))
    assert found.own == {0: ("r",)}
    found = rails(machine("PIX SYS", "SYS PIX", names=["m", "r"], hcas=(mgmt, rail), nics=nics))
    assert found.not_rails == {"m": "carries the default route, and is slower than the others"}
    assert found.without == (0,)


def test_the_default_route_marks_management_also_at_the_speed_of_the_rest_where_the_gpu_has_another():
    nics = (Nic(name="eth0", pci_bus_id="0000:01:00.0", default_route=True),)
    hcas = (hca("m", rate=50_000_000_000, interface="eth0"), hca("r", rate=50_000_000_000))
    found = rails(machine("PIX PIX", names=["m", "r"], hcas=hcas, nics=nics))
    assert (found.own, found.not_rails) == ({0: ("r",)}, {"m": "carries the default route"})


def test_where_nothing_is_near_the_distance_is_the_reason():
    hcas = (hca("pf", is_virtual_function=False), hca("vf", is_virtual_function=True))
    found = rails(machine("SYS SYS", names=["pf", "vf"], hcas=hcas))
    assert found.not_rails == {"pf": "SYS to every GPU", "vf": "SYS to every GPU"}


def test_a_rail_that_also_carries_the_default_route_stays_a_rail():
    nics = (Nic(name="eth0", pci_bus_id="0000:01:00.0", default_route=True),)
    alike = (hca("a", rate=50_000_000_000, pci_bus_id="0000:01:00.0"), hca("b", rate=50_000_000_000))
    found = rails(machine("PIX SYS", "SYS PIX", names=["a", "b"], hcas=alike, nics=nics))
    assert found.own == {0: ("a",), 1: ("b",)}
    alone = (hca("a", interface="eth0"),)
    assert rails(machine("PIX", names=["a"], hcas=alone, nics=nics)).own == {0: ("a",)}


def test_with_grace_the_hcas_of_its_cpu_are_its_own():
    names = ["m0", "m1", "m2", "eth"]
    hcas = (*(hca(name, layer="InfiniBand") for name in names[:3]), hca("eth", layer="Ethernet"))
    node = machine("NODE NODE SYS NODE", "SYS SYS NODE SYS", names=names, hcas=hcas)
    for facts in ({"own_numa_node": 2}, {"name": "NVIDIA GB200"}):
        grace = msgspec.structs.replace(node, gpus=tuple(msgspec.structs.replace(g, **facts) for g in node.gpus))
        found = rails(grace)
        assert found.own == {0: ("m0", "m1"), 1: ("m2",)}
        assert list(found.not_rails) == ["eth"]
    other = tuple(msgspec.structs.replace(g, name="NVIDIA H200") for g in node.gpus)
    assert rails(msgspec.structs.replace(node, gpus=other)).own == {}


def test_with_grace_sys_to_everything_says_nothing():
    gpus = tuple(Gpu(index=i, name="NVIDIA GB200", nics={"m0": "SYS", "m1": "SYS"}) for i in range(2))
    found = rails(Node(name="n", gpus=gpus, hcas=(Hca(name="m0"), Hca(name="m1"))))
    assert (found.unknown_gpus, found.unknown_hcas) == ((0, 1), ("m0", "m1"))
    assert (found.without, found.not_rails) == ((), {})
