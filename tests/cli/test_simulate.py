"""`preflight simulate`: whole runs on modelled clusters, by the coordinator and the judge of real ones."""

from pathlib import Path

import pytest

from preflight.cli.main import run_command_line
from preflight.fleet.cluster_file import cluster_of, read_cluster
from preflight.fleet.run import run
from preflight.fleet.simulated import simulated_world
from preflight.formats import read_noun
from preflight.judge.run import localised
from preflight.model import Report
from preflight.plan.planfile import read_job

FOLDER = Path(__file__).parents[2] / "deploy" / "clusters"
PLAN = FOLDER / "plan.toml"


def rehearse(cluster, *, seed=0, budget_s=100.0, checks=()):
    """The evidence of a run, with what the localiser makes of it."""
    world, agents = simulated_world(cluster, seed, "cluster.toml")
    report = run(
        read_job(PLAN),
        checks,
        progress=lambda *_: None,
        budget_s=budget_s,
        agents=agents,
        world=world,
        command="simulate",
    )
    return report, localised(report.evidence).localisation


def small(*faults, **more):
    return cluster_of({"cluster": {"nodes": 8, "leaves": 2, **more}, "faults": list(faults)}, "cluster.toml")


EXAMPLES = {
    "healthy-64": set(),
    "slow-node": {("node", ("n3",), ())},
    "sick-17": {("path", tuple(f"n{i:02}" for i in range(9)), tuple(f"n{i:02}" for i in range(9, 17)))},
    "nvl72": {("gpu", (), (22,))},
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_names_what_is_planted_in_it_and_nothing_else(name):
    _, localisation = rehearse(read_cluster(FOLDER / f"{name}.toml"), budget_s=70.0)
    named = {(each.kind, each.nodes, each.other_nodes or each.ends) for each in localisation.culprits}
    assert named == EXAMPLES[name]


def test_a_slow_uplink_between_two_leaves_blames_no_node_and_no_gpu():
    _, localisation = rehearse(read_cluster(FOLDER / "two-leaves-slow-uplink.toml"))
    assert {each.kind for each in localisation.culprits} <= {"uplink", "path", None}


def test_gpus_that_share_a_nic_by_design_are_not_held_against_all_of_it():
    _, localisation = rehearse(small(nodes=16, leaves=4, gpus_per_nic=2))
    assert localisation.culprits == ()
    between = [one for one in localisation.references if one.route != "inside nodes"]
    assert between
    assert all("shared by 2 GPUs: 23.0 GB/s" in one.expected_source for one in between if one.expected_source)


def test_a_slow_gpu_among_those_that_share_a_nic_blames_no_other_node():
    fault = {"kind": "node", "hosts": "n03", "depth": 0.4}
    _, localisation = rehearse(small(fault, nodes=16, leaves=4, gpus_per_nic=2))
    assert {each.nodes for each in localisation.culprits if each.kind} <= {("n03",), ()}
    assert {localisation.ends.node[end] for each in localisation.culprits for end in each.ends} <= {3}


def test_a_report_is_marked_as_simulated_wherever_it_shows_something(tmp_path, capsys):
    arguments = ["simulate", str(FOLDER / "slow-node.toml"), str(PLAN), "--out", str(tmp_path)]
    code = run_command_line(arguments)
    shown = capsys.readouterr().out
    assert code == 10
    assert shown.startswith("preflight simulate, run ")
    assert "SIMULATED" in shown.splitlines()[1]
    assert "[SIMULATED]" in shown.splitlines()[-1]
    report = read_noun(tmp_path / "report.json", Report)
    assert report.command == "simulate"
    assert report.evidence.settings.simulated
    assert all(measurement.simulated for measurement in report.evidence.measurements)
    assert all(node.simulated for node in report.evidence.inventory.nodes)
    assert 'simulated="true"' in (tmp_path / "preflight.prom").read_text()


def test_json_and_junit_are_marked_too(capsys):
    for form in ("json", "junit"):
        run_command_line(["simulate", str(FOLDER / "slow-node.toml"), str(PLAN), "--format", form, "--budget", "60s"])
        assert "simulated" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_figures_and_another_gives_others():
    def figures(seed):
        report, _ = rehearse(small(), seed=seed, budget_s=35)
        return [(m.probe.key, m.duration_s) for m in report.evidence.measurements]

    assert figures(1) == figures(1)
    assert figures(1) != figures(2)


def test_the_budget_counts_simulated_seconds():
    report, _ = rehearse(small(), budget_s=40)
    assert 25 < report.duration_s <= 40
    more, _ = rehearse(small(), budget_s=60)
    assert len(more.evidence.measurements) > len(report.evidence.measurements)


@pytest.mark.parametrize("kind", ["hang", "crash"])
def test_a_rank_that_gives_no_answer_is_named_and_left_out_and_its_partners_are_not(kind):
    report, localisation = rehearse(small({"kind": kind, "gpus": ["n2:5"], "first_round": 7}))
    incidents = [each for each in report.evidence.incidents if each.kind in {"worker_hung", "worker_died"}]
    assert {each.rank for each in incidents} == {21}
    assert {each.node for each in incidents} == {"n2"}
    failed = [m for m in report.evidence.measurements if m.failure]
    assert failed
    assert all(21 in m.probe.ranks for m in failed)
    assert localisation.culprits == ()


def test_a_node_whose_agent_is_lost_is_named_and_the_others_go_on():
    report, localisation = rehearse(small({"kind": "agent_lost", "hosts": "n4", "first_round": 6}))
    assert {each.node for each in report.evidence.incidents if each.kind == "agent_lost"} == {"n4"}
    without = [m for m in report.evidence.measurements if not {32, 33, 34, 35, 36, 37, 38, 39} & set(m.probe.ranks)]
    assert all(m.failure is None for m in without)
    assert localisation.culprits == ()


def test_agents_that_are_all_lost_end_the_command_without_a_verdict(tmp_path, capsys):
    path = tmp_path / "c.toml"
    path.write_text('[cluster]\nnodes = 2\n[[faults]]\nkind = "agent_lost"\nhosts = "n[0-1]"\n')
    assert run_command_line(["simulate", str(path), str(PLAN)]) == 3
    assert "no agent answered" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["missing.toml", str(PLAN)], 78, "can't be read"),
        ([str(PLAN), str(PLAN)], 78, "unknown section"),
        ([str(FOLDER / "slow-node.toml"), str(PLAN), "--budget", "3s"], 64, "--budget"),
        ([str(FOLDER / "slow-node.toml"), str(PLAN), "--seed", "-1"], 64, "seed"),
        ([str(FOLDER / "slow-node.toml")], 64, "PLAN"),
    ],
)
def test_what_is_wrong_is_refused_in_one_message(arguments, code, words, capsys):
    assert run_command_line(["simulate", *arguments]) == code
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_a_plan_that_needs_other_nodes_than_the_cluster_has_is_refused_as_in_a_run(tmp_path, capsys):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.read_text() + "\n[hardware]\nnodes = 5\ngpus_per_node = 8\n")
    assert run_command_line(["simulate", str(FOLDER / "slow-node.toml"), str(path)]) == 78
    assert "nodes" in capsys.readouterr().err


def test_ranks_that_the_launcher_deals_cyclically_are_measured_where_they_sit(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.read_text() + '\n[launch]\nlauncher = "slurm"\ndistribution = "cyclic"\n')
    world, agents = simulated_world(small({"kind": "node", "hosts": "n3", "depth": 0.4}), 0, "cluster.toml")
    report = run(read_job(path), (), progress=lambda *_: None, budget_s=70, agents=agents, world=world)
    culprits = localised(report.evidence).localisation.culprits
    assert [(each.kind, each.nodes) for each in culprits] == [("node", ("n3",))]
