"""pcie_link: lost lanes are found and blamed on the card; idle GPUs, slots, virtual machines and unused HCAs are left alone or only warned of."""

from msgspec.structs import replace

from preflight.model import (
    Clocks,
    Evidence,
    Expected,
    GpuProcess,
    Hca,
    Inventory,
    PcieLink,
    Platform,
    Port,
    Problem,
    Profile,
    Settings,
    Verdict,
)
from preflight_checks.pcie_link import judge
from tests.builders import H100, make_gpu, make_node

FULL = PcieLink(generation=5, width=16, max_generation=5, max_width=16, device_max_generation=5)
METAL = Platform(virtual_machine="none", container="none")
VM = Platform(virtual_machine="kvm", container="none")
PROFILE = Profile(
    name="H100-80GB",
    gpu_names=(H100,),
    pcie_generation=Expected(value=5, source="test"),
    pcie_width=Expected(value=16, source="test"),
)


def link(**changes):
    return replace(FULL, **changes)


def node(*links, platform=METAL, count=8, gpu=None, **changes):
    every = (*links, *(FULL,) * (count - len(links)))
    gpus = tuple(make_gpu("node0", i, **{"pcie": pcie, **(gpu or {})}) for i, pcie in enumerate(every))
    return replace(make_node(), gpus=gpus, platform=platform, **changes)


def judged(*nodes, profile=PROFILE, **settings):
    profiles = {H100.casefold(): profile} if profile else {}
    return list(judge(Evidence(inventory=Inventory(nodes=nodes), profiles=profiles, settings=Settings(**settings))))


def not_passed(findings):
    return [f for f in findings if f.verdict is not Verdict.PASS]


def test_full_links_pass_in_one_line():
    [finding] = judged(node())
    assert (finding.verdict, finding.observed) == (Verdict.PASS, "8 GPUs: PCIe at full width")


def test_a_gpu_that_lost_lanes_fails_and_is_blamed():
    [finding] = not_passed(judged(node(link(width=8))))
    assert finding.verdict is Verdict.FAIL
    assert finding.observed == "PCIe x8 of x16, generation 5 of 5"
    assert finding.blames.name == "node0 GPU 0 (GPU-node0-0)"
    assert "reseat" in finding.remedy


def test_gpus_that_are_all_narrow_alike_are_one_finding_about_the_node():
    [finding] = judged(node(*(link(width=8) for _ in range(8))))
    assert (finding.verdict, finding.subject, finding.blames.kind) == (Verdict.WARN, "node0", "environment")


def test_a_narrow_gpu_alone_fails_only_where_its_slot_is_known_to_have_more_lanes():
    [finding] = judged(node(link(width=8), count=1))
    assert finding.verdict is Verdict.WARN
    [finding] = judged(node(link(width=8), count=1, gpu={"pci_upstream": ("0000:00:01.0", "pci0000:00")}))
    assert finding.verdict is Verdict.FAIL


def test_a_geforce_card_in_what_lanes_are_left_is_a_warning():
    cards = {"name": "NVIDIA GeForce RTX 3090", "pci_upstream": ("0000:00:01.0", "pci0000:00")}
    [finding] = not_passed(judged(node(link(width=4), count=2, gpu=cards)))
    assert finding.verdict is Verdict.WARN


def test_idle_gpus_lower_their_generation_and_pass():
    [finding] = judged(node(link(generation=1), gpu={"clocks": Clocks(throttle_reasons=("idle",))}))
    assert finding.verdict is Verdict.PASS
    assert "GPU 0: generation 1 of 5, as idle GPUs do" in finding.observed


def test_a_gpu_at_work_on_a_low_generation_is_a_warning():
    busy = {"clocks": Clocks(throttle_reasons=()), "processes": (GpuProcess(pid=1),)}
    [finding] = not_passed(judged(node(link(generation=3), gpu=busy)))
    assert finding.verdict is Verdict.WARN
    assert "generation 3 of 5 although the GPU is at work" in finding.observed


def test_a_slot_that_allows_less_than_the_product_is_one_warning_for_all():
    [finding] = judged(node(*(link(generation=4, max_generation=4) for _ in range(8))))
    assert (finding.verdict, finding.subject, finding.blames) == (Verdict.WARN, "node0", None)
    assert "the slot allows generation 4, the product can do 5" in finding.observed
    [narrow] = not_passed(judged(node(link(width=8, max_width=8))))
    assert narrow.subject == "node0 GPU 0 (GPU-node0-0)"
    assert "the slot allows x8, the product can do x16" in narrow.observed


def test_a_product_that_can_do_more_than_its_machines_give_is_measured_by_its_profile():
    newer = [link(device_max_generation=6) for _ in range(8)]
    assert not_passed(judged(node(*newer))) == []
    [finding] = judged(node(*newer), profile=None)
    assert finding.verdict is Verdict.WARN


def test_without_a_profile_the_widest_peer_is_the_measure():
    [finding] = not_passed(judged(node(link(width=8, max_width=8)), profile=None))
    assert "the product can do x16" in finding.observed


def test_virtual_machines_are_not_judged_by_placeholders():
    shown = PcieLink(generation=1, width=1, max_generation=5, max_width=16)
    for platform in (VM, None, Platform()):
        [finding] = judged(node(*(shown,) * 8, platform=platform))
        assert finding.verdict is Verdict.SKIP
    [real] = not_passed(judged(node(shown)))
    assert real.verdict is Verdict.FAIL
    [virtual] = not_passed(judged(node(link(width=8), platform=VM)))
    assert virtual.verdict is Verdict.WARN


def test_grace_gpus_are_not_judged():
    [finding] = judged(node(*(link(width=1) for _ in range(4)), count=4, gpu={"own_numa_node": 2}))
    assert finding.verdict is Verdict.SKIP
    assert "link of its own" in finding.observed
    [finding] = judged(node(*(link(width=1) for _ in range(4)), count=4, gpu={"name": "NVIDIA GB200"}), profile=None)
    assert finding.verdict is Verdict.SKIP  # also where the driver keeps its memory apart from the host's


def test_what_could_not_be_read_is_unknown_and_what_a_product_does_not_have_is_skipped():
    refused = Problem(source="nvmlDeviceGetCurrPcieLinkWidth", text="Unknown Error (NVML 999)", field="pcie")
    [finding] = judged(node(*(None,) * 8, gpu={"problems": (refused,)}))
    assert finding.verdict is Verdict.UNKNOWN
    assert "Unknown Error" in finding.observed
    partly = judged(node(*(link(width=None),) * 8, gpu={"problems": (refused,)}))
    assert [f.verdict for f in partly] == [Verdict.UNKNOWN]
    lacking = judged(node(*(link(width=None),) * 8, gpu={"unsupported": ("width",)}))
    assert [f.verdict for f in lacking] == [Verdict.SKIP]
    without = judged(node(*(None,) * 8, gpu={"unsupported": ("pcie",)}))
    assert [f.verdict for f in without] == [Verdict.SKIP]
    denied = Problem(source="nvml", text="Insufficient Permissions (NVML 4)", field="pcie")
    assert judged(node(*(None,) * 8, gpu={"problems": (denied,)}))[0].verdict is Verdict.UNKNOWN


def hca(name, *, up=True, **changes):
    port = Port(number=1, state="active" if up else "down", physical_state="LinkUp" if up else "Polling")
    return Hca(name=name, **{"pcie": FULL, "board_id": "MT_0838", "ports": (port,), **changes})


def with_hcas(*hcas, **changes):
    return judged(replace(make_node(gpus=0), hcas=hcas, platform=METAL, **changes))


def test_full_hcas_pass_without_gpus_too():
    [finding] = with_hcas(hca("mlx5_0"), hca("mlx5_1"))
    assert finding.observed == "2 HCAs: PCIe at full width and generation"


def test_an_hca_that_lost_lanes_fails_and_is_blamed():
    bad, passed = with_hcas(hca("mlx5_0", pcie=link(width=8)), hca("mlx5_1"))
    assert (bad.verdict, bad.blames.kind, bad.blames.name) == (Verdict.FAIL, "nic", "node0 mlx5_0")
    assert passed.verdict is Verdict.PASS


def test_hcas_of_one_kind_that_are_narrow_alike_are_the_machines_wiring():
    [finding] = with_hcas(*(hca(f"mlx5_{i}", pcie=link(width=8)) for i in range(2)))
    assert (finding.verdict, finding.blames) == (Verdict.WARN, None)


def test_a_slow_generation_of_an_hca_is_a_warning():
    assert not_passed(with_hcas(hca("mlx5_0", pcie=link(generation=3)), hca("mlx5_1")))[0].verdict is Verdict.WARN


def test_hcas_without_a_link_shares_of_cards_and_unknown_widths_are_not_judged():
    assert with_hcas(hca("mlx5_0", up=False, pcie=link(width=1))) == []
    assert with_hcas(hca("mlx5_0", is_virtual_function=True, pcie=link(width=1))) == []
    assert with_hcas(hca("mlx5_0", pcie=None), hca("mlx5_1", pcie=PcieLink())) == []


def test_runs_without_gpus_say_nothing_of_them():
    assert judged(node(link(width=8)), cpu_declared=True) == []
