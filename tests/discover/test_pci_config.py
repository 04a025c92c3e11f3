"""PCI configuration space: what bridges let through, what cards ask for, and which GPUs answer nothing; on any bytes without an error or a hang."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.discover.pci_config import (
    acs_control,
    capabilities,
    extended_capabilities,
    is_complete,
    is_dead,
    max_read_request_bytes,
    read_bus,
)
from preflight.model import PciBridge
from tests.config_spaces import DEAD, config_space
from tests.trees import Tree

BRIDGES = ("0000:10:01.0", "0000:11:00.0")


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def add_bridges(tree, *configs):
    """Bridges one below the other, with a GPU at the end."""
    path = "pci0000:10"
    for bus_id, config in zip(BRIDGES, configs, strict=False):
        path += f"/{bus_id}"
        tree.pci(path, vendor="0x1000", class_code="0x060400", config=config)
    tree.gpu(f"{path}/0000:12:00.0", config=config_space())


def test_bridges_that_redirect_peer_traffic_are_decoded(tree):
    """0x001d: SrcValid, ReqRedir, CmpltRedir and UpstreamFwd (NVIDIA/nccl issue 2079)."""
    add_bridges(tree, config_space(acs=0x001D), config_space(acs=0))
    reading = read_bus(tree.root, ("0000:12:00.0",), BRIDGES)
    assert reading.bridges == (
        PciBridge(bus_id="0000:10:01.0", acs_readable=True, acs_control=0x001D),
        PciBridge(bus_id="0000:11:00.0", acs_readable=True, acs_control=0),
    )
    assert (reading.dead, reading.problems) == ((), ())


def test_a_bridge_without_access_control_has_none_and_was_read(tree):
    add_bridges(tree, config_space(), config_space(express=False, size=256))
    reading = read_bus(tree.root, (), BRIDGES)
    assert [(bridge.acs_readable, bridge.acs_control) for bridge in reading.bridges] == [(True, None), (True, None)]
    assert reading.problems == ()


def test_an_ordinary_user_is_told_that_root_is_needed_once_for_all_bridges(tree):
    add_bridges(tree, config_space(acs=0x1D, size=64), config_space(acs=0x1D, size=64))
    reading = read_bus(tree.root, (), BRIDGES)
    assert [(bridge.acs_readable, bridge.acs_control) for bridge in reading.bridges] == [(False, None), (False, None)]
    (problem,) = reading.problems
    assert (problem.field, problem.not_allowed) == ("pci_bridges", True)
    assert "0000:10:01.0" in problem.text


def test_a_machine_without_extended_configuration_space_is_no_question_of_permission(tree):
    add_bridges(tree, config_space(acs=0x1D, size=256), config_space(acs=0x1D, size=4096))
    reading = read_bus(tree.root, (), BRIDGES)
    assert [bridge.acs_readable for bridge in reading.bridges] == [False, True]
    (problem,) = reading.problems
    assert not problem.not_allowed
    assert "can't be reached" in problem.text


def test_a_bridge_that_answers_nothing_or_has_no_file_is_not_read(tree):
    add_bridges(tree, b"\xff" * 4096, None)
    reading = read_bus(tree.root, (), BRIDGES)
    assert [bridge.acs_readable for bridge in reading.bridges] == [False, False]
    assert [problem.field for problem in reading.problems] == ["pci_bridges", "pci_bridges"]


@pytest.mark.parametrize("size", [64, 4096])
def test_a_gpu_whose_configuration_reads_as_all_ones_is_dead(tree, size):
    """What lspci shows as "rev ff"."""
    tree.gpu("pci0000:10/0000:10:01.0/0000:11:00.0", config=b"\xff" * size)
    tree.gpu("pci0000:10/0000:10:02.0/0000:12:00.0", config=config_space())
    assert read_bus(tree.root, ("0000:11:00.0", "0000:12:00.0"), ()).dead == ("0000:11:00.0",)


def test_a_gpu_without_power_is_not_dead(tree):
    tree.write(tree.gpu("pci0000:10/0000:10:01.0/0000:11:00.0", config=DEAD) + "/power_state", "D3cold\n")
    assert read_bus(tree.root, ("0000:11:00.0",), ()).dead == ()


def test_a_gpu_whose_configuration_is_not_there_to_read_is_not_called_dead(tree):
    tree.gpu("pci0000:10/0000:10:01.0/0000:11:00.0")
    tree.gpu("pci0000:10/0000:10:02.0/0000:12:00.0", config=b"\xff" * 16)
    assert read_bus(tree.root, ("0000:11:00.0", "0000:12:00.0"), ()).dead == ()


def test_where_the_bus_is_unknown_so_are_its_bridges(tree):
    assert tuple(read_bus(tree.root, None, None)) == ((), None, ())


@pytest.mark.parametrize("size", [128, 256, 512, 1024, 2048, 4096])
def test_the_read_request_of_a_card_is_decoded(size):
    assert max_read_request_bytes(config_space(max_read_request=size)) == size


def test_the_read_request_is_unknown_without_the_right_to_read_it():
    assert max_read_request_bytes(config_space(max_read_request=4096, size=64)) is None


def test_a_reserved_read_request_is_no_number():
    space = bytearray(config_space())
    space[0x68:0x6A] = (7 << 12).to_bytes(2, "little")
    assert max_read_request_bytes(bytes(space)) is None


def test_lists_that_run_in_a_circle_end():
    space = bytearray(config_space(acs=0x1D))
    space[0x61] = 0x40  # the PCI Express capability points back
    space[0x148:0x14C] = (0x000B | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    assert [at for _, at in capabilities(bytes(space))] == [0x40, 0x60]
    assert [at for _, at in extended_capabilities(bytes(space))] == [0x100, 0x148]
    assert acs_control(bytes(space)) is None


@settings(max_examples=70)
@given(st.binary(max_size=4200), st.binary(max_size=8), st.integers(0, 255))
def test_no_bytes_break_the_reading(data, tail, pointer):
    # random bytes rarely are a list: half of the cases get a header that says there is one
    listed = bytearray(data)
    if len(listed) > 0x34:
        listed[0x06] |= 0x10
        listed[0x34] = pointer
    for config in (data, bytes(listed), data + tail * 512):
        assert len(list(capabilities(config))) <= 64
        assert len(list(extended_capabilities(config))) <= 1024
        control = acs_control(config)
        assert control is None or 0 <= control <= 0xFFFF
        assert max_read_request_bytes(config) in {None, 128, 256, 512, 1024, 2048, 4096}
        assert not (is_dead(config) and is_complete(config))
