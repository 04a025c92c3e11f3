"""Cluster files: what they may say, and how what is wrong is refused."""

from pathlib import Path

import pytest

from preflight.errors import ConfigError
from preflight.fleet.cluster_file import CLASS_KEYS, SECTIONS, cluster_of, read_cluster
from preflight.fleet.planted import FAULT_KEYS, KINDS
from preflight.probe.simulate import FAULT_KINDS, Fabric
from preflight.probe.simulate.groups import Exchange, durations

FOLDER = Path(__file__).parents[2] / "deploy" / "clusters"
EIGHT = {"nodes": 8, "leaves": 2}


def faulty(**fault):
    return {
        "cluster": EIGHT,
        "classes": [{"fact": "driver", "value": "570.1"}, {"fact": "driver", "value": "550.2", "hosts": "n[2-3]"}],
        "faults": [fault],
    }


def test_a_cluster_of_few_words_has_what_its_product_usually_has():
    cluster = cluster_of({"cluster": {"nodes": 12, "leaves": 5, "gpu": "H100-80GB"}}, "c.toml")
    assert cluster.nodes == tuple(f"n{number:02}" for number in range(12))
    assert [cluster.leaves.count(f"leaf{number}") for number in range(5)] == [3, 3, 2, 2, 2]
    assert cluster.product == "NVIDIA H100 80GB HBM3"
    assert (cluster.nic_bytes_per_s, round(cluster.nvlink_bytes_per_s / 1e9, 1)) == (48e9, 370.8)
    assert cluster.host_to_device_bytes_per_s == 55e9
    assert (cluster.nvls_share, cluster.domains, cluster.told_leaves) == (0.74, None, None)


def test_what_a_file_says_counts_instead():
    cluster = cluster_of(
        {
            "cluster": {
                "hosts": "a[1-4]",
                "leaf_sizes": [1, 3],
                "gpus_per_node": 4,
                "nodes_per_nvlink_domain": 2,
                "nic_bandwidth": "24GB/s",
                "rails": False,
                "wrong_leaves": 1,
            },
            "noise": {"variation": 0.02, "transient_rate": 0.1},
        },
        "c.toml",
    )
    assert cluster.nodes == ("a1", "a2", "a3", "a4")
    assert cluster.leaves == ("leaf0", "leaf1", "leaf1", "leaf1")
    assert cluster.domains == ("domain0", "domain0", "domain1", "domain1")
    assert (cluster.nic_bytes_per_s, cluster.rails, cluster.noise, cluster.transient_rate) == (24e9, False, 0.02, 0.1)
    assert sum(told != true for told, true in zip(cluster.told_leaves, cluster.leaves, strict=True)) == 1


@pytest.mark.parametrize(
    ("fault", "fields"),
    [
        ({"kind": "gpu", "gpus": ["n3:2"], "depth": 0.3}, {"ends": (26,), "depth": 0.3}),
        ({"kind": "link", "gpus": ["n0:1", "n7:1"], "failed": True}, {"ends": (1, 57), "failed": True}),
        ({"kind": "node", "hosts": "n[2-3]", "depth": 0.3, "direction": "sending"}, {"nodes": ("n2", "n3")}),
        ({"kind": "uplink", "leaf": "leaf1", "slot": 3, "share": 0.5, "depth": 0.3}, {"slot": 3, "share": 0.5}),
        (
            {"kind": "path", "hosts": "n0", "other_hosts": "n[4-7]", "depth": 0.3},
            {"other_nodes": ("n4", "n5", "n6", "n7")},
        ),
        ({"kind": "class", "fact": "driver 550.2", "depth": 0.3}, {"nodes": ("n2", "n3")}),
        ({"kind": "hang", "gpus": ["n0:0"], "first_round": 3}, {"first_round": 3}),
        ({"kind": "transient", "hosts": "n1", "depth": 0.5, "first_round": 1, "last_round": 2}, {"last_round": 2}),
    ],
)
def test_a_planted_fault_is_read(fault, fields):
    read = cluster_of(faulty(**fault), "c.toml").faults[0]
    assert {name: getattr(read, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"clusters": {}}, ["unknown section", "cluster"]),
        ({"cluster": {"node": 3}}, ["cluster.node", "did you mean 'nodes'"]),
        ({"cluster": {}}, ["cluster.nodes", "is missing"]),
        ({"cluster": {"nodes": 0}}, ["cluster.nodes", "0 is not a whole number"]),
        ({"cluster": 3}, ["cluster", "3 is not a section"]),
        ({"cluster": {"nodes": 3, "hosts": "n[1-3]"}}, ["one of nodes and hosts"]),
        ({"cluster": {"hosts": "n[1-"}}, ["cluster.hosts"]),
        ({"cluster": {"hosts": "n1,n1"}}, ["twice"]),
        ({"cluster": {"nodes": 3, "leaves": 4}}, ["cluster.leaves", "empty"]),
        ({"cluster": {"nodes": 3, "leaf_sizes": [1, 1]}}, ["cluster.leaf_sizes", "2 nodes, not 3"]),
        ({"cluster": {"nodes": 3, "nodes_per_nvlink_domain": 2}}, ["nodes_per_nvlink_domain"]),
        ({"cluster": {"nodes": 3, "gpu": "H1000"}}, ["H1000"]),
        ({"cluster": {"nodes": 3, "nic_bandwidth": "fast"}}, ["cluster.nic_bandwidth", "'fast'"]),
        ({"cluster": EIGHT, "noise": {"variance": 0.1}}, ["noise.variance", "variation"]),
        ({"cluster": EIGHT, "faults": {}}, ["faults", "[[faults]]"]),
        ({"cluster": EIGHT, "classes": [{"fact": "driver"}]}, ["classes[0].value", "is missing"]),
        (faulty(depth=0.3), ["faults[0].kind", "is missing"]),
        (faulty(kind="cable", depth=0.3), ["faults[0].kind", "'cable' is not one of"]),
        (faulty(kind="gpu", depth=0.3), ["faults[0].gpus", "is missing"]),
        (faulty(kind="gpu", gpus=["n9:0"], depth=0.3), ["no GPU 'n9:0'", "n7:7"]),
        (faulty(kind="gpu", gpus=["n1:8"], depth=0.3), ["no GPU 'n1:8'"]),
        (faulty(kind="gpu", gpus=["n1:1"]), ["faults[0].depth", "is missing"]),
        (faulty(kind="gpu", gpus=["n1:1"], depth=0.3, failed=True), ["has no depth"]),
        (faulty(kind="gpu", gpus=["n1:1"], depth=0.3, leaf="leaf0"), ["faults[0].leaf", "no such key"]),
        (faulty(kind="gpu", gpu="n1:1", depth=0.3), ["unknown key", "did you mean 'gpus'"]),
        (faulty(kind="link", gpus=["n1:1"], depth=0.3), ["between two"]),
        (faulty(kind="uplink", leaf="leaf2", depth=0.3), ["no leaf 'leaf2'"]),
        (faulty(kind="slot", slot=8, depth=0.3), ["slots 0 to 7"]),
        (faulty(kind="node", hosts="n8", depth=0.3), ["no node 'n8'"]),
        (faulty(kind="class", fact="driver 1", depth=0.3), ["no node has 'driver 1'"]),
        (faulty(kind="transient", depth=0.3), ["gpus or of hosts"]),
        (faulty(kind="hang", gpus=["n0:0"], depth=0.3), ["faults[0].depth", "no such key"]),
        (faulty(kind="busy", hosts="n0", depth=0.3, first_round=3, last_round=2), ["last_round"]),
        (faulty(kind="node", hosts="n0", depth=0.3, ops=["allreduce"]), ["faults[0].ops", "all_reduce, all_gather"]),
        (faulty(kind="path", hosts="n[0-4]", other_hosts="n[4-7]", depth=0.3), ["other_hosts", "n4 is in hosts too"]),
        ({"cluster": {"nodes": 3, "nic_bandwidth": "400Gb/s"}}, ["cluster.nic_bandwidth", "50GB/s"]),
        (
            {"cluster": {"nodes": 3}, "faults": [{"kind": "uplink", "leaf": "leaf0", "depth": 0.3}]},
            ["faults[0].leaf", "one leaf, which has no uplink"],
        ),
    ],
)
def test_what_is_wrong_is_refused_with_file_and_key_and_what_was_expected(document, words):
    with pytest.raises(ConfigError) as caught:
        cluster_of(document, "c.toml")
    message = str(caught.value)
    assert message.startswith("c.toml: ")
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize("value", [1, 48_000_000_000, 10**15, "48GB/s", "0.5 TB/s", "48e9"])
def test_a_rate_however_it_is_written_answers_probes(value):
    keys = [key for key in SECTIONS["cluster"] if key.endswith("_bandwidth")]
    document = {"cluster": {**EIGHT, **dict.fromkeys(keys, value), "matmul_flops": 10**15}}
    if value == "48e9":
        with pytest.raises(ConfigError, match="nic_bandwidth"):
            cluster_of(document, "c.toml")
        return
    fabric = Fabric(cluster_of(document, "c.toml"), 0)
    for op in ("send_recv", "send"):
        assert all(rate and rate > 0 for rate in fabric.pairs(op, [(0, 1), (8, 63)], 0))
    for op in ("host_to_device", "device_to_host", "matmul"):
        assert all(rate and rate > 0 for rate in fabric.pairs(op, [(3, 3)], 0))
    assert all(
        took_s and took_s > 0 for took_s in durations(fabric, [Exchange("all_reduce", (0, 8, 16), 2**20, ())], 0)
    )


def test_the_readme_tells_every_key_and_kind_and_file():
    readme = (FOLDER / "README.md").read_text()
    names = {*SECTIONS["cluster"], *SECTIONS["noise"], *CLASS_KEYS, *FAULT_KEYS, *KINDS}
    names |= {path.name for path in FOLDER.glob("*.toml")}
    assert {name for name in names if f"`{name}" not in readme and f"{name} =" not in readme} == set()
    assert set(KINDS) == set(FAULT_KINDS)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("[!p]*.toml")), ids=lambda path: path.stem)
def test_every_example_can_be_read_and_answers_probes(path):
    cluster = read_cluster(path)
    pair = (0, cluster.num_ends - 1)
    assert Fabric(cluster, 0).pairs("send_recv", [pair], 0)[0] > 1e9
