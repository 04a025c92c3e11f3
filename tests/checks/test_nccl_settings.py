"""Settings that hold the hardware back, on a machine that they hurt and on one that they don't."""

import pytest
from msgspec import structs

from preflight.model import Evidence, Fabric, Hca, Inventory, Nic, Platform, Port, Profile, Setting, Settings, Verdict
from preflight_checks import nccl_settings as check
from tests.builders import H100, make_gpu, make_node

FAIL, WARN, PASS = Verdict.FAIL, Verdict.WARN, Verdict.PASS
NICS = (
    Nic(name="lo", kind="loopback", up=True),
    Nic(name="eth0", kind="ethernet", up=True, addresses=("10.0.0.1",)),
    Nic(name="docker0", kind="virtual", up=True),
    Nic(name="eth9", kind="ethernet", up=False),
)


def hca(name, *, up=True, layer="InfiniBand", driver="mlx5_core"):
    port = Port(
        number=1, state="active" if up else "down", physical_state="LinkUp" if up else "Polling", link_layer=layer
    )
    return Hca(name=name, driver=driver, ports=(port,))


def node(
    name="node0", *, problem=None, origin="environment", overrides=(), gpus=None, hcas=None, fields=None, **values
):
    settings = tuple(
        Setting(name=key.replace("__", " "), value=value, origin=origin, file_problem=problem, overrides=overrides)
        for key, value in values.items()
    )
    gpus = gpus or tuple(make_gpu(name, i, nics={f"mlx5_{i}": "PXB"}) for i in range(8))
    hcas = tuple(hca(f"mlx5_{i}") for i in range(12)) if hcas is None else hcas
    made = make_node(name, settings=settings, nics=NICS, hcas=hcas, **(fields or {}))
    return structs.replace(made, gpus=gpus)


def apart(count=4):
    """GPUs without NVLink."""
    return tuple(make_gpu("node0", i, nvlink_domain="none", links=()) for i in range(count))


def findings(*nodes, fabric="node", **evidence):
    profiles = {H100.casefold(): Profile(name="p", gpu_names=(H100,), fabric=fabric)}
    return list(check.judge(Evidence(inventory=Inventory(nodes=nodes), profiles=profiles, **evidence)))


def alone(**values):
    """The finding where the run has one node."""
    (finding,) = findings(node(**values))
    return finding


def together(**values):
    """The verdict where the run has two nodes."""
    return findings(node("node0", **values), node("node1", **values))[0].verdict


def test_nothing_set_passes():
    assert (alone().verdict, alone().observed) == (PASS, "none set")


def test_settings_that_do_no_harm_pass():
    values = {"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_P2P_LEVEL": "NVL"}
    assert alone(**values).verdict is PASS


def test_nvlink_switched_off_blames_the_environment_not_the_node():  # cases: an NCCL variable caused it
    finding = alone(NCCL_P2P_DISABLE="1", origin="/etc/nccl.conf", overrides=("/x=0",))
    assert finding.verdict is FAIL
    assert finding.blames is not None
    assert (finding.blames.kind, finding.blames.name) == ("environment", "NCCL_P2P_DISABLE=1 from /etc/nccl.conf")
    assert "/etc/nccl.conf" in finding.remedy
    assert "overrides /x=0" in finding.observed


@pytest.mark.parametrize("level", ["LOC", "loc", "0"])
def test_a_level_that_allows_no_direct_access_is_the_same(level):
    assert alone(NCCL_P2P_LEVEL=level).verdict is FAIL


def test_direct_access_off_costs_less_without_nvlink_and_nothing_on_one_gpu():
    assert alone(NCCL_P2P_DISABLE="1", gpus=apart()).verdict is WARN
    assert alone(NCCL_P2P_DISABLE="1", gpus=apart(1)).verdict is PASS
    assert alone(NCCL_P2P_DISABLE="0").verdict is PASS


def test_a_word_where_nccl_reads_a_number_has_no_effect():
    finding = alone(NCCL_P2P_DISABLE="true")
    assert finding.verdict is WARN
    assert "counts as 0" in finding.observed


def test_shared_memory_off_matters_only_without_nvlink():
    assert alone(NCCL_SHM_DISABLE="1", gpus=apart()).verdict is WARN
    assert alone(NCCL_SHM_DISABLE="1").verdict is PASS


@pytest.mark.parametrize("values", [{"NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "Socket"}])
def test_sockets_beside_usable_hcas(values):
    assert together(**values) is FAIL
    assert alone(**values).verdict is WARN
    assert together(**values, hcas=()) is PASS
    assert together(**values, hcas=(hca("mlx5_0", up=False),)) is PASS


def test_an_ethernet_card_for_the_systems_own_traffic_is_not_missed():
    assert together(NCCL_IB_DISABLE="1", hcas=(hca("mlx5_bond_0", layer="Ethernet"),)) is PASS


def test_another_transport_does_without_ib():
    assert together(NCCL_IB_DISABLE="1", NCCL_NET="FasTrak") is PASS
    assert together(NCCL_IB_DISABLE="1", hcas=(hca("rdmap0", driver="efa", layer=None),)) is PASS


def test_infiniband_asked_for_where_there_is_none():
    assert alone(NCCL_NET="IB", hcas=()).verdict is FAIL
    assert alone(NCCL_NET="IB").verdict is PASS


@pytest.mark.parametrize("name", ["NCCL_CUMEM_ENABLE", "NCCL_MNNVL_ENABLE"])
def test_nvlink_between_nodes_switched_off(name):  # vllm 16992
    racks = [node(f"node{i}", **{name: "0"}) for i in range(2)]
    assert findings(*racks, fabric="rack")[0].verdict is FAIL
    assert findings(racks[0], fabric="rack")[0].verdict is WARN
    assert findings(*racks, fabric="node")[0].verdict is PASS
    registered = tuple(make_gpu("n", i, fabric=Fabric(state="completed", cluster_uuid="c")) for i in range(4))
    assert findings(*[structs.replace(rack, gpus=registered) for rack in racks], fabric=None)[0].verdict is FAIL


def test_reductions_in_the_switch_switched_off():
    assert alone(NCCL_NVLS_ENABLE="0").verdict is WARN
    assert alone(NCCL_NVLS_ENABLE="1").verdict is PASS


def test_gpu_direct_switched_off():
    assert alone(NCCL_NET_GDR_LEVEL="LOC").verdict is WARN
    assert alone(NCCL_NET_GDR_LEVEL="PXB").verdict is PASS


@pytest.mark.parametrize(
    ("value", "alone_is", "together_is"),
    [
        ("^docker0", WARN, FAIL),  # horovod 700: lo is left
        ("^docker,lo", PASS, PASS),
        ("eth0", PASS, PASS),
        ("=eth0", PASS, PASS),
        ("lo", WARN, FAIL),
        ("enp", FAIL, FAIL),
        ("=eth", FAIL, FAIL),
        ("eth9", WARN, FAIL),
    ],
)
def test_interfaces(value, alone_is, together_is):
    assert alone(NCCL_SOCKET_IFNAME=value).verdict is alone_is
    assert together(NCCL_SOCKET_IFNAME=value) is together_is


def test_gloo_takes_names_only():
    assert alone(GLOO_SOCKET_IFNAME="eth0").verdict is PASS
    assert alone(GLOO_SOCKET_IFNAME="eth").verdict is FAIL


def test_interfaces_that_are_unknown_are_not_missed():
    assert alone(NCCL_SOCKET_IFNAME="enp", fields={}).verdict is FAIL
    unknown = structs.replace(node(NCCL_SOCKET_IFNAME="enp"), nics=None)
    assert findings(unknown)[0].verdict is PASS


@pytest.mark.parametrize(
    ("value", "verdict", "words"),
    [
        ("mlx4", FAIL, "matches no HCA"),
        ("^mlx5", FAIL, "matches no HCA"),
        ("=mlx5_0", WARN, "next to GPU 1, 2, 3, 4, 5, 6, 7"),
        ("mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7", WARN, "mlx5_10, mlx5_11 is used too"),
        ("=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7", PASS, ""),
        ("^=mlx5_8,mlx5_9,mlx5_10,mlx5_11", PASS, ""),
        ("mlx5", PASS, ""),
        ("=mlx5_0:2", FAIL, "matches no HCA"),
    ],
)
def test_hca_lists(value, verdict, words):
    assert together(NCCL_IB_HCA=value) is verdict
    assert words in findings(node(NCCL_IB_HCA=value))[0].observed


def test_a_list_of_ports_that_are_down():
    hcas = (hca("mlx5_0", up=False), hca("mlx5_1"))
    assert together(NCCL_IB_HCA="=mlx5_0", hcas=hcas) is FAIL


def test_hcas_that_are_unknown_are_not_missed():
    unknown = structs.replace(node(NCCL_IB_HCA="mlx4"), hcas=None)
    assert findings(unknown)[0].verdict is PASS


def test_a_topology_file_that_is_not_there_costs_most_in_a_virtual_machine():  # azurehpc-health-checks 142
    values = {"NCCL_TOPO_FILE": "/opt/topo.xml", "problem": "does not exist"}
    assert alone(**values).verdict is WARN
    assert alone(**values, fields={"platform": Platform(virtual_machine="hyperv")}).verdict is FAIL
    stale = "is of another machine: none of its 8 GPUs is at its address here"
    assert alone(NCCL_TOPO_FILE="/opt/topo.xml", problem=stale).verdict is FAIL


def test_a_graph_file_that_is_not_there_stops_nccl():
    assert alone(NCCL_GRAPH_FILE="/g.xml", problem="does not exist").verdict is FAIL
    assert alone(NCCL_TUNER_PLUGIN="/p.so", problem="does not exist").verdict is WARN


@pytest.mark.parametrize(
    "values",
    [
        {"NCCL_ALGO": "Ring"},
        {"NCCL_GRAPH_FILE": "/opt/graph.xml"},  # NVIDIA/nccl 1008
        {"NCCL_PROTO": "LL"},
        {"NCCL_MAX_NCHANNELS": "1"},
        {"NCCL_DEBUG": "TRACE"},
        {"CUDA_LAUNCH_BLOCKING": "1"},
        {"export__NCCL_DEBUG": "INFO"},
    ],
)
def test_what_is_forced_or_left_over_is_a_warning(values):
    assert alone(**values).verdict is WARN


def test_an_empty_value_is_the_default():
    assert alone(NCCL_P2P_DISABLE="", NCCL_ALGO="", NCCL_IB_HCA="").verdict is PASS


def test_settings_that_are_unknown_are_unknown():
    assert findings(make_node())[0].verdict is Verdict.UNKNOWN
    assert check.CHECK.need == "advisory"


def test_nothing_without_gpus_and_where_cpus_are_meant():
    assert findings(make_node(gpus=0)) == []
    assert findings(node(NCCL_P2P_DISABLE="1"), settings=Settings(cpu_declared=True)) == []


def test_interfaces_that_only_this_node_reaches_are_no_way_to_others():  # aws-samples/aws-do-eks 54
    local = Nic(name="pod-id-link0", kind="virtual", up=True, addresses=("169.254.170.23", "fd00:ec2::23"))
    fields = {"NCCL_SOCKET_IFNAME": "pod-id-link0"}
    nodes = [structs.replace(node(name, **fields), nics=(*NICS, local)) for name in ("node0", "node1")]
    (warned,) = findings(nodes[0])
    assert warned.verdict is Verdict.WARN
    assert "link-local" in warned.observed
    assert {finding.verdict for finding in findings(*nodes)} == {Verdict.FAIL}
    routed = structs.replace(local, addresses=("169.254.170.23", "10.0.0.7"))
    assert {f.verdict for f in findings(*(structs.replace(n, nics=(*NICS, routed)) for n in nodes))} == {Verdict.PASS}
    six = structs.replace(local, addresses=("fe80::1", "fd00:1::1"))
    assert {f.verdict for f in findings(*(structs.replace(n, nics=(*NICS, six)) for n in nodes))} == {Verdict.PASS}


def test_what_is_named_in_the_remedy_is_an_interface_that_works():
    finding = alone(NCCL_SOCKET_IFNAME="enp")
    assert "eth9" in finding.observed
    assert "eth9" not in finding.remedy


def test_hcas_are_named_and_none_is_here():
    finding = alone(NCCL_IB_HCA="mlx5", hcas=())
    assert finding.verdict is WARN
    assert "this node shows none" in finding.observed
    assert alone(NCCL_IB_HCA="^mlx5_9", hcas=()).verdict is PASS
