"""Single questions that the driver refuses, one after the other: each costs its own facts, blames nobody, and never passes for healthy."""

import pytest

from preflight.discover.nvlink import nvlink_domains
from preflight.discover.nvml import read_gpus
from preflight.model import Verdict
from tests import fakes
from tests.fakes import INVALID_ARGUMENT, NO_PERMISSION, NOT_SUPPORTED
from tests.incidents.boxes import BOXES, changed, healthy
from tests.incidents.live import PairedNvml, judged

FUNCTIONS = sorted(fakes._DEVICE)
UNKNOWN_ERROR = 999  # nvml.h, nvmlReturn_t
CODES = (NOT_SUPPORTED, NO_PERMISSION, INVALID_ARGUMENT, UNKNOWN_ERROR)
# a GPU that has no fabric beside seven that are registered is at fault: that refusal is the sign
SIGNS = {("nvmlDeviceGetGpuFabricInfoV", NOT_SUPPORTED), ("nvmlDeviceGetGpuFabricInfo", NOT_SUPPORTED)}


def asked_again(monkeypatch, box, errors):
    """The healthy machine with its GPUs as the library tells them now. `errors`: place -> function -> code."""
    from dataclasses import replace

    gpus = [replace(gpu, errors=errors.get(place, {})) for place, gpu in enumerate(box.gpus)]
    PairedNvml(replace(box, gpus=gpus)).install(monkeypatch)
    reading = read_gpus()
    node = healthy("HGX H100")
    domains = nvlink_domains(node.name, reading.gpus, undecided=reading.undecided)
    places = {
        gpu.index: {"pci_upstream": gpu.pci_upstream, "nics": gpu.nics, "cpus": gpu.cpus, "numa_node": gpu.numa_node}
        for gpu in node.gpus
    }
    gpus = tuple(changed(gpu, nvlink_domain=domains[gpu.index], **places[gpu.index]) for gpu in reading.gpus)
    return changed(node, gpus=gpus)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_question_that_all_gpus_refuse_blames_nobody(function, monkeypatch):
    box = BOXES["HGX H100"]()
    for code in CODES:
        found = judged(asked_again(monkeypatch, box, {place: {function: code} for place in range(8)}))
        assert found.text(Verdict.FAIL) == [], (function, code)
        assert found.blamed == set()
        assert "the check broke" not in " ".join(found.text(Verdict.UNKNOWN))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_question_that_one_gpu_refuses_blames_nobody_either(function, monkeypatch):
    box = BOXES["HGX H100"]()
    for code in CODES:
        found = judged(asked_again(monkeypatch, box, {5: {function: code}}))
        if (function, code) in SIGNS:
            continue
        assert found.text(Verdict.FAIL) == [], (function, code)
        assert {name for _, name in found.suspected if "GPU" in name and "GPU 5" not in name} == set()
        assert "the check broke" not in " ".join(found.text(Verdict.UNKNOWN))


def test_all_questions_refused_at_once_are_a_node_of_which_nothing_is_known(monkeypatch):
    """What a user without any right sees of GPUs that he may open."""
    errors = dict.fromkeys(set(FUNCTIONS) - {"nvmlDeviceGetName", "nvmlDeviceGetUUID"}, NO_PERMISSION)
    found = judged(asked_again(monkeypatch, BOXES["HGX H100"](), dict.fromkeys(range(8), errors)))
    assert found.answer == "undecided"
    assert found.text(Verdict.FAIL) == []
    passed = {finding.check for finding in found.with_verdict(Verdict.PASS)}
    assert not passed & {"ecc_errors", "row_remap", "nvlink_links", "nvlink_pairs", "fabric_state", "power_limit"}
