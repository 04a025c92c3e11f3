"""Limits, /dev/shm and the clock: of the live system only."""

import resource
from pathlib import Path

from preflight.discover.limits import read_clock, read_limits
from preflight.model import UNLIMITED, Limits


def test_the_limits_of_this_process_are_its_own():
    limits = read_limits(Path("/"))
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    assert limits.memlock_bytes == (UNLIMITED if soft == resource.RLIM_INFINITY else soft)
    assert limits.memlock_hard_bytes == (UNLIMITED if hard == resource.RLIM_INFINITY else hard)
    assert limits.open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert limits.privileged in {True, False}


def test_shared_memory_has_a_size_and_no_more_free_than_that():
    limits = read_limits(Path("/"))
    if Path("/dev/shm").is_mount():
        assert 0 <= limits.shm_free_bytes <= limits.shm_bytes


def test_another_root_has_neither_our_limits_nor_our_disk_as_its_shared_memory(tmp_path):
    assert read_limits(tmp_path) == Limits()
    (tmp_path / "dev/shm").mkdir(parents=True)
    assert read_limits(tmp_path) == Limits()


def test_the_kernel_tells_of_its_clock_without_a_right():
    clock = read_clock()
    assert clock.synchronised in {True, False}
    assert 0 <= clock.max_error_s <= 16.0 or not clock.synchronised
    assert abs(clock.offset_s) < 1.0
