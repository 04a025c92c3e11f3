"""leftover_processes: who holds the job's GPUs, by pid, name and user; other jobs' GPUs and the system's daemons are left alone."""

import pytest
from msgspec.structs import replace

from preflight.model import Evidence, GpuProcess, Inventory, Mask, Platform, Problem, Settings, Verdict
from preflight_checks.leftover_processes import judge
from tests.builders import make_gpu, make_node, make_plan

GB = 10**9
STRAY = GpuProcess(pid=4711, memory_bytes=12 * GB, name="python3", user="alice")
OURS = Mask(gpu_uuids=("GPU-node0-0", "GPU-node0-1"))


def node(*, mask=None, on=None, gpu=None, **changes):
    """Eight GPUs with the processes of `on`, by index; no others."""
    gpus = tuple(
        make_gpu("node0", i, **{"processes": (on or {}).get(i, ()), "memory_used_bytes": GB // 2, **(gpu or {})})
        for i in range(8)
    )
    return replace(make_node(), gpus=gpus, mask=mask, **changes)


def judged(*nodes, plan=None, **settings):
    return list(judge(Evidence(inventory=Inventory(nodes=nodes), plan=plan, settings=Settings(**settings))))


def not_passed(findings):
    return [f for f in findings if f.verdict is not Verdict.PASS]


def test_gpus_that_nobody_holds_pass():
    [finding] = judged(node())
    assert (finding.verdict, finding.observed) == (Verdict.PASS, "8 GPUs: nobody else's processes")


def test_a_process_on_the_jobs_gpu_fails_with_pid_name_and_user():
    [finding] = not_passed(judged(node(mask=OURS, on={1: (STRAY,)})))
    assert finding.verdict is Verdict.FAIL
    assert finding.subject == "node0 GPU 1 (GPU-node0-1)"
    assert finding.observed == "held by process 4711 (python3, user alice, 12.0 GB)"
    assert (finding.blames.kind, finding.blames.name) == ("environment", "process 4711 on node0")
    assert "4711" in finding.remedy


def test_other_jobs_gpus_are_not_looked_at():
    findings = judged(node(mask=OURS, on={5: (STRAY,)}))
    assert [f.verdict for f in findings] == [Verdict.PASS]
    assert findings[0].observed.startswith("2 GPUs")


def test_the_plans_gpus_are_the_jobs():
    uuids = {"node0": [f"GPU-node0-{i}" for i in range(4)]}
    plan = make_plan(node_names=["node0"], nodes=1, gpus_per_node=4, gpu_uuids=uuids, tp=4, pp=1, dp=1)
    assert not_passed(judged(node(on={5: (STRAY,)}), plan=plan)) == []
    assert not_passed(judged(node(on={3: (STRAY,)}), plan=plan))[0].verdict is Verdict.FAIL


def test_without_a_mask_or_plan_it_is_a_warning():
    [finding] = not_passed(judged(node(on={5: (STRAY,)})))
    assert finding.verdict is Verdict.WARN
    assert "which GPUs are this job's is not known" in finding.observed


def test_one_process_on_all_gpus_is_one_finding():
    assert len(not_passed(judged(node(on=dict.fromkeys(range(8), (STRAY,)))))) == 1


@pytest.mark.parametrize(
    "name", ["nvidia-cuda-mps-server", "nvidia-cuda-mps", "/usr/bin/nv-hostengine", "Xorg", "dcgm-exporter"]
)
def test_daemons_of_the_system_are_told_apart(name):
    daemon = GpuProcess(pid=900, memory_bytes=60 * 2**20, name=name)
    [finding] = judged(node(mask=OURS, on={0: (daemon,)}))
    assert finding.verdict is Verdict.PASS
    assert f"GPU 0: daemons: {name}" in finding.observed


def test_a_process_of_little_memory_does_not_count_and_one_of_unknown_memory_does():
    small = GpuProcess(pid=1, memory_bytes=15 * 2**20, name="python3")
    assert not_passed(judged(node(mask=OURS, on={0: (small,)}))) == []
    unsized = GpuProcess(pid=2, name="python3")
    [finding] = not_passed(judged(node(mask=OURS, on={0: (unsized,)})))
    assert (finding.verdict, finding.observed) == (Verdict.FAIL, "held by process 2 (python3)")


def test_a_process_that_cannot_be_seen_may_be_the_jobs_own_and_is_a_warning():
    [finding] = not_passed(judged(node(mask=OURS, on={0: (GpuProcess(pid=2),)})))
    assert finding.verdict is Verdict.WARN
    assert finding.observed == "held by process 2 (name not visible from here); whose it is can't be told from here"


def test_windows_on_a_display_are_a_warning():
    window = GpuProcess(pid=9, memory_bytes=300 * 2**20, name="firefox", kind="graphics")
    [finding] = not_passed(judged(node(mask=OURS, on={0: (window,)})))
    assert finding.verdict is Verdict.WARN


def test_the_jobs_own_training_is_nobody_elses():
    [finding] = judged(node(mask=OURS, on={0: (replace(STRAY, ours=True),)}))
    assert finding.verdict is Verdict.PASS
    assert "GPU 0: this job's own: 4711" in finding.observed
    [finding] = not_passed(
        judged(node(mask=OURS, on={0: (replace(STRAY, ours=True), replace(STRAY, pid=5, ours=False))}))
    )
    assert (finding.verdict, finding.observed) == (Verdict.FAIL, "held by process 5 (python3, user alice, 12.0 GB)")


def test_memory_in_use_without_a_process_is_a_warning():
    findings = judged(node(mask=OURS, gpu={"memory_used_bytes": 40 * GB}))
    assert {f.verdict for f in findings} == {Verdict.WARN}
    assert "40.0 GB of 85.5 GB in use, and no process is seen" in findings[0].observed
    assert {f.blames for f in findings} == {None}  # the memory may be that of another container
    metal = node(mask=OURS, gpu={"memory_used_bytes": 40 * GB}, platform=Platform(container="none"))
    assert {f.blames.confidence for f in judged(metal)} == {"possible"}
    for usual in ({"own_numa_node": 2}, {"mig_enabled": True}, {"memory_bytes": None}):
        assert not_passed(judged(node(gpu={"memory_used_bytes": 40 * GB, **usual}))) == []


def test_processes_that_cannot_be_listed_are_unknown_and_unsupported_ones_skipped():
    denied = Problem(source="nvml", text="Insufficient Permissions (NVML 4)", field="processes")
    assert judged(node(gpu={"processes": None, "problems": (denied,)}))[0].verdict is Verdict.UNKNOWN
    assert judged(node(gpu={"processes": None}))[0].verdict is Verdict.UNKNOWN
    assert judged(node(gpu={"processes": None, "unsupported": ("processes",)}))[0].verdict is Verdict.SKIP


def test_nodes_without_gpus_and_runs_without_them_say_nothing():
    assert judged(make_node(gpus=0), make_node("n1", gpus=None)) == []
    assert judged(node(on={0: (STRAY,)}), cpu_declared=True) == []
