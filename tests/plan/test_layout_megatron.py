"""Our groups and refusals against Megatron-Core's own, on random configurations."""

import random

import pytest

from preflight.errors import ConfigError
from preflight.plan.layout import lay_out
from preflight_checks.plan_consistent import CHECK
from tests.builders import make_evidence, make_job, make_plan
from tests.plan.megatron_peer import Peer, digest, questions

pytestmark = [pytest.mark.fabric, pytest.mark.megatron]

DEFAULT, MAPPING = ("tp", "cp", "ep", "dp", "pp"), ("tp", "cp", "ep", "pp", "dp")
# powers of two, as clusters have them, and a few odd ones
SIZES = [1, 1, 2, 2, 3, 4, 4, 5, 6, 8, 8, 16, 32, 64]
VALID, LARGEST = 220, 4096


def divisors(number: int) -> list[int]:
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]


def random_parallel(chance: random.Random, largest: int) -> tuple[int, dict]:
    """A world size and keys of [parallel] whose arithmetic comes out even; the order may still be one that is refused."""
    while True:
        tp, cp, dp, pp = (chance.choice(SIZES) for _ in range(4))
        if tp * cp * dp * pp <= largest:
            break
    parallel = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    if chance.random() < 0.7:
        stage = tp * cp * dp
        etp = chance.choice([None, 1, tp])
        fitting = divisors(stage // (tp if etp is None else etp))
        parallel |= {"etp": etp, "ep": chance.choice(fitting)}
    order = chance.choice([None, None, MAPPING, tuple(chance.sample(DEFAULT, 5))])
    if order:
        parallel["order"] = order
    return tp * cp * dp * pp, parallel


def laid_out(world: int, parallel: dict):
    return lay_out(make_job(**parallel), nodes=world, gpus_per_node=1, world_size=world)


def ours(layout, world: int) -> dict[str, str]:
    """The digest of every kind of group, as the peer names them. A kind along a single axis above 1 is that axis's groups."""
    axes = {name: [name] for name in ("tp", "cp", "dp", "pp", "etp", "ep", "edp")}
    axes |= {name: name.split("_") for name in ("dp_cp", "tp_pp", "tp_cp", "tp_dp", "tp_dp_cp")}
    axes |= {"tp_ep": ["etp", "ep"], "tp_ep_pp": ["etp", "ep", "pp"]}
    every = {**layout.groups, **layout.composites}
    found = {}
    for name, along in axes.items():
        used = [axis for axis in along if layout.degrees.get(axis, 1) > 1]
        alone = [[rank] for rank in range(world)]
        found[name] = digest(every[name] if len(used) > 1 else every[used[0]] if used else alone)
    return found


@pytest.fixture(scope="module")
def peer():
    with Peer() as process:
        yield process


def test_groups_are_those_of_the_rank_generator_in_at_least_200_random_configurations(peer):
    chance = random.Random(3)
    largest = 0
    equal = 0
    while equal < VALID:
        world, parallel = random_parallel(chance, LARGEST)
        try:
            layout = laid_out(world, parallel)
        except ConfigError:
            continue  # whether rightly so is asked below
        theirs = peer.ask(questions(layout.degrees, layout.order))["groups"]
        mine = ours(layout, world)
        assert {name: mine[name] for name in theirs} == theirs, parallel
        largest, equal = max(largest, world), equal + 1
    assert largest > LARGEST / 2


def test_what_is_refused_is_what_megatron_core_refuses(peer):
    chance = random.Random(4)
    outcomes = {True: 0, False: 0}
    for _ in range(120):
        world, parallel = random_parallel(chance, 96)
        if chance.random() < 0.3:
            parallel["dp"] = None
            world = chance.choice([8, 12, 16, 24, 32])
        arguments = {
            "tensor_model_parallel_size": parallel["tp"],
            "pipeline_model_parallel_size": parallel["pp"],
            "context_parallel_size": parallel["cp"],
            "expert_model_parallel_size": parallel.get("ep", 1),
            "expert_tensor_parallel_size": parallel.get("etp"),
            "order": "-".join(parallel.get("order", DEFAULT)),
        }
        refused = peer.ask({"world": world, "arguments": arguments})["refused"]
        assert refuses(world, parallel) == (refused is not None), (world, parallel, refused)
        outcomes[refused is not None] += 1
    assert min(outcomes.values()) > 10, outcomes


def refuses(world: int, parallel: dict) -> bool:
    """Whether we refuse a layout: as impossible, or as one that the framework will not take."""
    try:
        plan = make_plan(nodes=world, gpus_per_node=1, seq_length=None, hidden_size=None, layers=5760, **parallel)
    except ConfigError:
        return True
    return any(finding.subject == "parallel.order" for finding in CHECK.judge(make_evidence(plan=plan)))
