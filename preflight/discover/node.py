"""One node, put together from the operating system, the PCI bus and NVML."""

import contextlib
import os
import time
from pathlib import Path

import msgspec

from preflight.discover.host import read_host
from preflight.discover.nvlink import nvlink_domains
from preflight.discover.nvml import NvmlReading
from preflight.discover.nvml_run import NvmlRun
from preflight.discover.pci import nvidia_gpus_on_bus, pci_numa_node, pci_upstream
from preflight.model import Gpu, Node, Problem

NO_DRIVER = "no NVIDIA driver"


def discover_node(name: str | None = None, *, root: Path = Path("/"), deadline_s: float = 20.0) -> Node:
    """Everything that can be found out here. Never raises for a broken driver: the node then says so in `gpu_note`.

    `name`: what the launcher or scheduler calls this node, the host name if None. `root`: where /proc and /sys are found
    (a recorded tree, or a host's tree mounted in a container). `deadline_s`: limit for NVML, in seconds; two more for killing it.
    """
    taken_at_s = time.time()
    with contextlib.closing(NvmlRun(deadline_s)) as run:
        host = read_host(root)
        on_bus = nvidia_gpus_on_bus(root)
        reading = run.result()
    name = name or host.hostname or os.uname().nodename
    gpus, note = explain_gpus(reading, on_bus, driver_folder=(root / "proc/driver/nvidia").is_dir())
    problems = [*host.problems, *reading.problems]
    if gpus is None and reading.no_driver:
        problems.append(Problem(source="NVML", text=note or NO_DRIVER))
    elif gpus and on_bus is not None and len(on_bus) > len(gpus):
        text = f"{len(on_bus)} NVIDIA GPUs on the PCI bus, {len(gpus)} shown by the driver: the others are lost to it, or kept from this job or container"
        problems.append(Problem(source="PCI", text=text))
    return Node(
        name=name,
        hostname=host.hostname,
        boot_id=host.boot_id,
        taken_at_s=taken_at_s,
        kernel=host.kernel,
        cpu_model=host.cpu_model,
        num_cpus=host.num_cpus,
        memory_bytes=host.memory_bytes,
        numa_nodes=host.numa_nodes,
        driver_version=reading.driver_version,
        cuda_version=reading.cuda_version,
        nvml_version=reading.nvml_version,
        gpus=None if gpus is None else _complete(gpus, name, root, reading.undecided),
        gpu_note=note,
        nics=host.nics,
        problems=tuple(problems),
    )


def explain_gpus(
    reading: NvmlReading, on_bus: tuple[str, ...] | None, *, driver_folder: bool
) -> tuple[tuple[Gpu, ...] | None, str | None]:
    """The GPUs and the note on them. None at all only where nothing speaks against it: a GPU on the bus that no driver
    serves, or a loaded driver without its library, leaves them unknown.
    """
    if reading.gpus:
        return reading.gpus, None
    found = f"{len(on_bus)} NVIDIA device{'s' * (len(on_bus) != 1)} on the PCI bus" if on_bus else None
    if reading.gpus is not None:
        return (None, f"{found}, but the driver shows none") if found else ((), "the NVIDIA driver shows no GPU")
    if not reading.no_driver:
        return None, reading.note or "NVML gave no reason"
    if found:
        return None, f"{found}, but no working driver ({reading.note})"
    if on_bus is None and driver_folder:
        return None, f"an NVIDIA driver is loaded, but can't be used ({reading.note})"
    return (), "no NVIDIA GPU on the PCI bus, and no usable NVIDIA driver" if driver_folder else NO_DRIVER


def _complete(gpus: tuple[Gpu, ...], node: str, root: Path, undecided: tuple[int, ...]) -> tuple[Gpu, ...]:
    """The GPUs with what only the node as a whole knows: NVLink domains, and their places in sysfs."""
    domains = nvlink_domains(node, gpus, undecided=undecided)
    return tuple(
        msgspec.structs.replace(
            gpu,
            nvlink_domain=domains[gpu.index],
            numa_node=pci_numa_node(root, gpu.pci_bus_id) if gpu.pci_bus_id else None,
            pci_upstream=pci_upstream(root, gpu.pci_bus_id) if gpu.pci_bus_id else None,
        )
        for gpu in gpus
    )
