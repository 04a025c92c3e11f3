"""Which processes on a GPU are at home there: daemons of the system, which hold it for nobody (pure)."""

from preflight.model.gpu import GpuProcess
from preflight.model.units import MIB

COMM_LETTERS = 15  # the kernel cuts names of processes there
LEAST_BYTES = 15 * MIB  # what a process holds that counts; source: gcm tolerates 15 MiB
DAEMONS = frozenset(
    name[:COMM_LETTERS]
    for name in (
        *("nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "nvidia-persistenced", "nvidia-smi", "nv-fabricmanager"),
        *("nv-hostengine", "dcgm-exporter", "dcgmproftester", "nvidia-dcgm"),
        *("Xorg", "X", "Xwayland", "gnome-shell", "preflight"),
    )
)


def is_daemon(process: GpuProcess) -> bool:
    """By its name; one whose name can't be seen is none."""
    return process.name is not None and process.name.rpartition("/")[2][:COMM_LETTERS] in DAEMONS


def holds(process: GpuProcess, least_bytes: float = LEAST_BYTES) -> bool:
    """Whether it counts as one that holds the GPU: one whose memory isn't told may hold all of it."""
    return process.memory_bytes is None or process.memory_bytes > least_bytes
