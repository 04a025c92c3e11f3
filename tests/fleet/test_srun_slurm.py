"""`srun preflight run` under a real Slurm of four nodes, as a batch script has it. Names of nodes stand for nothing here: their addresses are Slurm's."""

import json
import re
import subprocess

import pytest

from preflight.model import Report, from_json
from tests.cluster.slurm import NEEDS, SlurmCluster, slurm_cluster
from tests.fleet.runs import PLAN

pytestmark = [*NEEDS, pytest.mark.fabric]
RUN_S = 400.0  # on a busy machine


@pytest.fixture(scope="module")
def cluster():
    with slurm_cluster(gpus=2, namespaces=False) as running:
        yield running


def write_plan(cluster: SlurmCluster, nodes: int = 4, *, per_node: int = 1, tp: int = 1) -> str:
    path = cluster.folder / f"plan-{nodes}-{per_node}-{tp}.toml"
    path.write_text(PLAN.format(tp=tp, dp=nodes * per_node // tp, nodes=nodes, per_node=per_node))
    return str(path)


def batch(cluster: SlurmCluster, *lines: str, nodes: int = 4) -> str:
    """What a batch script of these lines prints."""
    site = f"export PREFLIGHT_CONFIG={cluster.place_of('head')}/preflight.toml"
    job = cluster.sbatch(f"--nodes={nodes}", "--ntasks-per-node=2", "--time=9", script="\n".join([site, *lines]))
    cluster.wait_for_job(job, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", timeout_s=RUN_S)
    return cluster.output(job)


def report_of(cluster: SlurmCluster, name: str) -> Report:
    return from_json((cluster.folder / name / "report.json").read_bytes(), Report)


@pytest.mark.soak
def test_the_first_lines_of_a_batch_script(cluster):
    """A good answer lets the training start, a bad plan stops it with its own code, also where the first bad exit kills the step; without srun it is said how to start it."""
    plan, out = write_plan(cluster), cluster.folder / "good"
    said = batch(
        cluster,
        f"srun -K preflight run {plan} --budget 120s --out {out} >/dev/null && srun echo training",
        "echo first $?",
        "srun -K preflight run /nowhere && echo training",
        "echo second $?",
        f"preflight run {plan}",
        "echo third $?",
    )
    assert said.count("training") == 8, said  # two tasks for each node
    assert "first 0" in said
    assert "second 78" in said, said
    assert said.count("/nowhere: can't be read") == 1
    assert "start it with srun, `srun preflight run PLAN`" in said
    assert "third 64" in said
    report = report_of(cluster, "good")
    plan_of = report.evidence.plan
    assert plan_of is not None
    assert plan_of.placement.nodes == ("n1", "n2", "n3", "n4")
    assert plan_of.placement.method.startswith("slurm ")
    assert plan_of.placement.leaves == ("leaf1", "leaf1", "leaf2", "leaf2")
    assert report.coverage.pairs_measured == report.coverage.pairs_planned == 6


@pytest.mark.soak
@pytest.mark.parametrize(
    ("flags", "order"),
    [
        ("--distribution=cyclic", "1 2 1 2"),
        ("--distribution=block", "1 1 2 2"),
        ("", "1 1 2 2"),
        ("--ntasks=2 --ntasks-per-node=1", "1 1 2 2"),  # which Slurm calls cyclic
    ],
    ids=["cyclic", "block", "default", "one-each"],
)
def test_the_job_is_placed_as_a_step_with_a_task_for_each_rank_was_dealt_and_else_by_default(
    cluster, request, flags, order
):
    plan, name = write_plan(cluster, 2, per_node=2, tp=2), f"dealt-{request.node.callspec.id}"
    step = f"srun {flags} preflight run {plan} --budget 120s"
    said = batch(cluster, f"{step} --out {cluster.folder / name} >/dev/null", nodes=2)
    placement = report_of(cluster, name).evidence.plan.placement
    assert " ".join(placement.nodes[node][1:] for node in placement.node_ranks) == order, said


@pytest.mark.soak
def test_ranks_that_said_where_they_are_go_before_what_the_launcher_should_do(cluster):
    plan, folder = write_plan(cluster, 2, per_node=2, tp=2), cluster.folder / "told"
    said = batch(
        cluster,
        f"srun --distribution=cyclic preflight ranks > {folder}.jsonl",
        f"srun --ntasks=2 preflight run {plan} --ranks {folder}.jsonl --budget 120s --out {folder} > /dev/null",
        nodes=2,
    )
    facts = [json.loads(line) for line in (cluster.folder / "told.jsonl").read_text().splitlines()]
    assert {one["node"] for one in facts} == {"n1", "n2"}
    # one machine plays both nodes, and its boot id says so: then nothing can be told apart, and nothing is made up
    assert (folder / "report.json").exists() or "n1" in said


@pytest.mark.soak
def test_two_steps_at_once_on_the_same_nodes_measure_each_its_own(cluster):
    plan = write_plan(cluster, 2)
    step = f"srun --overlap preflight run {plan} --budget 200s"
    folders = [cluster.folder / f"beside-{number}" for number in (1, 2)]
    said = batch(
        cluster,
        *(f"{step} --out {folder} >/dev/null & p{number}=$!" for number, folder in enumerate(folders)),
        "wait $p0; echo code $?",
        "wait $p1; echo code $?",
        nodes=2,
    )
    assert said.count("code 0") == 2, said
    runs = {report_of(cluster, folder.name).run_id for folder in folders}
    assert len(runs) == 2


@pytest.mark.soak
def test_a_step_over_two_components_of_a_job(cluster):
    plan, out = write_plan(cluster, 3), cluster.folder / "two"
    with_site = {"PREFLIGHT_CONFIG": f"{cluster.place_of('head')}/preflight.toml"}
    command = ("preflight", "run", plan, "--budget", "120s", "--out", str(out))
    cluster.run("srun", "--time=9", "-N2", ":", "-N1", *command, timeout_s=RUN_S, **with_site)
    names = [node.name for node in report_of(cluster, "two").evidence.inventory.nodes]
    assert names == ["n1", "n2", "n3"]


@pytest.mark.soak
@pytest.mark.parametrize("how", ["scancel", "time limit"])
def test_a_step_that_is_ended_leaves_nothing_on_any_node(cluster, how):
    plan = write_plan(cluster)
    site = f"export PREFLIGHT_CONFIG={cluster.place_of('head')}/preflight.toml"
    step = f"srun {'--time=1' if how == 'time limit' else ''} preflight run {plan} --budget 400s"
    job = cluster.sbatch("--nodes=4", "--time=9", script=f"{site}\n{step}")
    mark = f"run {plan} --budget 400s"
    cluster.wait_for(lambda: len(processes_with(mark)) >= 4, "four tasks", RUN_S)
    if how == "scancel":
        cluster.run("scancel", str(job))
    cluster.wait_for_job(job, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", timeout_s=RUN_S)
    cluster.wait_for(lambda: not processes_with(mark), "the end of all tasks and agents")


def processes_with(words: str) -> list[str]:
    """Process ids of preflight's tasks and agents with these words on their command line."""
    done = subprocess.run(["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True, check=True)
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines() if words in line]
    return [pid for pid, command in lines if "python" in command.split()[0]]


@pytest.mark.soak
@pytest.mark.parametrize("repeat", range(3))
def test_of_four_nodes_the_three_without_the_slow_one_are_kept(repeat):
    del repeat
    with slurm_cluster(gpus=2) as cluster:
        assert cluster.box
        cluster.box.limit("n2", 60, "both")
        plan, folder = write_plan(cluster, 3), cluster.folder / "kept"
        lines = f"srun preflight run {plan} --budget 300s --keep 3 --keep-dir {folder} --out {folder}"
        said = batch(
            cluster,
            f"{lines}; echo code $?",
            f"srun --nodes=3 --nodelist={folder}/nodes.txt --ntasks=3 --ntasks-per-node=1 sh -c 'echo on $SLURMD_NODENAME'",
        )
        assert (folder / "nodes.txt").read_text() == "n1\nn3\nn4\n", said
        assert (folder / "exclude.txt").read_text() == "n2\n"
        assert "kept 3 of 4 nodes: n[1,3-4]" in said
        assert "code 0" in said
        assert sorted(re.findall(r"^on (n[0-9])$", said, re.MULTILINE)) == ["n1", "n3", "n4"]
        assert [node.name for node in report_of(cluster, "kept").evidence.inventory.nodes] == ["n1", "n3", "n4"]
