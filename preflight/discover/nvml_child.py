"""The child that reads NVML: started by nvml_run.py, answers with one JSON document on stdout, dies with its parent."""

import gc
import os
import signal
import sys
from types import ModuleType
from typing import Any

PROGRESS = "preflight asks "  # begins a line on stderr: if no answer comes, the last one tells where it stayed

MAX_MEMORY_BYTES = 2**30  # of its own, not of files and devices that are mapped; it takes some 30 MB


def main(parent_pid: int, *, only_load: bool = False) -> None:
    """Read, write the answer to the pipe that was stdout, and leave without any exit handler of a library."""
    _die_with(parent_pid)
    _limit_memory()
    gc.disable()  # little is made here, and nothing for long
    _spare_ctypes_util()
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # a library that prints must not get between the answer's lines

    from preflight.discover.nvml import read_facts

    options = {"only_load": True} if only_load else {}
    facts = read_facts(lambda what: os.write(2, f"{PROGRESS}{what}\n".encode()), **options)
    import json  # after the driver was asked: what it needs is there by then

    with os.fdopen(answer_fd, "wb") as pipe:
        pipe.write(json.dumps(facts).encode())
    os._exit(0)


def _limit_memory() -> None:
    """No count that a library makes up fills the node's memory: what can't be had is an answer that can't be understood."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY or soft > MAX_MEMORY_BYTES:
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, hard))


def _die_with(parent_pid: int) -> None:
    """Have the kernel kill us when the thread that started us ends, even by kill -9. Linux: prctl(2), PR_SET_PDEATHSIG = 1."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before we asked
        os._exit(0)


class _LateModule(ModuleType):
    """A module that is imported when something in it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system's own questions
            raise AttributeError(name)
        return _late(self.__name__, name)


def _spare_ctypes_util() -> None:
    """The binding imports ctypes.util.find_library and calls it nowhere on Linux: with what that module imports, a sixth of our time."""
    stand_in = _LateModule("ctypes.util")
    sys.modules.setdefault("ctypes.util", stand_in)


def _late(module: str, name: str) -> Any:
    def call(*arguments: Any) -> Any:
        import importlib

        sys.modules.pop(module, None)
        return getattr(importlib.import_module(module), name)(*arguments)

    return call
