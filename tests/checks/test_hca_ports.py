"""Ports of the job's HCAs: down, slow, missing, half listed; and those that are nobody's business."""

import pytest
from msgspec.structs import replace

from preflight.model import Gpu, Platform, Problem, Rule, Verdict
from preflight_checks import hca_ports
from tests.builders import make_gpu, make_node
from tests.checks.nodes_found import GBIT, findings_of, make_hca, make_port, only, verdicts

DOWN = make_port(state="down", physical_state="Polling", rate_bytes_per_s=None, width=None, lid=None)


def node(*hcas, name="n1", gpus=8, **changes):
    """GPU i has HCA i behind its PCIe switch; further HCAs are far from all."""
    near = {hca.name: "NODE" for hca in hcas}
    found = tuple(
        make_gpu(name, i, nics={**near, **({hcas[i].name: "PIX"} if i < len(hcas) else {})}) for i in range(gpus)
    )
    return replace(make_node(name, **changes), gpus=found, hcas=hcas)


def eight(rate=400 * GBIT):
    return [make_hca(f"mlx5_{i}", port=make_port(rate_bytes_per_s=rate)) for i in range(8)]


def test_eight_ports_of_one_speed_pass_with_their_number_and_rate():
    finding = only(hca_ports.CHECK, node(*eight()))
    assert finding.verdict is Verdict.PASS
    assert finding.observed == "8 of 8 ports up: 8 x 400 Gbit/s"


def test_a_polling_port_is_named_with_both_states_and_the_count():
    """leptonai/gpud pull requests 482 and 752."""
    hcas = eight()
    hcas[5] = make_hca("mlx5_10", port=DOWN)
    finding = only(hca_ports.CHECK, node(*hcas))
    assert finding.verdict is Verdict.FAIL
    assert finding.blames.name == "n1 mlx5_10"
    for words in ("state down", "physical state Polling", "sees no partner", "7 of 8 ports up"):
        assert words in finding.observed
    assert "10" not in finding.observed.replace("mlx5_10", "")  # a down port's rate is a placeholder
    assert "8 ports up at 400 Gbit/s" in finding.expected


def test_a_listing_that_half_failed_keeps_its_good_part_and_is_a_warning():
    problem = Problem(source="/sys/class/infiniband/mlx5_8", text="No such device", field="hcas")
    findings = findings_of(hca_ports.CHECK, node(*eight(200 * GBIT), problems=(problem,)))
    assert verdicts(findings) == [Verdict.WARN, Verdict.PASS]
    assert "mlx5_8" in findings[0].observed
    assert findings[1].observed == "8 of 8 ports up: 8 x 200 Gbit/s"


def test_ports_that_are_nobodys_rail_may_be_down():
    """leptonai/gpud issue 989: 12 ports, 4 down, 8 needed."""
    spare = [make_hca(f"mlx5_{i}", port=DOWN) for i in range(8, 12)]
    finding = only(hca_ports.CHECK, node(*eight(), *spare))
    assert finding.verdict is Verdict.PASS
    assert "4 other HCAs are not the job's" in finding.observed


def test_one_port_below_the_speed_of_its_peers_is_blamed_by_itself():
    hcas = eight()
    hcas[2] = make_hca("mlx5_2", port=make_port(rate_bytes_per_s=100 * GBIT, width=1))
    finding = only(hca_ports.CHECK, node(*hcas))
    assert (finding.verdict, finding.blames.name) == (Verdict.FAIL, "n1 mlx5_2")
    assert "100 Gbit/s, 1 lanes" in finding.observed


def test_a_slow_node_is_seen_by_the_others():
    slow = node(*eight(200 * GBIT), name="n3")
    findings = findings_of(hca_ports.CHECK, node(*eight()), node(*eight(), name="n2"), slow)
    assert {f.subject.split()[0] for f in findings if f.verdict is Verdict.FAIL} == {"n3"}


def test_another_product_may_have_another_network():
    """A mixed partition is no fault: nodes of another product are compared among themselves."""
    a100 = node(*eight(200 * GBIT), name="n3")
    a100 = replace(a100, gpus=tuple(replace(gpu, name="NVIDIA A100-SXM4-80GB") for gpu in a100.gpus))
    findings = findings_of(hca_ports.CHECK, node(*eight()), node(*eight(), name="n2"), a100)
    assert verdicts(findings) == [Verdict.PASS] * 3
    assert findings[2].expected == "8 ports up at 200 Gbit/s"


def test_two_speeds_without_a_majority_blame_nobody():
    hcas = [make_hca("mlx5_0"), make_hca("mlx5_1", port=make_port(rate_bytes_per_s=200 * GBIT))]
    finding = only(hca_ports.CHECK, node(*hcas, gpus=2))
    assert (finding.verdict, finding.blames) == (Verdict.WARN, None)


def test_a_port_without_a_subnet_manager_is_said_to_be_that():
    hcas = eight()
    hcas[0] = make_hca("mlx5_0", port=make_port(state="init"))
    finding = only(hca_ports.CHECK, node(*hcas))
    assert finding.verdict is Verdict.FAIL
    assert "no subnet manager" in finding.observed
    assert finding.blames.confidence == "possible"


def test_a_card_of_two_ports_is_used_through_the_one_that_is_up():
    hcas = eight()
    hcas[0] = make_hca("mlx5_0", ports=(DOWN, make_port(number=2)))
    assert only(hca_ports.CHECK, node(*hcas)).verdict is Verdict.PASS


def test_in_a_virtual_machine_that_shows_no_places_every_infiniband_port_counts():
    hcas = [*eight()[:7], make_hca("mlx5_7", port=DOWN), make_hca("eth", port=make_port(link_layer="Ethernet"))]
    far = replace(node(*hcas), gpus=tuple(make_gpu("n1", i, nics={hca.name: "SYS" for hca in hcas}) for i in range(8)))
    guest = replace(far, platform=Platform(virtual_machine="microsoft", container="none"))
    down, *_ = findings_of(hca_ports.CHECK, guest)
    assert (down.verdict, down.blames.name) == (Verdict.FAIL, "n1 mlx5_7")
    assert "7 of 8 ports up" in down.observed
    metal = replace(far, platform=Platform(virtual_machine="none", container="none"))
    down, *_ = findings_of(hca_ports.CHECK, metal)
    assert (down.verdict, down.blames) == (Verdict.WARN, None)
    assert only(hca_ports.CHECK, replace(guest, hcas=tuple(hcas[:7]))).verdict is Verdict.PASS
    slow = make_hca("mlx5_7", port=make_port(rate_bytes_per_s=100 * GBIT))
    for machine, verdict in ((guest, Verdict.FAIL), (metal, Verdict.WARN)):
        assert findings_of(hca_ports.CHECK, replace(machine, hcas=(*hcas[:7], slow)))[0].verdict is verdict


def dual(*down, name="n1"):
    """Four cards of two ports, each card beside a GPU; HCAs of these numbers are down."""
    hcas = [
        make_hca(
            f"mlx5_{i}", port=DOWN if i in down else make_port(), pci_bus_id=f"0000:{0x50 + i // 2:02x}:00.{i % 2}"
        )
        for i in range(8)
    ]
    near = {hca.name: "NODE" for hca in hcas}
    gpus = tuple(make_gpu(name, i, nics={**near, f"mlx5_{2 * i}": "PIX", f"mlx5_{2 * i + 1}": "PIX"}) for i in range(4))
    return replace(make_node(name), gpus=gpus, hcas=tuple(hcas))


def test_cards_that_are_wired_through_one_of_two_ports_have_no_port_down():
    finding = only(hca_ports.CHECK, dual(1, 3, 5, 7))
    assert finding.verdict is Verdict.PASS
    assert finding.observed.startswith("4 of 4 ports up")


def test_where_most_cards_have_both_ports_up_one_that_is_down_is_named():
    finding = findings_of(hca_ports.CHECK, dual(3))[0]
    assert (finding.verdict, finding.blames.name) == (Verdict.FAIL, "n1 mlx5_3")
    fleet = [dual(name=f"n{i}") for i in range(3)]
    assert findings_of(hca_ports.CHECK, *fleet, dual(1, 3, 5, 7, name="n9"))[0].subject == "n9 mlx5_1"


def test_a_card_without_any_port_up_is_down():
    findings = findings_of(hca_ports.CHECK, dual(1, 2, 3, 5, 7))
    assert {finding.subject for finding in findings if finding.verdict is Verdict.FAIL} == {"n1 mlx5_2", "n1 mlx5_3"}


def test_a_site_that_needs_eight_ports_says_so():
    rules = {"hca_ports": Rule(limits={"ports_needed": 8.0})}
    assert only(hca_ports.CHECK, node(*eight()[:7], gpus=7), rules=rules).verdict is Verdict.FAIL
    assert only(hca_ports.CHECK, node(*eight()), rules=rules).verdict is Verdict.PASS
    assert only(hca_ports.CHECK, make_node("n1", hcas=()), rules=rules).verdict is Verdict.FAIL


@pytest.mark.parametrize("ports", [None, (), (make_port(state=None),)])
def test_ports_of_unknown_state_are_unknown(ports):
    hcas = eight()
    hcas[3] = make_hca("mlx5_3", ports=ports)
    unknown, rest = findings_of(hca_ports.CHECK, node(*hcas))
    assert unknown.verdict is Verdict.UNKNOWN
    assert "mlx5_3" in unknown.observed
    assert rest.observed.startswith("7 of 8 ports up")


def test_unreadable_hcas_are_unknown_and_none_is_nothing_to_judge():
    assert only(hca_ports.CHECK, make_node("n1", hcas=None)).verdict is Verdict.UNKNOWN
    assert only(hca_ports.CHECK, make_node("n1", hcas=())).verdict is Verdict.SKIP
    assert only(hca_ports.CHECK, make_node("n1", gpus=0, hcas=(make_hca(port=DOWN),))).verdict is Verdict.SKIP


def test_where_no_place_is_known_every_hca_counts():
    gpus = (Gpu(index=0, uuid="GPU-0"),)
    made = make_node("n1", hcas=(make_hca("mlx5_0"), make_hca("mlx5_1", port=DOWN)))
    finding = findings_of(hca_ports.CHECK, replace(made, gpus=gpus))[0]
    assert finding.blames.name == "n1 mlx5_1"
