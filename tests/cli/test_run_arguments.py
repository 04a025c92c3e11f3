"""`preflight run`: what the command line may ask for, refused before anything is started."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.cli.main import run_command_line
from preflight.cli.run import DEFAULT_PORT, parse_hosts
from preflight.errors import UsageError
from preflight.fleet.local import Address

PLAN = "deploy/plans/demo.toml"


def address(name: str, host: str, port: int = DEFAULT_PORT) -> Address:
    return Address(name=name, host=host, port=port)


def test_hosts_are_read_in_all_their_forms():
    text = "n1, n2:7000,n3=10.0.0.3,n4=10.0.0.4:7004,n5=[fd00::5]:7005,[fd00::6]"
    assert parse_hosts(text) == (
        address("n1", "n1"),
        address("n2", "n2", 7000),
        address("n3", "10.0.0.3"),
        address("n4", "10.0.0.4", 7004),
        address("n5", "fd00::5", 7005),
        address("fd00::6", "fd00::6"),
    )


@pytest.mark.parametrize(
    "text",
    ["", ",", "n1,", "n1:0", "n1:65536", "n1:x", "n1:7000:8", "=n1", "n1=", "a=b=c", "n1 n2", "fd00::1", "n1/x", "user@n1", "n1?x", "n1#x", "http://n1", "kn\u00f6ten", "a\u00fc=n1", "n1\r\nX: y"],
)  # fmt: skip
def test_hosts_that_are_none_are_refused(text):
    with pytest.raises(UsageError, match="is none of name, name:port, name=address:port"):
        parse_hosts(text)


def test_a_host_that_is_named_twice_is_refused():
    with pytest.raises(UsageError, match="--hosts names n1 more than once"):
        parse_hosts("n1:1,n2:1,n1:2")


@given(st.text(max_size=30))
def test_any_text_for_hosts_is_read_or_refused(text):
    try:
        addresses = parse_hosts(text)
    except UsageError:
        return
    assert all(0 < a.port < 65536 and a.host and a.name.isascii() for a in addresses)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            [],
            "say where to run: as a task of srun in a Slurm job, or with one of --local NxM (this machine) and --hosts",
        ),
        (["--local", "2x2", "--hosts", "n1"], "say where to run"),
        (["--hosts", "n1"], "--hosts needs --key-file"),
        (["--local", "2"], "--local '2': expected NxM"),
        (["--local", "0x4"], "--local '0x4': expected NxM"),
        (["--local", "2x-1"], "expected NxM"),
        (["--local", "40x40"], "at most 64 workers on one machine"),
        (["--local", "2x2", "--budget", "soon"], "give for example 60s or 5m"),
        (["--local", "2x2", "--budget", "5s"], "give at least 30s"),
        (["--local", "2x2", "--backend", "mpi"], "'mpi' is not one of"),
        (["--local", "2x2", "--out", "/proc/nothing"], "--out /proc/nothing: "),
        (["--local", "2x2", "--state", "/nowhere/state.json"], "--state /nowhere/state.json: there is no folder"),
    ],
)
def test_wrong_usage_is_exit_64_and_says_what_would_be_right(capsys, arguments, text):
    assert run_command_line(["run", PLAN, *arguments]) == 64
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.out == ""


def test_a_key_file_that_others_can_read_is_bad_configuration(capsys, tmp_path):
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o644)
    assert run_command_line(["run", PLAN, "--hosts", "n1", "--key-file", str(key)]) == 78
    assert f"chmod 0600 {key}" in capsys.readouterr().err


def test_a_state_file_that_holds_something_else_is_refused_before_anything_is_measured(capsys, tmp_path):
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("Chapter 1")
    assert run_command_line(["run", PLAN, "--local", "2x2", "--state", str(thesis)]) == 78
    assert "holds no state of a scan" in capsys.readouterr().err
    assert thesis.read_text() == "Chapter 1"


@pytest.mark.parametrize("content", [None, "Chapter 1", "{}", '{"schema": "preflight.state/1"}'])
def test_an_earlier_report_that_is_none_is_refused_before_anything_is_measured(capsys, tmp_path, content):
    earlier = tmp_path / "last.json"
    if content is not None:
        earlier.write_text(content)
    assert run_command_line(["run", PLAN, "--local", "2x2", "--baseline", str(earlier)]) == 78
    assert "last.json" in capsys.readouterr().err


def test_a_plan_that_is_not_there_is_bad_configuration(capsys):
    assert run_command_line(["run", "nowhere.toml", "--local", "2x2"]) == 78
    assert "nowhere.toml" in capsys.readouterr().err


def test_agents_that_do_not_answer_are_named_and_nothing_could_be_decided(capsys, tmp_path):
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    hosts = "n1=127.0.0.1:1,n2=127.0.0.1:2"
    assert run_command_line(["run", PLAN, "--hosts", hosts, "--key-file", str(key)]) == 3
    error = capsys.readouterr().err
    assert "no agent answered" in error
    assert "agent n1 at 127.0.0.1:1: can't connect: Connection refused" in error
    assert "Traceback" not in error
