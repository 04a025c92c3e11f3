"""munge between clients and agents over real sockets: sessions, restarts, daemons that hang, and strangers who forge."""

import asyncio
import contextlib
import json
import secrets
import subprocess
import sys
import time

import aiohttp
import pytest

from preflight.errors import AgentBusy, AgentRefused, MungeError, NoAnswer, TransportError
from preflight.fleet import api, munge
from preflight.fleet.auth import SIGNATURE_HEADER, check_reply, sign_reply
from preflight.fleet.credential import MUNGE_SCHEME, NO_SESSION, SESSION_SCHEME
from preflight.fleet.local import Address
from preflight.fleet.munge import Munge, MungeGate
from preflight.fleet.replies import kind_of, lost_kind
from preflight.fleet.world import over_http
from tests.fleet.asking import (
    BODY,
    KEY,
    PATH,
    UID,
    agent,
    ask,
    client,
    post,
    run,
    signer,
    stranger,
)
from tests.fleet.munged import BECOME_NOBODY, NOBODY, WAIT_S, Munged, munged

pytestmark = pytest.mark.debian("munge", "munged")


@pytest.fixture(scope="module")
def daemon():
    with munged() as daemon:
        yield daemon


def test_calls_after_the_first_need_no_munge():
    async def calls(daemon: Munged) -> None:
        async with agent(MungeGate(socket=daemon.socket)) as port, client(Munge(UID, daemon.socket), port) as one:
            await ask(one)
            await asyncio.to_thread(daemon.stop)
            await asyncio.gather(*(ask(one) for _ in range(20)))

    with munged() as daemon:
        run(calls(daemon))


def test_first_calls_at_the_same_time_are_all_let_in(daemon):
    async def calls() -> None:
        async with agent(MungeGate(socket=daemon.socket)) as port, client(Munge(UID, daemon.socket), port) as one:
            await asyncio.gather(*(ask(one) for _ in range(20)))

    run(calls())


def test_an_agent_that_was_restarted_gets_a_new_credential(daemon):
    async def calls() -> None:
        async with contextlib.AsyncExitStack() as stack:
            async with agent(MungeGate(socket=daemon.socket)) as port:
                one = await stack.enter_async_context(client(Munge(UID, daemon.socket), port))
                await ask(one)
                before = one.signer.session
            async with agent(MungeGate(socket=daemon.socket), port=port):
                await asyncio.gather(*(ask(one) for _ in range(5)))
                assert one.signer.session != before

    run(calls())


def test_a_stranger_on_the_port_who_always_asks_for_a_new_credential_gets_one(daemon):
    """And then the call ends: he is not served for ever."""
    seen = []

    async def calls() -> None:
        async def refuse(header: str) -> tuple[int, bytes, str]:
            seen.append(header)
            return 401, NO_SESSION.encode(), ""

        async with stranger(refuse) as port, client(Munge(UID, daemon.socket), port) as one:
            one.signer.munge.sessions[one.where, "n1"] = KEY
            with pytest.raises(AgentRefused, match="knows no such session"):
                await ask(one)

    run(calls())
    assert [header.partition(" ")[0] for header in seen] == [SESSION_SCHEME, MUNGE_SCHEME]


@pytest.mark.root
def test_a_user_on_a_dead_agents_port_can_neither_read_the_credential_nor_forge_a_reply(daemon):
    stolen = []

    async def forge(header: str) -> tuple[int, bytes, str]:
        stolen.append(daemon.decode(header.partition(" ")[2], user=NOBODY))
        return 200, b"{}", sign_reply(bytes(32), "0" * 32, 200, b"{}")

    async def calls() -> None:
        async with stranger(forge) as port, client(Munge(0, daemon.socket), port) as one:
            with pytest.raises(TransportError, match="not signed with our key: another program answers") as error:
                await one.call(PATH, api.EndRequest(run_id="r"), api.EndReply, WAIT_S)
            assert lost_kind(error.value) == "agent_error"  # nothing is held against the node
            assert one.signer.session is None

    run(calls())
    assert stolen == [(18, b"")]


def test_a_reply_that_was_changed_on_its_way_is_not_believed(daemon):
    async def calls() -> None:
        async with agent(MungeGate(socket=daemon.socket)) as port, aiohttp.ClientSession() as session:

            async def pass_on(header: str) -> tuple[int, bytes, str]:
                async with session.post(
                    f"http://127.0.0.1:{port}{PATH}", data=BODY, headers={"Authorization": header}
                ) as reply:
                    return reply.status, await reply.read() + changed, reply.headers[SIGNATURE_HEADER]

            async with stranger(pass_on) as between, client(Munge(UID, daemon.socket), between) as one:
                changed = b""
                await ask(one)
                changed = b" "
                with pytest.raises(TransportError, match="not signed with our key"):
                    await ask(one)

    run(calls())


def test_a_body_that_was_changed_on_its_way_is_refused(daemon):
    async def calls() -> None:
        async with agent(MungeGate(socket=daemon.socket)) as port:
            signed = await signer(daemon).sign("POST", PATH, BODY, WAIT_S)
            assert (await post(port, signed.header, BODY + b" "))[:2] == (
                401,
                "the body is not the one that was signed\n",
            )
            signed = await signer(daemon).sign("POST", PATH, BODY, WAIT_S)
            status, text, signature = await post(port, signed.header, BODY)
            check_reply(signed.key, signed.nonce, status, text.encode(), signature)

    run(calls())


def test_the_body_of_a_stranger_is_not_read(daemon):
    async def calls() -> None:
        async with agent(MungeGate(socket=daemon.socket)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: {MUNGE_SCHEME} MUNGE:AAAA:\r\n"
            writer.write(f"{head}Content-Length: 1000000\r\n\r\n".encode())
            reply = await asyncio.wait_for(reader.read(), WAIT_S)  # though the body never comes
            assert reply.startswith(b"HTTP/1.1 401 ")
            writer.close()

    run(calls())


@pytest.mark.root
def test_agents_that_run_as_an_ordinary_user_serve_that_user_and_root(daemon, tmp_path):
    serve = f"""
from preflight.fleet.agent import Settings
from preflight.fleet.munge import MungeGate
from preflight.fleet.serve import serve
{BECOME_NOBODY}
serve(Settings(name="n1", address="127.0.0.1"), key=None, parent=None, munge=MungeGate(socket={daemon.socket!r}))
"""
    dial = f"""
import asyncio, sys
from preflight.errors import TransportError
from preflight.fleet import api
from preflight.fleet.client import AgentClient, new_session
from preflight.fleet.munge import Munge
{BECOME_NOBODY}
async def call():
    async with new_session() as session:
        one = AgentClient(session, Munge(os.getuid(), {daemon.socket!r}), target="n1", host="127.0.0.1", port=int(sys.argv[1]))
        try:
            await one.call("/v1/end", api.EndRequest(run_id="r"), api.EndReply, 20)
        except TransportError as error:
            print(type(error).__name__, error)
asyncio.run(call())
"""

    async def as_root(port: int) -> None:
        async with client(Munge(NOBODY, daemon.socket), port) as one:
            await ask(one)
        async with client(Munge(0, daemon.socket), port) as one:
            with pytest.raises(AgentRefused, match=f"agent of another user: this one runs as uid {NOBODY}"):
                await ask(one)

    with (tmp_path / "errors").open("wb") as errors:
        process = subprocess.Popen([sys.executable, "-c", serve], stdout=subprocess.PIPE, stderr=errors)
    try:
        assert process.stdout
        port = json.loads(process.stdout.readline())["port"]
        run(as_root(port))
        said = subprocess.run(
            [sys.executable, "-c", dial, str(port)], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        assert said.startswith("AgentBusy agent n1 at")
    finally:
        process.terminate()
        process.wait(WAIT_S)
        process.stdout.close()


def test_an_agent_whose_munged_hangs_serves_others_meanwhile_and_blames_no_node(monkeypatch):
    monkeypatch.setattr(munge, "DEADLINE_S", 2.0)

    async def calls(daemon: Munged, own: Munged) -> None:
        async with (
            agent(MungeGate(socket=daemon.socket), KEY) as port,
            client(KEY, port) as with_key,
            client(Munge(UID, own.socket), port) as with_munge,
        ):
            with daemon.hung():
                waiting = asyncio.ensure_future(ask(with_munge))
                while not waiting.done():
                    await ask(with_key)
                    assert await with_key.is_there()
                with pytest.raises(
                    AgentRefused, match="refused us: the agent's munge: munged gave unmunge no"
                ) as error:
                    await waiting
                assert kind_of(error.value, "agent_lost") == "agent_refused"

    key = secrets.token_bytes(1024)
    with munged(key) as daemon, munged(key) as own:
        run(calls(daemon, own))


def test_a_coordinator_whose_munged_hangs_blames_no_node(monkeypatch):
    monkeypatch.setattr(munge, "DEADLINE_S", 0.5)

    async def calls(daemon: Munged) -> None:
        async with agent(MungeGate(socket=daemon.socket)) as port, client(Munge(UID, daemon.socket), port) as one:
            with pytest.raises(AgentRefused, match="was not asked: munged gave munge no answer") as error:
                await ask(one)
            assert kind_of(error.value, "agent_lost") == "agent_refused"

    with munged() as daemon, daemon.hung():
        run(calls(daemon))


def test_an_agent_that_is_not_there_costs_no_credential(tmp_path):
    async def calls() -> None:
        async with client(Munge(UID, str(tmp_path / "none")), 1) as one:
            with pytest.raises(NoAnswer, match="can't connect: Connection refused"):
                await ask(one)

    run(calls())


def test_who_dials_an_agent_again_needs_no_new_credential():
    async def calls(daemon: Munged) -> None:
        shown = Munge(UID, daemon.socket)
        async with agent(MungeGate(socket=daemon.socket)) as port:
            async with client(shown, port) as first:
                await ask(first)
            await asyncio.to_thread(daemon.stop)
            async with client(shown, port) as second:
                await ask(second)
            async with client(shown, port, target="127.0.0.1") as other:
                with pytest.raises(AgentRefused, match="munged does not run"):
                    await ask(other)

    with munged() as daemon:
        run(calls(daemon))


def test_a_coordinator_without_munged_says_so_before_it_asks_anybody(tmp_path):
    async def dial() -> None:
        async with over_http(Munge(socket=str(tmp_path / "none"))):
            raise AssertionError("not reached")

    with pytest.raises(MungeError, match="munged does not run"):
        run(dial())


def test_a_world_over_http_takes_munge(daemon):
    async def calls() -> None:
        async with (
            agent(MungeGate(socket=daemon.socket)) as port,
            over_http(Munge(UID, daemon.socket)) as factory,
        ):
            one = factory(Address(name="n1", host="127.0.0.1", port=port))
            with pytest.raises(AgentBusy):
                await one.call(PATH, api.EndRequest(run_id="r"), api.EndReply, WAIT_S)

    run(calls())


def test_a_burst_of_worthless_credentials_leaves_no_process_behind(daemon):
    async def calls() -> None:
        async with agent(MungeGate(socket=daemon.socket)) as port, client(Munge(UID, daemon.socket), port) as one:
            until = time.monotonic() + WAIT_S
            worthless = [post(port, f"{MUNGE_SCHEME} MUNGE:AwQFAAC{n:05d}:", BODY) for n in range(100)]
            statuses = {status for status, _, _ in await asyncio.gather(*worthless)}
            assert statuses == {401}
            assert time.monotonic() < until
            await ask(one)

    run(calls())
