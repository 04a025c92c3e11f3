"""Real NCCL on real GPUs: the same coordinator, agents and workers, with another backend."""

import pytest

from preflight.discover.node import discover_node
from preflight.model import Verdict
from tests.fleet.runs import Run

pytestmark = [pytest.mark.gpu, pytest.mark.fabric, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def num_gpus() -> int:
    return len([gpu for gpu in discover_node().gpus or () if gpu.uuid and not gpu.mig_enabled])


def test_discovery_finds_each_gpu_with_its_uuid_and_memory(num_gpus):
    node = discover_node()
    assert num_gpus > 0
    assert node.driver_version
    for gpu in node.gpus:
        assert gpu.uuid.startswith("GPU-")
        assert gpu.memory_bytes > 10**9


def test_a_run_on_all_gpus_measures_every_pair_over_nccl(tmp_path, num_gpus):
    if num_gpus < 2:
        pytest.skip("needs two GPUs")
    run = Run(tmp_path, "--local", f"1x{num_gpus}", "--backend", "nccl", nodes=1, per_node=num_gpus, tp=num_gpus)
    try:
        run.wait(280)
        report = run.report()
    finally:
        run.kill_all()
    assert report.evidence.settings.backend == "nccl"
    assert report.coverage.pairs_measured == num_gpus * (num_gpus - 1) // 2
    assert all(m.data_correct for m in report.evidence.measurements if m.samples)
    assert not [f for f in report.findings if f.check in {"reachable", "data_correct"} and f.verdict is Verdict.FAIL]
    run.gone()


def test_a_run_with_one_rank_on_one_gpu_starts_its_worker_there_and_decides_nothing(tmp_path, num_gpus):
    assert num_gpus > 0
    run = Run(tmp_path, "--local", "1x1", "--backend", "nccl", nodes=1, per_node=1, tp=1)
    try:
        run.wait(280)
        report = run.report()
    finally:
        run.kill_all()
    assert not [i for i in report.evidence.incidents if i.kind == "worker_not_started"]
    assert report.answer == "undecided"  # one rank has no partner: nothing was measured
    run.gone()
