"""munge and unmunge as programs, with real daemons: what a credential holds, and every way in which it can be none."""

import asyncio
import os
import stat
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.errors import ConfigError, MungeError
from preflight.fleet import munge, munge_users
from preflight.fleet.auth import Denied
from preflight.fleet.munge import Decoded, MungeGate, MungeTools
from tests.fleet.munged import BECOME_NOBODY, NOBODY, WAIT_S, Munged, munged

pytestmark = pytest.mark.debian("munge", "munged")
UID = os.geteuid()


@pytest.fixture(scope="module")
def daemon():
    with munged() as daemon:
        yield daemon


def tools(daemon: Munged) -> MungeTools:
    return MungeTools(daemon.socket)


def decode(daemon: Munged, credential: str) -> Decoded:
    return asyncio.run(tools(daemon).decode(credential))


def program(folder, name: str, script: str) -> str:
    """The folder, with a program of ours in place of munge's."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return str(folder)


def children() -> set[str]:
    """Command lines of our children that still run."""
    done = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True, check=False
    )
    return {line for line in done.stdout.splitlines() if "munge " in line}


def test_a_credential_tells_who_made_it_and_what_it_holds(daemon):
    payload = bytes(range(256))
    credential = asyncio.run(tools(daemon).encode(payload, uid=UID))
    assert decode(daemon, credential) == Decoded(uid=UID, restricted_to=UID, payload=payload)


@pytest.mark.root
def test_a_credential_of_another_user_tells_that_user(daemon):
    credential = daemon.encode(b"x", "--restrict-uid=0", user=NOBODY)
    assert decode(daemon, credential) == Decoded(uid=NOBODY, restricted_to=0, payload=b"x")


@pytest.mark.root
def test_nobody_but_the_addressee_reads_a_credential(daemon):
    credential = asyncio.run(tools(daemon).encode(b"secret", uid=0))
    assert daemon.decode(credential, user=NOBODY) == (18, b"")
    with pytest.raises(Denied, match="meant for an agent of another user: this one runs as uid 0"):
        decode(daemon, asyncio.run(tools(daemon).encode(b"secret", uid=NOBODY)))


def test_a_credential_is_taken_once(daemon):
    credential = asyncio.run(tools(daemon).encode(b"", uid=UID))
    decode(daemon, credential)
    with pytest.raises(Denied, match="this credential was used before"):
        decode(daemon, credential)


def test_a_credential_of_another_cluster_is_refused_and_the_cure_named(daemon):
    with munged() as other:
        credential = asyncio.run(tools(other).encode(b"", uid=UID))
    with pytest.raises(Denied, match=r"munge\.key must be the same on both nodes"):
        decode(daemon, credential)


def test_a_credential_that_is_not_encrypted_is_refused(daemon):
    with pytest.raises(Denied, match="not encrypted"):
        decode(daemon, daemon.encode(b"x", "--cipher=none", f"--restrict-uid={UID}"))


def test_an_old_credential_is_refused_with_its_age(daemon):
    credentials = [daemon.encode(b"", "--ttl=1", f"--restrict-uid={UID}") for _ in range(60)]
    until, said = time.monotonic() + WAIT_S, ""
    while "was made" not in said and credentials:
        assert time.monotonic() < until
        try:
            decode(daemon, credentials.pop())
        except Denied as denied:
            said = str(denied)
        time.sleep(0.1)
    assert " s ago by the agent's clock, at most 1 s are allowed: do the clocks of the two nodes agree?" in said


def test_a_credential_from_the_future_is_refused_with_the_difference(daemon, tmp_path):
    script = """for word; do case $last in --metadata) path=$word;; esac; last=$word; done
    printf 'STATUS: 16\\nENCODE_TIME: 1500\\nDECODE_TIME: 1000\\nTTL: 60\\nUID: 0\\n' > $path; exit 16"""
    skewed = MungeTools(bin_dir=program(tmp_path / "bin", "unmunge", script))
    with pytest.raises(Denied, match="was made 500 s in the future by the agent's clock, at most 60 s are allowed"):
        asyncio.run(skewed.decode("MUNGE:AAAA:"))


@given(st.integers(6, 200), st.sampled_from("AZaz09+/="))
@settings(max_examples=50, deadline=None)
def test_a_credential_with_one_letter_changed_is_refused(daemon, position, letter):
    credential = daemon.encode(b"x", f"--restrict-uid={UID}")
    changed = credential[:position] + letter + credential[position + 1 :]
    if changed != credential and position < len(credential):
        with pytest.raises(Denied):
            decode(daemon, changed)


@given(st.text(max_size=80) | st.binary(max_size=80).map(lambda data: f"MUNGE:{data.hex()}:"))
@settings(max_examples=50, deadline=None)
def test_any_other_text_is_no_credential(daemon, text):
    with pytest.raises(Denied):
        decode(daemon, text)


def test_without_its_daemon_munge_says_what_to_start(tmp_path):
    alone = MungeTools(str(tmp_path / "socket"))
    for work in (alone.encode(b"", uid=0), alone.decode("MUNGE:AAAA:")):
        with pytest.raises(
            MungeError,
            match=r"munged does not run, or listens on another socket: .*No such file.*; have it started .systemctl start munge.*--key-file",
        ):
            asyncio.run(work)


def test_a_daemon_that_hangs_costs_its_deadline_once_and_leaves_no_process(monkeypatch):
    with munged() as daemon:
        made = asyncio.run(tools(daemon).encode(b"x", uid=UID))
        hanging = tools(daemon)
        monkeypatch.setattr(munge, "DEADLINE_S", 0.5)
        with daemon.hung():
            with pytest.raises(MungeError, match="munged gave unmunge no answer in time"):
                asyncio.run(hanging.decode(made))
            with pytest.raises(MungeError, match="munged gave munge no answer a moment ago, and is left alone for 5 s"):
                asyncio.run(hanging.encode(b"x", uid=UID))
            assert not children()
        hanging.rests_until = 0.0  # as after those seconds
        monkeypatch.setattr(munge, "DEADLINE_S", WAIT_S)
        assert asyncio.run(hanging.encode(b"x", uid=UID))


def test_what_waits_for_its_turn_behind_a_hung_daemon_ends_too(monkeypatch):
    monkeypatch.setattr(munge, "DEADLINE_S", 0.5)

    async def many(daemon: Munged) -> list[object]:
        hanging = tools(daemon)
        return await asyncio.gather(*(hanging.encode(b"", uid=UID) for _ in range(40)), return_exceptions=True)

    with munged() as daemon, daemon.hung():
        assert {type(error) for error in asyncio.run(many(daemon))} == {MungeError}
        assert not children()


def test_of_many_that_wait_for_their_turn_none_is_given_up_for_the_others(monkeypatch, tmp_path):
    """A fleet of thousands is asked at once; each credential may take its deadline, whatever came before it."""
    monkeypatch.setattr(munge, "DEADLINE_S", 2.0)
    monkeypatch.setattr(munge, "AT_ONCE", 1)
    slow = MungeTools(bin_dir=program(tmp_path / "bin", "munge", "sleep 0.5; echo MUNGE:AAAA:"))

    async def many() -> list[str]:
        return await asyncio.gather(*(slow.encode(b"", uid=UID, deadline_s=10 * WAIT_S) for _ in range(5)))

    assert asyncio.run(many()) == ["MUNGE:AAAA:"] * 5


def test_a_program_that_says_nonsense_or_dies_is_told_apart(tmp_path):
    for script, said in (
        ("echo hello", "munge ended with code 0: it said nothing"),
        ("printf '\\033[2Jno' >&2; exit 5", r"munge ended with code 5: \?\[2Jno"),
        ("kill -9 $$", "munge was killed by signal 9"),
    ):
        broken = MungeTools(bin_dir=program(tmp_path / "bin", "munge", script))
        with pytest.raises(MungeError, match=said):
            asyncio.run(broken.encode(b"", uid=0))
    broken = MungeTools(bin_dir=program(tmp_path / "bin", "unmunge", "exit 0"))
    with pytest.raises(Denied):
        asyncio.run(broken.decode("MUNGE:AAAA:"))


def test_a_program_that_cannot_be_run_is_told(tmp_path):
    (tmp_path / "munge").write_text("#!/no/such/interpreter\n")
    (tmp_path / "munge").chmod(0o755)
    with pytest.raises(MungeError, match="munge can't be run: No such file"):
        asyncio.run(MungeTools(bin_dir=str(tmp_path)).encode(b"", uid=0))


def test_the_payload_stands_in_no_argument_and_no_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD_LIKE", "left out")
    script = f'echo "$@" >{tmp_path}/said; env >>{tmp_path}/said; cat >/dev/null; exit 5'
    spied = MungeTools(bin_dir=program(tmp_path / "bin", "munge", script))
    with pytest.raises(MungeError):
        asyncio.run(spied.encode(b"the secret", uid=7))
    said = (tmp_path / "said").read_text()
    assert "--restrict-uid 7 --ttl 60 --cipher aes128" in said
    assert "the secret" not in said
    assert "left out" not in said


def test_without_the_programs_it_is_said_where_they_were_looked_for(monkeypatch, tmp_path):
    with pytest.raises(MungeError, match=f"there is no program munge in {tmp_path}: install munge, or use a key file"):
        MungeTools(bin_dir=str(tmp_path)).program("munge")
    with pytest.raises(MungeError, match="no program"):
        MungeTools(bin_dir="bin").program("munge")
    monkeypatch.setattr(munge, "FOLDERS", (str(tmp_path),))
    monkeypatch.setenv("PATH", program(tmp_path / "own", "munge", "exit 0"))
    monkeypatch.setattr(munge.os, "geteuid", lambda: 0)
    with pytest.raises(MungeError):  # a path that root brought along from a user is not followed
        MungeTools().program("munge")
    monkeypatch.setattr(munge.os, "geteuid", lambda: 1000)
    assert MungeTools().program("munge") == str(tmp_path / "own/munge")


def test_an_agent_can_tell_at_its_start_whether_munge_works(daemon, tmp_path):
    assert asyncio.run(MungeGate(socket=daemon.socket).trouble()) is None
    assert "munged does not run" in asyncio.run(MungeGate(socket=str(tmp_path / "none")).trouble())


def test_root_and_the_agents_own_user_may_always_ask():
    assert MungeGate(frozenset({4711})).users == {0, UID, 4711}


@pytest.mark.parametrize(
    ("text", "uid"),
    [
        ("SlurmUser=nobody\n", NOBODY),
        ("# SlurmUser=root\n slurmuser = nobody # ours\n", NOBODY),
        ("SlurmUser=nobody(65534)\n", NOBODY),
        ("SlurmUser=4711\n", 4711),
        ("SlurmUser=nosuchuser\n", None),
        ("SlurmdUser=nobody\n", None),
        ("", None),
    ],
)
def test_slurms_own_user_is_read_from_its_configuration(tmp_path, monkeypatch, text, uid):
    path = tmp_path / "slurm.conf"
    path.write_text(text)
    monkeypatch.setenv("SLURM_CONF", str(path))
    assert munge_users.slurm_user() == uid
    assert munge_users.gate_of(["root", "12"]).users == {0, 12, UID} | ({uid} if uid is not None else set())
    path.chmod(path.stat().st_mode | stat.S_IWOTH)
    assert munge_users.slurm_user() is None


def test_a_user_that_the_node_does_not_know_is_an_error_of_the_configuration():
    with pytest.raises(ConfigError, match=r"agent\.users: there is no user 'nosuchuser' on this node"):
        munge_users.gate_of(["nosuchuser"])


@pytest.mark.root
def test_an_ordinary_user_makes_and_reads_credentials_as_well(daemon):
    code = f"""
import asyncio
from preflight.fleet.munge import MungeTools
{BECOME_NOBODY}
tools = MungeTools({daemon.socket!r})
async def both():
    return await tools.decode(await tools.encode(b"x", uid=os.getuid()))
print(asyncio.run(both()).uid)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == (f"{NOBODY}\n", "")
