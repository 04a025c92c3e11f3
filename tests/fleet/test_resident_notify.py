"""What systemd hears of the agent, over a real socket: that it is ready, what it does, that its loop lives, that it leaves."""

import asyncio
import os
import socket
import time

import pytest

from preflight.fleet.notify import Notifier
from tests.fleet.agents import WAIT_S, AgentProcess


def listening(address: str) -> socket.socket:
    """The service manager's end."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind("\0" + address[1:] if address.startswith("@") else address)
    listener.settimeout(WAIT_S)
    return listener


def heard(listener: socket.socket, line: str) -> list[str]:
    """The message with this line; fails if none comes."""
    while True:
        lines = listener.recv(4096).decode().split("\n")
        if line in lines:
            return lines


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_messages_reach_a_socket_of_either_kind(tmp_path, kind):
    address = str(tmp_path / "notify") if kind == "path" else f"@preflight-test-{os.getpid()}"
    with listening(address) as listener:
        Notifier(address).ready("listens on\n10.0.0.1 \x1b[2J")
        assert listener.recv(4096) == b"READY=1\nSTATUS=listens on?10.0.0.1 ?[2J"


def test_nobody_who_listens_costs_nothing(tmp_path):
    for address in (None, str(tmp_path / "gone"), "/" + "x" * 200):
        Notifier(address).send("READY=1")


def test_a_manager_that_reads_nothing_is_not_waited_for(tmp_path):
    address = str(tmp_path / "notify")
    with listening(address):
        for _ in range(2000):
            Notifier(address).send("STATUS=" + "x" * 200)


def test_what_systemd_says_is_for_this_process_alone_and_for_no_child():
    environ = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid()), "A": "b"}
    notifier = Notifier.from_environment(environ)
    assert (notifier.address, notifier.watchdog_s) == ("/run/notify", 30.0)
    assert environ == {"A": "b"}


@pytest.mark.parametrize(
    "environ",
    [
        {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "-5"},
        {"WATCHDOG_USEC": "soon"},
        {},
    ],
)
def test_a_watchdog_of_another_process_or_of_no_length_is_none(environ):
    assert Notifier.from_environment(dict(environ)).watchdog_s is None


def test_a_loop_that_hangs_falls_silent_and_one_that_works_is_heard_twice_in_the_time(tmp_path):
    address = str(tmp_path / "notify")

    async def work(listener: socket.socket) -> int:
        telling = asyncio.ensure_future(Notifier(address, 0.2).keep_telling(lambda: "idle"))
        await asyncio.sleep(0)
        while b"WATCHDOG=1" not in await asyncio.to_thread(listener.recv, 4096):
            pass
        listener.setblocking(False)
        time.sleep(0.5)  # noqa: ASYNC251 - the loop hangs, which is the point
        silent = 0
        try:
            while listener.recv(4096):
                silent += 1
        except BlockingIOError:
            pass
        telling.cancel()
        return silent

    with listening(address) as listener:
        assert asyncio.run(work(listener)) <= 1  # one may have been on its way


def test_an_agent_says_that_it_listens_lives_and_leaves(tmp_path, monkeypatch):
    address = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    with listening(address) as listener:
        agent = AgentProcess(tmp_path / "agent")
        try:
            assert heard(listener, "READY=1")[1] == f"STATUS=listens on 127.0.0.1 port {agent.port}"
            assert heard(listener, "WATCHDOG=1") == ["WATCHDOG=1", "STATUS=idle"]
            heard(listener, "WATCHDOG=1")
            assert agent.stop() == 0
            heard(listener, "STOPPING=1")
        finally:
            agent.kill_all()
