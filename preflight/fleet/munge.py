"""munge: the only place that runs `munge` and `unmunge`. What they say is told apart by their return codes, as libmunge defines them.

Nothing secret stands in an argument; input and output are unnamed files in memory, so that nobody waits for a pipe. A munged that hangs costs a call its deadline,
and those that come right after it nothing.
"""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from preflight.errors import MungeError
from preflight.fleet.auth import MAX_SKEW_S, Denied

FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/munge/bin")
DEADLINE_S = 5.0  # a credential takes 3 ms; libmunge itself tries for 10 s (measured with a stopped munged)
REST_S = 5.0  # after a munged that hung: calls fail at once for so long, or a thousand would wait one after the other
AT_ONCE = 8  # programs under way: munged has two threads
MAX_OUTPUT_BYTES = 8192  # a credential of ours has 600 bytes, the metadata 300
TTL_S = int(MAX_SKEW_S)  # the same clocks are good enough for both kinds of credential

CIPHER = "aes128"  # munged's own default; a site may have another one, or none

_CREDENTIAL = re.compile(r"MUNGE:[A-Za-z0-9+/=]{1,3000}:")
_FIELD = re.compile(r"^([A-Z_]+): *([0-9]+)$", re.MULTILINE)
_NO_SOCKET = 6
# the machine's fault: unknown error, bad argument, no memory, no socket, time-out (libmunge's munge_err_t)
_NOT_THE_CREDENTIAL = frozenset({1, 2, 5, _NO_SOCKET, 7})
_EXPIRED, _REWOUND, _UNAUTHORIZED = 15, 16, 18
_REFUSALS = {
    14: "the credential does not fit the munge key of the agent's node: munge.key must be the same on both nodes",
    17: "this credential was used before",
}


class _Said(NamedTuple):
    """What one of the programs left. `text`: of its standard error."""

    code: int
    output: bytes
    metadata: bytes
    text: str


class Decoded(msgspec.Struct, frozen=True, kw_only=True):
    """What a valid credential holds. `uid`: who made it. `restricted_to`: the only uid that may decode it, None: anybody may."""

    uid: int
    restricted_to: int | None
    payload: bytes


class MungeTools:
    """munge and unmunge of this node. `socket` None: where munged listens by default. `bin_dir` None: looked for."""

    def __init__(self, socket: str | None = None, bin_dir: str | None = None) -> None:
        self.socket = socket
        self.bin_dir = bin_dir
        self.rests_until = 0.0
        self.threads = ThreadPoolExecutor(AT_ONCE, "munge")

    async def encode(self, payload: bytes, *, uid: int, deadline_s: float = DEADLINE_S) -> str:
        """A credential that only this uid can decode, for a minute. `deadline_s`: until its turn has come, too. Raises MungeError."""
        words = ("--restrict-uid", str(uid), "--ttl", str(TTL_S), "--cipher", CIPHER)
        said = await self._in_turn("munge", words, payload, deadline_s)
        credential = said.output.decode("ascii", "replace").strip()
        if said.code or _CREDENTIAL.fullmatch(credential) is None:
            raise MungeError(_trouble("munge", said))
        return credential

    async def decode(self, credential: str, *, deadline_s: float = DEADLINE_S) -> Decoded:
        """What a credential holds. Raises Denied if it is none for us, MungeError if munge can't tell."""
        if _CREDENTIAL.fullmatch(credential) is None:
            raise Denied("no munge credential")
        said = await self._in_turn("unmunge", (), credential.encode(), deadline_s)
        fields = {name: int(value) for name, value in _FIELD.findall(said.metadata.decode("ascii", "replace"))}
        if said.code in _NOT_THE_CREDENTIAL or said.code < 0:
            raise MungeError(_trouble("unmunge", said))
        if said.code:
            raise Denied(_refusal(said.code, fields))
        if "UID" not in fields or fields.get("LENGTH") != len(said.output):
            raise Denied("unmunge tells no uid, or another length than that of the payload")
        if fields.get("CIPHER", 0) == 0:
            raise Denied("the credential is not encrypted")
        return Decoded(uid=fields["UID"], restricted_to=fields.get("UID_RESTRICTION"), payload=said.output)

    def program(self, name: str) -> str:
        """The absolute path of munge or unmunge. Raises MungeError. Root never looks into PATH."""
        folders = [self.bin_dir] if self.bin_dir else list(FOLDERS)
        if not self.bin_dir and os.geteuid() != 0:
            folders += [f for f in os.environ.get("PATH", "").split(os.pathsep) if f.startswith("/")]
        for folder in folders:
            path = Path(folder, name)
            if path.is_absolute() and path.is_file() and os.access(path, os.X_OK):
                return str(path)
        raise MungeError(f"there is no program {name} in {', '.join(folders[:4])}: install munge, or use a key file")

    async def _in_turn(self, name: str, words: tuple[str, ...], data: bytes, deadline_s: float) -> _Said:
        path, until = self.program(name), time.monotonic() + deadline_s
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self.threads, lambda: self._run(path, words, data, until)
            )
        except OSError as error:
            raise MungeError(f"{path} can't be run: {error.strerror}") from error
        except RuntimeError as error:
            raise MungeError(f"{path} can't be run: {error}") from error  # no thread to wait for it

    def _run(self, path: str, words: tuple[str, ...], data: bytes, until: float) -> _Said:
        """Raises MungeError, OSError."""
        name, now = Path(path).name, time.monotonic()
        if now < self.rests_until:
            raise MungeError(f"munged gave {name} no answer a moment ago, and is left alone for {REST_S:g} s")
        if now > until:
            raise MungeError(f"{name} had no turn in time: munged is slow")
        with contextlib.ExitStack() as stack:
            given, output, metadata, said = (stack.enter_context(_in_memory(name)) for _ in range(4))
            os.write(given.fileno(), data)
            os.lseek(given.fileno(), 0, os.SEEK_SET)
            command = [path, *words, *(("--socket", self.socket) if self.socket else ())]
            if name == "unmunge":
                command += ["--numeric", "--metadata", f"/proc/self/fd/{metadata.fileno()}"]
                command += ["--output", f"/proc/self/fd/{output.fileno()}"]
            process = subprocess.Popen(  # noqa: S603 - an absolute path, numbers, and our own socket
                command,
                stdin=given,
                stdout=output,
                stderr=said,
                pass_fds=(output.fileno(), metadata.fileno()),
                cwd="/",
                env=_environment(),
                start_new_session=True,
            )
            code = self._awaited(process, name, min(until - now, DEADLINE_S))
            return _Said(code, _read(output), _read(metadata), _readable(_read(said)))

    def _awaited(self, process: "subprocess.Popen[bytes]", name: str, deadline_s: float) -> int:
        try:
            return process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            if deadline_s >= DEADLINE_S / 2:
                self.rests_until = time.monotonic() + REST_S
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
            raise MungeError(f"munged gave {name} no answer in time: is it stopped or overloaded?") from None


class Munge:
    """What a coordinator shows to agents in place of a key. `agent_uid`: the user that the agents run as; nobody else can read what is sent to them.

    `sessions`: where an agent listens and what it is called -> the key that it is known to have, so that those who dial it again need no new credential.
    """

    def __init__(self, agent_uid: int = 0, socket: str | None = None, bin_dir: str | None = None) -> None:
        self.agent_uid = agent_uid
        self.sessions: dict[tuple[str, str], bytes] = {}
        self.tools = MungeTools(socket, bin_dir)


class MungeGate:
    """Who may ask an agent for work with munge: root, the agent's own user, and `users` (numbers)."""

    def __init__(
        self, users: frozenset[int] = frozenset(), socket: str | None = None, bin_dir: str | None = None
    ) -> None:
        self.users = users | {0, os.geteuid()}
        self.tools = MungeTools(socket, bin_dir)

    async def trouble(self) -> str | None:
        """What keeps munge from working on this node now: for the agent's log, when it starts. None: nothing."""
        try:
            await self.tools.decode(await self.tools.encode(b"", uid=os.geteuid()))
        except (MungeError, Denied) as error:
            return str(error)
        return None


def _trouble(name: str, said: _Said) -> str:
    """What is wrong on this machine."""
    if said.code == _NO_SOCKET:
        mend = "have it started (systemctl start munge), name its socket ([agent] munge_socket of preflight.toml), or use a key file (--key-file)"
        return f"munged does not run, or listens on another socket: {said.text}; {mend}"
    if said.code < 0:
        return f"{name} was killed by signal {-said.code}"
    return f"{name} ended with code {said.code}: {said.text or 'it said nothing'}"


def _refusal(code: int, fields: dict[str, int]) -> str:
    """Why a credential is not taken."""
    if code in {_EXPIRED, _REWOUND} and {"ENCODE_TIME", "DECODE_TIME", "TTL"} <= set(fields):
        age_s = fields["DECODE_TIME"] - fields["ENCODE_TIME"]
        made = f"{age_s} s ago" if age_s >= 0 else f"{-age_s} s in the future"
        return f"the credential was made {made} by the agent's clock, at most {fields['TTL']} s are allowed: do the clocks of the two nodes agree?"
    if code == _UNAUTHORIZED:
        return f"the credential is meant for an agent of another user: this one runs as uid {os.geteuid()}"
    return _REFUSALS.get(code, f"no valid munge credential (unmunge ended with code {code})")


def _environment() -> dict[str, str]:
    """Root's programs get nothing from outside; a user's munge may need a library that lies elsewhere."""
    kept = () if os.geteuid() == 0 else ("LD_LIBRARY_PATH",)
    return {"LC_ALL": "C", **{name: os.environ[name] for name in kept if name in os.environ}}


def _in_memory(name: str) -> BinaryIO:
    return os.fdopen(os.memfd_create(name), "r+b", buffering=0)


def _read(file: BinaryIO) -> bytes:
    """What the program wrote, to a limit. Through the file's own offset it would be what came after that."""
    return os.pread(file.fileno(), MAX_OUTPUT_BYTES, 0)


def _readable(said: bytes) -> str:
    text = " ".join(said.decode("utf-8", "replace").split())[:300]
    return "".join(letter if letter.isprintable() else "?" for letter in text)
