"""The two kinds of credential behind one interface: a shared key (auth.py), and munge (munge.py). How a client signs, and how an agent checks.

The first call to an agent carries a munge credential that only the agent's user can decode: it names method, path, body hash and target, and holds a fresh key.
That key signs the reply and the run's other calls, by the scheme of the shared key; the agent knows whose key it is, and forgets it when it is idle.

    Authorization: Preflight-Munge MUNGE:...:
    Authorization: Preflight-Session id=<32 hex>,time=..,nonce=..,body=..,target=..,signature=..
"""

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from preflight.errors import MungeError, UsageError
from preflight.fleet.auth import SCHEME, Credential, Denied, Gatekeeper, Nonces, refuse_other, sign_request
from preflight.fleet.munge import Munge, MungeGate

MUNGE_SCHEME, SESSION_SCHEME = "Preflight-Munge", "Preflight-Session"
NO_SESSION = "this agent knows no such session: it was restarted, or the session was idle for long"
IDLE_S = 300.0
MAX_SESSIONS = 64  # an agent works for one coordinator at a time; the one that was idle longest goes first
MAX_CALLS = 10_000  # of one session within the 121 s in which a request could be replayed
MAX_CREDENTIALS = 20_000  # in the same time

_VERSION = "preflight 1"
_SESSION = re.compile(SESSION_SCHEME + r" id=([0-9a-f]{32}),(.+)")


class Signed(NamedTuple):
    """One signed request: its header, and what its reply must be signed with."""

    header: str
    nonce: str
    key: bytes


class Signer(Protocol):
    """Signs the calls to one agent."""

    async def sign(self, method: str, path: str, body: bytes, deadline_s: float) -> Signed:
        """Raises MungeError."""

    def is_dear(self) -> bool:
        """Whether signing runs a program, so that it is worth knowing first whether anybody is there."""

    def answered(self, signed: Signed) -> None:
        """The reply to this request was signed as it must be."""

    def may_retry(self, signed: Signed, refusal: str) -> bool:
        """Whether a new signature helps against this refusal."""


class KeySigner:
    """With a shared key."""

    def __init__(self, key: bytes, target: str) -> None:
        self.key = key
        self.target = target

    async def sign(self, method: str, path: str, body: bytes, deadline_s: float) -> Signed:
        """Takes no time."""
        del deadline_s
        return Signed(*sign_request(self.key, method, path, body, self.target), self.key)

    def is_dear(self) -> bool:
        """A hash or two."""
        return False

    def answered(self, signed: Signed) -> None:
        """Nothing to learn from it."""

    def may_retry(self, signed: Signed, refusal: str) -> bool:
        """The key is right or wrong."""
        del signed, refusal
        return False


class MungeSigner:
    """With munge, and from the first reply on with the session's key."""

    def __init__(self, munge: Munge, target: str, where: str) -> None:
        self.munge = munge
        self.target = target
        self.where = where

    @property
    def session(self) -> bytes | None:
        """The key that the agent is known to have."""
        return self.munge.sessions.get((self.where, self.target))

    async def sign(self, method: str, path: str, body: bytes, deadline_s: float) -> Signed:
        """Runs munge if there is no session yet. Raises MungeError."""
        session = self.session
        if session is not None:
            header, nonce = sign_request(session, method, path, body, self.target)
            parameters = header.removeprefix(f"{SCHEME} ")
            return Signed(f"{SESSION_SCHEME} id={session_id(session)},{parameters}", nonce, session)
        nonce, key = secrets.token_hex(16), secrets.token_bytes(32)
        claims = (_VERSION, method, path, hashlib.sha256(body).hexdigest(), self.target, nonce, key.hex())
        payload = "\n".join(claims).encode()
        # of thousands of agents, many wait for their turn: no reason to give up before the call's own deadline
        credential = await self.munge.tools.encode(payload, uid=self.munge.agent_uid, deadline_s=deadline_s)
        return Signed(f"{MUNGE_SCHEME} {credential}", nonce, key)

    def is_dear(self) -> bool:
        """The first call runs munge."""
        return self.session is None

    def answered(self, signed: Signed) -> None:
        """The agent has the key: the next calls need no munge."""
        self.munge.sessions[self.where, self.target] = signed.key

    def may_retry(self, signed: Signed, refusal: str) -> bool:
        """An agent that was restarted has forgotten the session: a new credential helps, once."""
        if not signed.header.startswith(SESSION_SCHEME) or refusal != NO_SESSION:
            return False
        if self.session == signed.key:
            self.munge.sessions.pop((self.where, self.target), None)
        return True


def signer_of(key: bytes | Munge, target: str, where: str) -> Signer:
    """Signs with whichever it is, for the agent that is called so and listens there."""
    return MungeSigner(key, target, where) if isinstance(key, Munge) else KeySigner(key, target)


def session_id(key: bytes) -> str:
    """A session's public name: whoever knows it knows nothing of the key."""
    return hmac.new(key, b"preflight session", hashlib.sha256).hexdigest()[:32]


class _Session(NamedTuple):
    uid: int
    keeper: Gatekeeper
    used_at_s: float


class Gate:
    """Checks requests for one agent, of either kind. `names`: the targets it answers to. Raises UsageError if there is neither key nor munge."""

    def __init__(
        self,
        names: frozenset[str],
        key: bytes | None,
        munge: MungeGate | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        refuse_open(key, munge)
        self.names = names
        self.munge = munge
        self.clock = clock
        self.keeper = Gatekeeper(key, names) if key is not None else None
        self.nonces = Nonces(MAX_CREDENTIALS)
        self.sessions: dict[str, _Session] = {}  # the one that was idle longest first

    async def check(self, method: str, path: str, header: str | None) -> Credential:
        """What the header claims, if it comes from somebody who may ask. Raises Denied, which says why."""
        scheme = (header or "").partition(" ")[0]
        if self.munge is not None and scheme == SESSION_SCHEME:
            return self._of_session(method, path, header or "")
        if self.munge is not None and scheme == MUNGE_SCHEME:
            return await self._of_munge(self.munge, method, path, header or "")
        if self.keeper is None:
            raise Denied("this agent takes munge credentials, and this is none" if scheme else "no credential")
        if scheme in {MUNGE_SCHEME, SESSION_SCHEME}:
            raise Denied("this agent takes no munge: it was started with a shared key")
        return self.keeper.check(method, path, header)

    async def _of_munge(self, gate: MungeGate, method: str, path: str, header: str) -> Credential:
        try:
            decoded = await gate.tools.decode(header.removeprefix(f"{MUNGE_SCHEME} "))
        except MungeError as error:
            raise Denied(f"the agent's munge: {error}") from error
        if decoded.uid not in gate.users:
            raise Denied(
                f"uid {decoded.uid} may not ask this agent for work: root, the agent's own user (uid {os.geteuid()}), the Slurm user "
                "and the users under [agent] in its configuration may"
            )
        if decoded.restricted_to != os.geteuid():
            raise Denied("this credential can be decoded by others than the agent")
        version, *claims = decoded.payload.decode("ascii", "replace").split("\n")
        if version != _VERSION or len(claims) != 6:
            raise Denied("the credential was made by another version of preflight, or for another purpose")
        claimed_method, claimed_path, body_sha256, target, nonce, key = claims
        hexadecimal = ((body_sha256, 64), (nonce, 32), (key, 64))
        if not all(re.fullmatch("[0-9a-f]*", text) and len(text) == size for text, size in hexadecimal):
            raise Denied("the credential's claims are malformed")
        if (claimed_method, claimed_path) != (method, path):
            raise Denied("the credential was made for another request")
        refuse_other(target, self.names)
        self.nonces.use_up(nonce)
        secret = bytes.fromhex(key)
        self._remember(session_id(secret), decoded.uid, Gatekeeper(secret, self.names, MAX_CALLS))
        return Credential(body_sha256=body_sha256, nonce=nonce, key=secret, uid=decoded.uid)

    def _of_session(self, method: str, path: str, header: str) -> Credential:
        match = _SESSION.fullmatch(header)
        self._forget_idle()
        session = self.sessions.get(match[1]) if match else None
        if match is None or session is None:
            raise Denied(NO_SESSION)
        claim = session.keeper.check(method, path, f"{SCHEME} {match[2]}")
        self._remember(match[1], session.uid, session.keeper)
        return Credential(body_sha256=claim.body_sha256, nonce=claim.nonce, key=claim.key, uid=session.uid)

    def _remember(self, name: str, uid: int, keeper: Gatekeeper) -> None:
        self.sessions.pop(name, None)
        self.sessions[name] = _Session(uid, keeper, self.clock())
        self._forget_idle()

    def _forget_idle(self) -> None:
        now = self.clock()
        while self.sessions:
            oldest = next(iter(self.sessions))
            if len(self.sessions) <= MAX_SESSIONS and now - self.sessions[oldest].used_at_s <= IDLE_S:
                return
            del self.sessions[oldest]


def refuse_open(key: bytes | None, munge: MungeGate | None) -> None:
    """Raises UsageError: an agent does no work for strangers, on loopback either."""
    if key is None and munge is None:
        raise UsageError(
            "an agent needs a credential to check: --munge, or --key-file with a shared key (openssl rand -hex 32 makes one)"
        )
