"""munge at an agent's door: whom the gate lets in, whom it does not, and for how long it knows them. Real daemons."""

import asyncio
import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.errors import UsageError
from preflight.fleet import credential
from preflight.fleet.agent import Agent, Settings
from preflight.fleet.auth import Credential, Denied, sign_request
from preflight.fleet.credential import MUNGE_SCHEME, NO_SESSION, SESSION_SCHEME, Gate, MungeSigner
from preflight.fleet.munge import MungeGate
from tests.fleet.asking import (
    BODY,
    KEY,
    PATH,
    UID,
    made,
    payload,
    sign,
    signer,
)
from tests.fleet.munged import NOBODY, Munged, munged

pytestmark = pytest.mark.debian("munge", "munged")


@pytest.fixture(scope="module")
def daemon():
    with munged() as daemon:
        yield daemon


def gate(daemon: Munged, *users: int, key: bytes | None = None, **options: Any) -> Gate:
    return Gate(frozenset({"n1"}), key, MungeGate(frozenset(users), daemon.socket), **options)


def check(gate: Gate, header: str | None, *, method: str = "POST", path: str = PATH) -> Credential:
    return asyncio.run(gate.check(method, path, header))


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
@settings(max_examples=20, deadline=None)
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
@settings(max_examples=50, deadline=None)
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
@settings(max_examples=30, deadline=None)
def test_a_session_header_with_one_letter_changed_is_refused(daemon, data):
    keeper = gate(daemon)
    header = sign(begun(daemon, keeper)).header
    position = data.draw(st.integers(0, len(header) - 1))
    letter = data.draw(st.characters(codec="latin-1"))
    if letter != header[position]:
        with pytest.raises(Denied):
            check(keeper, header[:position] + letter + header[position + 1 :])
