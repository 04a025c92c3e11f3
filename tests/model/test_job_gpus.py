"""What Slurm's variables and the plan say of a job's GPUs and tasks on a node."""

import pytest

from preflight.model import Mask, Placement, Problem
from preflight.model.job_gpus import (
    binding_asked,
    given_numbers,
    job_uuids,
    kept_from_us,
    num_given,
    parse_numbers,
    task_binding,
    tasks_on_node,
    why_gone,
)
from tests.builders import make_gpu, make_node, make_plan


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2,5", (2, 5)),
        ("0-3,6", (0, 1, 2, 3, 6)),
        (" 1 ", (1,)),
        ("", None),
        ("GPU-2222aaaa", None),
        ("1,", None),
        ("-1", None),
        ("0-9999,0", None),
    ],
)
def test_numbers_are_read_as_slurm_writes_them_and_nothing_else_is(text, expected):
    assert parse_numbers(text) == expected


def mask(**variables):
    return Mask(variables=variables)


def test_the_steps_gpus_count_before_the_jobs_and_a_count_before_nothing():
    assert given_numbers(mask(SLURM_STEP_GPUS="3", SLURM_JOB_GPUS="2,3")) == (3,)
    assert num_given(mask(SLURM_JOB_GPUS="2,3")) == 2
    assert num_given(mask(SLURM_GPUS_ON_NODE="4")) == 4
    assert num_given(mask(SLURM_GPUS_ON_NODE="four")) is None
    assert num_given(mask()) is None


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLURM_GTIDS": "8,9,10,11"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, 8),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2),1", "SLURM_NODEID": "2"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2),1"}, None),
        ({"SLURM_STEP_TASKS_PER_NODE": "many"}, None),
        ({}, None),
    ],
)
def test_the_tasks_of_a_step_on_this_node(variables, expected):
    assert tasks_on_node(mask(**variables)) == expected


def test_counts_of_a_great_many_nodes_do_not_fill_the_memory():
    assert tasks_on_node(mask(SLURM_STEP_TASKS_PER_NODE=",".join(["1(x999999)"] * 100_000))) is None


def test_the_jobs_gpus_are_where_its_ranks_were_found_or_what_its_mask_says():
    node = make_node(mask=Mask(gpu_uuids=("GPU-node0-6", "GPU-node0-7")))
    assert job_uuids(node, None) == {"GPU-node0-6", "GPU-node0-7"}
    placement = Placement(
        source="measured",
        method="found",
        nodes=("node0", "node1"),
        node_ranks=(0, 0, 1),
        local_ranks=(0, 1, 0),
        gpu_uuids=("GPU-node0-1", "GPU-node0-2", "GPU-node1-0"),
    )
    plan = make_plan(nodes=2, tp=1, pp=1, dp=3, gpus_per_node=None, placement=placement)
    assert job_uuids(node, plan) == {"GPU-node0-1", "GPU-node0-2"}
    assert job_uuids(make_node(), None) is None
    assert job_uuids(make_node(mask=Mask(gpu_uuids=("GPU-node0-6", None))), None) is None


def test_a_mig_device_counts_as_the_gpu_that_it_is_on():
    gpu = make_gpu("node0", 0, mig_devices=("MIG-1",))
    assert job_uuids(make_node(gpus=0, mask=Mask(gpu_uuids=("MIG-1",))), None) == {"MIG-1"}
    node = make_node(mask=Mask(gpu_uuids=("MIG-1",)))
    assert job_uuids(type(node)(name="node0", gpus=(gpu,), mask=node.mask), None) == {"GPU-node0-0"}


def test_a_gpu_that_may_not_be_opened_is_not_a_lost_one():
    def unopened(text):
        return make_gpu("n", 0, uuid=None, name=None, problems=(Problem(source="nvml", text=text),))

    assert kept_from_us(unopened("Insufficient Permissions (NVML 4)"))
    assert not kept_from_us(unopened("GPU is lost (NVML 15)"))
    assert not kept_from_us(make_gpu("n", 0))


def one_gpu(**variables):
    return make_node(gpus=1, mask=Mask(variables=variables))


def test_a_task_that_sees_less_than_its_step_has_is_bound():
    variables = {"SLURM_GTIDS": "0,1,2,3", "SLURM_STEP_GPUS": "0,1,2,3"}
    assert tuple(task_binding(one_gpu(**variables))) == (4, 1, 4, "")
    assert tuple(task_binding(one_gpu(**variables, SLURM_GPUS_PER_TASK="1"))) == (4, 1, 4, "SLURM_GPUS_PER_TASK=1")
    only_asked = {"SLURM_GTIDS": "0,1,2,3", "SLURM_GPUS_PER_TASK": "1"}
    assert tuple(task_binding(one_gpu(**only_asked))) == (4, 1, 4, "SLURM_GPUS_PER_TASK=1")


def test_a_step_of_one_task_or_a_whole_view_is_not_bound():
    assert task_binding(one_gpu(SLURM_GTIDS="0", SLURM_STEP_GPUS="0,1")) is None
    whole = make_node(mask=Mask(variables={"SLURM_GTIDS": "0,1,2,3,4,5,6,7", "SLURM_STEP_GPUS": "0-7"}))
    assert task_binding(whole) is None
    assert task_binding(make_node()) is None
    assert task_binding(make_node(gpus=None, mask=mask(SLURM_GTIDS="0,1"))) is None


def test_a_gpu_that_is_missing_from_eight_is_no_binding():
    seven = make_node(gpus=7, mask=Mask(variables={"SLURM_GTIDS": "0,1,2,3,4,5,6,7", "SLURM_STEP_GPUS": "0-7"}))
    assert task_binding(seven) is None


def test_a_binding_that_is_switched_off_is_none():
    assert binding_asked(mask(SLURM_GPU_BIND="none", SLURM_GPUS_PER_TASK="1")) == ""
    assert binding_asked(mask(SLURM_TRES_BIND="gres/gpu:none", SLURM_TRES_PER_TASK="gres/gpu=1")) == ""
    assert binding_asked(mask(SLURM_TRES_PER_TASK="gres/gpu=1")) == "SLURM_TRES_PER_TASK=gres/gpu=1"
    assert binding_asked(mask(SLURM_TRES_PER_TASK="cpu=4")) == ""
    assert binding_asked(mask(SLURM_GPU_BIND="single:1")) == "SLURM_GPU_BIND=single:1"


def test_what_the_driver_says_of_a_lost_gpu():
    gone = Problem(source="nvmlDeviceGetEccMode", text="GPU is lost (NVML 15)")
    assert why_gone(make_gpu("n", 0, problems=(gone, gone))) == "nvmlDeviceGetEccMode: GPU is lost (NVML 15)"
    assert why_gone(make_gpu("n", 0, problems=(Problem(source="x", text="Unknown Error"),))) is None
