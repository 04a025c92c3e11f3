"""Simulated agents, as the coordinator sees them: one clock for all, rounds whose flows share the fabric, answers as real agents give them."""

import asyncio

import msgspec
import pytest

from preflight.errors import NoAnswer
from preflight.fleet import api
from preflight.fleet.simulated import simulated_world
from preflight.fleet.simulated_nodes import gpu_uuid, simulated_topology
from preflight.model import Probe
from preflight.probe.simulate import Fault, plain_cluster

ROUND = api.RoundRequest(
    run_id="r",
    prefix="r/1",
    backend="nccl",
    probes=(),
    store_address="127.0.0.1",
    store_port=1,
    num_tasks=2,
    timeout_s=15.0,
    deadline_s=30.0,
)


def cluster(*faults, **more):
    return plain_cluster((2, 2), **{"noise": 0.0, "faults": faults, **more})


def pair(a, b, op="send_recv", size=2**30):
    return Probe(subject=f"pair {a}-{b}", axis=None, collective=op, ranks=(a, b), size_bytes=size, size_source="a test")


def group(name, ranks, axis="dp", op="all_reduce", **more):
    fields = {
        "subject": name,
        "axis": axis,
        "collective": op,
        "ranks": ranks,
        "size_bytes": 2**30,
        "size_source": "a test",
    }
    return Probe(**fields, **more)


def alone(rank, op, **more):
    fields = {"subject": f"gpu {rank}", "axis": None, "collective": op, "ranks": (rank,), "size_source": "a test"}
    return Probe(**fields, **more)


def play(model, *rounds, unasked=()):
    """The outcomes of each round by (rank, subject), and the world after the last; ranks sit in blocks of eight."""
    world, agents = simulated_world(model, 0, "c.toml")

    async def go():
        outcomes = []
        async with world.dial(b"") as factory:
            clients = {agent.name: factory(agent) for agent in agents}
            for place, (name, client) in enumerate(clients.items()):
                workers = tuple(api.WorkerSpec(rank=8 * place + slot, gpu=gpu_uuid(name, slot)) for slot in range(8))
                await client.call(
                    "/v1/start", api.StartRequest(run_id="r", workers=workers, deadline_s=9), api.StartReply, 9
                )
            for probes in rounds:
                tasks = sum(len(probe.ranks) for probe in probes)
                asked = {
                    name: tuple(probe for probe in probes if any(rank // 8 == place for rank in probe.ranks))
                    for place, name in enumerate(clients)
                    if name not in unasked
                }
                calls = [
                    clients[name].call_watched(
                        "/v1/round", msgspec.structs.replace(ROUND, probes=mine, num_tasks=tasks), api.RoundReply, 40
                    )
                    for name, mine in asked.items()
                    if mine
                ]
                replies = await asyncio.gather(*calls)
                outcomes.append({(each.rank, each.subject): each for reply in replies for each in reply.outcomes})
        return outcomes

    return asyncio.run(go()), world


def seconds(outcome):
    return sorted(outcome.samples.durations_s)[1]


def test_a_node_tells_its_gpus_its_links_and_a_card_for_each_nic():
    world, agents = simulated_world(cluster(gpus_per_nic=2), 0, "c.toml")

    async def ask():
        async with world.dial(b"") as factory:
            client = factory(agents[1])
            return await client.call("/v1/discover", api.DiscoverRequest(deadline_s=9), api.DiscoverReply, 9)

    node = asyncio.run(ask()).node
    assert (node.name, node.simulated, node.tells_health) == ("n1", True, False)
    assert [gpu.uuid for gpu in node.gpus] == [gpu_uuid("n1", slot) for slot in range(8)]
    assert {gpu.name for gpu in node.gpus} == {"NVIDIA H100 80GB HBM3"}
    assert {len(gpu.links) for gpu in node.gpus} == {18}
    assert {hca.ports[0].rate_bytes_per_s for hca in node.hcas} == {50_000_000_000}
    assert [next(iter(gpu.nics)) for gpu in node.gpus] == ["mlx5_0"] * 2 + ["mlx5_1"] * 2 + ["mlx5_2"] * 2 + [
        "mlx5_3"
    ] * 2


def test_the_topology_is_what_the_map_tells():
    assert simulated_topology(cluster(), "c.toml").leaf_of("n3") == "leaf1"
    assert simulated_topology(cluster(leaves_told=False), "c.toml").switches is None
    racks = simulated_topology(cluster(domains=("r0", "r0", "r1", "r1")), "c.toml").nvlink_domains
    assert {name: len(uuids) for name, uuids in racks.items()} == {"r0": 16, "r1": 16}


def test_pairs_of_one_round_share_the_fabric_though_each_node_is_asked_by_itself():
    narrow = cluster(rails=False, oversubscription=16.0)
    (together, by_itself), _ = play(narrow, (pair(0, 16), pair(1, 17)), (pair(0, 16),))
    assert seconds(together[0, "pair 0-16"]) == pytest.approx(
        2**30 / 24e9
    )  # the leaf's way up carries 16 x 48 / 16 GB/s
    assert seconds(by_itself[0, "pair 0-16"]) == pytest.approx(2**30 / 48e9)


def test_each_operation_takes_what_the_fabric_says():
    model = cluster(Fault(kind="nic", ends=(8,), depth=0.5, direction="sending"))
    rounds = [
        (pair(0, 8), pair(1, 9)),
        (pair(8, 0, "send"), pair(9, 1, "send")),
        (pair(0, 8, "send"),),
        (alone(3, "matmul", size_bytes=8, flops=7 * 10**12), alone(4, "host_to_device", size_bytes=55 * 10**7)),
        (group("dp0", (0, 8, 16)), group("dp1", (1, 9, 17))),
        (group("ep0", (1, 9), "ep", "all_to_all", split=(0.9, 0.1)),),
    ]
    (both, out, back, single, groups, skewed), _ = play(model, *rounds)
    whole = 2**30 / 48e9
    assert seconds(both[0, "pair 0-8"]) == pytest.approx(2 * whole)
    assert seconds(both[1, "pair 1-9"]) == pytest.approx(whole)
    assert seconds(out[8, "pair 8-0"]) == pytest.approx(2 * whole)
    assert seconds(back[0, "pair 0-8"]) == pytest.approx(whole)
    assert seconds(single[3, "gpu 3"]) == pytest.approx(0.01)
    assert seconds(single[4, "gpu 4"]) == pytest.approx(0.01)
    assert seconds(groups[0, "dp0"]) == pytest.approx(2 * seconds(groups[1, "dp1"]), rel=0.02)
    assert seconds(skewed[1, "ep0"]) == pytest.approx(0.9 * whole, rel=0.02)
    assert all(each.data_correct and each.members in {(), (0, 8), (1, 9)} for each in both.values())


def test_time_passes_once_for_all_and_a_hang_takes_until_its_deadline():
    (well, hung), world = play(
        cluster(Fault(kind="hang", ends=(9,), first_round=1)), (pair(0, 8),), (pair(1, 9), pair(2, 10))
    )
    started_s = 4 * 7.0  # one node after the other here
    assert started_s + 30 < world.clock() < started_s + 30 + 2
    assert well[0, "pair 0-8"].failure is None
    assert hung[2, "pair 2-10"].failure is None
    assert (hung[9, "pair 1-9"].failure.kind, hung[9, "pair 1-9"].failure.rank) == ("no_answer", 9)
    assert (hung[1, "pair 1-9"].failure.kind, hung[1, "pair 1-9"].failure.rank) == ("timed_out", 9)


def test_a_round_of_which_a_node_was_not_asked_goes_on_without_it():
    (outcomes,), _ = play(cluster(), (pair(0, 8), pair(1, 2)), unasked=("n1",))
    assert outcomes[0, "pair 0-8"].failure.kind == "timed_out"
    assert outcomes[1, "pair 1-2"].failure is None


def test_a_lost_agent_answers_nothing():
    with pytest.raises(NoAnswer, match="n2"):
        play(cluster(Fault(kind="agent_lost", nodes=("n2",))), ())
