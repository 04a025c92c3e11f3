"""Nodes get the ranks that torch's own rendezvous gives them."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from preflight.plan.placement import predict_placement
from tests.builders import make_job

pytestmark = [pytest.mark.fabric, pytest.mark.timeout(60)]


def rank_of(name: str, folder, num_nodes: int, handlers: list) -> int:
    """The node rank that c10d gives to one node whose address (--local-addr) is `name`."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    settings = {"store_type": "file", "timeout": 60, "last_call_timeout": 1}
    parameters = RendezvousParameters(
        "c10d", str(folder / "store"), "one", num_nodes, num_nodes, local_addr=name, **settings
    )
    backend, store = create_backend(parameters)
    handler = create_handler(store, backend, parameters)
    handlers.append(handler)
    return handler.next_rendezvous().rank


def test_c10d_ranks_nodes_by_their_address_as_text(tmp_path):
    names = ["127.0.0.2", "127.0.0.10", "127.0.0.1"]  # they resolve: torch opens a store at the first
    handlers: list = []
    try:
        with ThreadPoolExecutor(len(names)) as pool:
            ranks = list(pool.map(lambda name: rank_of(name, tmp_path, len(names), handlers), names))
    finally:  # the first to leave closes the rendezvous for all
        for handler in handlers:
            handler.shutdown()
    launch = {"launcher": "torchrun", "rendezvous": "c10d"}
    job = make_job(nodes=None, gpus_per_node=None, tp=1, launch=launch)
    predicted = predict_placement(job, node_names=names, gpus_per_node=1).nodes
    assert [predicted[rank] for rank in ranks] == names
    assert predicted == ("127.0.0.1", "127.0.0.10", "127.0.0.2")
