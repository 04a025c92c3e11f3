"""What single Xids mean. Texts of Xid 74 after NVIDIA/NVSentinel issue 364 and NVIDIA's workflow for it; 144 to 150 after leptonai/gpud 1174."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.model import KernelEvent
from preflight.model.xids import ACTIONS, TABLE, decode_nvlink, describe, link_of, stated_action, weigh


def xid(code, text="", **fields):
    return KernelEvent(kind="xid", code=code, text=text, pci_bus_id="0000:41:00.0", **fields)


def nvlink(first="0x0", third="0x0", fourth="0x0", fifth="0x0"):
    text = f"NVLink: fatal error detected on link 6({first}, 0x0, {third}, {fourth}, {fifth}, 0x0, 0x0)"
    return xid(74, text)


@pytest.mark.parametrize("code", [46, 48, 62, 64, 79, 95, 109, 119, 120, 140, 143, 158])
def test_what_needs_a_reset_or_more_is_serious(code):
    weighed = weigh(xid(code))
    assert weighed.serious
    assert ACTIONS.index(weighed.action) >= ACTIONS.index("reset the GPU")


@pytest.mark.parametrize("code", [8, 13, 31, 32, 43, 45, 69, 80, 137])
def test_what_a_program_does_is_not_the_gpus_fault(code):
    assert weigh(xid(code)).kind == "application"
    assert not weigh(xid(code)).serious


@pytest.mark.parametrize("code", [14, 106, 107, 121, 162])
def test_what_has_no_effect_is_ignored(code):
    assert (weigh(xid(code)).kind, weigh(xid(code)).serious) == ("ignore", False)


@pytest.mark.parametrize("code", [63, 155, 157, 163, 171])
def test_where_other_signs_tell_more_the_number_alone_is_only_looked_at(code):
    assert (weigh(xid(code)).action, weigh(xid(code)).serious) == ("look", False)


def test_a_contained_error_costs_its_process_only():
    assert weigh(xid(94)).kind == "contained"
    assert not weigh(xid(94)).serious


def test_a_failed_remapping_asks_for_replacement():
    assert weigh(xid(64)).action == "replace the GPU"


@pytest.mark.parametrize("code", [1, 5, 200, 999, None])
def test_a_number_that_we_do_not_know_is_to_be_looked_at(code):
    assert describe(code).kind == "look"
    assert weigh(xid(code)).action == "look"


def test_a_gpu_that_fell_off_without_a_number_weighs_the_same():
    assert weigh(KernelEvent(kind="fell off")).serious


@pytest.mark.parametrize("code", range(144, 151))
def test_nvlink5_errors_go_by_the_lines_own_word(code):
    assert weigh(xid(code, severity="Fatal", subcode="NETIR_LINK_EVT")).serious
    assert not weigh(xid(code, severity="Nonfatal", subcode="RLW_RXPIPE")).serious
    assert not weigh(xid(code)).serious


@pytest.mark.parametrize(
    ("event", "meaning", "serious"),
    [
        (nvlink(first="0x200000"), "signal", True),
        (nvlink(first="0x400000"), "signal", True),
        (nvlink(first="0x10"), "parity", False),
        (nvlink(first="0x20"), "parity", False),
        (nvlink(first="0x10000"), "hardware", True),
        (nvlink(first="0x2"), "secondary", False),
        (nvlink(third="0x10000"), "repeated", False),
        (nvlink(third="0x2000"), "unexpected", False),
        (nvlink(fourth="0x40000"), "secondary", False),
        (nvlink(fifth="0x100000"), "corrected", False),
        (nvlink(first="0x4"), "unknown", False),
    ],
)
def test_each_kind_of_bit_of_an_nvlink_error(event, meaning, serious):
    assert (decode_nvlink(event) or ("",))[0] == meaning
    assert weigh(event).serious is serious


@pytest.mark.parametrize("first", ["0x1", "0x800000", "0x40000000", "0x40800001"])
def test_bits_that_can_be_ignored_are(first):
    assert weigh(nvlink(first=first)).kind == "ignore"


def test_a_parity_error_counts_if_seen_more_than_twice_on_one_link():
    assert not weigh(nvlink(first="0x10"), times=2).serious
    assert weigh(nvlink(first="0x10"), times=3).serious


def test_the_worst_bit_decides():
    assert decode_nvlink(nvlink(first="0x600001")) == ("signal", "ignore")


def test_an_nvlink_error_without_registers_goes_by_its_words():
    assert weigh(xid(74, "NVLink: fatal error detected on link 6")).serious
    assert not weigh(xid(74, "NVLink Error on GPU 0000:3b:00")).serious
    assert link_of(xid(74, "NVLink: fatal error detected on link 6")) == 6


@pytest.mark.parametrize(
    ("words", "action"),
    [
        ("None", "nothing"),
        ("GPU Reset Required", "reset the GPU"),
        ("PF FLR", "reset the GPU"),
        ("Drain and Reset", "reset the GPU"),
        ("Drain P2P", "reset the GPU"),
        ("Node Reboot Required", "reboot the node"),
        ("OS Reboot", "reboot the node"),
        ("Something New", None),
    ],
)
def test_the_driver_states_its_own_action(words, action):
    event = xid(154, f"154, GPU recovery action changed from 0x0 (None) to 0x2 ({words})")
    assert stated_action(event) == action
    assert weigh(event).serious is (action not in {"nothing", None})


def test_a_line_that_names_its_cause_stands_for_it():
    assert weigh(xid(45, "Ch 00000001 caused by previous Xid 149")).serious
    assert not weigh(xid(45, "Ch 00000001 caused by previous Xid 145")).serious
    assert weigh(xid(45, "Ch 00000001 caused by previous Xid 48")).serious


def test_every_entry_has_words_and_an_action():
    for entry in TABLE.values():
        assert entry.name
        assert entry.action in ACTIONS
        assert entry.kind not in {"hardware", "reset"} or ACTIONS.index(entry.action) > 2


@given(st.integers(0, 2000) | st.none(), st.text() | st.just("link 3(0xffffffff, 0x1)"), st.none() | st.text())
def test_no_event_raises(code, text, severity):
    weigh(xid(code, text, severity=severity))
