"""Lines of the kernel log, as NVIDIA documents them and as they were reported (issue numbers stand beside each)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.discover.kernel_lines import FOLD_S, MAX_EVENTS, LogLine, parse_events


def events(*texts, at_s=10.0):
    return parse_events([LogLine(at_s, text) for text in texts]).events


def one(text):
    (event,) = events(text)
    return event


def test_an_xid_with_its_process():
    event = one("NVRM: Xid (PCI:0000:41:00): 79, pid=4242, name=python3, GPU has fallen off the bus.")
    assert (event.kind, event.code, event.pci_bus_id) == ("xid", 79, "0000:41:00.0")
    assert (event.pid, event.process, event.at_s) == (4242, "python3", 10.0)


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (0000:05:00): 79, GPU has fallen off the bus.",  # before the prefix PCI
        "NVRM: Xid (PCI:0000:05:00 GPU-I:01): 79, pid=<unknown>, name=<unknown>, GPU has fallen off the bus.",  # MIG
        "NVRM: Xid (PCI:00000000:05:00.0): 79",
        "NVRM: GPU0 Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.",
    ],
)
def test_each_form_of_an_xid_without_a_process(text):
    event = one(text)
    assert (event.kind, event.code, event.pci_bus_id) == ("xid", 79, "0000:05:00.0")
    assert event.pid is None
    assert event.process is None


def test_the_last_time_that_the_driver_was_loaded_is_no_event():
    lines = [
        LogLine(9.0, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024"),
        LogLine(50.0, "NVRM: Xid (PCI:0000:05:00): 119, pid=7, name=python3, Timeout after 6s of waiting for RPC"),
        LogLine(900.0, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build"),
    ]
    parsed = parse_events(lines)
    assert (parsed.loaded_at_s, [event.code for event in parsed.events]) == (900.0, [119])
    assert parse_events(lines[1:2]).loaded_at_s is None


def test_an_nvlink5_xid_keeps_its_part_and_its_word():  # leptonai/gpud 1174
    event = one("NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)")
    assert (event.code, event.subcode, event.severity) == (145, "RLW_RXPIPE", "Nonfatal")
    assert event.pci_bus_id == "0018:01:00.0"
    spaced = one("NVRM: Xid (PCI:0009:01:00): 149, pid=1, name=x, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6)")
    assert (spaced.subcode, spaced.severity, spaced.pid) == ("NETIR_LINK_EVT", "Fatal", 1)


def test_words_of_other_xids_are_no_severity():
    assert one("NVRM: Xid (PCI:0000:01:00): 64, pid=1, Fatal error, unable to retire page").severity is None


def test_the_lines_of_one_switch_error_are_one_event():  # NVIDIA/nvtrust 124
    (event,) = events(
        "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Data {0x0000002b, 0x0000002b}",
        "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt",
        "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Severity 0 Engine instance 44 Sub-engine instance 00",
    )
    assert (event.kind, event.code, event.severity, event.port) == ("sxid", 22013, "Non-fatal", 44)
    assert event.pci_bus_id == "0000:04:00.0"


def test_a_switch_error_of_which_only_details_are_left_is_still_told():  # leptonai/gpud 338
    event = one("nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Data {0x000001c0, 0x00bd5c8a}")
    assert (event.code, event.severity, event.port) == (12028, None, None)


def test_a_switch_error_without_a_link():
    event = one("nvidia-nvswitch0: SXid (PCI:0000:07:00.0): 10001, Non-fatal, PRI WRITE SYSB error, instance=3")
    assert (event.code, event.severity, event.port) == (10001, "Non-fatal", None)


def test_a_gpu_that_fell_off_over_three_lines_without_an_xid():  # NVSentinel 195, leptonai/gpud 1209
    fell, probe = events(
        "NVRM: The NVIDIA GPU 0000:b4:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
    )
    assert (fell.kind, fell.pci_bus_id) == ("fell off", "0000:b4:00.0")
    assert (probe.kind, probe.pci_bus_id) == ("driver", None)


def test_the_first_of_those_lines_alone_says_nothing():
    assert events("NVRM: The NVIDIA GPU 0000:b4:00.0 (PCI ID: 10de:2330)", "NVRM: installed in this system") == ()


@pytest.mark.parametrize(
    "text", ["NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.", "NVRM: GPU at 0000:91:00.0 has fallen off the bus."]
)
def test_a_gpu_that_fell_off_in_one_line(text):
    assert (one(text).kind, one(text).pci_bus_id) == ("fell off", "0000:91:00.0")


def test_an_adapter_that_could_not_be_started():
    event = one("NVRM: GPU 0000:02:00.0: RmInitAdapter failed! (0x24:0x65:1185)")
    assert (event.kind, event.pci_bus_id) == ("driver", "0000:02:00.0")
    assert one("NVRM: RmInitAdapter failed! (0x62:0x65:2028)").pci_bus_id is None


def test_a_pcie_error_names_device_and_severity():
    event = one("pcieport 0000:c0:01.1: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer")
    assert (event.kind, event.pci_bus_id, event.severity) == ("aer", "0000:c0:01.1", "Uncorrected (Fatal)")
    assert one("nvidia 0000:41:00.0: PCIe Bus Error: severity=Corrected, type=Data Link").severity == "Corrected"


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.195.03",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "monitor[12]: NVRM: Xid (PCI:0000:66:00): 79, quoted by a daemon",
        "usb 1-1: camera has fallen off the bus.",
        "",
    ],
)
def test_other_lines_are_no_events(text):
    assert events(text) == ()


def test_equal_lines_are_counted_and_the_last_is_dated():
    line = "NVRM: Xid (PCI:0000:41:00): 31, pid=7, name=train, Ch 00000008, intr 00000000. MMU Fault"
    parsed = parse_events([LogLine(10.0, line), LogLine(12.0, line), LogLine(13.0, line, times=3)])
    (event,) = parsed.events
    assert (event.count, event.at_s, event.last_at_s) == (5, 10.0, 13.0)


def test_equal_lines_far_apart_are_two_events():
    line = "NVRM: Xid (PCI:0000:41:00): 31, pid=7, name=train, MMU Fault"
    parsed = parse_events([LogLine(10.0, line), LogLine(11.0 + FOLD_S, line)])
    assert [event.at_s for event in parsed.events] == [10.0, 11.0 + FOLD_S]


def test_registers_that_differ_are_not_folded():
    text = "NVRM: Xid (PCI:0000:41:00): 74, NVLink: fatal error detected on link {}(0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
    assert len(events(text.format(1), text.format(2), text.format(1))) == 2


def test_a_gpu_that_repeats_itself_for_weeks_does_not_fill_the_report():
    line = "NVRM: Xid (PCI:0000:41:00): 31, pid={}, name=train, MMU Fault"
    parsed = parse_events([LogLine(float(i), line.format(i)) for i in range(MAX_EVENTS + 7)])
    assert len(parsed.events) == MAX_EVENTS
    assert parsed.dropped == 7


def test_control_characters_and_length_are_tamed():
    event = one("NVRM: Xid (PCI:0000:41:00): 31, \x1b[31mred\x00" + "x" * 10000)
    assert event.text.isprintable()
    assert len(event.text) <= 300


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: API mismatch: the client 'Xid (41:00):79' (pid 4711)",  # a process may be called so
        "NVRM: API mismatch: the client 'fallen off the ' fallen off the bus",
        'overlayfs: unrecognized mount option "NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus." or missing value',
        'overlayfs: unrecognized mount option "NVRM: GPU 0000:41:00.0: GPU has fallen off the bus." or missing value',
        'overlayfs: unrecognized mount option "nvidia 0000:41:00.0: PCIe Bus Error: severity=Uncorrected (Fatal)" or missing value',
        "traps: NVRM: Xid (PCI:[4711] general protection fault ip:0 sp:0 error:0",
    ],
)
def test_words_that_a_user_can_bring_into_the_log_are_no_event(text):
    assert events("NVRM: The NVIDIA GPU 0000:41:00.0", text) == ()


KNOWN = st.sampled_from(
    [
        "NVRM: Xid (PCI:",
        "): 79",
        ", pid=",
        "<unknown>",
        "nvidia-nvswitch3: SXid (PCI:",
        "Fatal, Link ",
        "NVRM: The NVIDIA GPU ",
        "0000:41:00",
        "fallen off the bus",
        "PCIe Bus Error: severity=",
        "²",
    ]
)


@given(st.lists(st.tuples(st.none() | st.floats(), st.lists(KNOWN | st.text(max_size=8)).map("".join)), max_size=8))
def test_no_text_raises(lines):
    parse_events(LogLine(at_s, text) for at_s, text in lines)
