"""What a job's processes are allowed and given by the host: locked memory, /dev/shm, a clock."""

import pytest
from msgspec.structs import replace

from preflight.model import UNLIMITED, ClockSync, Limits, Platform, Verdict
from preflight_checks import clock_sync, memlock, shm_size
from tests.builders import make_gpu, make_node, make_plan
from tests.checks.nodes_found import findings_of, make_hca, only

HCAS = (make_hca(),)
TWO_NODES = make_plan(nodes=2, tp=8, pp=1, dp=2, node_names=["n1", "n2"])


def node_with_limit(soft, hard=UNLIMITED, **others):
    return make_node("n1", hcas=HCAS, limits=Limits(memlock_bytes=soft, memlock_hard_bytes=hard, **others))


def test_unlimited_locked_memory_passes():
    assert only(memlock.CHECK, node_with_limit(UNLIMITED)).verdict is Verdict.PASS


@pytest.mark.parametrize("limit", [0, 64 * 1024, 8192 * 1024])
def test_a_default_limit_of_locked_memory_is_the_environments_fault(limit):
    assert only(memlock.CHECK, node_with_limit(limit, hard=limit), plan=TWO_NODES).verdict is Verdict.FAIL
    finding = only(memlock.CHECK, node_with_limit(limit, hard=limit))
    assert finding.verdict is Verdict.FAIL
    assert finding.blames.kind == "environment"
    assert "LimitMEMLOCK=infinity" in finding.remedy


def test_a_small_limit_of_locked_memory_does_no_harm_within_one_node():
    far = tuple(make_gpu("n1", i, nics={"mlx5_0": "SYS"}) for i in range(8))
    ethernet = replace(node_with_limit(8192 * 1024), gpus=far)
    assert only(memlock.CHECK, ethernet).verdict is Verdict.WARN
    assert only(memlock.CHECK, ethernet, plan=TWO_NODES).verdict is Verdict.FAIL
    one_node = make_plan(nodes=1, tp=8, pp=1, dp=1, node_names=["n1"])
    assert only(memlock.CHECK, node_with_limit(8192 * 1024), plan=one_node).verdict is Verdict.WARN


def test_a_large_limit_of_locked_memory_is_a_warning():
    assert only(memlock.CHECK, node_with_limit(2**34)).verdict is Verdict.WARN


def test_a_limit_that_does_not_bind_root_is_a_warning_for_the_job_steps():
    finding = only(memlock.CHECK, node_with_limit(64 * 1024, privileged=True))
    assert finding.verdict is Verdict.WARN
    assert "job steps may inherit it" in finding.observed


def test_an_unknown_limit_is_unknown_and_nodes_that_need_none_are_skipped():
    assert only(memlock.CHECK, make_node("n1", hcas=HCAS)).verdict is Verdict.UNKNOWN
    assert only(memlock.CHECK, make_node("n1", hcas=(), limits=Limits(memlock_bytes=1))).verdict is Verdict.SKIP
    without_gpus = make_node("n1", gpus=0, hcas=HCAS, limits=Limits(memlock_bytes=1))
    assert only(memlock.CHECK, without_gpus).verdict is Verdict.SKIP


@pytest.mark.parametrize(
    ("free", "verdict"),
    [(32 * 10**9, Verdict.PASS), (500 * 10**6, Verdict.WARN), (64 * 10**6, Verdict.FAIL), (None, Verdict.UNKNOWN)],
)
def test_the_room_in_shared_memory_is_judged_for_the_number_of_gpus(free, verdict):
    node = make_node("n1", limits=Limits(shm_bytes=free, shm_free_bytes=free))
    assert only(shm_size.CHECK, node).verdict is verdict


def test_the_remedy_for_little_shared_memory_fits_its_cause():
    small = Limits(shm_bytes=64 * 10**6, shm_free_bytes=64 * 10**6)
    full = Limits(shm_bytes=10**12, shm_free_bytes=0)
    in_container = make_node("n1", limits=small, platform=Platform(container="docker"))
    assert "--shm-size=1g" in only(shm_size.CHECK, in_container).remedy
    assert "mount a larger tmpfs" in only(shm_size.CHECK, make_node("n1", limits=small)).remedy
    assert "earlier jobs left" in only(shm_size.CHECK, make_node("n1", limits=full)).remedy


def test_a_node_without_gpus_needs_no_shared_memory():
    assert only(shm_size.CHECK, make_node("n1", gpus=0)).verdict is Verdict.SKIP


@pytest.mark.parametrize(
    ("clock", "verdict"),
    [
        (ClockSync(synchronised=True, max_error_s=0.02), Verdict.PASS),
        (ClockSync(synchronised=True), Verdict.PASS),
        (ClockSync(synchronised=False, max_error_s=16.0), Verdict.WARN),
        (ClockSync(synchronised=True, max_error_s=8.0), Verdict.WARN),
        (ClockSync(), Verdict.UNKNOWN),
        (None, Verdict.UNKNOWN),
    ],
)
def test_a_clock_that_nobody_keeps_is_a_warning_and_an_unknown_one_unknown(clock, verdict):
    finding = only(clock_sync.CHECK, make_node("n1", clock=clock))
    assert finding.verdict is verdict
    assert finding.need == "advisory"


def test_each_node_is_judged_by_itself():
    nodes = [make_node(f"n{i}", clock=ClockSync(synchronised=i != 2, max_error_s=0.1)) for i in range(4)]
    assert next((f.subject, f.verdict) for f in findings_of(clock_sync.CHECK, *nodes)) == ("n2", Verdict.WARN)
