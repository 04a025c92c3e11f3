"""Messages between an agent and its processes: silence, an end and nonsense are three things."""

import asyncio

import pytest

from preflight.fleet.channel import Channel, Closed
from preflight.probe.messages import FromWorker, WorkerReady


async def with_channel(work):
    channel = Channel()
    try:
        return await work(channel)
    finally:
        channel.close()


def test_silence_is_a_time_out_and_not_an_end():
    """On Python 3.11 and later a time-out is an OSError too."""

    async def silent(channel):
        with pytest.raises(asyncio.TimeoutError):
            await channel.receive(FromWorker, 0.01)

    asyncio.run(with_channel(silent))


def test_a_closed_end_and_nonsense_both_end_the_channel():
    async def ended(channel):
        channel.close_theirs()
        with pytest.raises(Closed, match="end of file"):
            await channel.receive(FromWorker, 5)

    async def nonsense(channel):
        channel.theirs.send(b'{"type":"rm"}')
        with pytest.raises(Closed, match="nonsense"):
            await channel.receive(FromWorker, 5)

    asyncio.run(with_channel(ended))
    asyncio.run(with_channel(nonsense))


def test_a_message_arrives_as_it_was_sent():
    async def sent(channel):
        channel.theirs.send(b'{"type":"worker_ready","pid":7}')
        assert await channel.receive(FromWorker, 5) == WorkerReady(pid=7)

    asyncio.run(with_channel(sent))


def test_a_full_channel_ends_it_instead_of_blocking():
    async def full(channel):
        async def fill() -> None:
            for _ in range(100_000):
                await channel.send({"x": "y" * 1000})

        with pytest.raises(Closed):
            await fill()

    asyncio.run(with_channel(full))
