"""Where this process is, as it finds out itself."""

import os
from pathlib import Path

import msgspec

from preflight.discover.rank import Place, common_domain, facts_without_gpu, has_driver, place_of, read_driver, with_gpu
from preflight.errors import PreflightError
from preflight.model import RankFacts

DRIVER_S = 10.0  # for the GPU driver of a node; the answer is then "not known"
ROOT = Path("/")


def own_facts(rank: int, size: int) -> RankFacts:
    """Where this process is, numbered as torch.distributed numbers it. The driver is asked only where that tells more: for the GPU if the
    process uses none yet, for the domain on the first rank of each node.
    """
    from preflight.probe.gather import gpu_of_this_process

    local = _own_local_rank(rank)
    facts = facts_without_gpu(os.environ, Place(rank, size, local, "torch.distributed"), ROOT)
    uuid = gpu_of_this_process()
    if has_driver(ROOT) and (uuid is None or not local):
        reading = read_driver(ROOT, DRIVER_S)
        if reading is not None:
            facts = with_gpu(facts, reading)
            if uuid is not None and uuid != facts.gpu_uuid:
                facts = msgspec.structs.replace(facts, domain=common_domain(reading.gpus or ()))
    return msgspec.structs.replace(
        facts,
        gpu_uuid=uuid or facts.gpu_uuid,
        environment={},
        problems=(),
        visible_devices=None,
        device_order=None,
        pci_bus_id=None,
    )


def _own_local_rank(rank: int) -> int | None:
    """The launcher's, if it numbers this process as torch does; a script may have numbered otherwise."""
    try:
        place = place_of(os.environ)
    except PreflightError:
        return None
    return place.local_rank if place.rank == rank else None
