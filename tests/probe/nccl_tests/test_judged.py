"""Families of logs, judged: the guilty part is named, or it is said that it can't be told; nobody else ever is."""

import random

import pytest

from preflight.cli.judge_logs import evidence_of_logs
from preflight.probe.nccl_tests.files import read_logs
from tests.fleets.real_matrices import HEALTHY, HEALTHY_NAMES, SICK, SICK_NAMES, healthy_10, sick_17, sick_sets
from tests.probe.nccl_tests.families import (
    GIB,
    SIZES,
    Cluster,
    alone,
    chain,
    complete,
    measured,
    names,
    some,
    star,
)
from tests.probe.nccl_tests.writer import log, write_pairs


def judged(folder):
    return evidence_of_logs(read_logs([folder]), None, {})[0].localisation


def named(localisation):
    """(kind, names) of each culprit that is named."""
    found = set()
    for culprit in localisation.culprits:
        if culprit.kind == "link":
            found.add(("link", frozenset(localisation.ends.nodes[localisation.ends.node[end]] for end in culprit.ends)))
        elif culprit.kind == "path":
            found.add(("path", frozenset({frozenset(culprit.nodes), frozenset(culprit.other_nodes)})))
        elif culprit.kind is not None:
            found.add((culprit.kind, frozenset(culprit.nodes)))
    return found


def node(*who):
    return {("node", frozenset({name})) for name in who}


def by_size(table, matrix):
    """pair -> {size: rate}, None where it died."""
    sizes = sorted(table)
    values = {size: matrix(size) for size in sizes}
    return {
        pair: None if rate is None else {size: values[size][pair] for size in sizes if values[size][pair] is not None}
        for pair, rate in values[sizes[-1]].items()
    }


def test_the_sick_cluster_of_17_nodes_has_a_sick_path_and_no_sick_node(tmp_path):
    localisation = judged(write_pairs(tmp_path, by_size(SICK, sick_17)))
    first, second = sick_sets()
    assert (len(first), len(second), len(SICK_NAMES)) == (9, 8, 17)
    assert named(localisation) == {("path", frozenset({first, second}))}


def test_the_healthy_cluster_of_10_nodes_has_none(tmp_path):
    localisation = judged(write_pairs(tmp_path, by_size(HEALTHY, healthy_10)))
    assert len(HEALTHY_NAMES) == 10
    assert (localisation.culprits, localisation.unjudged) == ((), "")


@pytest.mark.parametrize("seed", range(12))
def test_a_healthy_cluster_has_no_culprit(tmp_path, seed):
    chance = random.Random(seed)
    cluster = Cluster(
        names(chance.randint(4, 24)), rate=chance.uniform(10, 400), noise=chance.choice([0.003, 0.01, 0.02, 0.03])
    )
    pairs = [complete, star, chain][seed % 3](cluster)
    assert judged(write_pairs(tmp_path, measured(cluster, pairs, seed))).culprits == ()


@pytest.mark.parametrize("seed", range(10))
def test_a_bad_node_is_named_and_no_other(tmp_path, seed):
    chance = random.Random(seed)
    cluster = Cluster(names(chance.randint(5, 20)), noise=0.01)
    bad = chance.choice(cluster.names)
    cluster = cluster._replace(nodes={bad: chance.uniform(0.4, 0.75)})
    assert named(judged(write_pairs(tmp_path, measured(cluster, complete(cluster), seed)))) == node(bad)


@pytest.mark.parametrize("seed", range(6))
def test_a_bad_node_is_named_where_many_pairs_are_missing(tmp_path, seed):
    cluster = Cluster(names(16), nodes={"node005": 0.6})
    found = named(judged(write_pairs(tmp_path, measured(cluster, some(cluster, 0.4, seed), seed))))
    assert found == node("node005")


@pytest.mark.parametrize("seed", range(4))
def test_two_bad_nodes_are_named(tmp_path, seed):
    cluster = Cluster(names(12), nodes={"node002": 0.5, "node009": 0.7})
    found = named(judged(write_pairs(tmp_path, measured(cluster, complete(cluster), seed))))
    assert found == node("node002", "node009")


@pytest.mark.parametrize("seed", range(4))
def test_a_bad_pair_never_costs_a_node(tmp_path, seed):
    cluster = Cluster(names(10), pairs={("node003", "node007"): 0.5})
    localisation = judged(write_pairs(tmp_path, measured(cluster, complete(cluster), seed)))
    link = ("link", frozenset({"node003", "node007"}))
    assert named(localisation) <= {link}
    assert localisation.culprits


@pytest.mark.parametrize("where", ["same folder", "folder of its own"])
def test_a_bad_pair_that_is_slow_in_two_runs_is_named(tmp_path, where):
    cluster = Cluster(names(10), pairs={("node003", "node007"): 0.5})
    write_pairs(tmp_path, measured(cluster, complete(cluster), 1))
    for (a, b), rates in measured(cluster, complete(cluster), 2).items():
        again = tmp_path / ("again" if where == "folder of its own" else ".")
        again.mkdir(exist_ok=True)
        (again / f"second_{a}_{b}.log").write_text(log((a, b), rates))
    assert named(judged(tmp_path)) == {("link", frozenset({"node003", "node007"}))}


@pytest.mark.parametrize(("number", "cut"), [(6, 3), (9, 4), (17, 9), (24, 16)])
def test_a_path_between_two_sets_is_named_with_its_members(tmp_path, number, cut):
    cluster = Cluster(names(number))
    one, other = frozenset(cluster.names[:cut]), frozenset(cluster.names[cut:])
    cluster = cluster._replace(sets=(one, other))
    found = named(judged(write_pairs(tmp_path, measured(cluster, complete(cluster), number))))
    assert found == {("path", frozenset({one, other}))}


def test_three_sets_cost_no_node(tmp_path):
    cluster = Cluster(names(15))
    sets = tuple(frozenset(cluster.names[start : start + 5]) for start in (0, 5, 10))
    localisation = judged(write_pairs(tmp_path, measured(cluster._replace(sets=sets), complete(cluster), 1)))
    assert localisation.culprits
    assert {kind for kind, _ in named(localisation)} <= {"path", "environment"}


def test_a_bad_node_beside_a_path_is_named_with_it(tmp_path):
    cluster = Cluster(names(14))
    one, other = frozenset(cluster.names[:8]), frozenset(cluster.names[8:])
    cluster = cluster._replace(sets=(one, other), nodes={"node003": 0.3})
    found = named(judged(write_pairs(tmp_path, measured(cluster, complete(cluster), 1))))
    assert found & node("node003")
    assert all(kind != "node" or who == {"node003"} for kind, who in found)


@pytest.mark.parametrize("shape", [star, chain])
def test_few_pairs_name_no_innocent_node(tmp_path, shape):
    cluster = Cluster(names(9), nodes={"node005": 0.5})
    localisation = judged(write_pairs(tmp_path, measured(cluster, shape(cluster), 1)))
    assert named(localisation) <= node("node005")
    assert localisation.culprits


def test_a_star_whose_middle_is_bad_names_no_other(tmp_path):
    cluster = Cluster(names(9), nodes={"node001": 0.5})
    assert named(judged(write_pairs(tmp_path, measured(cluster, star(cluster), 1)))) <= node("node001")


def test_a_node_with_which_every_run_dies_is_named_by_that(tmp_path):
    cluster = Cluster(names(8), dead=frozenset({"node004"}))
    (culprit,) = judged(write_pairs(tmp_path, measured(cluster, complete(cluster), 1))).culprits
    assert (culprit.kind, culprit.nodes, culprit.failed) == ("node", ("node004",), True)
    assert "all 7 runs with node004 died" in culprit.reason


def test_a_pair_that_died_costs_no_node(tmp_path):
    cluster = Cluster(names(8), died=frozenset({("node002", "node003"), ("node005", "node006")}))
    assert named(judged(write_pairs(tmp_path, measured(cluster, complete(cluster), 1)))) <= {
        ("link", frozenset({"node002", "node003"})),
        ("link", frozenset({"node005", "node006"})),
    }


def test_the_average_in_the_summary_decides_nothing(tmp_path):
    cluster = Cluster(names(6))
    for number, ((a, b), rates) in enumerate(measured(cluster, complete(cluster), 1).items()):
        (tmp_path / f"{a}_{b}.log").write_text(log((a, b), rates, average=1.0 if number % 3 else 900.0))
    assert judged(tmp_path).culprits == ()


def test_only_large_sizes_decide(tmp_path):
    cluster = Cluster(names(6))
    slow_start = {
        pair: {2**20: 0.5 if "node001" in pair else 9.0, 2**24: 3.0 if "node001" in pair else 40.0, **rates}
        for pair, rates in measured(cluster, complete(cluster), 1).items()
    }
    assert judged(write_pairs(tmp_path, slow_start)).culprits == ()


def test_sizes_that_are_too_small_are_not_judged(tmp_path):
    cluster = Cluster(names(6))
    small = {pair: {2**20: 9.0 if "node001" in pair else 20.0} for pair in complete(cluster)}
    localisation = judged(write_pairs(tmp_path, small))
    assert localisation.culprits == ()
    assert any("below 64 MiB" in note for note in localisation.notes)


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_node_among_single_node_runs_is_named(tmp_path, seed):
    cluster = Cluster(names(8), rate=475.0, nodes={"node006": 0.7})
    for name, rates in alone(cluster, seed).items():
        (tmp_path / f"{name}.log").write_text(log((name,), rates, program="all_reduce"))
    assert named(judged(tmp_path)) == node("node006")


def test_healthy_single_node_runs_have_no_culprit(tmp_path):
    for name, rates in alone(Cluster(names(8), rate=475.0), 1).items():
        (tmp_path / f"{name}.log").write_text(log((name,), rates, program="all_reduce"))
    assert judged(tmp_path).culprits == ()


def test_families_with_unlike_numbers_of_gpus_and_programs_are_never_compared(tmp_path):
    for gpus, rate in ((1, 24.0), (2, 47.0), (4, 70.0), (8, 92.0)):
        for program, more in (("alltoall", 1.0), ("all_reduce", 2.0), ("sendrecv", 0.5)):
            cluster = Cluster(names(5), rate=rate * more)
            for (a, b), rates in measured(cluster, complete(cluster), gpus).items():
                text = log((a, b), rates, program=program, gpus=gpus)
                (tmp_path / f"{program}_{gpus}gpus_{a}_{b}.log").write_text(text)
    localisation = judged(tmp_path)
    assert localisation.culprits == ()
    assert len({reference.op for reference in localisation.references}) == 36


def test_a_fault_in_one_family_is_named_with_its_operation(tmp_path):
    for gpus, share in ((1, 1.0), (8, 0.6)):
        cluster = Cluster(names(6), nodes={"node002": share})
        for (a, b), rates in measured(cluster, complete(cluster), gpus).items():
            (tmp_path / f"{gpus}_{a}_{b}.log").write_text(log((a, b), rates, gpus=gpus))
    (culprit,) = judged(tmp_path).culprits
    assert (culprit.kind, culprit.nodes) == ("node", ("node002",))
    assert all("8 GPUs" in op for op in culprit.ops)


def test_a_part_that_shows_at_one_size_only_is_not_named(tmp_path):
    cluster = Cluster(names(8))
    found = measured(cluster, complete(cluster), 1)
    for pair, rates in found.items():
        if "node002" in pair:
            rates[SIZES[-1]] *= 0.5
    localisation = judged(write_pairs(tmp_path, found))
    assert named(localisation) == set()
    assert any("not at" in culprit.reason for culprit in localisation.culprits)


def test_runs_over_many_nodes_name_the_node_that_alone_explains_them(tmp_path):
    everyone = names(12)
    groups = [everyone[start : start + 4] for start in (0, 4, 8)] + [everyone[place::3] for place in range(3)]
    for number, hosts in enumerate(groups):
        rate = 120.0 if "node006" in hosts else 190.0 + number
        (tmp_path / f"{number}.log").write_text(log(hosts, {4 * GIB: rate}, program="all_reduce"))
    assert named(judged(tmp_path)) == node("node006")
