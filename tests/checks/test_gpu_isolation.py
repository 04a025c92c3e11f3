"""gpu_isolation: tasks whose cgroups hide their peers are recognised, and a mask alone is not taken for it.

What it breaks: NVIDIA/nccl issues 1066 and 1647; the variables as in NVIDIA/nccl-tests issue 300 and NVIDIA/deepops issue 1102.
"""

import pytest
from msgspec.structs import replace

from preflight.discover.mask import read_mask
from preflight.model import Evidence, Inventory, Link, Settings, Verdict
from preflight_checks.gpu_isolation import judge
from tests.builders import make_gpu, make_node, make_plan

STEP = {"SLURM_GTIDS": "0,1,2,3,4,5,6,7", "SLURM_STEP_GPUS": "0,1,2,3,4,5,6,7", "SLURM_LOCALID": "0"}
JOINED = (Link(index=0, active=True),) * 18


def node(environment, gpus=8, *, links=JOINED, **changes):
    found = tuple(make_gpu("node0", i, links=links) for i in range(gpus))
    return replace(make_node(), gpus=found, mask=read_mask(environment, found), **changes)


def judged(found, plan=None, **settings):
    return list(judge(Evidence(inventory=Inventory(nodes=(found,)), plan=plan, settings=Settings(**settings))))


def plan_of(**degrees):
    return make_plan(node_names=["node0"], nodes=1, gpus_per_node=8, **degrees)


def test_a_task_in_a_cgroup_of_its_own_fails_where_a_planned_group_shares_the_node():
    bound = node({**STEP, "CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_PER_TASK": "1"}, gpus=1)
    [finding] = judged(bound, plan_of(tp=8, pp=1, dp=1))
    assert finding.verdict is Verdict.FAIL
    assert "8 tasks share the node, this one sees 1 of the step's 8 GPUs (SLURM_GPUS_PER_TASK=1)" in finding.observed
    assert "NVLink between them is not used; groups with several ranks here: tp0" in finding.observed
    assert finding.blames.kind == "environment"
    assert "--gpu-bind=none" in finding.remedy
    assert "--gres=gpu:N" in finding.remedy


def test_without_a_plan_or_nvlink_it_is_a_warning():
    variables = {**STEP, "CUDA_VISIBLE_DEVICES": "0", "SLURM_GPU_BIND": "single:1"}
    [finding] = judged(node(variables, gpus=1))
    assert finding.verdict is Verdict.WARN
    assert "SLURM_GPU_BIND=single:1" in finding.observed
    assert judged(node(variables, gpus=1, links=()), plan_of(tp=8, pp=1, dp=1))[0].verdict is Verdict.WARN
    assert judged(node(variables, gpus=1, links=None), plan_of(tp=8, pp=1, dp=1))[0].verdict is Verdict.WARN


def test_a_cgroup_is_recognised_without_any_variable_that_asks_for_it():
    [finding] = judged(node({**STEP, "CUDA_VISIBLE_DEVICES": "0"}, gpus=1))
    assert "a device cgroup for each task" in finding.observed


def test_tasks_that_see_all_gpus_pass():
    [finding] = judged(node({**STEP, "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}), plan_of(tp=8, pp=1, dp=1))
    assert finding.verdict is Verdict.PASS


def test_a_mask_of_one_gpu_hides_no_peer_from_nccl():
    [finding] = judged(node({**STEP, "CUDA_VISIBLE_DEVICES": "3"}), plan_of(tp=8, pp=1, dp=1))
    assert finding.verdict is Verdict.PASS
    assert "hides no peer from NCCL" in finding.observed
    [old] = judged(node({**STEP, "CUDA_VISIBLE_DEVICES": "3"}, cuda_version="10.0"))
    assert old.verdict is Verdict.WARN


def test_a_binding_that_is_switched_off_passes():
    variables = {
        **STEP,
        "SLURM_GPUS_PER_TASK": "1",
        "SLURM_GPU_BIND": "none",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
    }
    assert judged(node(variables))[0].verdict is Verdict.PASS


def test_a_lost_gpu_is_no_isolation():
    assert judged(node(STEP, gpus=7))[0].verdict is Verdict.PASS


def test_a_batch_script_that_will_bind_its_steps_is_warned():
    batch = {"SLURM_GPUS_PER_TASK": "1", "SLURM_TASKS_PER_NODE": "8(x2)", "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7"}
    [finding] = judged(node(batch))
    assert finding.verdict is Verdict.WARN
    assert "each will see its own GPUs only" in finding.observed


# what tasks of Slurm 22.05.8 get on a node of four GPUs
OF_22_05 = {"SLURM_GTIDS": "0,1,2,3", "SLURM_GPUS_ON_NODE": "4", "SLURM_LOCALID": "2", "SLURM_STEP_TASKS_PER_NODE": "4"}


def test_the_variables_of_a_real_slurm_tell_bound_tasks_from_free_ones():
    free = {**OF_22_05, "CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_STEP_GPUS": "0,1,2,3"}  # --gres=gpu:4 -n4
    assert judged(node(free, gpus=4))[0].verdict is Verdict.PASS
    bound = {
        **OF_22_05,
        "CUDA_VISIBLE_DEVICES": "2",
        "SLURM_STEP_GPUS": "2",
    }  # --gpus-per-task=1, or --gpu-bind=single:1
    assert judged(node(bound, gpus=4))[0].verdict is Verdict.PASS  # no cgroup: a mask only
    renumbered = node({**bound, "CUDA_VISIBLE_DEVICES": "0"}, gpus=1)
    [finding] = judged(renumbered)
    assert "4 tasks share the node, this one sees 1 of the step's 4 GPUs" in finding.observed
    assert renumbered.mask.physical == (2,)
    unbound = judged(node(OF_22_05, gpus=4))  # --gpus-per-task=1 --gpu-bind=none
    assert [f.verdict for f in unbound] == [Verdict.PASS]


def test_one_agent_on_a_node_of_a_job_that_binds_its_tasks_is_warned():
    agent = {"SLURM_GTIDS": "0", "SLURM_GPUS_ON_NODE": "1", "SLURM_STEP_GPUS": "0", "SLURM_JOB_GPUS": "0,1,2,3"}
    [finding] = judged(node({**agent, "SLURM_GPUS_PER_TASK": "1", "SLURM_NTASKS_PER_NODE": "1"}, gpus=1))
    assert finding.verdict is Verdict.WARN
    assert "with 4 tasks on a node" in finding.observed


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"SLURM_GTIDS": "0", "SLURM_STEP_GPUS": "0", "CUDA_VISIBLE_DEVICES": "0"},
        {"SLURM_GPUS_PER_TASK": "8", "SLURM_TASKS_PER_NODE": "1(x2)"},
        {"SLURM_GPUS_PER_TASK": "1", "SLURM_TASKS_PER_NODE": "lots"},
    ],
)
def test_where_no_tasks_share_the_node_nothing_is_said(variables):
    assert judged(node(variables)) == []


def share(name, *indexes, boot_id="b1"):
    return replace(make_node(name), gpus=tuple(make_gpu("machine", i) for i in indexes), boot_id=boot_id)


def several(*nodes):
    return list(judge(Evidence(inventory=Inventory(nodes=nodes))))


def test_containers_of_one_machine_with_different_gpus_are_a_warning():
    [finding] = several(share("pod0", 0, 1), share("pod1", 2, 3), share("other", 4, boot_id="b2"))
    assert (finding.verdict, finding.subject) == (Verdict.WARN, "pod[0-1]")
    assert "the same boot id" in finding.observed


def test_agents_of_one_machine_that_see_the_same_gpus_are_no_isolation():
    assert several(share("a", 0, 1), share("b", 0, 1)) == []
    assert several(share("a", 0, boot_id=None), share("b", 1, boot_id=None)) == []


def test_runs_without_gpus_say_nothing():
    assert judged(node({**STEP, "SLURM_GPUS_PER_TASK": "1"}, gpus=0)) == []
    assert judged(node({**STEP, "SLURM_GPUS_PER_TASK": "1"}, gpus=1), cpu_declared=True) == []
