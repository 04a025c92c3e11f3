"""Files in and out: no half file, no device renamed over, no file that hangs or fills the memory."""

import os
import stat
import time

import pytest

from preflight.errors import ConfigError, WorldError
from preflight.formats import read_bytes, read_toml, readable, write_atomically


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path):
    target = tmp_path / "report.json"
    write_atomically(target, "old")
    write_atomically(target, b"new")
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("kind", ["fifo", "link", "dangling link", "folder"])
def test_what_is_no_regular_file_is_refused_and_stays_as_it_is(tmp_path, kind):
    target, other = tmp_path / "target", tmp_path / "other"
    if kind == "fifo":
        os.mkfifo(target)
    elif kind == "folder":
        target.mkdir()
    else:
        if kind == "link":
            other.write_text("precious")
        target.symlink_to(other)
    before = target.lstat()
    with pytest.raises(WorldError, match="name a regular file"):
        write_atomically(target, "x")
    assert target.lstat() == before
    assert kind != "link" or other.read_text() == "precious"


@pytest.mark.root
def test_a_device_is_never_renamed_over(tmp_path):
    """Root that writes its metrics to /dev/null must not replace it by a file."""
    device = tmp_path / "null"
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    with pytest.raises(WorldError, match="device"):
        write_atomically(device, "x")
    assert stat.S_ISCHR(device.stat().st_mode)


def test_an_interruption_while_writing_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    target = tmp_path / "report.json"
    write_atomically(target, "old")

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("preflight.formats.os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(WorldError, match="No such file"):
        write_atomically(tmp_path / "no" / "x", "x")


def test_a_pipe_and_a_device_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(ConfigError, match="not a regular file"):
            read_bytes(path)


def test_a_file_of_the_kernel_that_holds_nothing_yet_is_said(tmp_path, monkeypatch):
    """As /proc/kmsg does where all has been read: a regular file by its status, and a read that gives None."""
    os.mkfifo(tmp_path / "queue")
    writer = os.open(tmp_path / "queue", os.O_RDWR | os.O_NONBLOCK)
    monkeypatch.setattr(stat, "S_ISREG", lambda _mode: True)
    with pytest.raises(ConfigError, match="can't be read: it holds nothing yet"):
        read_bytes(tmp_path / "queue")
    os.close(writer)


def test_a_plan_that_would_keep_the_parser_busy_is_refused(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text("a" + ".a" * 20_000 + " = 1")
    with pytest.raises(ConfigError, match="has a line of"):
        read_toml(plan)
    plan.write_text("x = 1\n" * 50_000)
    with pytest.raises(ConfigError, match="larger than 128 KiB"):
        read_toml(plan)


def test_the_longest_line_that_is_read_takes_no_minutes(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text("a" + ".a" * 4000 + " = 1")
    began = time.process_time()
    with pytest.raises((ConfigError, RecursionError)):
        raise ConfigError("x", str(read_toml(plan))[:10])
    assert time.process_time() - began < 60  # a bound against minutes, not a measurement


def test_a_byte_order_mark_is_no_fault(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_bytes(b"\xef\xbb\xbfx = 1\n")
    assert read_toml(plan) == {"x": 1}


def test_names_that_are_no_utf8_are_spelled_out():
    assert readable(os.fsdecode(b"s\xff.toml")) == "s\\xff.toml"
