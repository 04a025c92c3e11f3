"""Who may talk to an agent: HMAC-SHA256 with a shared key over everything that matters of a request, and of its reply.

The signed header of a request carries the body's hash, so that an agent refuses a stranger before it reads a body. The key never travels: it comes
from a file that only its owner can read, or from an inherited descriptor. Replays and clock skew are refused. Replies are signed over
the request's nonce, so that a process on a dead agent's port can't forge one.

    Authorization: Preflight-HMAC-SHA256 time=1764475200,nonce=..,body=<sha256>,target=<node>,signature=<hmac>
"""

import hashlib
import hmac
import os
import re
import secrets
import stat
import time
from pathlib import Path

import msgspec

from preflight.errors import ConfigError, TransportError

SCHEME = "Preflight-HMAC-SHA256"
SIGNATURE_HEADER = "X-Preflight-Signature"
MAX_SKEW_S = 60.0
MIN_KEY_BYTES = 32
MAX_NONCES = 200_000  # 60 s of skew both ways at over 1,000 requests a second; more is refused, not forgotten

_TARGET = "[!-+\\--~]{1,253}"  # printable ASCII without space and comma
_HEADER = re.compile(
    SCHEME
    + rf" time=([0-9]{{1,12}}),nonce=([0-9a-f]{{32}}),body=([0-9a-f]{{64}}),target=({_TARGET}),signature=([0-9a-f]{{64}})"
)


class Denied(Exception):  # noqa: N818 - an answer to a stranger, not an error of ours
    """The request is refused; the text says why without helping to forge one."""


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """What a valid header claims: the body's hash to compare; the nonce that the reply is signed over, and the key. `uid`: who asks, None: somebody who has the shared key."""

    body_sha256: str
    nonce: str
    key: bytes
    uid: int | None = None


def can_be_target(name: str) -> bool:
    """Whether a header can carry the name."""
    return re.fullmatch(_TARGET, name) is not None


def new_key() -> bytes:
    """A fresh key for one run."""
    return secrets.token_bytes(MIN_KEY_BYTES)


def read_key(path: str | Path) -> bytes:
    """The key in a file. Raises ConfigError if others can read or replace it, or if it is too short to be one."""
    source = str(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            key = file.read(4096).strip()
    except OSError as error:
        raise ConfigError(source, f"the key can't be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(source, "the key is not in a regular file")
    if status.st_mode & 0o077:
        raise ConfigError(
            source, f"the key has mode {status.st_mode & 0o777:04o}: others can get at it", remedy=f"chmod 0600 {path}"
        )
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(source, f"the key belongs to user {status.st_uid}, not to you or root")
    if len(key) < MIN_KEY_BYTES:
        raise ConfigError(
            source, f"the key has {len(key)} bytes, at least {MIN_KEY_BYTES} are needed", remedy="openssl rand -hex 32"
        )
    return key


def sign_request(key: bytes, method: str, path: str, body: bytes, target: str) -> tuple[str, str]:
    """The Authorization header for one request, and its nonce, over which the reply must be signed."""
    nonce, now = secrets.token_hex(16), str(int(time.time()))
    body_sha256 = hashlib.sha256(body).hexdigest()
    signature = _mac(key, "request", method, path, body_sha256, target, now, nonce)
    return f"{SCHEME} time={now},nonce={nonce},body={body_sha256},target={target},signature={signature}", nonce


def sign_reply(key: bytes, nonce: str, status: int, body: bytes) -> str:
    """The signature of a reply to the request with that nonce."""
    return _mac(key, "reply", nonce, str(status), hashlib.sha256(body).hexdigest())


def check_reply(key: bytes, nonce: str, status: int, body: bytes, signature: str | None) -> None:
    """Raises TransportError unless the reply comes from somebody who has the key."""
    given = (signature or "").encode("utf-8", "surrogateescape")  # a forger may send anything; only ASCII text compares
    if not hmac.compare_digest(sign_reply(key, nonce, status, body).encode(), given):
        raise TransportError(
            "the reply is not signed with our key: another program answers on that address, or the key differs"
        )


class Nonces:
    """What was seen within the time in which it would be accepted again. At most so many: more is refused, not forgotten."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.seen: dict[str, float] = {}  # nonce -> when it may be forgotten, oldest first

    def use_up(self, nonce: str) -> None:
        """Raises Denied if it was used before."""
        now = time.monotonic()
        while self.seen and next(iter(self.seen.values())) < now:
            del self.seen[next(iter(self.seen))]
        if nonce in self.seen:
            raise Denied("this request was made before")
        if len(self.seen) >= self.most:
            raise Denied("too many requests")
        self.seen[nonce] = now + 2 * MAX_SKEW_S + 1


class Gatekeeper:
    """Checks requests for one agent. `names` are the targets it answers to. `most`: requests that may come within the time in which they could be replayed."""

    def __init__(self, key: bytes, names: frozenset[str], most: int | None = None) -> None:
        self.key = key
        self.names = names
        self.nonces = Nonces(most or MAX_NONCES)

    def check(self, method: str, path: str, header: str | None) -> Credential:
        """What the header claims, if it is signed with our key, fresh and new. Raises Denied."""
        match = _HEADER.fullmatch(header or "")
        if match is None:
            raise Denied("no valid Authorization header")
        at, nonce, body_sha256, target, signature = match.groups()
        if not hmac.compare_digest(_mac(self.key, "request", method, path, body_sha256, target, at, nonce), signature):
            raise Denied("wrong signature")
        skew_s = time.time() - int(at)
        if abs(skew_s) > MAX_SKEW_S:
            raise Denied(f"the clocks differ by {skew_s:+.0f} s, at most {MAX_SKEW_S:.0f} s are allowed")
        refuse_other(target, self.names)
        self.nonces.use_up(nonce)
        return Credential(body_sha256=body_sha256, nonce=nonce, key=self.key)


def refuse_other(target: str, names: frozenset[str]) -> None:
    """Raises Denied if a request is for another agent."""
    if target not in names:
        raise Denied(f"this agent is not {target}: it answers to {', '.join(sorted(names))}")


def _mac(key: bytes, *parts: str) -> str:
    return hmac.new(key, "\n".join(parts).encode(), hashlib.sha256).hexdigest()
