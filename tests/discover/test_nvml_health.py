"""Health, load and place of GPUs, read from machines of every kind through the real binding."""

from dataclasses import replace

import pytest

from preflight.discover.nvml import read_gpus
from preflight.model import Clocks, Ecc, Fabric, Gpu, GpuProcess, PcieLink, Power, RetiredPages, RowRemap, Temperature
from tests.fake_health import give
from tests.fakes import (
    _SYSTEM,
    FakeLink,
    FakeNvml,
    FakeProcess,
    a100_pcie_bridged,
    a100_sxm,
    b200_sxm,
    gb200_tray,
    geforce,
    h100_sxm,
    v100_sxm,
    with_mig,
)

# what no machine tells by NVML, or only some kinds do
ELSEWHERE = {"nics", "pci_upstream"}


def read(monkeypatch, gpus, **library):
    FakeNvml(gpus, **library).install(monkeypatch)
    return read_gpus().gpus


def one(monkeypatch, gpu, **library):
    (read_gpu,) = read(monkeypatch, [gpu], **library)
    return read_gpu


def h100(**changes):
    return replace(h100_sxm(1)[0], **changes)


def test_a_healthy_h100_tells_everything_that_its_product_has(monkeypatch):
    gpu = read(monkeypatch, h100_sxm(2))[0]
    unknown = {name for name in Gpu.__struct_fields__ if getattr(gpu, name) is None}
    assert unknown - ELSEWHERE == {"own_numa_node", "retired_pages", "nvlink_domain"}
    assert {name for name in gpu.unsupported if name in Gpu.__struct_fields__} == {"own_numa_node", "retired_pages"}
    assert gpu.problems == ()
    assert (gpu.module_id, gpu.inforom_version, gpu.gsp_version) == (4, "G520.0200.00.05", "550.54.15")
    assert (gpu.mig_enabled, gpu.mig_pending, gpu.mig_devices) == (False, False, ())
    assert (gpu.ecc_enabled, gpu.ecc_pending, gpu.persistence) == (True, True, True)
    assert (gpu.cpus, gpu.numa_node) == ("0-47,96-143", 0)
    assert gpu.row_remap == RowRemap(correctable=0, uncorrectable=0, pending=False, failed=False)
    assert gpu.recovery_action == "none"
    assert gpu.processes == ()
    assert gpu.pcie == PcieLink(
        generation=5, width=16, max_generation=5, max_width=16, device_max_generation=5, replays=0
    )
    assert gpu.power == Power(
        draw_w=71.32, limit_w=700.0, default_limit_w=700.0, enforced_limit_w=700.0, max_limit_w=700.0
    )
    assert gpu.peers[0].p2p == dict.fromkeys(("read", "write", "nvlink", "atomics", "pci"), "ok")


def test_memory_that_the_driver_keeps_for_itself_is_not_in_use(monkeypatch):
    assert one(monkeypatch, h100()).memory_used_bytes == 4 * 2**20


def test_an_older_driver_counts_its_memory_in_the_first_form(monkeypatch):
    gpu = one(monkeypatch, h100(reserved_bytes=0), missing=["nvmlDeviceGetMemoryInfo_v2"])
    assert (gpu.memory_bytes, gpu.memory_used_bytes) == (85_520_809_984, 4 * 2**20)


def test_errors_of_memory_are_told_by_kind_and_age(monkeypatch):
    gpu = one(monkeypatch, h100(ecc_counts=(7, 1, 54_700_000_000, 3), sram_exceeded=1))
    assert gpu.ecc == Ecc(
        corrected_volatile=7,
        uncorrected_volatile=1,
        corrected_aggregate=54_700_000_000,
        uncorrected_aggregate=3,
        sram_threshold_exceeded=True,
    )


def test_a_row_that_waits_for_a_reset_and_one_that_found_no_spare_are_told(monkeypatch):
    gpu = one(monkeypatch, h100(remapped=(4, 1, 1, 1)))
    assert gpu.row_remap == RowRemap(correctable=4, uncorrectable=1, pending=True, failed=True)


@pytest.mark.parametrize("by_fields", [True, False])
def test_a_v100_tells_retired_pages_and_has_no_rows_to_remap(monkeypatch, by_fields):
    gpu = read(monkeypatch, [replace(gpu, retired_by_fields=by_fields) for gpu in v100_sxm()])[0]
    assert gpu.retired_pages == RetiredPages(single_bit=2, double_bit=1, pending=True)
    assert gpu.row_remap is None
    assert gpu.why_unknown("row_remap").kind == "unsupported"
    assert {"row_remap", "mig_enabled", "fabric", "gsp_version"} <= set(gpu.unsupported)
    assert gpu.peers[0].num_nvlinks == 2
    assert gpu.problems == ()


def test_clocks_tell_what_holds_them_down_and_for_how_long(monkeypatch):
    monkeypatch.setitem(_SYSTEM, "nvmlSystemGetDriverVersion", lambda _, out, size: give(out, "580.82.07"))
    gpu = one(monkeypatch, h100(reasons=0x4 | 0x8 | 0x40 | 0x200, throttled_ns={74: 10**12, 270: 5, 271: 0}))
    assert gpu.clocks == Clocks(
        sm_mhz=345,
        memory_mhz=2619,
        max_sm_mhz=1980,
        max_memory_mhz=2619,
        application_sm_mhz=1980,
        throttle_reasons=("sw power cap", "hw slowdown", "hw thermal slowdown", "reason 0x200"),
        throttled_ns={"power": 10**12, "hw thermal slowdown": 5, "hw power brake slowdown": 0},
    )


@pytest.mark.parametrize("driver", ["570.172.08", "580.65.06"])
def test_before_fields_were_renumbered_they_told_no_times(monkeypatch, driver):
    monkeypatch.setitem(_SYSTEM, "nvmlSystemGetDriverVersion", lambda _, out, size: give(out, driver))
    gpu = one(monkeypatch, h100(throttled_ns={74: 10**12, 270: 5, 271: 100}))
    assert gpu.clocks.throttled_ns == {"power": 10**12}


def test_no_reason_is_an_empty_list_and_not_unknown(monkeypatch):
    assert one(monkeypatch, h100(reasons=0)).clocks.throttle_reasons == ()


def test_an_older_driver_calls_the_reasons_by_their_older_name(monkeypatch):
    gpu = one(monkeypatch, h100(), missing=["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTemperatureV"])
    assert gpu.clocks.throttle_reasons == ("idle",)
    assert gpu.temperature.gpu_c == 31


def test_thresholds_follow_from_margins_where_the_product_tells_margins(monkeypatch):
    expected = Temperature(gpu_c=31, memory_c=40, slowdown_c=89, shutdown_c=95, margin_c=56)
    assert one(monkeypatch, h100()).temperature == expected


def test_thresholds_in_degrees_are_taken_as_they_are(monkeypatch):
    expected = Temperature(gpu_c=31, memory_c=40, slowdown_c=89, shutdown_c=92)
    gpu = read(monkeypatch, a100_sxm(1))[0]
    assert gpu.temperature == expected
    assert gpu.why_unknown("margin_c").kind == "unsupported"


def test_a_margin_may_be_negative_and_a_missing_sensor_is_not_zero_degrees(monkeypatch):
    temperature = one(monkeypatch, h100(margin=-3, tlimits=None, memory_temperature=0)).temperature
    assert (temperature.margin_c, temperature.memory_c, temperature.slowdown_c) == (-3, None, None)


def test_a_threshold_is_not_called_unsupported_because_the_margin_failed(monkeypatch):
    gpu = one(monkeypatch, h100(errors={"nvmlDeviceGetMarginTemperature": 999}))
    assert (gpu.temperature.gpu_c, gpu.temperature.slowdown_c) == (31, None)
    assert "slowdown_c" not in gpu.unsupported
    assert gpu.why_unknown("temperature").kind == "failed"


def test_a_lowered_limit_shows_beside_the_default(monkeypatch):
    power = one(monkeypatch, h100(limits_mw=(700_000, 700_000, 350_000, 700_000))).power
    assert (power.default_limit_w, power.enforced_limit_w) == (700.0, 350.0)


@pytest.mark.parametrize(("code", "action"), [(0, "none"), (1, "reset"), (3, "drain p2p"), (7, "system reboot")])
def test_the_drivers_wish_is_told_in_words(monkeypatch, code, action):
    assert one(monkeypatch, h100(recovery=code)).recovery_action == action


def test_a_wish_that_we_do_not_know_is_a_problem_and_not_none(monkeypatch):
    gpu = one(monkeypatch, h100(recovery=11))
    assert gpu.recovery_action is None
    assert gpu.why_unknown("recovery_action").kind == "failed"


def test_processes_are_listed_once_with_their_memory_and_kind(monkeypatch):
    processes = (
        FakeProcess(100, 2**30),
        FakeProcess(200, None, ("Compute", "Graphics")),
        FakeProcess(300, 2**20, ("MPS",)),
    )
    gpu = one(monkeypatch, h100(processes=processes))
    assert set(gpu.processes) == {
        GpuProcess(pid=100, memory_bytes=2**30),
        GpuProcess(pid=200),
        GpuProcess(pid=300, memory_bytes=2**20, kind="mps"),
    }


def test_processes_that_may_not_be_seen_are_unknown(monkeypatch):
    gpu = one(monkeypatch, h100(errors={"nvmlDeviceGetComputeRunningProcesses_v3": 4}))
    assert gpu.processes is None
    assert gpu.why_unknown("processes").kind == "not allowed"


def test_mig_devices_are_listed_and_what_mig_hides_is_no_fault(monkeypatch):
    gpu = read(monkeypatch, [with_mig(gpu) for gpu in h100_sxm(1)])[0]
    assert (gpu.mig_enabled, gpu.mig_devices) == (True, ("MIG-1", "MIG-2"))
    assert (gpu.ecc.corrected_volatile, gpu.ecc.corrected_aggregate) == (None, 0)
    assert gpu.why_unknown("row_remap").kind == "unsupported"
    assert "ecc" not in gpu.unsupported
    assert gpu.why_unknown("uncorrected_volatile").kind == "unsupported"
    assert gpu.problems == ()


def test_modes_that_change_at_the_next_reset_are_told_apart(monkeypatch):
    gpu = one(monkeypatch, h100(mig_pending=1, ecc_pending=0))
    assert (gpu.mig_enabled, gpu.mig_pending, gpu.ecc_enabled, gpu.ecc_pending) == (False, True, True, False)


def test_a_grace_gpu_forms_a_numa_node_of_its_own(monkeypatch):
    assert [gpu.own_numa_node for gpu in read(monkeypatch, gb200_tray())] == [2, 10, 18, 26]


def test_fabric_health_is_decoded_in_groups_of_two_bits(monkeypatch):
    healthy, sick = read(monkeypatch, [h100(), h100(uuid="GPU-sick", fabric_health=(0x5A9, 2))])
    assert healthy.fabric == Fabric(
        state="completed",
        status=0,
        status_text="Success",
        clique_id=0,
        health_mask=0x1AA,
        health=dict.fromkeys(
            ("degraded bandwidth", "route recovery", "route unhealthy", "access timeout recovery"), False
        ),
        health_summary="healthy",
    )
    assert sick.fabric.health["degraded bandwidth"] is True
    assert sick.fabric.misconfiguration == "insufficient NVLinks"
    assert sick.fabric.health_summary == "unhealthy"


def test_a_fabric_that_failed_says_why_in_the_drivers_words(monkeypatch):
    gpu = one(monkeypatch, h100(fabric=(3, 999, bytes(16), 0)))
    assert (gpu.fabric.status, gpu.fabric.status_text) == (999, "unknown error")
    assert gpu.why_unknown("nvlink_domain").kind == "failed"


def test_a_fabric_in_progress_has_no_status_whatever_stands_there(monkeypatch):
    fabric = one(monkeypatch, h100(fabric=(2, 999, bytes(range(16)), 5))).fabric
    assert (fabric.state, fabric.status, fabric.cluster_uuid, fabric.clique_id) == ("in progress", None, None, None)


def test_fabric_info_of_the_first_form_has_no_health(monkeypatch):
    fabric = one(monkeypatch, h100(fabric_versions=(1,))).fabric
    assert (fabric.health_mask, fabric.health, fabric.health_summary) == (None, {}, None)


def test_a_fabric_that_the_product_does_not_have_is_unsupported(monkeypatch):
    gpu = read(monkeypatch, a100_sxm(1))[0]
    assert gpu.fabric is None
    assert "fabric" in gpu.unsupported
    assert gpu.problems == ()


def test_ports_of_switches_are_told_where_they_are_real(monkeypatch):
    links = read(monkeypatch, a100_sxm(1))[0].links
    assert [link.peer_link for link in links[:3]] == [8, 9, 10]
    assert links[2].peer_pci_bus_id == "0000:c1:00.0"
    assert {link.peer_link for link in read(monkeypatch, h100_sxm(1))[0].links} == {None}
    assert {link.peer_link for link in read(monkeypatch, gb200_tray())[0].links} == {None}


def test_a_link_that_is_up_and_closed_to_traffic_is_not_active(monkeypatch):
    links = (FakeLink(state=3), FakeLink(state=2), FakeLink(state=0), *(FakeLink(),) * 15)
    gpu = one(monkeypatch, h100(links=links))
    assert [(link.state, link.active) for link in gpu.links[:4]] == [
        ("no traffic", False),
        ("sleep", True),
        ("inactive", False),
        ("active", True),
    ]


def test_nvlink_5_has_counters_of_its_own(monkeypatch):
    links = (FakeLink(counters={215: 505, 213: 505}), *(FakeLink(),) * 17)
    gpu = one(monkeypatch, replace(b200_sxm(1)[0], links=links))
    counters = gpu.links[0].counters
    assert (counters["recovery_events"], counters["recovery_ok"], counters["recovery_failed"]) == (505, 505, 0)
    assert set(counters) == {
        *("malformed", "overrun", "received_errors", "received_remote_errors", "general", "local_integrity"),
        *("discards", "recovery_ok", "recovery_failed", "recovery_events", "symbol_errors", "effective_errors"),
    }


def test_a_drivers_blank_is_no_count(monkeypatch):
    counters = {161: 9223372036854775794, 162: 2**64 - 1, 163: 3}
    gpu = one(monkeypatch, h100(links=(FakeLink(counters=counters),) * 18))
    assert gpu.links[0].counters == {"crc": 3}


def test_a_driver_without_counter_fields_has_calls_for_them(monkeypatch):
    gpu = one(monkeypatch, h100(field_errors={161: 3, 162: 3, 163: 2}, links=(FakeLink(counters={162: 4}),) * 18))
    assert gpu.links[0].counters == {"replay": 0, "recovery": 4, "crc": 0}


def test_peer_access_is_told_by_kind_and_not_judged_by_one(monkeypatch):
    gpu = read(monkeypatch, a100_pcie_bridged(), p2p={0: 4, 1: 4, 3: 5, 4: 1})[0]
    assert gpu.peers[0].p2p == {
        "read": "disabled",
        "write": "disabled",
        "nvlink": "ok",
        "atomics": "not supported",
        "pci": "chipset",
    }


def test_a_geforce_lacks_much_and_is_not_sick(monkeypatch):
    gpu = read(monkeypatch, geforce())[0]
    expected = {"ecc", "ecc_enabled", "row_remap", "retired_pages", "mig_enabled", "serial", "recovery_action"}
    assert expected <= set(gpu.unsupported)
    assert gpu.links == ()
    assert gpu.problems == ()
