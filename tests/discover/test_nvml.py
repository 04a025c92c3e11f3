"""What is read from NVML, with the real binding and a Python object in the library's place."""

from dataclasses import replace

import pytest

from preflight.discover.nvlink import nvlink_domains
from preflight.discover.nvml import read_gpus
from preflight.discover.nvml_reading import NvmlReading
from preflight.model import Link, from_json, to_json
from tests.fakes import (
    NOT_SUPPORTED,
    FakeGpu,
    FakeLink,
    FakeNvml,
    a100_pcie_bridged,
    a100_pcie_unbridged,
    gb200_tray,
    geforce,
    h100_sxm,
    lost,
)

V = "nvmlDeviceGetGpuFabricInfoV"


def read(monkeypatch, gpus, **library):
    nvml = FakeNvml(gpus, **library).install(monkeypatch)
    reading = read_gpus()
    assert nvml.initialised == 0  # no handle is held between calls
    assert from_json(to_json(reading), NvmlReading) == reading
    return reading


def nvlinks(gpus):
    return {(gpu.index, peer.index): peer.num_nvlinks for gpu in gpus for peer in gpu.peers}


def domains(reading, node="n1"):
    return list(nvlink_domains(node, reading.gpus, undecided=reading.undecided).values())


def test_an_hgx_board_has_nv18_between_all_pairs_though_no_link_names_a_gpu(monkeypatch):
    reading = read(monkeypatch, h100_sxm())
    assert len(reading.gpus) == 8
    assert set(nvlinks(reading.gpus).values()) == {18}
    assert domains(reading) == ["n1"] * 8
    assert reading.problems == ()
    gpu = reading.gpus[2]
    assert (gpu.uuid, gpu.name, gpu.pci_bus_id) == ("GPU-h100-2", "NVIDIA H100 80GB HBM3", "0000:12:00.0")
    assert (gpu.memory_bytes, gpu.minor_number, gpu.serial) == (85_520_809_984, 2, "1650000000001")
    assert (gpu.mig_enabled, gpu.ecc_enabled, gpu.vbios_version) == (False, True, "96.00.89.00.01")
    assert gpu.problems == ()
    assert gpu.links[0] == Link(
        index=0,
        active=True,
        state="active",
        peer_kind="switch",
        peer_pci_bus_id="0000:c0:00.0",
        version="4.0",
        speed_bytes_per_s=26_562_000_000,
        counters={"replay": 0, "recovery": 0, "crc": 0},
    )


def test_versions_are_read_from_the_system(monkeypatch):
    reading = read(monkeypatch, h100_sxm(1))
    assert reading.confidential_compute is False
    assert (reading.driver_version, reading.cuda_version, reading.nvml_version) == ("550.54.15", "12.4", "12.550.54.15")


def test_one_inactive_link_lowers_the_number_of_links_to_every_peer(monkeypatch):
    gpus = h100_sxm()
    gpus[3] = replace(gpus[3], links=(FakeLink(active=False), *(FakeLink(),) * 17))
    links = nvlinks(read(monkeypatch, gpus).gpus)
    assert links[0, 3] == links[3, 0] == 17
    assert links[0, 1] == 18


def test_switch_links_without_the_drivers_consent_join_nobody(monkeypatch):
    reading = read(monkeypatch, h100_sxm(2), p2p_nvlink=5)
    assert set(nvlinks(reading.gpus).values()) == {0}
    assert domains(reading) == ["none", "none"]


def test_a_pair_on_which_the_driver_says_nothing_is_unknown(monkeypatch):
    reading = read(monkeypatch, h100_sxm(2), missing=["nvmlDeviceGetP2PStatus"])
    assert set(nvlinks(reading.gpus).values()) == {None}
    assert domains(reading) == [None, None]


@pytest.mark.parametrize("places", [(0, 1, 2, 3), (2,)])
def test_a_far_end_of_unknown_kind_may_be_a_switch(monkeypatch, places):
    """Old drivers don't say what is at the other end of a link: its PCI id is no GPU's, and that is not "no NVLink"."""
    refused = {"nvmlDeviceGetNvLinkRemoteDeviceType": NOT_SUPPORTED}
    gpus = [replace(gpu, errors=refused if i in places else {}) for i, gpu in enumerate(h100_sxm(4))]
    numbers = nvlinks(read(monkeypatch, gpus).gpus)
    assert {number for pair, number in numbers.items() if set(pair) & set(places)} == {None}
    cards = [replace(gpu, errors=refused) for gpu in a100_pcie_bridged()]
    bridged = nvlinks(read(monkeypatch, cards).gpus)
    assert (bridged[0, 1], bridged[0, 2]) == (12, 0)


def test_bridged_pcie_cards_form_one_domain_for_each_pair(monkeypatch):
    reading = read(monkeypatch, a100_pcie_bridged(), ancestor=40)
    links = nvlinks(reading.gpus)
    assert links[0, 1] == links[3, 2] == 12
    assert links[0, 2] == links[1, 3] == 0
    assert domains(reading) == ["n1:gpu0", "n1:gpu0", "n1:gpu2", "n1:gpu2"]
    assert reading.gpus[0].peers[1].ancestor == "NODE"


def test_pcie_cards_without_bridges_have_links_and_no_domain(monkeypatch):
    reading = read(monkeypatch, a100_pcie_unbridged())
    assert [len(gpu.links) for gpu in reading.gpus] == [12] * 4
    assert domains(reading) == ["none"] * 4
    assert not any(gpu.problems for gpu in reading.gpus)


def test_what_a_product_does_not_have_is_no_problem(monkeypatch):
    reading = read(monkeypatch, geforce())
    gpu = reading.gpus[0]
    assert (gpu.mig_enabled, gpu.ecc_enabled, gpu.serial) == (None, None, None)
    assert gpu.links == ()
    assert not any(gpu.problems for gpu in reading.gpus)
    assert domains(reading) == ["none", "none"]


def test_a_single_gpu_without_nvlink_is_alone(monkeypatch):
    assert domains(read(monkeypatch, geforce(1))) == ["none"]


def test_a_fabric_domain_spans_nodes_by_cluster_and_clique(monkeypatch):
    reading = read(monkeypatch, gb200_tray())
    assert domains(reading) == ["00010203-0405-0607-0809-0a0b0c0d0e0f.7"] * 4
    assert set(nvlinks(reading.gpus).values()) == {18}
    assert reading.gpus[3].pci_bus_id == "0003:01:00.0"
    assert reading.gpus[0].links[0].peer_kind == "switch"
    assert reading.gpus[0].links[0].peer_pci_bus_id is None


@pytest.mark.parametrize("understood", [(2,), (1,), (3,)])
def test_fabric_info_is_read_in_whichever_form_the_driver_understands(monkeypatch, understood):
    gpus = [replace(gpu, fabric_versions=understood) for gpu in gb200_tray()]
    reading = read(monkeypatch, gpus, missing=[V] if understood == (1,) else [])
    assert domains(reading)[0] == "00010203-0405-0607-0809-0a0b0c0d0e0f.7"
    assert not any(gpu.problems for gpu in reading.gpus)


@pytest.mark.parametrize(("state", "status"), [(1, 0), (2, 0), (3, 999)])
def test_a_fabric_that_is_not_set_up_leaves_the_domain_unknown_and_says_so(monkeypatch, state, status):
    gpus = [replace(gpu, fabric=(state, status, bytes(16), 0)) for gpu in h100_sxm(2)]
    reading = read(monkeypatch, gpus)
    assert domains(reading) == [None, None]
    assert [gpu.problems[0].source for gpu in reading.gpus] == ["NVLink fabric"] * 2


def test_a_gpu_that_cannot_be_opened_keeps_its_place_and_costs_the_others_nothing(monkeypatch):
    gpus = h100_sxm()
    gpus[5] = replace(gpus[5], errors={"nvmlDeviceGetHandleByIndex_v2": 15})
    reading = read(monkeypatch, gpus)
    assert [gpu.index for gpu in reading.gpus] == list(range(8))
    broken = reading.gpus[5]
    assert broken.uuid is None
    assert broken.links is None
    assert [problem.text for problem in broken.problems] == ["GPU is lost (NVML 15)"]
    assert nvlinks(reading.gpus)[0, 1] == 18
    assert nvlinks(reading.gpus)[0, 5] is None
    assert domains(reading) == ["n1"] * 5 + [None] + ["n1"] * 2


def test_a_gpu_lost_after_opening_is_asked_once_and_no_more(monkeypatch):
    gpus = h100_sxm(2)
    gpus[1] = lost(gpus[1])
    reading = read(monkeypatch, gpus)
    assert len(reading.gpus[1].problems) == 1
    assert "lost" in reading.gpus[1].problems[0].text
    assert reading.gpus[0].problems == ()


def test_other_errors_of_one_fact_cost_that_fact_only_and_are_kept(monkeypatch):
    gpu = replace(h100_sxm(1)[0], errors={"nvmlDeviceGetUUID": 999})
    (read_gpu,) = read(monkeypatch, [gpu]).gpus
    assert read_gpu.uuid is None
    assert read_gpu.name == "NVIDIA H100 80GB HBM3"
    assert [problem.source for problem in read_gpu.problems] == ["nvmlDeviceGetUUID"]


def test_an_old_library_without_newer_functions_still_gives_the_links(monkeypatch):
    old = ["nvmlDeviceGetFieldValues", V, "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetMigMode"]
    reading = read(monkeypatch, h100_sxm(2), missing=old)
    gpu = reading.gpus[0]
    assert len(gpu.links) == 18
    assert gpu.links[0].version == "4.0"
    assert gpu.links[0].speed_bytes_per_s is None
    assert gpu.mig_enabled is None
    assert domains(reading) == ["n1", "n1"]


def test_without_any_way_to_ask_for_links_they_are_unknown_not_absent(monkeypatch):
    reading = read(monkeypatch, h100_sxm(2), missing=["nvmlDeviceGetFieldValues", "nvmlDeviceGetNvLinkState"])
    assert [gpu.links for gpu in reading.gpus] == [None, None]
    assert domains(reading) == [None, None]


def test_a_speed_that_no_link_has_is_absent(monkeypatch):
    gpu = replace(h100_sxm(1)[0], link_mb_per_s=2**32 - 14)
    assert read(monkeypatch, [gpu]).gpus[0].links[0].speed_bytes_per_s is None


def test_mig_mode_is_told(monkeypatch):
    assert read(monkeypatch, [FakeGpu(mig=1)]).gpus[0].mig_enabled is True


@pytest.mark.parametrize("code", [9, 12])
def test_a_missing_driver_is_not_a_problem_of_the_reading(monkeypatch, code):
    reading = read(monkeypatch, [], start=code)
    assert reading.no_driver
    assert reading.gpus is None
    assert reading.problems == ()


def test_a_driver_unlike_its_library_is_a_problem_that_says_what_to_do(monkeypatch):
    reading = read(monkeypatch, [], start=18)
    assert not reading.no_driver
    assert reading.gpus is None
    assert "reboot" in reading.note
    assert reading.problems


def test_a_library_that_counts_absurdly_is_not_believed(monkeypatch):
    reading = read(monkeypatch, [], count=2**31)
    assert reading.gpus is None
    assert "2147483648" in reading.note


@pytest.mark.parametrize(("told", "confidential"), [(1, True), (0, False), (None, None)])
def test_confidential_computing_is_told_or_unknown(monkeypatch, told, confidential):
    reading = read(monkeypatch, h100_sxm(1), confidential=told)
    assert reading.confidential_compute is confidential
    assert reading.problems == ()


def test_a_library_that_cannot_count_gives_a_reason(monkeypatch):
    reading = read(monkeypatch, [], missing=["nvmlDeviceGetCount_v2"])
    assert reading.gpus is None
    assert reading.problems


def test_a_machine_without_the_library_has_no_driver(monkeypatch):
    import pynvml

    monkeypatch.setattr(pynvml, "CDLL", _no_library)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    assert read_gpus().no_driver


def _no_library(name):
    raise OSError(f"{name}: cannot open shared object file")
