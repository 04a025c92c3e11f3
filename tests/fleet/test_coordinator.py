"""A whole run by the coordinator over agents that live in the test: the loop of measuring, judging and asking; counters read before and after; the state of a scan."""

import asyncio

import msgspec
import pytest

from preflight.errors import AnswerLate, ConfigError, NoAnswer, TransportError, WorldError
from preflight.fleet.memory import Memory
from preflight.model import Gpu, Link, Node
from tests.builders import make_gpu, make_job, make_node
from tests.fleet.worlds import FakeWorld, busy, coordinate, cpu_nodes, request_of

CPU_JOB = make_job(tp=2, dp=2, nodes=2, gpus_per_node=2, gpu=None, backend="gloo")


def run(world: FakeWorld, job=CPU_JOB, **changes):
    return asyncio.run(coordinate(world, request_of(job, world, **changes)))


def counting(name: str, recoveries: int, **changes) -> Node:
    """A node whose first GPU's link has recovered so many times."""
    links = (Link(index=0, active=True, counters={"recovery": recoveries}),)
    gpus: tuple[Gpu, ...] = (make_gpu(name, 0, links=links), make_gpu(name, 1))
    facts = {"gpus": gpus, "taken_at_s": float(recoveries), **changes}
    return msgspec.structs.replace(make_node(name, gpus=2), **facts)


def test_a_run_measures_every_pair_and_group_and_ends_all_workers():
    world = FakeWorld(*cpu_nodes(2))
    outcome = run(world)
    assert outcome.stopped is None
    assert outcome.coverage.pairs_measured == outcome.coverage.pairs_planned == 6
    assert outcome.coverage.groups_measured == outcome.coverage.groups_planned == 4
    assert not [m for m in outcome.evidence.measurements if m.failure]
    assert world.asked[-2:] == [("node0", "/v1/end"), ("node1", "/v1/end")]
    assert not outcome.evidence.settings.simulated


def test_budget_and_phases_are_counted_by_the_clock_of_the_world():
    world = FakeWorld(*cpu_nodes(2))
    outcome = run(world, budget_s=20.0)
    assert outcome.phases_s["probing"] == len(world.rounds())
    assert world.now <= 20 - 11
    assert outcome.coverage.groups_measured < outcome.coverage.groups_planned


def test_a_simulated_run_says_so_in_its_settings_and_in_every_measurement():
    world = FakeWorld(*cpu_nodes(2))
    world.simulated = True
    evidence = run(world).evidence
    assert evidence.settings.simulated
    assert evidence.measurements
    assert all(m.simulated for m in evidence.measurements)


def test_a_rank_that_never_answers_is_tried_with_another_partner_and_then_left_out():
    world = FakeWorld(*cpu_nodes(2))
    world.hung = {3}
    outcome = run(world)
    ours = [m for m in outcome.evidence.measurements if 3 in m.probe.ranks]
    tried = [m for m in ours if m.failure and m.failure.kind != "not_run"]
    assert 2 <= len(tried) <= 3
    assert {m.failure.kind for m in ours[len(tried) :] if m.failure} == {"not_run"}
    assert all(m.samples for m in outcome.evidence.measurements if 3 not in m.probe.ranks)


def test_counters_are_read_again_after_probing_where_there_are_some():
    world = FakeWorld([counting("node0", 1), counting("node0", 5)], [counting("node1", 1), counting("node1", 1)])
    evidence = run(world, make_job(tp=2, dp=2, nodes=2, gpus_per_node=2)).evidence
    assert evidence.before is not None
    assert [node.taken_at_s for node in evidence.before.nodes] == [1.0, 1.0]
    assert [node.taken_at_s for node in evidence.inventory.nodes] == [5.0, 1.0]
    ended = [number for number, call in enumerate(world.asked) if call[1] == "/v1/end"]
    read = [number for number, call in enumerate(world.asked) if call[1] == "/v1/discover"]
    assert len(read) == 4
    assert read[2] > max(ended)


def test_a_node_without_counters_is_not_read_twice():
    world = FakeWorld(*cpu_nodes(2))
    assert run(world).evidence.before is None
    assert [path for _, path in world.asked].count("/v1/discover") == 2


@pytest.mark.parametrize("after", [counting("node0", 5, gpus=None), AnswerLate("late")])
def test_a_node_that_can_not_be_read_again_stays_as_it_was_found_and_is_not_compared(after):
    readings = [counting("node0", 1), after] if isinstance(after, Node) else [counting("node0", 1)]
    world = FakeWorld(readings, [counting("node1", 1), counting("node1", 2)])

    def late(node: str, path: str) -> Exception | None:
        again = path == "/v1/discover" and world.asked.count((node, path)) > 1 and node == "node0"
        return after if again and isinstance(after, Exception) else None

    world.refuse = late
    evidence = run(world, make_job(tp=2, dp=2, nodes=2, gpus_per_node=2)).evidence
    assert [node.name for node in evidence.before.nodes] == ["node1"]
    assert [node.taken_at_s for node in evidence.inventory.nodes] == [1.0, 2.0]


def test_time_for_reading_counters_again_is_kept_from_the_budget():
    job = make_job(tp=2, dp=2, nodes=2, gpus_per_node=2)
    world = FakeWorld([counting("node0", 1), counting("node0", 2)], [counting("node1", 1), counting("node1", 2)])
    run(world, job, budget_s=40.0)
    assert world.now <= 40 - 11 - 6


def test_a_scan_goes_on_where_the_last_one_over_these_nodes_stopped(tmp_path):
    job = make_job(tp=2, dp=16, nodes=16, gpus_per_node=2, gpu=None, backend="gloo")
    memory, seen = Memory(tmp_path / "state.json"), []
    for _ in range(2):
        world = FakeWorld(*cpu_nodes(16))
        outcome = run(world, job, memory=memory, budget_s=40.0)
        memory.keep(outcome.position)
        seen.append({p.ranks for request in world.requests for p in request.probes if p.axis is None})
    assert seen[1] - seen[0]
    assert outcome.coverage.scan


def test_the_localiser_is_asked_between_rounds_and_what_it_wants_is_measured(monkeypatch):
    import sys
    from types import ModuleType

    from preflight.model.localisation import Ask

    calls = []

    def localise_evidence(evidence):
        calls.append(len(evidence.measurements))

        class Found:
            asks = (Ask(a=0, b=3, op="send", reason="to tell the direction"),) if len(calls) == 1 else ()

        return Found

    module = ModuleType("preflight.judge.localise")
    module.localise_evidence = localise_evidence  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "preflight.judge.localise", module)
    world = FakeWorld(*cpu_nodes(2))
    outcome = run(world)
    assert calls
    asked = [m for m in outcome.evidence.measurements if m.probe.collective == "send"]
    assert [m.probe.ranks for m in asked][:1] == [(0, 3)]


def test_a_localiser_that_breaks_costs_no_measurement(monkeypatch):
    import sys
    from types import ModuleType

    module = ModuleType("preflight.judge.localise")
    module.localise_evidence = lambda evidence: 1 // 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "preflight.judge.localise", module)
    assert run(FakeWorld(*cpu_nodes(2))).coverage.groups_measured == 4


def test_an_interruption_ends_the_run_and_keeps_what_was_measured():
    world = FakeWorld(*cpu_nodes(2))
    interrupted = asyncio.Event()
    progressed = []

    def progress(*told):
        progressed.append(told)
        if len(world.rounds()) == 3:
            interrupted.set()

    async def until_interrupted():
        from preflight.fleet.coordinator import Coordinator

        return await Coordinator(request_of(CPU_JOB, world), progress, interrupted, None, world.world()).run()

    outcome = asyncio.run(until_interrupted())
    assert outcome.stopped == "interrupted while probing"
    assert outcome.evidence.measurements
    assert world.asked[-1][1] == "/v1/end"


@pytest.mark.parametrize(
    ("error", "kind"), [(NoAnswer("gone"), "agent_lost"), (TransportError("the agent failed"), "agent_error")]
)
def test_a_node_whose_agent_drops_out_in_a_round_costs_itself_only(error, kind):
    world = FakeWorld(*cpu_nodes(3))
    world.refuse = lambda node, path: error if node == "node1" and path == "/v1/round" else None
    job = make_job(tp=2, dp=3, nodes=3, gpus_per_node=2, gpu=None, backend="gloo")
    evidence = run(world, job).evidence
    assert [(i.kind, i.node) for i in evidence.incidents] == [(kind, "node1")]
    others = [m for m in evidence.measurements if not {2, 3} & set(m.probe.ranks)]
    assert others
    assert all(m.samples for m in others)


def test_a_busy_agent_and_one_that_never_came_up_are_told_apart():
    world = FakeWorld(*cpu_nodes(3))
    world.refuse = lambda node, path: (
        busy(node, path)
        if node == "node2"
        else NoAnswer("gone")
        if node == "node1" and path == "/v1/discover"
        else None
    )
    job = make_job(tp=2, dp=3, nodes=3, gpus_per_node=2, gpu=None, backend="gloo")
    assert {(i.kind, i.node) for i in run(world, job).evidence.incidents} == {
        ("agent_lost", "node1"),
        ("agent_busy", "node2"),
    }


def test_without_any_agent_there_is_no_run():
    world = FakeWorld(*cpu_nodes(1), refuse=lambda *_: NoAnswer("gone"))
    with pytest.raises(WorldError, match="no agent answered"):
        run(world)


def test_nothing_says_how_many_workers_a_node_runs():
    world = FakeWorld(*cpu_nodes(1))
    with pytest.raises(ConfigError, match="how many workers"):
        run(world, make_job(tp=1, nodes=1, gpus_per_node=None, gpu=None, backend="gloo"), per_node=None)
