"""The run of the controller prolog over agents that may be at work for others, on nodes with GPUs that are none of the job's."""

import asyncio
from collections import Counter

import pytest

from preflight.errors import AgentBusy, NoAnswer
from preflight.fleet import api
from preflight.slurm.controller_world import masked, patient_world
from tests.builders import make_node
from tests.fleet.worlds import FakeWorld

NAMES = ("n1", "n2", "n3")


class Shared(FakeWorld):
    """Agents that work for one run at a time. `busy`: node -> how many more times it says so."""

    def __init__(self, **busy):
        super().__init__(*(make_node(name, gpus=4) for name in NAMES), refuse=self._refuse)
        self.busy, self.held = Counter(busy), set()

    def _refuse(self, name, path):
        if path == "/v1/end":
            self.held.discard(name)
        elif path == "/v1/start":
            self.busy[name] -= 1
            if self.busy[name] >= 0:
                return AgentBusy(f"{name} works for another run")
            self.held.add(name)
        return None


def start(world, *, wait_s=30.0, node_gpus=None, names=NAMES):
    """Start all nodes' workers as the coordinator does; what each call came to."""

    async def go():
        patient = patient_world(world.world(), node_gpus, wait_s=wait_s, look_s=0.01)
        async with patient.dial(b"") as factory:
            clients = {address.name: factory(address) for address in world.addresses()}
            request = api.StartRequest(run_id="r", workers=(api.WorkerSpec(rank=0),), deadline_s=9)
            calls = (clients[name].call_watched("/v1/start", request, api.StartReply, 9) for name in names)
            return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(go())


def test_agents_that_are_free_are_asked_once():
    world = Shared()
    assert all(isinstance(reply, api.StartReply) for reply in start(world))
    assert sorted(world.asked) == [(name, "/v1/start") for name in NAMES]


def test_a_busy_agent_is_waited_for_and_no_other_is_held_meanwhile():
    world = Shared(n2=3)
    held_while_busy = []
    refuse = world.refuse
    world.refuse = lambda name, path: (
        (
            held_while_busy.append(set(world.held))
            if name == "n2" and path == "/v1/start" and world.busy["n2"] > 0
            else None
        )
        or refuse(name, path)
    )
    assert all(isinstance(reply, api.StartReply) for reply in start(world))
    assert world.held == set(NAMES)
    assert held_while_busy[1:] == [set(), set()]


def test_an_agent_that_stays_busy_is_left_out_when_the_time_is_up_and_the_others_have_started():
    world = Shared(n2=10**9)
    replies = start(world, wait_s=0.2)
    assert [type(reply) for reply in replies] == [api.StartReply, AgentBusy, api.StartReply]
    assert world.held == {"n1", "n3"}


def test_an_agent_that_does_not_answer_costs_no_other_its_start():
    world = Shared()
    refuse = world.refuse
    world.refuse = lambda name, path: NoAnswer("gone") if name == "n1" else refuse(name, path)
    assert [type(reply) for reply in start(world)] == [NoAnswer, api.StartReply, api.StartReply]


@pytest.mark.timeout(60)
def test_two_runs_that_share_all_nodes_come_to_an_end_one_after_the_other():
    """Each agent works for one run at a time; both runs want all."""
    owners: dict[str, str] = {}
    world = Shared()

    async def one(run, order):
        class Client:
            def __init__(self, name):
                self.name = name

            async def call(self, path, request, reply_type, deadline_s):
                del reply_type, deadline_s
                await asyncio.sleep(0)
                if path == "/v1/end":
                    owners.pop(self.name)
                    return api.EndReply()
                if owners.setdefault(self.name, request.run_id) != request.run_id:
                    raise AgentBusy("works for another")
                return api.StartReply(ready=(0,))

            call_watched = call

        from contextlib import asynccontextmanager

        import msgspec

        @asynccontextmanager
        async def dial(_):
            yield lambda address: Client(address.name)

        inner = msgspec.structs.replace(world.world(), dial=dial)
        async with patient_world(inner, None, wait_s=30, look_s=0.01).dial(b"") as factory:
            clients = [factory(address) for address in world.addresses()][::order]
            request = api.StartRequest(run_id=run, workers=(api.WorkerSpec(rank=0),), deadline_s=9)
            replies = await asyncio.gather(
                *(client.call_watched("/v1/start", request, api.StartReply, 9) for client in clients)
            )
            assert set(owners.values()) == {run}
            await asyncio.gather(
                *(client.call("/v1/end", api.EndRequest(run_id=run), api.EndReply, 9) for client in clients)
            )
            return replies

    async def both():
        return await asyncio.gather(one("a", 1), one("b", -1))

    assert [len(replies) for replies in asyncio.run(both())] == [3, 3]


def test_a_node_tells_which_of_its_gpus_are_the_jobs():
    node = make_node("n1", gpus=4)
    assert masked(node, (1, 3)).mask.gpu_uuids == ("GPU-n1-1", "GPU-n1-3")
    assert masked(node, None) == node
    unknown = make_node("n1", gpus=None)
    assert masked(unknown, (1, 3)) == unknown


def test_discovered_nodes_carry_the_jobs_gpus():
    async def go():
        async with patient_world(Shared().world(), {"n1": (2,)}, wait_s=1).dial(b"") as factory:
            replies = []
            for address in Shared().addresses():
                request = api.DiscoverRequest(deadline_s=9)
                replies.append(await factory(address).call("/v1/discover", request, api.DiscoverReply, 9))
            return [reply.node.mask.gpu_uuids for reply in replies if reply.node.mask]

    assert asyncio.run(go())[0] == ("GPU-n1-2",)
