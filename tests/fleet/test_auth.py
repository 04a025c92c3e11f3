"""The signed header: what it lets in, what it keeps out, and which files are taken for a key."""

import os
import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.errors import ConfigError, TransportError
from preflight.fleet import auth
from preflight.fleet.auth import Denied, Gatekeeper, can_be_target, check_reply, read_key, sign_reply, sign_request
from preflight.fleet.serve import read_inherited_key
from tests.fleet.agents import authorization, write_key

KEY = bytes(range(32))
HEADER, _ = sign_request(KEY, "POST", "/v1/start", b"{}", "n1")


def gate(key: bytes = KEY) -> Gatekeeper:
    return Gatekeeper(key, frozenset({"n1", "n1.example"}))


def test_a_signed_request_is_let_in_once():
    keeper = gate()
    header, nonce = sign_request(KEY, "POST", "/v1/start", b"{}", "n1")
    assert keeper.check("POST", "/v1/start", header).nonce == nonce
    with pytest.raises(Denied, match="made before"):
        keeper.check("POST", "/v1/start", header)


def test_the_header_is_the_documented_one():
    header = authorization(KEY, b"{}", path="/v1/start")
    assert gate().check("POST", "/v1/start", header).body_sha256 in HEADER


@given(st.integers(0, len(HEADER) - 1), st.characters(codec="latin-1"))
def test_a_header_with_one_letter_changed_is_refused(position, letter):
    changed = HEADER[:position] + letter + HEADER[position + 1 :]
    if changed != HEADER:
        with pytest.raises(Denied):
            gate().check("POST", "/v1/start", changed)


@given(st.none() | st.text(max_size=300))
def test_a_header_of_any_text_is_refused(text):
    with pytest.raises(Denied):
        gate().check("POST", "/v1/start", text)


@pytest.mark.parametrize(("skew_s", "fits"), [(-70, False), (-50, True), (50, True), (70, False)])
def test_clocks_may_differ_by_a_minute(skew_s, fits):
    header = authorization(KEY, path="/v1/start", skew_s=skew_s)
    if fits:
        gate().check("POST", "/v1/start", header)
    else:
        with pytest.raises(Denied, match=r"the clocks differ by [+-]\d+ s, at most 60 s are allowed"):
            gate().check("POST", "/v1/start", header)


def test_a_request_for_another_node_is_refused_and_told_the_right_names():
    header = authorization(KEY, path="/v1/start", target="n2")
    with pytest.raises(Denied, match=r"this agent is not n2: it answers to n1, n1\.example"):
        gate().check("POST", "/v1/start", header)


def test_a_replay_is_refused_for_as_long_as_its_time_would_be_accepted(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(auth.time, "time", lambda: 1_700_000_000.0 + now)
    monkeypatch.setattr(auth.time, "monotonic", lambda: now)
    keeper = gate()
    header = authorization(KEY, path="/v1/start", skew_s=60)  # its maker's clock is as fast as may be
    keeper.check("POST", "/v1/start", header)
    for now in (1060.0, 1120.0, 1121.0, 1200.0, 5000.0):  # noqa: B007 - the clocks above read it
        with pytest.raises(Denied):
            keeper.check("POST", "/v1/start", header)


def test_too_many_requests_are_refused_rather_than_forgotten(monkeypatch):
    monkeypatch.setattr(auth, "MAX_NONCES", 2)
    keeper = gate()
    headers = [authorization(KEY, path="/v1/start") for _ in range(3)]
    for header in headers[:2]:
        keeper.check("POST", "/v1/start", header)
    with pytest.raises(Denied, match="too many requests"):
        keeper.check("POST", "/v1/start", headers[2])
    with pytest.raises(Denied, match="made before"):
        keeper.check("POST", "/v1/start", headers[0])


def test_nonces_are_forgotten_when_their_time_is_over():
    keeper = gate()
    keeper.nonces.seen = {"old": 0.0}
    keeper.check("POST", "/v1/start", authorization(KEY, path="/v1/start"))
    assert "old" not in keeper.nonces.seen


def test_a_reply_counts_only_for_its_request_status_and_body():
    nonce = secrets.token_hex(16)
    signature = sign_reply(KEY, nonce, 200, b"{}")
    check_reply(KEY, nonce, 200, b"{}", signature)
    for key, other, status, body in (
        (bytes(32), nonce, 200, b"{}"),
        (KEY, secrets.token_hex(16), 200, b"{}"),
        (KEY, nonce, 503, b"{}"),
        (KEY, nonce, 200, b"{ }"),
    ):
        with pytest.raises(TransportError, match="not signed with our key"):
            check_reply(key, other, status, body, signature)


@given(st.none() | st.text(max_size=80))
def test_a_signature_of_any_text_is_refused_even_if_it_is_not_ascii(signature):
    with pytest.raises(TransportError, match="not signed with our key"):
        check_reply(KEY, "0" * 32, 200, b"{}", signature)


def test_a_signed_request_is_no_signed_reply():
    signature = HEADER.rpartition("=")[2]
    with pytest.raises(TransportError):
        check_reply(KEY, "0" * 32, 200, b"{}", signature)


@pytest.mark.parametrize(
    ("name", "fits"),
    [("n1", True), ("rack-1/n1.example", True), ("", False), ("a b", False), ("a,b", False), ("knöten", False), ("a\n", False), ("n" * 254, False)],
)  # fmt: skip
def test_a_name_that_no_header_can_carry_is_known(name, fits):
    assert can_be_target(name) is fits


def test_a_key_file_is_read_without_its_line_end(tmp_path):
    assert read_key(write_key(tmp_path, b"k" * 32 + b"\n")) == b"k" * 32


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o777])
def test_a_key_that_others_can_get_at_is_refused_with_the_cure(tmp_path, mode):
    path = write_key(tmp_path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"has mode {mode:04o}: others can get at it\n  chmod 0600 {path}"):
        read_key(path)


def test_a_key_that_is_no_key_is_refused_and_not_shown(tmp_path):
    with pytest.raises(ConfigError, match="the key has 6 bytes, at least 32 are needed") as error:
        read_key(write_key(tmp_path, b"secret"))
    assert "secret" not in str(error.value)
    with pytest.raises(ConfigError, match="the key can't be read: No such file"):
        read_key(tmp_path / "missing")
    with pytest.raises(ConfigError, match="directory"):
        read_key(tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    with pytest.raises(ConfigError, match="not in a regular file"):
        read_key(pipe)


@pytest.mark.root
def test_a_key_of_another_user_is_refused(tmp_path):
    path = write_key(tmp_path)
    os.chown(path, 4711, 4711)
    with pytest.raises(ConfigError, match="belongs to user 4711, not to you or root"):
        read_key(path)


def test_an_inherited_key_is_read_from_its_descriptor_and_must_be_long_enough():
    for key in (KEY, b"short"):
        read_end, write_end = os.pipe()
        os.write(write_end, key)
        os.close(write_end)
        if key == KEY:
            assert read_inherited_key(read_end) == KEY
        else:
            with pytest.raises(ConfigError, match="--key-fd: the key has 5 bytes"):
                read_inherited_key(read_end)
    with pytest.raises(ConfigError, match="--key-fd: the key can't be read"):
        read_inherited_key(9999)
