"""munge at an agent's door: who is let in and who is not, over real sockets, with real daemons, and strangers who try."""

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.errors import AgentBusy, AgentRefused, MungeError, TransportError, UsageError
from preflight.fleet import api, credential, munge
from preflight.fleet.agent import Agent, Settings
from preflight.fleet.auth import SIGNATURE_HEADER, Credential, Denied, check_reply, sign_reply, sign_request
from preflight.fleet.client import AgentClient, new_session
from preflight.fleet.credential import MUNGE_SCHEME, NO_SESSION, SESSION_SCHEME, Gate, MungeSigner
from preflight.fleet.local import Address
from preflight.fleet.munge import Munge, MungeGate
from preflight.fleet.replies import kind_of, lost_kind
from preflight.fleet.world import over_http
from tests.fleet.munged import BECOME_NOBODY, NOBODY, WAIT_S, Munged, munged

pytestmark = pytest.mark.debian("munge", "munged")
UID = os.geteuid()
PATH, BODY = "/v1/end", b'{"run_id":"r"}'
KEY = bytes(range(32))


@pytest.fixture(scope="module")
def daemon():
    with munged() as daemon:
        yield daemon


def gate(daemon: Munged, *users: int, key: bytes | None = None, **options: Any) -> Gate:
    return Gate(frozenset({"n1"}), key, MungeGate(frozenset(users), daemon.socket), **options)


def check(gate: Gate, header: str | None, *, method: str = "POST", path: str = PATH) -> Credential:
    return asyncio.run(gate.check(method, path, header))


def signer(daemon: Munged, target: str = "n1") -> MungeSigner:
    return MungeSigner(Munge(UID, daemon.socket), target)


def sign(signer: MungeSigner, body: bytes = BODY) -> credential.Signed:
    return asyncio.run(signer.sign("POST", PATH, body, WAIT_S))


def payload(**changed: str) -> bytes:
    """The claims as the documentation of credential.py describes them, made without it."""
    claims = {
        "version": "preflight 1",
        "method": "POST",
        "path": PATH,
        "body": hashlib.sha256(BODY).hexdigest(),
        "target": "n1",
        "nonce": secrets.token_hex(16),
        "key": secrets.token_hex(32),
    }
    assert set(changed) <= set(claims)
    return "\n".join((claims | changed).values()).encode()


def made(daemon: Munged, *, user: int | None = None, only: int = UID, **changed: str) -> str:
    """A header by munge itself."""
    return f"{MUNGE_SCHEME} {daemon.encode(payload(**changed), f'--restrict-uid={only}', user=user)}"


@contextlib.asynccontextmanager
async def agent(gate: MungeGate | None, key: bytes | None = None, port: int = 0) -> AsyncIterator[int]:
    """A real agent in this process; its port."""
    one = Agent(Settings(name="n1", address="127.0.0.1", port=port), key, gate)
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(one.serve(ready.set_result))
    try:
        await asyncio.wait([ready, serving], return_when=asyncio.FIRST_COMPLETED)
        yield ready.result()
    finally:
        one.leave.set()
        await serving


@contextlib.asynccontextmanager
async def client(key: bytes | Munge, port: int, target: str = "n1") -> AsyncIterator[AgentClient]:
    async with new_session() as session:
        yield AgentClient(session, key, target=target, host="127.0.0.1", port=port)


async def ask(client: AgentClient, deadline_s: float = WAIT_S) -> None:
    """A call that is let in: the agent says, in a signed reply, that it has no such run. Raises TransportError if it is not."""
    with pytest.raises(AgentBusy, match="run r has no workers here"):
        await client.call(PATH, api.EndRequest(run_id="r"), api.EndReply, deadline_s)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


# --- the gate ------------------------------------------------------------------------------------------------------------


def test_a_credential_is_let_in_once_and_tells_who_asks(daemon):
    keeper, signed = gate(daemon), sign(signer(daemon))
    claim = check(keeper, signed.header)
    assert claim == Credential(
        body_sha256=hashlib.sha256(BODY).hexdigest(), nonce=signed.nonce, key=signed.key, uid=UID
    )
    with pytest.raises(Denied, match="used before"):
        check(keeper, signed.header)


def test_a_replay_is_refused_by_an_agent_whose_munged_has_forgotten_it():
    with munged() as daemon:
        keeper, header = gate(daemon), sign(signer(daemon)).header
        check(keeper, header)
        daemon.stop()
        daemon.start()
        with pytest.raises(Denied, match="made before"):
            check(keeper, header)


def test_a_credential_for_another_node_is_refused_by_this_one(daemon):
    with pytest.raises(Denied, match="this agent is not n2: it answers to n1"):
        check(gate(daemon), sign(signer(daemon, "n2")).header)


def test_the_header_is_the_documented_one(daemon):
    assert check(gate(daemon), made(daemon)).uid == UID


@pytest.mark.root
def test_only_those_whom_the_site_allows_may_ask(daemon):
    with pytest.raises(Denied, match=rf"uid {NOBODY} may not ask this agent for work: root, the agent's own user"):
        check(gate(daemon), made(daemon, user=NOBODY))
    assert check(gate(daemon, NOBODY), made(daemon, user=NOBODY)).uid == NOBODY


def test_a_credential_that_anybody_could_read_is_refused(daemon):
    header = f"{MUNGE_SCHEME} {daemon.encode(payload())}"
    with pytest.raises(Denied, match="can be decoded by others"):
        check(gate(daemon), header)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"version": "preflight 2"}, "another version"),
        ({"version": ""}, "another version"),
        ({"target": "n1\nn2"}, "another version"),
        ({"method": "GET"}, "another request"),
        ({"path": "/v1/start"}, "another request"),
        ({"path": "/v1/end/"}, "another request"),
        ({"target": "n3"}, "this agent is not n3"),
        ({"body": "0" * 63}, "malformed"),
        ({"nonce": "g" * 32}, "malformed"),
        ({"nonce": ""}, "malformed"),
        ({"key": "00"}, "malformed"),
        ({"key": "0" * 63 + "\u0660"}, "malformed"),
    ],
)
def test_a_valid_credential_with_other_claims_is_refused(daemon, changed, said):
    with pytest.raises(Denied, match=said):
        check(gate(daemon), made(daemon, **changed))


@given(st.binary(max_size=300))
@settings(max_examples=20)
def test_a_valid_credential_with_any_payload_is_refused(daemon, data):
    header = f"{MUNGE_SCHEME} {daemon.encode(data, f'--restrict-uid={UID}')}"
    with pytest.raises(Denied):
        check(gate(daemon), header)


@given(
    st.none()
    | st.text(max_size=300)
    | st.tuples(st.sampled_from([MUNGE_SCHEME, SESSION_SCHEME]), st.text(max_size=300)).map(" ".join)
    | st.text("MUNGE:Aa=\n ,id0", max_size=60).map(lambda text: f"{MUNGE_SCHEME} MUNGE:{text}:")
)
@settings(max_examples=100)
def test_a_header_of_any_text_is_refused(daemon, text):
    with pytest.raises(Denied):
        check(gate(daemon), text)


def test_an_agent_with_neither_is_not_made():
    for build in (
        lambda: Gate(frozenset({"n1"}), None, None),
        lambda: Agent(Settings(name="n1", address="127.0.0.1"), None),
        lambda: Agent(Settings(name="n1", address="10.0.0.1"), None, None),
    ):
        with pytest.raises(UsageError, match="an agent needs a credential to check: --munge, or --key-file"):
            build()


def test_each_agent_takes_what_it_was_started_with(daemon):
    with_key, _ = sign_request(KEY, "POST", PATH, BODY, "n1")
    both, only_key = gate(daemon, key=KEY), Gate(frozenset({"n1"}), KEY, None)
    assert check(both, with_key).uid is None
    assert check(both, made(daemon)).uid == UID
    with pytest.raises(Denied, match="takes no munge: it was started with a shared key"):
        check(only_key, made(daemon))
    again, _ = sign_request(KEY, "POST", PATH, BODY, "n1")
    with pytest.raises(Denied, match="takes munge credentials, and this is none"):
        check(gate(daemon), again)
    with pytest.raises(Denied, match="no credential"):
        check(gate(daemon), None)


# --- sessions ------------------------------------------------------------------------------------------------------------


def begun(daemon: Munged, keeper: Gate) -> MungeSigner:
    """A signer whose session the gate knows."""
    one = signer(daemon)
    signed = sign(one)
    check(keeper, signed.header)
    one.answered(signed)
    return one


def test_later_calls_are_signed_with_the_sessions_key_and_are_let_in_once(daemon):
    keeper = gate(daemon)
    one = begun(daemon, keeper)
    signed = sign(one, b"other")
    assert signed.header.startswith(f"{SESSION_SCHEME} id=")
    claim = check(keeper, signed.header)
    assert (claim.uid, claim.key, claim.nonce) == (UID, signed.key, signed.nonce)
    assert signed.key.hex() not in signed.header
    with pytest.raises(Denied, match="made before"):
        check(keeper, signed.header)


def test_a_session_ends_when_it_was_idle_and_not_while_it_is_used(daemon):
    now = 0.0
    keeper = gate(daemon, clock=lambda: now)
    one = begun(daemon, keeper)
    for now in (299.0, 598.0):  # noqa: B007 - the clock reads it
        check(keeper, sign(one).header)
    now = 899.0
    with pytest.raises(Denied, match=NO_SESSION):
        check(keeper, sign(one).header)
    assert not keeper.sessions


def test_of_too_many_sessions_the_one_that_was_idle_longest_goes(daemon, monkeypatch):
    monkeypatch.setattr(credential, "MAX_SESSIONS", 2)
    keeper = gate(daemon)
    first, second = begun(daemon, keeper), begun(daemon, keeper)
    check(keeper, sign(first).header)
    begun(daemon, keeper)
    check(keeper, sign(first).header)
    with pytest.raises(Denied, match=NO_SESSION):
        check(keeper, sign(second).header)


def test_nobody_speaks_in_anothers_session(daemon):
    keeper = gate(daemon)
    own, other = sign(begun(daemon, keeper)).header, sign(begun(daemon, keeper)).header
    mixed = own[: own.index(",")] + other[other.index(",") :]
    with pytest.raises(Denied, match="wrong signature"):
        check(keeper, mixed)
    unknown = own.replace(own[22:54], "0" * 32)
    with pytest.raises(Denied, match=NO_SESSION):
        check(keeper, unknown)


@given(st.data())
@settings(max_examples=30)
def test_a_session_header_with_one_letter_changed_is_refused(daemon, data):
    keeper = gate(daemon)
    header = sign(begun(daemon, keeper)).header
    position = data.draw(st.integers(0, len(header) - 1))
    letter = data.draw(st.characters(codec="latin-1"))
    if letter != header[position]:
        with pytest.raises(Denied):
            check(keeper, header[:position] + letter + header[position + 1 :])


# --- over the wire -------------------------------------------------------------------------------------------------------


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
            one.signer.session = KEY
            with pytest.raises(AgentRefused, match="knows no such session"):
                await ask(one)

    run(calls())
    assert [header.partition(" ")[0] for header in seen] == [SESSION_SCHEME, MUNGE_SCHEME]


Stranger = Callable[[str], Awaitable[tuple[int, bytes, str]]]  # Authorization -> status, body, signature


@contextlib.asynccontextmanager
async def stranger(answer: Stranger) -> AsyncIterator[int]:
    """Another program on an agent's port."""

    async def handle(request: web.Request) -> web.Response:
        status, body, signature = await answer(request.headers["Authorization"])
        return web.Response(status=status, body=body, headers={SIGNATURE_HEADER: signature})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


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


async def post(port: int, header: str, body: bytes) -> tuple[int, str, str | None]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}{PATH}", data=body, headers={"Authorization": header}) as reply,
    ):
        return reply.status, await reply.text(), reply.headers.get(SIGNATURE_HEADER)


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
        async with client(Munge(UID, daemon.socket), 1) as one:
            with pytest.raises(AgentRefused, match="was not asked: munged gave munge no answer") as error:
                await ask(one)
            assert kind_of(error.value, "agent_lost") == "agent_refused"

    with munged() as daemon, daemon.hung():
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
