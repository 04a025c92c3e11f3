"""The child that reads NVML: started by nvml_run.py, answers with one JSON document on stdout, dies with its parent."""

import os
import signal


def main(parent_pid: int) -> None:
    """Read, write the answer to the pipe that was stdout, and leave without any exit handler of a library."""
    _die_with(parent_pid)
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # a library that prints must not get between the answer's lines

    from preflight.discover.nvml import read_facts

    facts = read_facts()
    import json  # after the driver was asked: what it needs is there by then

    with os.fdopen(answer_fd, "wb") as pipe:
        pipe.write(json.dumps(facts).encode())
    os._exit(0)


def _die_with(parent_pid: int) -> None:
    """Have the kernel kill us when the thread that started us ends, even by kill -9. Linux: prctl(2), PR_SET_PDEATHSIG = 1."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before we asked
        os._exit(0)
