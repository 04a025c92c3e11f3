"""What NCCL says of itself: lines in the forms that public issues show, in and out of order, cut off, and nonsense."""

import os
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.probe.nccl_log import (
    MAX_LINES,
    MAX_NOTES,
    MAX_ROUTES,
    MAX_SETTINGS,
    MAX_TEXT_BYTES,
    LogFile,
    Said,
    in_short,
    kind_of,
    prepare,
)

# forms as in NVIDIA/nccl issues 1189, 1537, 1680 and nccl-tests issues 152, 228; names and numbers are our own
HEAD = "n1:100:200 [0] NCCL INFO "
ALL = [
    "NCCL version 2.25.1+cuda12.8",
    "NCCL_P2P_LEVEL set by environment to LOC.",
    "NCCL_IB_HCA set to mlx5_0:1,mlx5_1:1",
    "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
    "Using network IB",
    "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
    "NET/IB : GPU Direct RDMA Disabled for HCA 1 'mlx5_1'",
    "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA",
    "Channel 00/0 : 2[0] -> 0[0] [receive] via NET/IB/1",
    "8 coll channels, 0 collnet channels, 0 nvls channels, 8 p2p channels, 2 p2p channels per peer",
    "AllReduce: 4194304 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..7}",
]
TEXT = "\n".join(HEAD + line for line in ALL)


def said(text: str, members=(4, 5, 6), environ=None):
    """The transport of rank 4, the communicator's first."""
    found = Said()
    found.take(text)
    return found.transport(4, members, environ or {})


def test_ways_are_told_with_the_ranks_of_the_plan_and_their_channels():
    found = {(r.sender, r.receiver, r.kind, r.via): r.channels for r in said(TEXT).routes}
    assert found == {
        (4, 5, "P2P", "P2P/CUMEM"): 2,
        (4, 6, "NET", "NET/IB/0/GDRDMA"): 1,
        (6, 4, "NET", "NET/IB/1"): 1,
    }


def test_network_version_channels_and_choice_are_told():
    told = said(TEXT)
    assert (told.network, told.version, told.channels, told.nvls_channels) == ("IB", "2.25.1+cuda12.8", 8, 0)
    assert (told.algorithm, told.protocol) == ("RING", "SIMPLE")
    assert told.gdr is False
    assert told.gdr_disabled == ("mlx5_0", "mlx5_1")


def test_a_setting_that_is_not_in_the_environment_comes_from_a_file():
    told = said(TEXT, environ={"NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1", "NCCL_DEBUG": "INFO", "HOME": "/"})
    assert told.settings == {"NCCL_P2P_LEVEL": "LOC", "NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1"}
    assert told.from_file == ("NCCL_P2P_LEVEL",)


def test_older_forms_are_read_too():
    old = "Channel 00 : 0[7000] -> 1[b000] via P2P/IPC/read\n[1] NCCL INFO 4 coll channels, 4 p2p channels, 1 p2p channels per peer\nChannel 02 : 1[b000] -> 0[7000] via direct shared memory"
    told = said(old)
    assert [(r.sender, r.receiver, r.kind) for r in told.routes] == [(4, 5, "P2P"), (5, 4, "other")]
    assert (told.channels, told.nvls_channels, told.gdr) == (4, None, None)


def test_sockets_say_nothing_of_gpudirect():
    told = said(
        "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\nNCCL INFO Using network Socket\nNCCL INFO NET/IB : No device found."
    )
    assert (told.gdr, told.network) == (None, "Socket")
    assert told.notes == ("INFO NET/IB : No device found.",)
    assert in_short(told) == "NCCL: NET/Socket/0"


def test_what_is_told_once_stays_and_what_belongs_to_a_communicator_does_not():
    found = Said()
    found.take(TEXT)
    found.take(HEAD + "Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct")
    told = found.transport(0, (0, 1), {})
    assert [r.via for r in told.routes] == ["SHM/direct/direct"]
    assert (told.network, told.channels) == ("IB", None)
    assert "NCCL_P2P_LEVEL" in told.settings


def test_ranks_beyond_the_communicator_are_left_out():
    assert said("Channel 00/0 : 0[0] -> 9[1] via P2P/CUMEM").routes == ()


def test_kinds():
    assert [
        kind_of(via) for via in ("P2P/direct pointer", "SHM/direct/direct", "NET/Libfabric/0/GDRDMA", "NVLS", "")
    ] == [*("P2P", "SHM", "NET", "other", "other")]


@settings(max_examples=70, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(ALL), st.text(max_size=80)), max_size=30), st.integers(0, 400), st.data())
def test_nothing_that_is_written_breaks_it_or_grows_without_limit(lines, cut, data):
    text = "\n".join(lines)
    text = text[: data.draw(st.integers(0, len(text)))] + text[cut:]
    told = said(text, environ={f"NCCL_{i}": "x" * 1000 for i in range(100)})
    assert len(told.routes) <= MAX_ROUTES
    assert len(told.settings) <= MAX_SETTINGS
    assert len(told.notes) <= MAX_NOTES
    assert max(map(len, told.settings.values()), default=0) <= 100


def test_many_ways_are_cut_off():
    text = "\n".join(f"Channel 00/0 : 0[0] -> {i}[0] via P2P/CUMEM" for i in range(1000))
    assert len(said(text, tuple(range(2000))).routes) == MAX_ROUTES


def test_the_log_lies_in_memory_and_only_what_is_new_is_read():
    environ: dict[str, str] = {}
    log = prepare(environ)
    assert environ["NCCL_DEBUG"] == "INFO"
    with Path(environ["NCCL_DEBUG_FILE"]).open("w", buffering=1, encoding="utf-8") as nccl:  # as NCCL does
        nccl.write("first\n")
        assert log.new_text() == "first\n"
        assert log.new_text() == ""
        nccl.write("second\n")
        assert log.new_text() == "second\n"
        nccl.write("x" * (2 * MAX_TEXT_BYTES) + "\n")
        assert len(log.new_text()) == MAX_TEXT_BYTES
        nccl.write("after\n")
        assert log.new_text() == "after\n"


def test_a_process_that_cannot_look_into_its_own_descriptors_writes_into_a_private_folder_that_goes_away(monkeypatch):
    real = os.open

    def refuse(path, *rest, **options):
        if str(path).startswith("/proc/self/fd/"):
            raise PermissionError(13, "refused")
        return real(path, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)
    log = LogFile()
    folder = Path(log.path).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    with Path(log.path).open("w", buffering=1, encoding="utf-8") as nccl:
        nccl.write("first\n")
        assert log.new_text() == "first\n"
        assert not folder.exists()
        nccl.write("second\n")
        assert log.new_text() == "second\n"


def test_values_of_settings_that_are_called_secrets_are_not_passed_on():
    transport = said(HEAD + "NCCL_NET_TOKEN set by environment to hunter2.", environ={"NCCL_NET_PASSWORD": "hunter3"})
    assert transport.settings == {"NCCL_NET_TOKEN": "(not shown)", "NCCL_NET_PASSWORD": "(not shown)"}


def test_lines_beyond_what_nccl_writes_are_not_read():
    found = Said()
    found.take("\n" * MAX_LINES + HEAD + "Using network IB")
    assert found.network is None
    found.take("\n" * (MAX_LINES - 1) + HEAD + "Using network IB")
    assert found.network == "IB"
