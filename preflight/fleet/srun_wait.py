"""Tasks of a step that share a node with its agent wait for it: where a site has WaitTime, srun would end the agent soon after the first task had ended.

They meet at a socket in the kernel's abstract namespace, which needs no file and goes with the process that listens. Whoever else listens there under that name learns nothing and
keeps nobody: a waiter believes its own user alone.
"""

import contextlib
import select
import socket
import struct
import time
from collections.abc import Iterator

from preflight.fleet.srun import Step, own_uid

COME_S = 60.0  # tasks of one node start within seconds of each other
PAUSE_S = 0.1


@contextlib.contextmanager
def gathering(step: Step) -> Iterator[None]:
    """While this context lasts, the node's other tasks wait. A name that is taken costs nothing but that."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        with contextlib.suppress(OSError):
            listening.bind(_name(step))
            listening.listen(1024)  # connections need not be accepted to be kept, and end with this socket
        yield


def wait_for_agent(step: Step, deadline_s: float) -> bool:
    """Until the node's agent has ended, or the deadline. False: it never came, or didn't end."""
    until = time.monotonic() + min(COME_S, deadline_s)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        while True:
            try:
                connection.connect(_name(step))
                break
            except OSError:
                if time.monotonic() > until:
                    return False
                time.sleep(PAUSE_S)
        uid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if uid != own_uid():
            return False
        ended, _, _ = select.select([connection], [], [], deadline_s)
        return bool(ended)


def _name(step: Step) -> str:
    return f"\0preflight/{own_uid()}/{step.target(step.node)}"
