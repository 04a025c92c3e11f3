"""33 machines from public threads, as text, through the reader and the checks of how things are joined: the verdict that each deserves, with its product and without a cluster."""

import pytest

from preflight.discover.snapshots import read_node
from preflight.model import Evidence, Inventory, Verdict
from preflight.plan.profiles import profiles_of
from preflight_checks import nic_affinity, nvlink_pairs, p2p_access
from tests.topology_texts import load, names, render

CHECKS = (nvlink_pairs.CHECK, nic_affinity.CHECK, p2p_access.CHECK)
# what a text alone can't show: it takes a measurement
MORE_IS_NEEDED = {
    "pcie-4gpu-pxb-pix": "PASS",  # the pairs that hang do so only when they are used
    "rtx4090-6gpu": "PASS",  # peer access slower than a copy through the host: measured
}


def findings(path, machine):
    node = read_node(path, product=machine.product, name="n1")
    inventory = Inventory(nodes=(node,))
    evidence = Evidence(inventory=inventory, profiles=profiles_of(inventory, []))
    return [finding for check in CHECKS for finding in check.judge(evidence)]


@pytest.mark.parametrize("name", names())
def test_a_machine_gets_the_verdict_that_it_deserves(name, tmp_path):
    machine = load(name)
    path = tmp_path / "topo.txt"
    path.write_text(render(machine))
    found = [finding.verdict for finding in findings(path, machine) if finding.verdict != Verdict.SKIP]
    worst = min(found, key=lambda verdict: verdict.rank)
    assert worst == MORE_IS_NEEDED.get(name, machine.verdict)


def test_the_gpu_that_left_the_fabric_is_blamed_alone(tmp_path):
    machine = load("b200-8gpu-12nic-gpu2-no-nvlink")
    path = tmp_path / "topo.txt"
    path.write_text(render(machine))
    (failed,) = [finding for finding in findings(path, machine) if finding.verdict == Verdict.FAIL]
    assert (failed.blames.kind, failed.blames.name) == ("gpu", "n1 GPU 2")


@pytest.mark.parametrize("style", [{"command": False, "legend": False}])
def test_without_a_word_on_the_view_missing_nvlinks_are_no_fault(style, tmp_path):
    machine = load("8gpu-10nic-all-sys-one-pix")
    path = tmp_path / "topo.txt"
    path.write_text(render(machine, **style))
    for product in (None, "NVIDIA H100 80GB HBM3"):
        node = read_node(path, product=product)
        inventory = Inventory(nodes=(node,))
        evidence = Evidence(inventory=inventory, profiles=profiles_of(inventory, []))
        assert {finding.verdict for finding in nvlink_pairs.CHECK.judge(evidence)} == {Verdict.UNKNOWN}
