"""One node, put together from the operating system, the PCI bus, its HCAs and NVML's answer."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from preflight.discover.around import Around, read_around
from preflight.discover.gathering import Gathering
from preflight.discover.hca_run import HcaRun
from preflight.discover.mask import read_mask
from preflight.discover.nvlink import nvlink_domains
from preflight.discover.nvml_reading import NvmlReading
from preflight.discover.nvml_run import NvmlRun
from preflight.discover.pci import pci_cpus, pci_numa_node, pci_upstream, slot_width
from preflight.discover.processes import name_processes
from preflight.model import Gpu, Node, PcieLink, Problem
from preflight.model.rails import fill_nics

NO_DRIVER = "no NVIDIA driver"
AFTER_S = 2.0  # for a few small files that are named by what NVML said, when it took all the time


def assemble(
    name: str | None,
    *,
    root: Path,
    environ: Mapping[str, str],
    taken_at_s: float,
    run: NvmlRun,
    hca_run: HcaRun,
    gathering: Gathering,
    meanwhile: Callable[[], object] | None,
) -> Node:
    """The node, once NVML has answered or its time is over. The arguments as those of `discover_node`, and the readings that it started."""
    around = read_around(root, environ, gathering, hca_run)
    if meanwhile is not None:
        meanwhile()
    reading = run.result()
    gathering.allow(AFTER_S)
    name = name or around.host.hostname or os.uname().nodename
    gpus, note = explain_gpus(reading, around.on_bus, driver_folder=around.driver_folder)
    if gpus:
        domains = nvlink_domains(name, gpus, undecided=reading.undecided)
        gpus = _complete(gpus, domains, root, around, gathering)
    mask = gathering.ask("environment", "mask", lambda: read_mask(environ, gpus), None)
    host = around.host
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
        confidential_compute=reading.confidential_compute,
        gpus=gpus,
        gpu_note=note,
        mask=mask,
        problems=(
            *around.problems,
            *reading.problems,
            *_bus_problems(around, reading, gpus, note),
            *gathering.problems,
        ),
        **around.facts,
    )


def _bus_problems(
    around: Around, reading: NvmlReading, gpus: tuple[Gpu, ...] | None, note: str | None
) -> tuple[Problem, ...]:
    """What bus and driver say differently."""
    if gpus is None and reading.no_driver:
        return (Problem(source="NVML", text=note or NO_DRIVER, field="gpus"),)
    on_bus = around.on_bus
    if gpus and on_bus is not None and len(on_bus) > len(gpus):
        text = f"{len(on_bus)} NVIDIA GPUs on the PCI bus, {len(gpus)} shown by the driver: the others are lost to it, or kept from this job or container"
        return (Problem(source="PCI", text=text, field="gpus"),)
    return ()


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


def _complete(
    gpus: tuple[Gpu, ...],
    domains: Mapping[int, str | None],
    root: Path,
    around: Around,
    gathering: Gathering,
) -> tuple[Gpu, ...]:
    """The GPUs with what only the node as a whole knows: NVLink domains, places in sysfs, their NICs, and who the processes on them are."""
    in_domains = tuple(msgspec.structs.replace(gpu, nvlink_domain=domains[gpu.index]) for gpu in gpus)
    placed = gathering.ask("/sys/bus/pci/devices", None, lambda: _placed(root, in_domains), in_domains)
    named = gathering.ask("/proc", None, lambda: name_processes(root, placed), placed)
    nics, numa_nodes = around.host.nics, around.host.numa_nodes
    return gathering.ask("rails", "nics", lambda: fill_nics(named, around.hcas, nics, numa_nodes), named)


def _placed(root: Path, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Where sysfs doesn't say the CPUs and NUMA node next to a GPU, NVML's word stays."""
    return tuple(_place(root, gpu, gpu.pci_bus_id) if gpu.pci_bus_id else gpu for gpu in gpus)


def _place(root: Path, gpu: Gpu, bus_id: str) -> Gpu:
    numa_node, upstream = pci_numa_node(root, bus_id), pci_upstream(root, bus_id)
    return msgspec.structs.replace(
        gpu,
        numa_node=gpu.numa_node if numa_node is None else numa_node,
        cpus=gpu.cpus or pci_cpus(root, bus_id),
        pci_upstream=upstream,
        pcie=_in_slot(gpu.pcie, slot_width(root, upstream)),
    )


def _in_slot(pcie: PcieLink | None, lanes: int | None) -> PcieLink | None:
    """NVML's greatest width is that of the card, whatever the slot has (noonghunna/club-3090 pull request 594: "x4 negotiated, GPU max x16" in a slot of four lanes)."""
    if pcie is None or pcie.width is None or pcie.max_width is None or lanes is None:
        return pcie
    return msgspec.structs.replace(pcie, max_width=max(pcie.width, min(pcie.max_width, lanes)))
