"""What agent, zygote and workers say to each other: one JSON document per packet of a local SOCK_SEQPACKET socket.

Agent -> zygote: Spawn, with the new process's end of a socket pair as ancillary data, and a worker's page of breadcrumbs. Zygote -> agent: ZygoteReady, Spawned, Exited.
Agent -> worker: Task. Worker -> agent: WorkerReady, then one Outcome for each task. No pickle, no code, no paths.
"""

import msgspec

from preflight.model import Failure, Probe, Samples, Transport

MAX_PACKET_BYTES = 128 * 1024  # below the kernel's default send buffer (208 KiB), so that one send is one packet


class Spawn(msgspec.Struct, frozen=True, kw_only=True, tag="spawn", forbid_unknown_fields=True):
    """Fork one process. `role` "worker": one rank. `role` "store": the rendezvous server of one round.

    `gpu` is the UUID that the worker may see, None for the CPU. `uid`, `gid`: drop to this user first, None: stay.
    """

    role: str
    ticket: int
    rank: int | None = None
    gpu: str | None = None
    uid: int | None = None
    gid: int | None = None
    address: str | None = None


class ZygoteReady(msgspec.Struct, frozen=True, kw_only=True, tag="zygote_ready"):
    """Torch is imported. `versions`: torch, NCCL, Python by name. `pid_namespace`: of the zygote, in which its process ids count; None: it can't be read."""

    versions: dict[str, str]
    pid_namespace: str | None = None


class ZygoteFailed(msgspec.Struct, frozen=True, kw_only=True, tag="zygote_failed"):
    """Torch could not be imported, and why."""

    text: str


class Spawned(msgspec.Struct, frozen=True, kw_only=True, tag="spawned"):
    """A process was forked for this ticket."""

    ticket: int
    pid: int


class SpawnFailed(msgspec.Struct, frozen=True, kw_only=True, tag="spawn_failed"):
    """The kernel refused to fork (process limit, memory)."""

    ticket: int
    text: str


class Exited(msgspec.Struct, frozen=True, kw_only=True, tag="exited"):
    """A forked process ended. `code` is negative for a signal, as subprocess has it."""

    ticket: int
    pid: int
    code: int


FromZygote = ZygoteReady | ZygoteFailed | Spawned | SpawnFailed | Exited


class Task(msgspec.Struct, frozen=True, kw_only=True, tag="task", forbid_unknown_fields=True):
    """Run one probe, as one of its ranks. `prefix` is fresh for each attempt. `store_port` 0: there is no rendezvous server; a rank alone needs none.

    Deadlines of the stages, in seconds: `timeout_s` of the rendezvous, `first_s` of the first operation, `floor_s` of a window at least (else three times what is expected);
    `stop_s`: begin no further window after that, by CLOCK_MONOTONIC, which agent and worker share: the answer must come before the agent's deadline.
    `num_tasks`: how many ranks take part in the whole round (they start together). `align`: whether to wait for them.
    """

    number: int
    probe: Probe
    backend: str
    store_address: str
    store_port: int
    prefix: str
    timeout_s: float
    address: str
    num_tasks: int
    align: bool
    first_s: float
    floor_s: float
    stop_s: float


class WorkerReady(msgspec.Struct, frozen=True, kw_only=True, tag="worker_ready"):
    """The worker can take tasks. `gpu` is the UUID of the device that it really has."""

    pid: int
    gpu: str | None = None
    port: int | None = None


class WorkerFailed(msgspec.Struct, frozen=True, kw_only=True, tag="worker_failed"):
    """The worker could not get ready (no CUDA device, say), and why."""

    text: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag="outcome"):
    """What one rank saw of one task. It is sent before the communicator is left. `told`: what its NCCL said, None: no NCCL ran."""

    number: int
    samples: Samples | None = None
    data_correct: bool | None = None
    members: tuple[int, ...] = ()
    transport: str | None = None
    told: Transport | None = None
    failure: Failure | None = None


FromWorker = WorkerReady | WorkerFailed | Outcome
