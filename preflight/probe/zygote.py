"""The zygote: imports torch once, then forks workers and store hosts on request. The agent starts it by exec; `main` is all it runs.

It never touches CUDA, never joins a collective and starts no thread, so that forking stays safe. Its end of the agent's socket is FD;
when that closes it kills its children and leaves. Children die with it (PR_SET_PDEATHSIG), and it dies with the agent.
"""

import contextlib
import gc
import os
import platform
import selectors
import signal
import socket
import sys

import msgspec

from preflight.probe.messages import MAX_PACKET_BYTES, Exited, Spawn, Spawned, SpawnFailed, ZygoteFailed, ZygoteReady
from preflight.probe.process import die_with_parent, drop_privileges, name_process, pid_namespace


def main(control_fd: int, parent_pid: int | None) -> None:
    """Serve spawn requests until the agent goes away. `parent_pid` None: a wrapper of the site's stands between, and is what we die with; that the agent ended shows by its socket."""
    die_with_parent(os.getppid() if parent_pid is None else parent_pid)
    name_process("pf-zygote")
    control = socket.socket(fileno=control_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's business
    try:
        versions = _import_everything()
    except Exception as error:  # noqa: BLE001 - a broken torch may raise anything; the agent tells the user
        control.send(msgspec.json.encode(ZygoteFailed(text=f"{type(error).__name__}: {error}"[:2000])))
        return
    gc.freeze()  # the children share these pages
    with contextlib.suppress(OSError):  # the agent is gone: serve() sees the end of file
        control.send(msgspec.json.encode(ZygoteReady(versions=versions, pid_namespace=pid_namespace())))
    _Zygote(control).serve()


def _import_everything() -> dict[str, str]:
    """Import all that workers need, before a fork and before any change of user. Gives versions by name."""
    os.environ.setdefault(
        "TORCH_CPP_LOG_LEVEL", "ERROR"
    )  # its warnings carry C++ stack frames whenever a peer vanishes
    import torch

    from preflight.probe import alone, backends, collectives, nccl, store_host, timing, worker  # noqa: F401

    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda:
        versions["cuda (torch)"] = torch.version.cuda
        with contextlib.suppress(Exception):
            versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return versions


class _Zygote:
    """Children by process id, and the two things to listen to: the agent, and SIGCHLD."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.tickets: dict[int, int] = {}
        self.wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self.control, selectors.EVENT_READ)
        selector.register(self.wake_read, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is self.control:
                    if not self._take_request():
                        self._kill_all()
                        return
                else:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.wake_read, 4096)
            self._reap()

    def _take_request(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self.control, MAX_PACKET_BYTES, 4)
        except ConnectionError:
            return False
        if not data:
            return False
        spawn = msgspec.json.decode(data, type=Spawn)
        parent_pid = os.getpid()
        try:
            pid = os.fork()
            if pid == 0:
                self._child(spawn, descriptors, parent_pid)
        except OSError as error:
            self._tell(SpawnFailed(ticket=spawn.ticket, text=f"can't fork: {error.strerror}"))
            return True
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self.tickets[pid] = spawn.ticket
        self._tell(Spawned(ticket=spawn.ticket, pid=pid))
        return True

    def _child(self, spawn: Spawn, descriptors: list[int], parent_pid: int) -> None:
        """Never returns."""
        status = 70
        try:
            os.setsid()
            name_process("pf-store" if spawn.role == "store" else f"pf-rank-{spawn.rank}")
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.control.close()
            os.close(self.wake_read)
            drop_privileges(spawn.uid, spawn.gid)
            die_with_parent(parent_pid)
            channel = socket.socket(fileno=descriptors[0])
            if spawn.role == "store":
                from preflight.probe.store_host import host_store

                host_store(channel, descriptors[1], spawn.address or "127.0.0.1")
            else:
                from preflight.probe.worker import work

                work(channel, spawn.rank or 0, spawn.gpu, descriptors[1] if len(descriptors) > 1 else None)
            status = 0
        except BaseException as error:  # noqa: BLE001 - nothing may run the parent's code after a fork
            with contextlib.suppress(Exception):
                sys.stderr.write(f"{spawn.role} of rank {spawn.rank}: {type(error).__name__}: {error}\n")
                sys.stderr.flush()
        finally:
            os._exit(status)

    def _reap(self) -> None:
        while self.tickets:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ticket = self.tickets.pop(pid, None)
            if ticket is not None:
                self._tell(Exited(ticket=ticket, pid=pid, code=os.waitstatus_to_exitcode(status)))

    def _tell(self, message: Spawned | SpawnFailed | Exited) -> None:
        with contextlib.suppress(OSError):  # the agent is gone: the next read says so
            self.control.send(msgspec.json.encode(message))

    def _kill_all(self) -> None:
        for pid in self.tickets:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
