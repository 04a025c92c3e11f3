"""`preflight agent`: it starts only with a key that is one, on an address that is ours, and hands out none of it."""

import os

import pytest

from preflight.cli.agent import own_name, unprivileged
from preflight.cli.main import run_command_line
from preflight.errors import ConfigError, UsageError
from tests.fleet.agents import write_key


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "192.0.2.1", "::1"])
def test_there_is_no_agent_without_a_key_wherever_it_would_listen(capsys, address):
    assert run_command_line(["agent", "--address", address, "--port", "0"]) == 64
    assert "an agent needs --munge, or --key-file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "mode", "text"),
    [
        (b"short", 0o600, "the key has 5 bytes, at least 32 are needed"),
        (b"", 0o600, "the key has 0 bytes"),
        (b"k" * 32, 0o644, "the key has mode 0644: others can get at it"),
        (None, 0, "the key can't be read: No such file or directory"),
    ],
)
def test_a_key_that_is_none_is_bad_configuration_and_is_not_shown(capsys, tmp_path, content, mode, text):
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    assert run_command_line(["agent", "--port", "0", "--key-file", str(path)]) == 78
    error = capsys.readouterr().err
    assert f"{path}: {text}" in error
    assert "kkkk" not in error


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--address", "0.0.0.0"], "give one IP address of this node, under which peers reach its workers"),
        (["--address", "::"], "give one IP address of this node"),
        (["--address", "192.0.2.1"], "can't listen on 192.0.2.1 port 0"),
        (["--address", "localhost"], "give an IP address of this node with --address"),
        (["--name", "two words"], "--name 'two words'"),
        (["--name", "a,b"], "--name 'a,b'"),
        (["--port", "65536"], "65536 is not in the range"),
    ],
)
def test_an_address_or_name_that_can_not_work_is_wrong_usage(capsys, tmp_path, arguments, text):
    key = write_key(tmp_path)
    assert run_command_line(["agent", "--port", "0", "--key-file", str(key), *arguments]) == 64
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.out == ""


@pytest.mark.root
def test_workers_of_root_are_nobody_unless_another_user_is_named():
    import pwd

    assert unprivileged(None) == (pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("nobody").pw_gid)
    assert unprivileged("daemon") == (pwd.getpwnam("daemon").pw_uid, pwd.getpwnam("daemon").pw_gid)
    with pytest.raises(ConfigError, match="there is no user 'no-such-user' on this node"):
        unprivileged("no-such-user")


@pytest.mark.root
def test_workers_become_root_only_when_that_is_said(capsys):
    assert unprivileged("root") == (0, 0)
    assert "workers run as root, as asked for" in capsys.readouterr().err


def test_an_agent_that_is_not_root_can_not_start_workers_as_another(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert unprivileged(None) is None
    with pytest.raises(UsageError, match="only an agent that runs as root"):
        unprivileged("nobody")


def test_a_resident_agent_goes_by_the_name_that_slurm_gives_its_node_by_itself(monkeypatch):
    host = type("Host", (), {"nodename": "gpu07.cluster.example"})()
    monkeypatch.setattr("os.uname", lambda: host)
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    assert own_name(short=True) == "gpu07"
    assert own_name(short=False) == "gpu07.cluster.example"
    monkeypatch.setenv("SLURMD_NODENAME", "rack1-7")
    assert own_name(short=True) == own_name(short=False) == "rack1-7"
