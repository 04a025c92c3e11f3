"""Whatever NVML refuses costs the fact that was asked for, says why, and costs nothing else."""

import ctypes
import json
from dataclasses import replace

import msgspec
import pytest

from preflight.discover import nvml_gpu
from preflight.discover.nvml import read_facts, read_gpus
from preflight.discover.nvml_device import spelled_bus_id
from preflight.discover.nvml_reading import NvmlReading, decode
from preflight.discover.pci import pci_bus_id
from preflight.model import (
    Clocks,
    Ecc,
    Fabric,
    Gpu,
    GpuPeer,
    Link,
    PcieLink,
    Power,
    RetiredPages,
    Temperature,
    from_json,
    to_json,
)
from tests.fakes import _DEVICE as FUNCTIONS
from tests.fakes import (
    FakeGpu,
    FakeLink,
    FakeNvml,
    FakeProcess,
    a100_pcie_bridged,
    a100_pcie_unbridged,
    a100_sxm,
    b200_sxm,
    gb200_tray,
    geforce,
    h100_sxm,
    handle_number,
    lost,
    v100_sxm,
    with_mig,
)

MACHINES = {
    "h100": h100_sxm(2),
    "busy": [replace(gpu, processes=(FakeProcess(1, 2),)) for gpu in h100_sxm(2)],
    "a100": a100_sxm(2),
    "b200": b200_sxm(2),
    "gb200": gb200_tray(),
    "v100": v100_sxm(),
    "bridged": a100_pcie_bridged(),
    "unbridged": a100_pcie_unbridged(),
    "geforce": geforce(),
    "mig": [with_mig(gpu) for gpu in h100_sxm(2)],
    "lost": [*h100_sxm(1), lost(h100_sxm(2)[1])],
    "nothing": [FakeGpu()],
}
# what fails when a function does; the others concern parts of links and pairs, or have another way to be told
FACTS = {
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetPciInfo_v3": "pci_bus_id",
    "nvmlDeviceGetSerial": "serial",
    "nvmlDeviceGetMinorNumber": "minor_number",
    "nvmlDeviceGetModuleId": "module_id",
    "nvmlDeviceGetVbiosVersion": "vbios_version",
    "nvmlDeviceGetInforomImageVersion": "inforom_version",
    "nvmlDeviceGetGspFirmwareVersion": "gsp_version",
    "nvmlDeviceGetMigMode": "mig_enabled",
    "nvmlDeviceGetEccMode": "ecc_enabled",
    "nvmlDeviceGetPersistenceMode": "persistence",
    "nvmlDeviceGetCpuAffinity": "cpus",
    "nvmlDeviceGetMemoryAffinity": "numa_node",
    "nvmlDeviceGetNumaNodeId": "own_numa_node",
    "nvmlDeviceGetRemappedRows": "row_remap",
    "nvmlDeviceGetComputeRunningProcesses_v3": "processes",
}
HEALTHY = h100_sxm(2)
PARTS = {name for noun in (Ecc, PcieLink, Clocks, Power, Temperature, RetiredPages) for name in noun.__struct_fields__}


def read(monkeypatch, gpus, **library):
    FakeNvml(gpus, **library).install(monkeypatch)
    return read_gpus()


@pytest.mark.parametrize("machine", MACHINES)
def test_all_that_the_child_says_are_fields_of_nouns(monkeypatch, machine):
    """Plain data becomes nouns by the names of its keys: a misspelt one would be lost in silence."""
    FakeNvml(MACHINES[machine]).install(monkeypatch)
    facts = read_facts()
    strict = msgspec.json.decode(json.dumps(facts), type=NvmlReading)
    assert set(facts) <= set(NvmlReading.__struct_fields__)
    for gpu, noun in zip(facts["gpus"], strict.gpus, strict=True):
        assert set(gpu) <= set(Gpu.__struct_fields__)
        for link in gpu.get("links") or ():
            assert set(link) <= set(Link.__struct_fields__)
        for peer in gpu["peers"]:
            assert set(peer) <= set(GpuPeer.__struct_fields__)
        for name in ("ecc", "row_remap", "retired_pages", "clocks", "power", "temperature", "pcie", "fabric"):
            part = gpu.get(name)
            assert part is None or set(part) <= set(getattr(noun, name).__struct_fields__)
        assert set(gpu["unsupported"]) <= {*Gpu.__struct_fields__, *PARTS}


@pytest.mark.parametrize("machine", MACHINES)
def test_what_the_child_writes_is_what_is_read_in_process(monkeypatch, machine):
    FakeNvml(MACHINES[machine]).install(monkeypatch)
    reading = read_gpus()
    assert decode(json.dumps(read_facts()).encode()) == reading
    assert from_json(to_json(reading), NvmlReading) == reading


@pytest.mark.parametrize("code", [2, 3, 4, 15, 12345])
@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_any_refusal_of_any_call_by_one_gpu_costs_the_other_nothing(monkeypatch, function, code):
    untouched = read(monkeypatch, HEALTHY).gpus[0]
    sick = replace(HEALTHY[1], errors={function: code})
    good, bad = read(monkeypatch, [HEALTHY[0], sick]).gpus
    # what the pair has in common may go with the sick one
    assert msgspec.structs.replace(good, peers=()) == msgspec.structs.replace(untouched, peers=())
    assert {problem.field for problem in bad.problems} <= {None, *Gpu.__struct_fields__}
    if code in (15, 16):
        assert len(bad.problems) <= 1  # asked once and no more


@pytest.mark.parametrize(("function", "field"), FACTS.items())
@pytest.mark.parametrize(
    ("code", "kind"), [(3, "unsupported"), (13, "unsupported"), (4, "not allowed"), (999, "failed")]
)
def test_a_refused_fact_says_why_it_is_unknown(monkeypatch, function, field, code, kind):
    gpu = replace(HEALTHY[0], errors={function: code})
    (read_gpu,) = read(monkeypatch, [gpu]).gpus
    assert getattr(read_gpu, field) is None
    assert read_gpu.why_unknown(field).kind == kind
    assert read_gpu.memory_bytes == HEALTHY[0].memory_bytes


@pytest.mark.parametrize(
    ("prefix", "field"),
    [
        (("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetSramEccErrorStatus"), "ecc"),
        (("nvmlDeviceGetPowerUsage", "nvmlDeviceGetPowerManagement", "nvmlDeviceGetEnforcedPowerLimit"), "power"),
        (
            ("nvmlDeviceGetCurrPcie", "nvmlDeviceGetMaxPcie", "nvmlDeviceGetGpuMaxPcie", "nvmlDeviceGetPcieReplay"),
            "pcie",
        ),
    ],
)
def test_a_part_of_which_nothing_is_told_is_unknown_as_a_whole(monkeypatch, prefix, field):
    functions = [name for name in FUNCTIONS if name.startswith(prefix)]
    (gpu,) = read(monkeypatch, [replace(HEALTHY[0], errors=dict.fromkeys(functions, 3))]).gpus
    assert getattr(gpu, field) is None
    assert field in gpu.unsupported
    (gpu,) = read(monkeypatch, [replace(HEALTHY[0], errors=dict.fromkeys(functions, 4))]).gpus
    assert getattr(gpu, field) is None
    assert gpu.why_unknown(field).kind == "not allowed"


def test_a_part_of_which_something_is_told_is_not_called_unsupported(monkeypatch):
    (gpu,) = read(monkeypatch, [replace(HEALTHY[0], errors={"nvmlDeviceGetPowerUsage": 3})]).gpus
    assert (gpu.power.draw_w, gpu.power.limit_w) == (None, 700.0)
    assert "power" not in gpu.unsupported
    assert "draw_w" in gpu.unsupported
    assert gpu.why_unknown("draw_w").kind == "unsupported"


def test_a_field_that_may_not_be_read_is_a_problem_of_its_fact(monkeypatch):
    (gpu,) = read(monkeypatch, [replace(HEALTHY[0], field_errors={230: 4})]).gpus
    assert gpu.recovery_action is None
    assert gpu.why_unknown("recovery_action").kind == "not allowed"
    (gpu,) = read(monkeypatch, [replace(HEALTHY[0], field_errors={230: 2})]).gpus  # an older driver knows no such field
    assert gpu.why_unknown("recovery_action").kind == "unsupported"


@pytest.mark.parametrize(("code", "kind"), [(13, "unsupported"), (4, "not allowed"), (2, "failed")])
def test_fields_that_are_refused_as_a_whole_say_why_each_is_unknown(monkeypatch, code, kind):
    (gpu,) = read(monkeypatch, [replace(HEALTHY[0], errors={"nvmlDeviceGetFieldValues": code})]).gpus
    assert gpu.recovery_action is None
    assert gpu.why_unknown("recovery_action").kind == kind
    assert len(gpu.links) == 18  # by calls
    assert gpu.temperature.gpu_c == 31


def test_a_binding_in_which_a_call_takes_other_arguments_lacks_that_fact_only(monkeypatch):
    import pynvml

    monkeypatch.setattr(pynvml, "nvmlDeviceGetVbiosVersion", lambda handle, version: version)
    (gpu,) = read(monkeypatch, HEALTHY[:1]).gpus
    assert gpu.why_unknown("vbios_version").kind == "unsupported"
    assert gpu.inforom_version is not None


def test_a_gpu_that_needs_a_reset_answers_nothing_more(monkeypatch):
    gpu = replace(HEALTHY[1], errors={"nvmlDeviceGetTotalEccErrors": 16})
    nvml = FakeNvml([HEALTHY[0], gpu]).install(monkeypatch)
    good, bad = read_gpus().gpus
    assert (bad.uuid, bad.ecc, bad.row_remap, bad.clocks) == ("GPU-h100-1", None, None, None)
    assert [problem.field for problem in bad.problems] == [None]
    assert bad.why_unknown("row_remap").kind == "failed"
    assert nvml.calls.count("nvmlDeviceGetRemappedRows") == 1
    assert bad.peers[0].p2p == {}
    assert good.peers[0].ancestor is None
    assert good.problems == ()


def test_a_name_with_broken_letters_is_still_a_name(monkeypatch):
    nvml = FakeNvml([HEALTHY[0]]).install(monkeypatch)
    nvml.gpus = [replace(HEALTHY[0], name=BrokenName("NVIDIA \udcff H100"))]
    (gpu,) = read_gpus().gpus
    assert gpu.name == "NVIDIA \N{REPLACEMENT CHARACTER} H100"


class BrokenName(str):
    """Text whose bytes are no UTF-8."""

    __slots__ = ()

    def encode(self):
        return str.encode(self, "utf-8", "surrogateescape")


def test_one_refused_question_leaves_one_problem_however_often_it_is_asked(monkeypatch):
    (gpu,) = read(monkeypatch, [replace(HEALTHY[0], errors={"nvmlDeviceGetTotalEccErrors": 4})]).gpus
    assert [problem.field for problem in gpu.problems] == ["ecc"]
    assert gpu.ecc.sram_threshold_exceeded is False


def test_links_that_the_driver_counts_otherwise_are_a_problem_that_says_both_numbers(monkeypatch):
    links = (FakeLink(active=False), *(FakeLink(counters={147: 18}),) * 17)
    (gpu,) = read(monkeypatch, [replace(HEALTHY[0], links=links)]).gpus
    assert gpu.problems == ()  # a fake without that field
    monkeypatch.setattr("tests.fakes._gpu_field", lambda gpu, number: {91: 18, 147: 18}.get(number))
    (gpu,) = read(monkeypatch, [replace(HEALTHY[0], links=links)]).gpus
    assert [problem.field for problem in gpu.problems] == ["links"]
    assert "18 links" in gpu.problems[0].text
    assert "17 links" in gpu.problems[0].text


@pytest.mark.parametrize(
    ("code", "kind"), [(3, "unsupported"), (13, "unsupported"), (4, "not allowed"), (999, "failed")]
)
def test_a_refused_registration_says_why_it_is_unknown(monkeypatch, code, kind):
    errors = dict.fromkeys(("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo"), code)
    (gpu,) = read(monkeypatch, [replace(HEALTHY[0], errors=errors)]).gpus
    assert gpu.fabric is None
    assert gpu.why_unknown("fabric").kind == kind


def test_a_fabric_state_that_we_do_not_know_is_a_problem(monkeypatch):
    (gpu,) = read(monkeypatch, [replace(HEALTHY[0], fabric=(9, 0, bytes(16), 0))]).gpus
    assert gpu.fabric is None
    assert gpu.why_unknown("fabric").kind == "failed"


def test_a_fabric_that_says_not_supported_is_told_as_such(monkeypatch):
    (gpu,) = read(monkeypatch, [replace(HEALTHY[0], fabric=(0, 0, bytes(16), 0), fabric_health=(0, 0))]).gpus
    assert gpu.fabric == Fabric(state="not supported", health_mask=0)
    assert gpu.problems == ()


@pytest.mark.parametrize(
    "text",
    [
        *("00000000:1A:00.0", "0000:1a:00.0", "00000009:01:00.0", "FFFFFFFF:FF:FF.0", "10001:00:00.0", "0002:3F:1e.7"),
        *("", "N/A", "1a:00.0", "0000:1a:00", "no:id:at.all", "0000:1a.0"),
    ],
)
def test_the_child_spells_pci_ids_as_the_rest_does(text):
    assert spelled_bus_id(text) == pci_bus_id(text)


def test_our_structures_are_those_of_the_header():
    """Their sizes stand in the version numbers that the binding has from nvml.h."""
    import pynvml

    from preflight.discover import nvml_fabric, nvml_health, nvml_load

    ours = {
        pynvml.nvmlGpuFabricInfo_v2: (nvml_fabric._Second, 2),
        pynvml.nvmlGpuFabricInfo_v3: (nvml_fabric._Third, 3),
        pynvml.nvmlEccSramErrorStatus_v1: (nvml_health._SramStatus, 1),
        pynvml.nvmlMarginTemperature_v1: (nvml_load._Margin, 1),
    }
    assert {number: ctypes.sizeof(kind) | version << 24 for number, (kind, version) in ours.items()} == {
        n: n for n in ours
    }
    for number, name in ((pynvml.nvmlGpuFabricInfo_v3, "c_nvmlGpuFabricInfo_v3_t"),):
        theirs = getattr(pynvml, name)
        fields = [field for field, *_ in theirs._fields_]
        assert [getattr(ours[number][0], field).offset for field in fields] == [
            getattr(theirs, field).offset for field in fields
        ]


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({"temperature": 704_622_831}, "temperature"),
        ({"temperature": -40_000}, "temperature"),
        ({"remapped": (2_377_754_483, 0, 0, 0)}, "row_remap"),
        ({"retired": (2**31, 0, 0), "retired_by_fields": True}, "retired_pages"),
    ],
)
def test_a_figure_that_silicon_cannot_have_is_unknown_and_no_fault(monkeypatch, facts, field):
    (gpu,) = read(monkeypatch, [replace(HEALTHY[0], **facts)]).gpus
    told = getattr(gpu, field)
    assert told is None or told.gpu_c is None
    assert gpu.why_unknown(field).kind == "failed"
    assert "can't be" in gpu.why_unknown(field).text


def test_control_characters_of_a_library_never_reach_a_name(monkeypatch):
    (gpu,) = read(monkeypatch, [replace(HEALTHY[0], uuid="GPU-\x1b[31m1", name="NVIDIA\x07")]).gpus
    assert (gpu.uuid, gpu.name) == ("GPU-?[31m1", "NVIDIA?")


def test_an_answer_that_makes_no_sense_costs_what_comes_after_it_of_that_gpu_only(monkeypatch):
    honest = nvml_gpu.read_health

    def health(device, told):
        if handle_number(device.handle) == 2:
            raise ValueError("no number")
        return honest(device, told)

    monkeypatch.setattr(nvml_gpu, "read_health", health)
    good, bad = read(monkeypatch, HEALTHY).gpus
    assert good.row_remap is not None
    assert bad.uuid == "GPU-h100-1"
    assert bad.row_remap is None
    assert bad.why_unknown("row_remap").kind == "failed"
    assert "no number" in bad.why_unknown("row_remap").text


@pytest.mark.parametrize("error", [MemoryError(), IndexError("invalid index"), OverflowError(), ValueError()])
def test_a_binding_that_stumbles_over_an_answer_costs_that_fact_only(monkeypatch, error):
    def stumble(*_):
        raise error

    FakeNvml(HEALTHY).install(monkeypatch)
    monkeypatch.setattr("pynvml.nvmlDeviceGetComputeRunningProcesses_v3", stumble)
    for gpu in read_gpus().gpus:
        assert gpu.processes is None
        assert gpu.why_unknown("processes").kind == "failed"
        assert "can't be understood" in gpu.why_unknown("processes").text
        assert gpu.uuid is not None
        assert gpu.row_remap is not None
        assert gpu.power is not None


@pytest.mark.parametrize("blank", [2**32 - 1, 2**31 - 1, 0x7FFFFFF2, 2**63 - 2, 2**64 - 1])
def test_a_marker_in_the_place_of_a_count_is_no_count(monkeypatch, blank):
    counted = replace(HEALTHY[0], ecc_counts=(0, blank, 0, 0), remapped=(0, blank % 2**32, 0, 0))
    (gpu,) = read(monkeypatch, [counted]).gpus
    assert gpu.ecc.corrected_volatile == 0
    assert gpu.ecc.uncorrected_volatile is None
    assert gpu.row_remap is None or blank > 2**32
    assert gpu.why_unknown("ecc").kind == "failed"
