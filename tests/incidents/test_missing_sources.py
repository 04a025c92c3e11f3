"""Parts of the system that aren't there, as in containers without /sys: what they would tell is unknown, and the rest of the answer stays."""

import shutil

import pytest

from preflight.model import Verdict
from tests.incidents.boxes import BOXES
from tests.incidents.live import discovered, judged, plant
from tests.trees import Tree

LOG = {"xid", "nvswitch_errors"}  # the host's, in a container


def without(part, name, tmp_path, monkeypatch):
    box, tree = BOXES[name](), Tree(tmp_path / "root")
    plant(tree, box)
    gone = tree.root / part
    if gone.is_dir():
        shutil.rmtree(gone)
    else:
        gone.unlink()
    return judged(discovered(box, tmp_path, monkeypatch, tree=tree))


@pytest.mark.parametrize("name", ["HGX H100", "container with two of eight H100", "Slurm step with two of eight H100"])
def test_without_sys_the_cards_are_unknown_and_the_gpus_are_judged(name, tmp_path, monkeypatch):
    found = without("sys", name, tmp_path, monkeypatch)
    assert found.answer == "undecided"
    assert found.text(Verdict.FAIL) == []
    unknown = {finding.check for finding in found.with_verdict(Verdict.UNKNOWN)}
    assert unknown - LOG == {"hca_ports", "hca_errors", "nic_affinity"}
    passed = {finding.check for finding in found.with_verdict(Verdict.PASS)}
    assert {"gpus_answer", "ecc_errors", "nvlink_links", "nvlink_pairs", "fabric_state", "row_remap"} <= passed


@pytest.mark.parametrize(
    ("part", "unknown"),
    [
        ("proc/driver", {"gpu_direct"}),
        ("proc/modules", set()),
        ("proc/2", set()),
        ("dev", set()),
        ("sys/bus/pci", {"nic_affinity"}),
        ("sys/class/net", set()),
    ],
)
def test_one_source_that_is_missing_costs_what_it_tells(part, unknown, tmp_path, monkeypatch):
    found = without(part, "HGX H100", tmp_path, monkeypatch)
    assert found.text(Verdict.FAIL) == []
    assert found.answer == "go", found.text(Verdict.UNKNOWN)
    assert {finding.check for finding in found.with_verdict(Verdict.UNKNOWN)} == unknown
    assert all("; ;" not in finding.observed for finding in found.findings)
