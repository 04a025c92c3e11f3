"""Readable cases for tests: every builder gives something healthy, and each argument makes one thing different."""

from collections.abc import Mapping, Sequence
from typing import Any

from preflight.model import (
    Collective,
    Evidence,
    Gpu,
    Hardware,
    Inventory,
    Job,
    Launch,
    Measurement,
    Mode,
    ModelShape,
    Node,
    Parallel,
    Placement,
    Plan,
    Probe,
    Rule,
    Samples,
    Settings,
    Topology,
    Training,
)
from preflight.plan.build import build_plan

H100 = "NVIDIA H100 80GB HBM3"


def make_job(
    *,
    parameters: int = 70 * 10**9,
    layers: int = 80,
    hidden_size: int | None = 8192,
    nodes: int | None = 8,
    gpus_per_node: int | None = 8,
    gpu: str | None = "H100-80GB",
    gpu_memory_bytes: int | None = None,
    backend: Any = None,
    micro_batches: int | None = 32,
    global_batch_size: int | None = None,
    micro_batch_size: int | None = 1,
    seq_length: int | None = 4096,
    rules: dict[str, Rule] | None = None,
    model: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    hardware: dict[str, Any] | None = None,
    launch: dict[str, Any] | None = None,
    **parallel: Any,
) -> Job:
    """The reference job (70B on 64 GPUs, tp 8, pp 4, dp 2), or what the arguments change in it.

    `model`, `training`, `hardware`, `launch`: further keys of that section; the rest are keys of Parallel, in place of the three degrees.
    """
    return Job(
        source="job.toml",
        model=ModelShape(parameters=parameters, layers=layers, hidden_size=hidden_size, **(model or {})),
        parallel=Parallel(**(parallel or {"tp": 8, "pp": 4, "dp": 2})),
        training=Training(
            micro_batches=micro_batches,
            global_batch_size=global_batch_size,
            micro_batch_size=micro_batch_size,
            seq_length=seq_length,
            **(training or {}),
        ),
        hardware=Hardware(
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            gpu=gpu,
            gpu_memory_bytes=gpu_memory_bytes,
            backend=backend,
            **(hardware or {}),
        ),
        launch=Launch(**(launch or {})),
        rules=rules or {},
    )


def make_plan(
    *,
    node_names: Sequence[str] | None = None,
    gpu_uuids: Mapping[str, Sequence[str | None]] | None = None,
    topology: Topology | None = None,
    placement: Placement | None = None,
    **job: Any,
) -> Plan:
    """The plan of `make_job(**job)`. With an inventory's names and UUIDs, ranks know their GPUs."""
    return build_plan(
        make_job(**job), node_names=node_names, gpu_uuids=gpu_uuids, topology=topology, placement=placement
    )


def make_gpu(node: str, index: int, **changes: Any) -> Gpu:
    """One healthy H100, joined with the others of its node."""
    facts: dict[str, Any] = {
        "uuid": f"GPU-{node}-{index}",
        "name": H100,
        "pci_bus_id": f"0000:{0x10 + index:02x}:00.0",
        "memory_bytes": 85_520_809_984,
        "mig_enabled": False,
        "ecc_enabled": True,
        "nvlink_domain": node,
    }
    return Gpu(index=index, **{**facts, **changes})


def make_node(
    name: str = "node0", *, gpus: int | None = 8, domain: str | None = "same as node", **changes: Any
) -> Node:
    """One healthy node. `gpus` None: could not be found out. `domain` of all its GPUs; None: unknown."""
    domain = name if domain == "same as node" else domain
    facts: dict[str, Any] = {
        "hostname": name,
        "kernel": "6.8.0",
        "cpu_model": "CPU",
        "num_cpus": 64,
        "memory_bytes": 2**40,
        "driver_version": "550.54.15",
        "cuda_version": "12.4",
        "gpus": None if gpus is None else tuple(make_gpu(name, i, nvlink_domain=domain) for i in range(gpus)),
    }
    return Node(name=name, **{**facts, **changes})


def make_inventory(nodes: int = 8, gpus: int | None = 8, *, domains: Sequence[str | None] | None = None) -> Inventory:
    """Healthy nodes "node0", "node1", ... `domains`: the NVLink domain of each node's GPUs, by default its own."""
    return Inventory(
        nodes=tuple(
            make_node(f"node{i}", gpus=gpus, domain=domains[i] if domains else "same as node") for i in range(nodes)
        )
    )


def uuids_of(inventory: Inventory) -> dict[str, list[str | None]]:
    """Node name -> GPU UUIDs in NVML order, as `build_plan` takes them."""
    return {node.name: [gpu.uuid for gpu in node.gpus or ()] for node in inventory.nodes}


def make_probe(
    ranks: Sequence[int] = (0, 1),
    *,
    subject: str | None = None,
    axis: str | None = None,
    collective: Collective = "send_recv",
    size_bytes: int = 2**26,
    mode: Mode = "alone",
    repeat: int = 0,
) -> Probe:
    """A probe of one pair, or of what the arguments say."""
    return Probe(
        subject=subject or f"pair {ranks[0]}-{ranks[1]}",
        axis=axis,
        collective=collective,
        ranks=tuple(ranks),
        size_bytes=size_bytes,
        size_source="test",
        mode=mode,
        repeat=repeat,
    )


def make_measurement(
    ranks: Sequence[int] = (0, 1), *, algbw_bytes_per_s: float = 100e9, windows: int = 5, **probe: Any
) -> Measurement:
    """A successful measurement in which every rank and window had the same bandwidth."""
    asked = make_probe(ranks, **probe)
    durations_s = (asked.size_bytes / algbw_bytes_per_s,) * windows
    return Measurement(
        probe=asked,
        samples=tuple(Samples(rank=rank, durations_s=durations_s, first_call_s=0.1) for rank in ranks),
        data_correct=True,
        members=tuple(ranks),
        transport="gloo over lo",
    )


def make_evidence(
    *,
    plan: Plan | None = None,
    inventory: Inventory | None = None,
    measurements: tuple[Measurement, ...] | None = None,
    settings: Settings | None = None,
    **others: Any,
) -> Evidence:
    """Evidence of the reference plan alone, or of what is given."""
    return Evidence(
        settings=settings or Settings(),
        plan=plan or make_plan(),
        inventory=inventory,
        measurements=measurements,
        **others,
    )
