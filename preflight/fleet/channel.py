"""A local SOCK_SEQPACKET socket under asyncio: one message is one packet, with a deadline on every wait."""

import asyncio
import socket
from typing import Any

import msgspec

from preflight.probe.messages import MAX_PACKET_BYTES


class Closed(Exception):  # noqa: N818
    """The other end is gone."""


class Channel:
    """Our end of a socket pair, and the other end to hand over."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.setblocking(False)

    async def send(self, message: object, descriptors: list[int] | None = None) -> None:
        """Send one message. Raises Closed; a full buffer (the other end is stopped) counts as that too."""
        data = msgspec.json.encode(message)
        try:
            if descriptors:
                socket.send_fds(self.ours, [data], descriptors)
            else:
                self.ours.send(data)
        except OSError as error:
            raise Closed(str(error)) from error

    async def receive(self, kind: Any, timeout_s: float | None) -> Any:
        """The next message, of a type or one of a union. Raises Closed, asyncio.TimeoutError; nonsense from the other end counts as Closed."""
        loop = asyncio.get_running_loop()
        try:
            data = await asyncio.wait_for(loop.sock_recv(self.ours, MAX_PACKET_BYTES), timeout_s)
        except asyncio.TimeoutError:
            raise  # an OSError too since Python 3.11, and no end of file
        except OSError as error:
            raise Closed(str(error)) from error
        if not data:
            raise Closed("end of file")
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise Closed(f"nonsense: {error}") from error

    def close_theirs(self) -> None:
        """Close our copy of the end that was handed over."""
        self.theirs.close()

    def close(self) -> None:
        """Close both ends."""
        self.theirs.close()
        self.ours.close()
