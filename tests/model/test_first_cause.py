"""Which event is the cause: chains as they were reported, each with its issue."""

from hypothesis import given
from hypothesis import strategies as st

from preflight.model import KernelEvent
from preflight.model.first_cause import WINDOW_S, first_cause, only_follows

A, B, C = "0000:dc:00.0", "0000:ed:00.0", "0000:ba:00.0"


def xid(code, pci=A, at_s=100.0, text="", **fields):
    return KernelEvent(kind="xid", code=code, pci_bus_id=pci, at_s=at_s, text=text, **fields)


def causes(*events):
    return [(chain.cause.code, chain.cause.pci_bus_id) for chain in first_cause(events)]


def port_error(pci=A, at_s=100.0):
    return xid(149, pci, at_s, severity="Fatal", subcode="NETIR_LINK_EVT")


def peer_error(pci, at_s=101.0):
    return xid(145, pci, at_s, severity="Nonfatal", subcode="RLW_RXPIPE")


def test_one_port_error_explains_peers_and_clean_up():  # open-gpu-kernel-modules 1150, marin 9086
    events = [
        port_error(),
        peer_error(B),
        peer_error(C),
        xid(45, A, 102.0, "Ch 00000001 caused by previous Xid 149"),
        xid(45, B, 102.0, "Ch 0000000c caused by previous Xid 145"),
        xid(154, A, 103.0, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
    ]
    (chain,) = first_cause(events)
    assert (chain.cause.code, chain.cause.pci_bus_id) == (149, A)
    assert len(chain.follows) == 5


def test_a_peer_that_spoke_first_is_still_a_peer():
    assert causes(peer_error(B, 99.0), port_error(A, 100.0)) == [(149, A)]


def test_only_the_clean_up_is_left_and_names_its_causes():  # open-gpu-kernel-modules 1150: no line of 149 itself
    events = [
        xid(45, A, 100.0, "Ch 00000001 caused by previous Xid 149"),
        xid(45, B, 100.0, "Ch 0000000c caused by previous Xid 145"),
        xid(45, C, 100.0, "Ch 00000002 caused by previous Xid 145"),
    ]
    assert causes(*events) == [(45, A)]


def test_two_port_errors_are_two_causes():
    assert causes(port_error(A), port_error(B)) == [(149, A), (149, B)]


def test_a_memory_error_explains_its_remapping_and_what_the_program_lost():
    assert causes(xid(63, at_s=99.9), xid(48), xid(94, at_s=100.1), xid(45, at_s=101.0), xid(154, at_s=102.0)) == [
        (48, A)
    ]
    assert causes(xid(48), xid(64, at_s=100.5), xid(95, at_s=101.0)) == [(48, A)]


def test_after_a_gpu_is_lost_all_on_it_follows_however_late():
    assert causes(xid(79), xid(119, at_s=5000.0), xid(45, at_s=9000.0)) == [(79, A)]


def test_a_lost_gpu_explains_the_silence_before_it():
    assert causes(xid(119, at_s=95.0), xid(79)) == [(79, A)]


def test_a_lost_gpu_explains_links_of_its_peers_and_ports_of_switches():
    switch = KernelEvent(kind="sxid", code=20034, severity="Fatal", pci_bus_id="0000:06:00.0", port=48, at_s=112.0)
    link = xid(74, B, 101.0, "NVLink: fatal error detected on link 3(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)")
    assert causes(xid(79), link, switch) == [(79, A)]


def test_a_link_error_without_a_root_stands_for_itself():
    link = xid(74, B, text="NVLink: fatal error detected on link 3(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)")
    assert causes(link, xid(45, B, 101.0)) == [(74, B)]


def test_a_program_error_explains_its_own_clean_up():
    assert causes(xid(31), xid(43, at_s=100.2), xid(45, at_s=100.3)) == [(31, A)]


def test_a_program_error_elsewhere_is_not_explained_by_a_broken_gpu():
    assert causes(xid(48), xid(31, B, 101.0)) == [(48, A), (31, B)]


def test_what_lies_further_apart_has_its_own_cause():
    later = 100.0 + WINDOW_S + 1
    assert causes(xid(48), xid(31, at_s=later)) == [(48, A), (31, A)]
    assert causes(port_error(), peer_error(B, later)) == [(149, A), (145, B)]


def test_without_times_the_order_of_the_log_counts():
    assert causes(xid(48, at_s=None), xid(45, at_s=None)) == [(48, A)]


def test_peers_that_only_follow_are_known_as_such():
    (chain,) = first_cause([peer_error(B), xid(45, B, 102.0)])
    assert only_follows(chain)
    (killed,) = first_cause([xid(45, B, 102.0)])
    assert not only_follows(killed)
    (root,) = first_cause([port_error()])
    assert not only_follows(root)


EVENTS = st.builds(
    KernelEvent,
    kind=st.sampled_from(["xid", "sxid", "fell off", "aer", "driver"]),
    code=st.sampled_from([13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119, 144, 145, 149, 154, 777]) | st.none(),
    pci_bus_id=st.sampled_from([A, B, C]) | st.none(),
    at_s=st.floats(0, 1000) | st.none(),
    severity=st.sampled_from(["Fatal", "Nonfatal"]) | st.none(),
    text=st.sampled_from(["", "caused by previous Xid 149", "link 1(0x10, 0x0)"]),
)


@given(st.lists(EVENTS, max_size=25))
def test_every_event_is_in_exactly_one_chain(events):
    told = [id(event) for chain in first_cause(events) for event in chain.events]
    assert sorted(told) == sorted(id(event) for event in events)
