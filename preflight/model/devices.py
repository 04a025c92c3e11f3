"""Which GPUs a process sees: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER resolved as CUDA does it. Pure functions on nouns.

Sources: CUDA C++ Programming Guide, "CUDA Environment Variables"; MIG User Guide, "CUDA_VISIBLE_DEVICES"; the edge cases (a repeated entry shows no
device at all, "1gpu2" reads as 1) as PyTorch's torch/cuda/__init__.py reproduces them.
"""

import re
from collections.abc import Sequence

from preflight.model.base import Record
from preflight.model.gpu import Gpu

VARIABLE, ORDER_VARIABLE = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
PCI_ORDER, FASTEST_FIRST = "PCI_BUS_ID", "FASTEST_FIRST"
_UUID_LENGTH = len("GPU-") + 36
_NOT_OURS = "permission"  # NVML's word for a GPU that is kept from this job or container: CUDA doesn't see it either


class Visible(Record, frozen=True):
    """What CUDA shows, in its order. A UUID is None where a device is there but which one isn't determined; a MIG device stands as its own "MIG-..."
    name. `problems`: entries that don't do what they seem to say, then what makes a device undetermined; the latter alone are `doubts`, which is no fault of the variable.
    """

    uuids: tuple[str | None, ...]
    problems: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


class OwnDevice(Record, frozen=True):
    """The device that a rank uses, None if it has none or it isn't determined; and why."""

    uuid: str | None
    problem: str | None = None


def resolve_devices(text: str | None, gpus: Sequence[Gpu] | None, *, order: str | None = None) -> Visible:
    """The devices that CUDA shows a process whose CUDA_VISIBLE_DEVICES is `text`. None: not set, which shows all; empty: none.

    `gpus`: those of the node in NVML's order, which is that of PCI addresses; None: not known, then only UUIDs written in full can be resolved.
    `order`: CUDA_DEVICE_ORDER; None: FASTEST_FIRST, CUDA's default, which is PCI order if all GPUs are of one kind and else up to CUDA.

    Entries count up to the first that is not valid: an index that is out of range, a UUID that no GPU or more than one begins with, an entry of another
    kind than the first. Examples with 4 GPUs: "2,0" -> GPUs 2 and 0; "0,1,-1,2" -> 0 and 1; "1,1" -> none; "GPU-3f" -> the one GPU whose UUID begins so.
    """
    if text == "":
        return Visible((), (f"{VARIABLE} is empty, which hides every GPU",))
    known = None if gpus is None else _in_cuda_order(gpus, order)
    if text is None:
        return (
            Visible((), (f"{VARIABLE} is not set, and the GPUs of the node are not known",)) if known is None else known
        )
    kind = _kind(text)
    entries = [entry.strip() for entry in text.split(",")]
    found: list[str | None] = []
    seen: set[object] = set()
    problems: list[str] = []
    for position, entry in enumerate(entries):
        identity, uuid, why = _resolve(entry, kind, gpus, known)
        if why is not None:
            rest = len(entries) - position
            ends = f"CUDA stops there and ignores {'it' if rest == 1 else f'it and the {rest - 1} after it'}"
            problems.append(f"{VARIABLE}={_shown(text)}: {_shown(entry)} {why}; {ends}")
            break
        if identity in seen:
            return Visible(
                (), (f"{VARIABLE}={_shown(text)}: {_shown(entry)} is there twice, and CUDA then shows no GPU",)
            )
        seen.add(identity)
        found.append(uuid)
    doubts = known.doubts if known is not None and (None in found or _names_a_stranger(found, gpus)) else ()
    return Visible(tuple(found), (*problems, *doubts), doubts)


def own_device(visible: Visible, local_rank: int | None) -> OwnDevice:
    """The device of one rank: the only one it sees, or the one whose number is its local rank, as every framework takes it.

    More local ranks than devices is a gap, and said.
    """
    if not visible.uuids:
        return OwnDevice(None, "this rank sees no GPU" if visible.problems else None)
    if (
        len(visible.uuids) == 1
    ):  # the launcher gave this rank a GPU of its own, or all ranks the same one: their UUIDs tell
        return OwnDevice(visible.uuids[0])
    if local_rank is None:
        return OwnDevice(
            None, f"{len(visible.uuids)} GPUs are visible, and no local rank says which one is this rank's"
        )
    if local_rank >= len(visible.uuids):
        return OwnDevice(None, f"local rank {local_rank} has no GPU: only {len(visible.uuids)} are visible")
    return OwnDevice(visible.uuids[local_rank])


def _kind(text: str) -> str:
    """What the first entry is, which all others must be too."""
    return next((prefix for prefix in ("GPU-", "MIG-") if text.startswith(prefix)), "index")


def _in_cuda_order(gpus: Sequence[Gpu], order: str | None) -> Visible:
    """All devices in the order of CUDA's indices."""
    usable = [gpu for gpu in gpus if gpu.uuid is not None]
    lost = _lost(gpus)
    unknown: str | None = None
    if lost:
        unknown = f"GPU {lost[0].index} can't be opened, so CUDA's numbers of the others are not determined"
    elif order not in (None, PCI_ORDER, FASTEST_FIRST):
        unknown = f"{ORDER_VARIABLE}={_shown(order or '')} is neither {PCI_ORDER} nor {FASTEST_FIRST}"
    elif order != PCI_ORDER and len({gpu.name for gpu in usable}) > 1:
        unknown = f"GPUs of different kinds, and without {ORDER_VARIABLE}={PCI_ORDER} CUDA numbers them by its own idea of speed"
    elif any(gpu.mig_enabled for gpu in usable):
        unknown = "a GPU is in MIG mode, so CUDA's numbers are not determined: name devices by UUID"
    if unknown is not None:
        return Visible((None,) * len(usable), (unknown,), (unknown,))
    return Visible(tuple(gpu.uuid for gpu in usable))


def _lost(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Those that can't be opened although nothing keeps them from this process."""
    return [gpu for gpu in gpus if gpu.uuid is None and not any(_NOT_OURS in p.text.lower() for p in gpu.problems)]


def _names_a_stranger(found: Sequence[str | None], gpus: Sequence[Gpu] | None) -> bool:
    """Whether a UUID in the list is of no GPU that could be opened: that of a lost one, maybe."""
    ours = {gpu.uuid for gpu in gpus or ()}
    return gpus is not None and any(uuid is not None and uuid.startswith("GPU-") and uuid not in ours for uuid in found)


def _resolve(
    entry: str, kind: str, gpus: Sequence[Gpu] | None, known: Visible | None
) -> tuple[object, str | None, str | None]:
    """(what makes it a repetition, the UUID, why CUDA refuses it)."""
    if kind == "index":
        return _resolve_index(entry, known, 0 if gpus is None else len(_lost(gpus)))
    if not entry.startswith(kind):
        return None, None, f"does not begin with {kind} as the first entry does"
    if kind == "MIG-":
        return _resolve_mig(entry, gpus)
    return _resolve_uuid(entry, gpus)


def _resolve_index(entry: str, known: Visible | None, num_lost: int) -> tuple[object, str | None, str | None]:
    index = _leading_number(entry)
    if index is None or index < 0:
        return None, None, "is no index" if index is None else "is negative"
    if known is None:
        return index, None, None
    if index in range(len(known.uuids), len(known.uuids) + num_lost):  # it was right before the GPU was lost
        return index, None, None
    if index >= len(known.uuids):
        return None, None, f"is no index of {len(known.uuids)} GPU{'s' * (len(known.uuids) != 1)}"
    return index, known.uuids[index], None


def _resolve_uuid(entry: str, gpus: Sequence[Gpu] | None) -> tuple[object, str | None, str | None]:
    if gpus is None:
        return entry, entry if len(entry) == _UUID_LENGTH else None, None
    matches = [gpu.uuid for gpu in gpus if gpu.uuid is not None and gpu.uuid.startswith(entry)]
    if not matches and len(entry) == _UUID_LENGTH and _lost(gpus):
        return entry, entry, None  # the lost one's, maybe: its UUID can't be asked for
    if len(matches) != 1:
        return None, None, "is the UUID of no GPU here" if not matches else f"begins the UUIDs of {len(matches)} GPUs"
    return matches[0], matches[0], None


def _resolve_mig(entry: str, gpus: Sequence[Gpu] | None) -> tuple[object, str | None, str | None]:
    """A MIG device: "MIG-<UUID>", or the older "MIG-GPU-<UUID>/<GPU instance>/<compute instance>", whose GPU can be looked up."""
    older = re.fullmatch(r"MIG-(GPU-[^/]+)/[0-9]+/[0-9]+", entry)
    if entry.startswith("MIG-GPU-") and older is None:
        return None, None, "is not MIG-GPU-<UUID>/<GPU instance>/<compute instance>"
    if older is None or gpus is None:
        return entry, entry, None
    gpu = next((gpu for gpu in gpus if gpu.uuid == older[1]), None)
    if gpu is None:
        return None, None, "is on no GPU here"
    return (entry, entry, None) if gpu.mig_enabled is not False else (None, None, "is on a GPU that is not in MIG mode")


def _leading_number(entry: str) -> int | None:
    """As C's strtoul reads it: "1gpu2" is 1. None: it doesn't begin with a number, or with one of more digits than an index can have."""
    match = re.match(r"([+-]?[0-9]{1,9})(?![0-9])", entry)
    return int(match[1]) if match else None


def _shown(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= 80 else shown[:77] + "..."
