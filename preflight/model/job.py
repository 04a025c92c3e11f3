"""What the user wants to run: the content of a plan file after reading, with sizes resolved to plain numbers."""

from typing import Literal

from preflight.model.base import Noun

Backend = Literal["auto", "nccl", "gloo"]
Severity = Literal["fail", "warn", "off"]
Need = Literal["required", "advisory"]


class ModelShape(Noun, frozen=True, kw_only=True):
    """`parameters` counts weights of the whole model; `hidden_size` None: message sizes fall back to defaults."""

    parameters: int
    layers: int
    hidden_size: int | None = None


class Parallel(Noun, frozen=True, kw_only=True):
    """Degrees of each axis. `dp` None: what is left of the world size. `etp` None: the framework's default.

    `order` lists axes innermost first; None: the framework's default.
    """

    framework: str = "megatron"
    order: tuple[str, ...] | None = None
    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    dp: int | None = None
    pp: int = 1
    virtual_stages: int = 1


class Training(Noun, frozen=True, kw_only=True):
    """Either `micro_batches` per data-parallel replica and step, or `global_batch_size`, from which it follows."""

    micro_batches: int | None = None
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    seq_length: int | None = None


class Hardware(Noun, frozen=True, kw_only=True):
    """`gpu` None: nothing claimed. `backend` says what probes use; "gloo" or "auto" declares that a run without GPUs is meant."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    gpu: str | None = None
    gpu_memory_bytes: int | None = None
    backend: Backend | None = None


class Rule(Noun, frozen=True, kw_only=True):
    """Override of one check: its worst verdict, whether it is needed for an answer, and its limits by name."""

    severity: Severity | None = None
    need: Need | None = None
    limits: dict[str, float] = {}


class Job(Noun, frozen=True, kw_only=True):
    """One plan file. `source` is its path, for messages."""

    source: str
    model: ModelShape
    parallel: Parallel
    training: Training = Training()
    hardware: Hardware = Hardware()
    rules: dict[str, Rule] = {}
