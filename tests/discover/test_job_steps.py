"""Which jobs of Slurm are at work on a node, and whose a process is: by what root wrote alone."""

import pytest

from preflight.discover.job_steps import JobStep, descends_from, job_of, read_job_steps
from tests.trees import Tree

pytestmark = pytest.mark.root  # a keeper of steps is a process of root's
V2 = "0::/system.slice/slurmstepd.scope/job_{}/step_0/user/task_0\n"
V1 = "9:devices:/slurm/uid_1000/job_{0}/step_0/task_0\n4:cpuset:/slurm/uid_1000/job_{0}/step_0\n"


@pytest.fixture
def tree(tmp_path):
    made = Tree(tmp_path)
    process(made, 2, "kthreadd")
    return made


def process(tree, pid, comm, *, parent=1, title="", cgroup="0::/\n", net="1", environ=""):
    tree.write(f"proc/{pid}/comm", f"{comm}\n")
    tree.write(f"proc/{pid}/stat", f"{pid} ({comm}) S {parent} {pid} {pid} 0\n")
    tree.write(f"proc/{pid}/cmdline", title or comm)
    tree.write(f"proc/{pid}/cgroup", cgroup)
    tree.write(f"proc/{pid}/environ", environ)
    tree.folder(f"proc/{pid}/ns")
    (tree.root / f"proc/{pid}/ns/net").symlink_to(f"net:[{net}]")


def test_every_step_of_every_job_is_told_with_its_number(tree):
    process(tree, "self", "preflight")
    process(tree, 100, "slurmstepd", title="slurmstepd: [17.batch]\0")
    process(tree, 101, "slurmstepd", title="slurmstepd: [4000000001.extern]\0\0\0")
    process(tree, 102, "slurmstepd", title="something else", cgroup=V2.format(19))
    process(tree, 103, "slurmstepd", title="something else")
    process(tree, 104, "python3", title="slurmstepd: [20.0]\0")
    assert set(read_job_steps(tree.root)) == {
        JobStep(100, "17"),
        JobStep(101, "4000000001"),
        JobStep(102, "19"),
        JobStep(103, None),
    }


def test_where_a_slurmd_shares_our_network_steps_of_other_networks_are_of_other_nodes(tree):
    process(tree, "self", "preflight", net="1")
    process(tree, 100, "slurmstepd", title="slurmstepd: [17.0]\0", net="1")
    process(tree, 101, "slurmstepd", title="slurmstepd: [18.0]\0", net="2")
    assert {step.job for step in read_job_steps(tree.root)} == {"17", "18"}
    process(tree, 50, "slurmd", net="1")
    assert {step.job for step in read_job_steps(tree.root)} == {"17"}


def test_where_the_nodes_processes_cannot_be_seen_nothing_is_claimed(tmp_path):
    assert read_job_steps(Tree(tmp_path).root) is None


@pytest.mark.parametrize("spelled", [V2, V1])
def test_a_process_belongs_to_the_job_of_its_cgroup(tree, spelled):
    process(tree, 100, "python3", cgroup=spelled.format(17))
    assert job_of(100, tree.root) == "17"


def test_without_cgroups_a_process_belongs_to_the_job_of_the_step_that_started_it(tree):
    process(tree, 100, "slurmstepd", title="slurmstepd: [17.0]\0")
    process(tree, 101, "bash", parent=100)
    process(tree, 102, "python3", parent=101)
    assert job_of(102, tree.root) == "17"
    assert descends_from(102, 100, tree.root)
    assert not descends_from(100, 102, tree.root)


def test_what_a_user_writes_about_himself_is_not_believed(tree):
    process(tree, 100, "python3", title="slurmstepd: [17.0]\0", environ="SLURM_JOB_ID=17\0")
    process(tree, 101, "python3", parent=100)
    assert job_of(101, tree.root) is None
    assert job_of(999, tree.root) is None


def test_parents_that_go_round_in_a_circle_end_the_search(tree):
    process(tree, 100, "a", parent=101)
    process(tree, 101, "b", parent=100)
    assert job_of(100, tree.root) is None
    assert not descends_from(100, 7, tree.root)
