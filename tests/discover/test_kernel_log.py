"""Where the kernel log is read from, and which of its lines are of this boot."""

import errno
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.discover import kernel_log
from preflight.discover.kernel_log import read_kernel_log, read_records, split_file

XID = "NVRM: Xid (PCI:0000:41:00): 79, pid=1, name=train, GPU has fallen off the bus."
OLD = "NVRM: Xid (PCI:0000:42:00): 48, pid=2, name=old, DBE"


def in_log(tmp_path, text, name="kern.log", uptime="5000.00 1.0\n"):
    return read_kernel_log(_written(tmp_path, {f"var/log/{name}": text, "proc/uptime": uptime}))


def _written(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


@pytest.fixture
def kmsg():
    """What behaves like /dev/kmsg: one record per read, and no waiting."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs.fileno()


def test_records_are_read_to_the_end(kmsg):
    write, descriptor = kmsg
    write.send(b"5,0,0,-;Linux version 6.8.0\n")
    write.send(b"3,1042,8462102,-;" + XID.encode() + b"\n SUBSYSTEM=pci\n DEVICE=+pci:0000:41:00.0\n")
    lines = read_records(descriptor, 5.0)
    assert (lines.lines[-1].at_s, lines.lines[-1].text) == (8.462102, XID)
    assert lines.starts_at_s == 0.0


def test_when_the_driver_was_loaded_is_told(tmp_path):
    text = f"[    0.0] Linux version 6.8.0\n[   12.5] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15\n[  900.0] {XID}\n"
    log = in_log(tmp_path, text)
    assert (log.driver_loaded_at_s, [event.at_s for event in log.events]) == (12.5, [900.0])


def test_a_log_that_lost_its_beginning_says_from_when(kmsg):
    write, descriptor = kmsg
    write.send(b"6,900,77000000,-;something\n")
    write.send(b"6,901,78000000,-;more\n")
    assert read_records(descriptor, 5.0).starts_at_s == 77.0


def test_one_record_of_several_lines_is_taken_apart(kmsg):
    write, descriptor = kmsg
    write.send(b"3,5,1000000,-;NVRM: The NVIDIA GPU 0000:b4:00.0\\x0aNVRM: fallen off the bus and is not responding\n")
    assert [line.text.split(" ")[1] for line in read_records(descriptor, 5.0).lines] == ["The", "fallen"]


def test_what_a_daemon_writes_into_the_log_is_not_the_kernels_word(kmsg):
    write, descriptor = kmsg
    write.send(b"30,7,1000000,-;" + XID.encode() + b"\n")  # facility 3
    assert read_records(descriptor, 5.0).lines == []


def test_records_that_were_overwritten_meanwhile_cost_only_themselves(kmsg, monkeypatch):
    write, descriptor = kmsg
    write.send(b"3,9,1000000,-;" + XID.encode() + b"\n")
    real, lost = os.read, [OSError(errno.EPIPE, "Broken pipe")]

    def read(*arguments):
        if lost:
            raise lost.pop()
        return real(*arguments)

    monkeypatch.setattr(kernel_log.os, "read", read)
    assert [line.text for line in read_records(descriptor, 5.0).lines] == [XID]


def test_a_log_that_never_ends_is_left_at_the_deadline(kmsg):
    write, descriptor = kmsg
    write.send(b"3,9,1000000,-;" + XID.encode() + b"\n")
    assert read_records(descriptor, -1.0).note


def test_a_right_that_is_missing_is_told(monkeypatch, tmp_path):
    def refuse(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(kernel_log, "_read_kmsg", refuse)
    monkeypatch.setattr(kernel_log, "FILES", ())
    log = read_kernel_log()
    assert log.events is None
    assert log.note == "/dev/kmsg: Operation not permitted"


def test_without_any_log_nothing_is_known(tmp_path):
    log = read_kernel_log(tmp_path)
    assert log.events is None
    assert log.note


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_told(tmp_path):
    root = _written(tmp_path, {"var/log/kern.log": XID})
    (root / "var/log/kern.log").chmod(0)
    assert "Permission denied" in (read_kernel_log(root).note or "")


def test_a_link_in_place_of_the_log_is_not_followed(tmp_path):
    root = _written(tmp_path, {"secret": XID, "var/log/other": ""})
    (root / "var/log/kern.log").symlink_to(root / "secret")
    assert read_kernel_log(root).events is None


def test_a_pipe_in_place_of_the_log_does_not_hold_us(tmp_path):
    root = _written(tmp_path, {"var/log/other": ""})
    os.mkfifo(root / "var/log/kern.log")
    assert "no regular file" in (read_kernel_log(root).note or "")


def test_lines_of_syslog_with_seconds_since_boot(tmp_path):
    text = (
        "Jun  5 22:00:00 n1 kernel: [    0.000000] Linux version 6.8.0\n"
        f"Jun  5 22:36:51 n1 kernel: [ 4564.303884] {XID}\n"
    )
    log = in_log(tmp_path, text)
    assert log.events is not None
    assert [(event.code, event.at_s) for event in log.events] == [(79, 4564.303884)]
    assert (log.starts_at_s, log.read_at_s, log.source) == (0.0, 5000.0, "/var/log/kern.log")


def test_earlier_boots_in_the_same_file_do_not_count(tmp_path):  # Azure/azurehpc-health-checks 648
    text = (
        f"Jun  4 22:36:51 n1 kernel: [ 9000.000000] {OLD}\n"
        "Jun  5 22:00:00 n1 kernel: [    0.000000] Linux version 6.8.0\n"
        "Jun  5 22:36:51 n1 kernel: [ 4564.303884] all well\n"
    )
    assert in_log(tmp_path, text).events == ()


def test_a_clock_that_steps_back_is_a_boot_even_without_its_first_line(tmp_path):
    text = f"Jun  4 22:36:51 n1 kernel: [ 9000.0] {OLD}\nJun  5 22:36:51 n1 kernel: [   70.5] {XID}\n"
    log = in_log(tmp_path, text)
    assert [event.code for event in log.events or ()] == [79]
    assert log.starts_at_s == 70.5


def test_lines_without_seconds_count_after_the_boots_first_line(tmp_path):
    text = (
        f"Jun  4 22:36:51 n1 kernel: {OLD}\nJun  5 22:00:00 n1 kernel: Linux version 6.8.0\n"
        f"Jun  5 22:36:51 n1 kernel: {XID}\n"
    )
    log = in_log(tmp_path, text, name="messages")
    assert [(event.code, event.at_s) for event in log.events or ()] == [(79, None)]


def test_events_that_may_be_of_an_earlier_boot_leave_the_answer_unknown(tmp_path):
    log = in_log(tmp_path, f"Jun  4 22:36:51 n1 kernel: {OLD}\n", name="messages")
    assert log.events is None
    assert "earlier boots" in (log.note or "")


def test_a_file_of_a_longer_boot_than_this_one_is_an_earlier_boots(tmp_path):
    log = in_log(tmp_path, f"Jun  4 22:36:51 n1 kernel: [90000.0] {OLD}\n", uptime="100.0 1.0\n")
    assert log.events is None


def test_dates_with_a_time_zone_are_enough():
    data = (
        f"2026-04-22T20:00:00.000000+00:00 n1 kernel: {OLD}\n2026-04-22T21:27:51.290876+00:00 n1 kernel: {XID}\n"
    ).encode()
    lines = split_file(data, boot_time_s=1776891600.0)  # 2026-04-22 21:00 UTC
    assert [line.text for line in lines.lines if line.text] == [XID]
    assert lines.lines[0].at_s == pytest.approx(1671.29, abs=0.01)


def test_a_file_that_was_not_written_since_this_boot_is_passed_over(tmp_path):
    root = _written(tmp_path, {"var/log/kern.log": f"[ 5.0] {OLD}\n", "proc/stat": "cpu 1\nbtime 4000000000\n"})
    log = read_kernel_log(root)
    assert log.events is None
    assert "not written to since this boot" in (log.note or "")


def test_what_daemons_quote_is_not_the_kernels_word(tmp_path):
    text = f"Jun  5 22:36:51 n1 monitor[99]: {XID}\nJun  5 22:36:52 n1 kernel: [ 12.0] all well\n"
    assert in_log(tmp_path, text, name="messages").events == ()


def test_lines_that_syslog_folded_are_counted(tmp_path):
    text = (
        f"Jun  5 22:36:51 n1 kernel: [ 4564.3] {XID}\n"
        f"Jun  5 22:36:59 n1 kernel: [ 4572.3] message repeated 3 times: [ [ 4571.1] {XID}]\n"
    )
    (event,) = in_log(tmp_path, text).events or ()
    assert event.count == 4


@pytest.mark.parametrize("prefix", ["[  412.331] ", "<3>[  412.331] ", "kern  :err   : [  412.331] "])
def test_each_form_of_dmesgs_output(tmp_path, prefix):
    log = in_log(tmp_path, f"[    0.000000] Linux version 6.8\n{prefix}{XID}\n", name="dmesg")
    assert [(event.code, event.at_s) for event in log.events or ()] == [(79, 412.331)]


def test_a_dmesg_file_of_the_boot_alone_says_that_it_ends_early(tmp_path):
    log = in_log(tmp_path, "[    0.000000] Linux version 6.8\n[   30.0] all well\n", name="dmesg")
    assert log.events == ()
    assert "ends 30 s after boot" in (log.note or "")


def test_a_log_without_a_beginning_or_without_lines_says_so(tmp_path):
    log = in_log(tmp_path, "Jun  5 22:36:51 n1 kernel: all well\n", name="messages")
    assert (log.events, log.starts_at_s) == ((), None)
    assert "since when" in (log.note or "")
    assert "is empty" in (in_log(tmp_path / "other", "", name="messages").note or "")


def test_only_the_end_of_a_large_file_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_log, "MAX_FILE_BYTES", 4096)
    filler = "".join(f"Jun  5 22:00:00 n1 kernel: [{100 + i}.000000] line\n" for i in range(1000))
    log = in_log(tmp_path, f"Jun  5 21:00:00 n1 kernel: [   50.0] {OLD}\n{filler}")
    assert log.events == ()
    assert log.starts_at_s is not None
    assert log.starts_at_s > 1000


PIECES = st.sampled_from(
    [
        b"Jun  5 22:36:51 n1 kernel: ",
        b"[ 12.5] ",
        b"2026-04-22T21:27:51Z n kernel: ",
        XID.encode(),
        b"\n",
        b"Linux version ",
    ]
)


@given(st.lists(PIECES | st.binary(max_size=12), max_size=20).map(b"".join))
def test_no_bytes_of_a_file_raise(data):
    split_file(data, boot_time_s=1.0)


@given(st.lists(st.binary(min_size=1, max_size=60) | st.just(b"3,1,2,-;" + XID.encode()), max_size=5))
def test_no_record_raises(records):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    with ours, theirs:
        for record in records:
            ours.send(record)
        read_records(theirs.fileno(), 5.0)
