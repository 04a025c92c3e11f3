"""Predicted placements are those of a real srun, on four nodes with 4, 4, 2 and 4 CPUs."""

import pytest

from preflight.plan.launchers.seats import parse_counts
from preflight.plan.placement import predict_placement
from tests.builders import make_job
from tests.plan.launchers.slurm_box import slurm_box

pytestmark = [pytest.mark.root, pytest.mark.debian("slurm-wlm", "srun", "slurmctld", "slurmd", "munged")]

CPUS = {"n1": 4, "n2": 4, "n3": 2, "n10": 4}


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    with slurm_box(folder, CPUS) as running:
        yield running


def predicted(**launch) -> list[tuple[str, int, int]]:
    job = make_job(nodes=None, gpus_per_node=None, tp=1, launch={"launcher": "slurm", **launch})
    placement = predict_placement(job, node_names=list(CPUS), gpus_per_node=4)
    return [(rank.node, rank.node_rank, rank.local_rank) for rank in placement.ranks]


@pytest.mark.parametrize("distribution", [None, "block", "cyclic", "plane=2", "plane=3", "plane=4", "cyclic:block"])
@pytest.mark.parametrize("tasks_per_node", ["4,4,2,4", "1(x4)", "4,2,1(x2)"])
def test_ranks_are_where_srun_puts_them(box, distribution, tasks_per_node):
    # 8 tasks fill the first nodes, and each node has one at least: 4, 2, 1, 1
    tasks = sum(parse_counts(tasks_per_node))
    options = ["-N4", f"-n{tasks}", *([f"--distribution={distribution}"] if distribution else [])]
    assert box.place(*options) == predicted(distribution=distribution, tasks_per_node=tasks_per_node)


@pytest.mark.parametrize("distribution", [None, "arbitrary", "cyclic"])
@pytest.mark.parametrize("text", ["n3\nn1\nn2\nn1\nn3\nn10\n", "n10*2\nn[1-2]\nn3 # x\n", "n1,n2\nn2,n1\nn10\nn3\n"])
def test_ranks_are_where_a_hostfile_puts_them(box, distribution, text):
    path = box.folder / "hosts.txt"
    path.write_text(text)
    options = [f"--distribution={distribution}"] if distribution else []
    tasks = len(predicted(hostfile=str(path)))
    if "[" not in text:  # srun takes a list in brackets for one node when it counts tasks
        options.append(f"-n{tasks}")
    else:
        options.append("--distribution=arbitrary")
    assert box.place(*options, SLURM_HOSTFILE=str(path)) == predicted(distribution=distribution, hostfile=str(path))


def test_lists_of_nodes_are_read_as_scontrol_reads_them(box):
    from preflight.model.hostlist import unfold

    for text in ("n[8-10]", "n[1-010]", "n[001-3]", "n[1,02]", "r[1-2]n[1-2]", "n[1-3,2]", "a,,b", "[1-2]"):
        assert unfold(text) == box.run("scontrol", "show", "hostnames", text).split()
