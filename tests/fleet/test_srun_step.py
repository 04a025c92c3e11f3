"""What a task knows of its step from Slurm's variables, and what becomes of the plan file's job there."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.errors import ConfigError
from preflight.fleet.srun import FIRST_PORT, LAST_PORT, MAX_CANDIDATES, Step, outside_hint, read_step
from preflight.fleet.srun_job import binding_hint, dealing_hint, job_in_step, topology_file
from preflight.plan.placement import predict_placement
from tests.builders import make_job
from tests.fleet.srun_tasks import step_variables

NODES = ("n1", "n2", "n3")
# a task of `srun -N3 -n6 -m cyclic` under Slurm 22.05, as far as it is read
TASK = {
    "SLURM_JOB_ID": "4",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_NODEID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_TASKS_PER_NODE": "4,1(x2)",
    "SLURM_DISTRIBUTION": "cyclic",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
    "SLURMD_NODENAME": "n1",
}


def read(**changes: str | None) -> Step | None:
    environ = {**TASK, **{key: value for key, value in changes.items() if value is not None}}
    return read_step({key: value for key, value in environ.items() if key not in changes or changes[key] is not None})


def test_a_task_knows_its_step():
    step = read()
    assert step == Step(
        job=4,
        step=0,
        nodes=NODES,
        node="n1",
        node_rank=0,
        local_rank=0,
        tasks_per_node="4,1(x2)",
        distribution="cyclic",
        launched_from="10.0.0.1",
    )
    assert step.leads_step
    assert step.target("n2") == "4.0.n2"


# what Slurm 22.05 says in steps for which nobody asked: "cyclic" where there are no more tasks than nodes, else "block"
@pytest.mark.parametrize(
    ("tasks", "said", "believed"),
    [
        ("1(x3)", "cyclic", None),
        ("1(x3)", "block", "block"),
        ("1", "cyclic", None),
        ("2(x3)", "cyclic", "cyclic"),
        ("2(x3)", "block", "block"),
        ("2,1(x2)", "cyclic", "cyclic"),
        ("11(x3)", "cyclic", "cyclic"),
    ],
)
def test_one_task_per_node_tells_nothing_of_how_the_job_is_dealt(tasks, said, believed):
    step = read(SLURM_STEP_TASKS_PER_NODE=tasks, SLURM_DISTRIBUTION=said)
    assert step is not None
    assert step.distribution == believed
    assert step.deals_nothing == (believed is None)


def test_where_the_step_does_not_tell_it_and_it_matters_that_is_said():
    step = read(SLURM_STEP_TASKS_PER_NODE="1(x3)")
    shown = read(SLURM_STEP_TASKS_PER_NODE="2(x3)")
    assert step is not None
    assert shown is not None
    dealt = {"launcher": "slurm", "distribution": "plane=2"}
    assert "--distribution" in dealing_hint(make_job(nodes=3, gpus_per_node=2), step)
    assert dealing_hint(make_job(nodes=3, gpus_per_node=2), shown) == ""
    assert dealing_hint(make_job(nodes=3, gpus_per_node=1), step) == ""
    assert dealing_hint(make_job(nodes=3, gpus_per_node=2, launch=dealt), step) == ""
    assert dealing_hint(make_job(nodes=3, gpus_per_node=2, launch={"launcher": "torchrun"}), step) == ""


def test_the_first_task_of_a_node_leads_it_and_that_of_the_first_node_leads_the_step():
    other = read(SLURM_NODEID="2", SLURMD_NODENAME="n3")
    assert other is not None
    assert (other.leads_node, other.leads_step) == (True, False)
    second = read(SLURM_LOCALID="1")
    assert second is not None
    assert (second.leads_node, second.leads_step) == (False, False)


# a batch script has no step, salloc's interactive step has a special number (Slurm 22.05)
@pytest.mark.parametrize("changes", [{"SLURM_STEP_ID": None}, {"SLURM_STEP_ID": "4294967290"}, {"SLURM_JOB_ID": None}])
def test_what_srun_did_not_start_is_no_task(changes):
    assert read(**changes) is None


def test_who_starts_a_run_inside_a_job_is_told_of_srun():
    assert "`srun preflight run PLAN`" in outside_hint({"SLURM_JOB_ID": "4"})
    assert outside_hint({}) == ""


def test_a_step_over_several_components_has_one_list_of_nodes_and_no_distribution_of_its_own():
    step = read(SLURM_HET_SIZE="2")
    assert step is not None
    assert (step.nodes, step.distribution) == (NODES, None)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"SLURM_NODEID": "3"}, "SLURM_NODEID: 3, but node 'n1' is not there"),
        ({"SLURM_NODEID": "1"}, "SLURM_NODEID: 1, but node 'n1'"),
        ({"SLURM_NODEID": "x"}, "'x' is no number"),
        ({"SLURM_STEP_NODELIST": "n[1-"}, "SLURM_STEP_NODELIST: can't be read"),
        ({"SLURM_STEP_NODELIST": "n1,n1"}, "names a node twice"),
        ({"SLURM_STEP_NODELIST": "n1,n 2", "SLURMD_NODENAME": "n1"}, "SLURM_STEP_NODELIST"),
        ({"SLURM_STEP_NODELIST": "n1,../n2"}, "is no name of a node"),
    ],
)
def test_variables_that_contradict_each_other_are_refused(changes, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        read(**changes)


@given(st.dictionaries(st.sampled_from(sorted(TASK)), st.text(max_size=20)))
def test_any_environment_is_read_or_refused(changes):
    try:
        step = read_step({**TASK, **changes})
    except ConfigError:
        return
    assert step is None or step.node == step.nodes[step.node_rank]


@given(st.integers(0, 10**9), st.integers(0, 1000), st.integers(1, 65000), st.integers(0, 400))
def test_all_tasks_of_a_step_try_the_same_ports_of_the_range_in_the_same_order(job, number, first, more):
    last = min(65535, first + more)
    steps = [read_step(step_variables(NODES, rank, 0, per_node=1, job=job)) for rank in range(3)]
    ports = {step.ports(first, last) for step in steps if step is not None}
    assert len(ports) == 1
    tried = ports.pop()
    assert len(set(tried)) == len(tried) == min(MAX_CANDIDATES, last - first + 1)
    assert set(tried) <= set(range(first, last + 1))


def test_without_a_range_of_the_site_ports_are_below_those_that_the_kernel_gives_away():
    step = read()
    assert step is not None
    assert set(step.ports(None, None)) <= set(range(FIRST_PORT, LAST_PORT + 1))
    assert LAST_PORT < 30000


# --- the job ----------------------------------------------------------------------------------------------------------


def placed(step: Step | None, *, launch: dict | None = None, environ: dict | None = None, **more) -> str:
    assert step is not None
    job = make_job(nodes=3, gpus_per_node=2, tp=2, launch=launch)
    job = job_in_step(job, step, environ or {}, topology=None, version=None, **more)
    placement = predict_placement(job, node_names=step.nodes, gpus_per_node=2)
    return placement.method + ": " + " ".join(placement.nodes[node][1:] for node in placement.node_ranks)


def test_ranks_are_dealt_as_the_step_was_asked_to_be():
    assert placed(read()) == "slurm cyclic: 1 2 3 1 2 3"
    assert placed(read(SLURM_DISTRIBUTION="plane", SLURM_DIST_PLANESIZE="2")) == "slurm plane=2: 1 1 2 2 3 3"


def test_ranks_are_dealt_by_default_where_nobody_asked():
    assert placed(read(SLURM_DISTRIBUTION=None)) == "slurm block (default: more tasks than nodes): 1 1 2 2 3 3"


def test_the_plan_file_goes_before_the_step():
    assert placed(read(), launch={"launcher": "slurm", "distribution": "block"}) == "slurm block: 1 1 2 2 3 3"


def test_a_plan_file_of_another_launcher_keeps_its_ways():
    step = read()
    assert step is not None
    job = make_job(launch={"launcher": "torchrun"})
    assert job_in_step(job, step, {}, topology=None, version="22.05") == job


def test_an_arbitrary_step_is_read_from_its_hostfile(tmp_path):
    (tmp_path / "hosts").write_text("n3\nn1\nn2\nn3\nn1\nn2\n")
    step = read(SLURM_DISTRIBUTION="arbitrary")
    assert placed(step, environ={"SLURM_HOSTFILE": str(tmp_path / "hosts")}).endswith(": 3 1 2 3 1 2")
    assert placed(step).startswith("slurm block (default")  # nobody tells the file


def test_hosts_of_the_plan_file_are_kept_where_they_are_the_same_nodes():
    step = read()
    assert step is not None
    for hosts, expected in ((("n3", "n1", "n2"), ("n3", "n1", "n2")), (("m1", "m2", "m3"), NODES)):
        job = make_job(launch={"hosts": hosts})
        assert job_in_step(job, step, {}, topology=None, version=None).launch.hosts == expected


def test_the_sites_topology_is_used_where_the_plan_file_names_none(tmp_path):
    (tmp_path / "topology.conf").write_text("SwitchName=leaf1 Nodes=n[1-3]\n")
    environ = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    assert topology_file(None, environ) == str(tmp_path / "topology.conf")
    assert topology_file("/site/topology.conf", environ) == "/site/topology.conf"
    step = read()
    assert step is not None
    job = job_in_step(make_job(), step, {}, topology="/t", version="25.11")
    assert (job.launch.topology, job.launch.slurm_version) == ("/t", "25.11")
    told = job_in_step(make_job(launch={"topology": "/mine"}), step, {}, topology="/t", version=None)
    assert told.launch.topology == "/mine"


def test_a_topology_of_slurm_that_can_not_be_read_is_as_none(tmp_path):
    (tmp_path / "topology.conf").write_text("SwitchName=leaf1 Nodes=n[1-\n")
    assert topology_file(None, {"SLURM_CONF": str(tmp_path / "slurm.conf")}) is None


# SLURM_STEP_GPUS of a bound task are those of the task, SLURM_GPUS_ON_NODE those of the step (22.05)
BOUND = {"SLURM_STEP_GPUS": "0", "SLURM_GPUS_ON_NODE": "8", "SLURM_GTIDS": "0,1,2,3,4,5,6,7"}


def test_tasks_that_are_bound_to_a_gpu_each_are_told_what_helps():
    assert "sees 1 of the step's 8: start the step with --gpu-bind=none" in binding_hint(BOUND)


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_STEP_GPUS": "0,1,2,3,4,5,6,7"},
        {"SLURM_GTIDS": "0"},
        {"SLURM_GPUS_ON_NODE": ""},
        {"SLURM_STEP_GPUS": "GPU-1"},
        {"SLURM_GPUS_ON_NODE": "x"},
    ],
)
def test_nothing_is_said_where_the_agent_sees_all_gpus_or_nobody_tells(changes):
    assert binding_hint({**BOUND, **changes}) == ""
