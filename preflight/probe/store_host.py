"""The rendezvous server of one round: a TCPStore in a process of its own, on an address of our choosing.

torch's TCPStore has no authentication, and its clients block without limit when its server hangs. So it lives only inside a round, holds no result
and no order, and every client of it is a process that its agent kills at a deadline.
"""

import os
import socket
from datetime import timedelta

import msgspec
import torch.distributed as dist

from preflight.probe.messages import MAX_PACKET_BYTES, WorkerReady


def host_store(channel: socket.socket, listening_fd: int, address: str) -> None:
    """Serve on an already listening socket until the agent closes its end of the channel."""
    port = socket.socket(fileno=os.dup(listening_fd)).getsockname()[1]
    store = dist.TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listening_fd,
        timeout=timedelta(seconds=30),
    )
    channel.send(msgspec.json.encode(WorkerReady(pid=os.getpid(), port=port)))
    while channel.recv(MAX_PACKET_BYTES):
        pass
    del store
