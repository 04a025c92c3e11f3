"""What no machine can say of itself is recognised, and everything that one does say is let through."""

import re

import pytest
from msgspec.structs import replace

from preflight.model import (
    UNLIMITED,
    Ecc,
    Gpu,
    GpuPeer,
    Hca,
    KernelEvent,
    KernelLog,
    Limits,
    Link,
    Mask,
    Node,
    Port,
    Setting,
    Temperature,
)
from preflight.model.possible import impossible, impossible_nodes
from tests.builders import make_gpu, make_node


def with_gpu(**facts):
    return replace(make_node("n1"), gpus=(make_gpu("n1", 0, **facts),))


@pytest.mark.parametrize(
    ("node", "place"),
    [
        (Node(name=""), "name"),
        (Node(name="n" * 2000), "name"),
        (Node(name="n", gpus=tuple(Gpu(index=i) for i in range(257))), "gpus: 257"),
        (Node(name="n", gpus=(Gpu(index=0), Gpu(index=0))), r"gpus\[1\]: index 0"),
        (Node(name="n", gpus=(Gpu(index=-1),)), r"gpus\[0\].index: -1"),
        (Node(name="n", num_cpus=10**400), "num_cpus: a number of 1329 bits"),
        (Node(name="n", hcas=tuple(Hca(name=f"h{i}") for i in range(2000))), "hcas: 2000"),
        (Node(name="n", hcas=(Hca(name="h", ports=(Port(number=1, counters={"link_downed": -1}),)),)), "link_downed"),
        (Node(name="n", kernel_log=KernelLog(events=(KernelEvent(kind="xid"),) * 20_000)), "kernel_log.events: 20000"),
        (Node(name="n", settings=(Setting(name="A", value="1", origin="x"),) * 200_000), "settings: 200000"),
        (Node(name="n", mask=Mask(physical=(0, -2))), r"mask.physical\[1\]"),
        (with_gpu(links=tuple(Link(index=i) for i in range(65))), "65 links"),
        (with_gpu(peers=tuple(GpuPeer(index=i) for i in range(300))), "300 peers"),
        (with_gpu(ecc=Ecc(uncorrected_volatile=-3)), "ecc.uncorrected_volatile: -3"),
        (with_gpu(links=(Link(index=0, counters={"crc": 2**70}),)), "counters"),
    ],
)
def test_a_node_that_cannot_be_is_recognised_with_its_place(node, place):
    found = impossible(node)
    assert found is not None
    assert re.search(place, found)


def test_what_a_machine_does_say_is_let_through():
    node = make_node(
        "n1",
        limits=Limits(memlock_bytes=UNLIMITED),
        kernel_log=KernelLog(events=(KernelEvent(kind="xid", code=79),) * 2000),
    )
    assert impossible(node) is None
    assert impossible(with_gpu(temperature=Temperature(gpu_c=-5, margin_c=-3))) is None
    assert impossible(Node(name="n")) is None


def test_nodes_that_are_judged_together_have_names_of_their_own():
    assert impossible_nodes((make_node("a"), make_node("b"))) is None
    assert impossible_nodes((make_node("a"), make_node("a"))) == "nodes[1]: its name is that of another node"
    assert impossible_nodes((make_node("a"), Node(name="b", num_cpus=-1))).startswith("nodes[1]: num_cpus: -1")
