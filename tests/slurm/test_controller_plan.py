"""What is measured before a job: its plan on the nodes and GPUs that Slurm gave it."""

import pytest

from preflight.config import Site, SlurmSite
from preflight.errors import ConfigError
from preflight.plan.build import build_plan
from preflight.slurm.controller_plan import what_to_measure
from preflight.slurm.directive import Directive

NODES = ("n1", "n2", "n3", "n4")
EIGHT = dict.fromkeys(NODES, tuple(range(8)))
PLAN = """
[model]
parameters = "8B"
layers = 32
hidden_size = 4096
[parallel]
tp = {tp}
[training]
micro_batches = 8
micro_batch_size = 1
seq_length = 8192
{more}
"""


@pytest.fixture
def site(tmp_path):
    (tmp_path / "plans").mkdir()

    def make(**settings):
        return Site(slurm=SlurmSite(plans_dir=str(tmp_path / "plans"), **settings))

    def write(name, *, tp=8, more=""):
        path = tmp_path / "plans" / f"{name}.toml"
        path.write_text(PLAN.format(tp=tp, more=more))
        return path

    make.write = write
    return make


def wanted(site, directive=None, gpus=EIGHT, nodes=NODES, version=(22, 5)):
    return what_to_measure(nodes, gpus, directive or Directive(), site, version)


def laid_out(found):
    return build_plan(found.job, node_names=found.nodes, gpus_per_node=found.job.hardware.gpus_per_node)


def test_a_job_that_says_nothing_gets_one_group_over_all_its_gpus(site):
    found = wanted(site())
    plan = laid_out(found)
    assert (found.chosen, plan.world_size, list(plan.groups)) == ("no plan given", 32, ["dp"])
    assert found.job.launch.node_gpus == EIGHT
    assert found.job.launch.slurm_version == "22.05"


def test_degrees_of_the_comment_lay_the_job_out(site):
    found = wanted(site(), Directive(on=True, degrees={"tp": 8, "pp": 2}))
    plan = laid_out(found)
    assert found.chosen == "the degrees of the job, tp=8, pp=2"
    assert {axis: plan.degrees[axis] for axis in ("tp", "pp", "dp")} == {"tp": 8, "pp": 2, "dp": 2}


@pytest.mark.parametrize("degrees", [{"ep": 8}, {"tp": 2, "cp": 2, "pp": 8}, {"ep": 4, "tp": 8}])
def test_odd_degrees_are_laid_out(site, degrees):
    assert laid_out(wanted(site(), Directive(on=True, degrees=degrees))).world_size == 32


@pytest.mark.parametrize("degrees", [{"tp": 3}, {"pp": 5}, {"dp": 7}])
def test_degrees_that_do_not_fit_the_jobs_gpus_are_refused_in_words(site, degrees):
    found = wanted(site(), Directive(on=True, degrees=degrees))
    with pytest.raises(ConfigError, match="the job's comment"):
        laid_out(found)


def test_the_plan_that_the_job_names_is_read_from_the_sites_folder_alone(site):
    site.write("llama")
    found = wanted(site(), Directive(on=True, plan="llama"))
    assert (found.chosen, found.job.parallel.tp) == ("plan llama", 8)
    with pytest.raises(ConfigError, match="can't be read"):
        wanted(site(), Directive(on=True, plan="other"))


def test_degrees_beside_a_plan_change_that_plan(site):
    site.write("llama")
    found = wanted(site(), Directive(on=True, plan="llama", degrees={"tp": 4}))
    assert found.job.parallel.tp == 4
    assert found.job.model.hidden_size == 4096


def test_the_default_plan_is_for_jobs_that_give_neither_plan_nor_degrees(site):
    path = str(site.write("default"))
    assert wanted(site(default_plan=path)).job.parallel.tp == 8
    assert wanted(site(default_plan=path), Directive(on=True, degrees={"tp": 2})).job.parallel.tp == 2


def test_a_plan_that_others_can_write_to_is_refused(site):
    site.write("llama").chmod(0o666)
    with pytest.raises(ConfigError, match="others can write to it"):
        wanted(site(), Directive(on=True, plan="llama"))


def test_a_plan_for_other_nodes_or_gpus_than_the_job_has_is_refused_and_says_how_many_it_has(site):
    site.write("llama", more="[hardware]\ngpus_per_node = 8\n")
    with pytest.raises(ConfigError, match="8, but Slurm gave the job 4 on each node"):
        wanted(site(), Directive(on=True, plan="llama"), gpus=dict.fromkeys(NODES, (0, 1, 2, 3)))


def test_the_job_is_laid_out_as_its_plan_says_that_it_is_launched(site):
    site.write("cyclic", more='[launch]\nlauncher = "slurm"\ndistribution = "cyclic"\n')
    assert laid_out(wanted(site(), Directive(plan="cyclic"))).placement.nodes_of(range(8)) == NODES
    assert laid_out(wanted(site(), Directive(degrees={"tp": 8}))).placement.nodes_of(range(8)) == ("n1",)
    site.write("torchrun", more='[launch]\nlauncher = "torchrun"\nrendezvous = "c10d"\n')
    assert wanted(site(), Directive(plan="torchrun")).job.launch.launcher == "torchrun"


def test_nodes_with_different_numbers_of_gpus_get_as_many_ranks_each(site):
    gpus = {"n1": (0, 1, 2, 3), "n2": (6, 7)}
    plan = laid_out(wanted(site(), gpus=gpus, nodes=("n1", "n2")))
    assert plan.placement.ranks_per_node == (4, 2)


def test_a_job_without_gpus_is_left_alone_unless_its_plan_means_cpus(site):
    assert wanted(site(), gpus={}) is None
    site.write("cpus", tp=2, more='[hardware]\nbackend = "gloo"\ngpus_per_node = 2\n')
    found = wanted(site(), Directive(plan="cpus"), gpus={})
    assert laid_out(found).world_size == 8
    assert found.job.launch.node_gpus is None


def test_a_job_of_very_many_ranks_is_not_measured(site):
    many = tuple(f"n{number}" for number in range(4000))
    with pytest.raises(ConfigError, match="more than the 16384 ranks"):
        wanted(site(), gpus=dict.fromkeys(many, tuple(range(8))), nodes=many)


def test_the_sites_topology_is_used_where_the_plan_has_none(site):
    assert wanted(site(topology="/etc/slurm/topology.conf")).job.launch.topology == "/etc/slurm/topology.conf"
