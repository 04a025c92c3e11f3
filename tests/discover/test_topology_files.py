"""Topology files of Slurm and topograph, and plain tables, each in its usual form; and what is wrong in them is said with its line."""

import json
import textwrap

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.discover.topology_files import read_topology, tree
from preflight.errors import ConfigError
from preflight.model import Topology
from preflight.model.hostlist import MAX_NODES


@pytest.fixture
def read(tmp_path):
    """Reads a text as a topology file; `name` only matters for messages."""

    def read_text(text: str | bytes, name: str = "topology") -> Topology:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        return read_topology(path)

    return read_text


def refusal(read, text) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return str(caught.value)


TREE = """
    # a site's tree
    SwitchName=leaf1 Nodes=n[01-02],login LinkSpeed=400
    switchname=leaf2 nodes=n[03-04]   # in any case
    SwitchName=spine Switches=leaf[1-2]
"""


def test_a_slurm_tree_gives_the_switches_above_each_node_closest_first(read):
    topology = read(TREE)
    assert topology.switches == {
        "n01": ("leaf1", "spine"),
        "n02": ("leaf1", "spine"),
        "login": ("leaf1", "spine"),
        "n03": ("leaf2", "spine"),
        "n04": ("leaf2", "spine"),
    }
    assert topology.leaf_of("n03") == "leaf2"
    assert (topology.blocks, topology.node_domains, topology.racks) == (None, None, None)
    assert topology.source is not None
    assert topology.source.endswith("/topology")


def test_slurm_blocks_are_kept_as_blocks_and_not_called_nvlink_domains(read):
    topology = read("BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2,4\n")
    assert topology.blocks == {"n1": "b1", "n2": "b1", "n3": "b2", "n4": "b2"}
    assert (topology.switches, topology.node_domains) == (None, None)


def test_a_line_goes_on_after_a_backslash(read):
    assert read("SwitchName=s1 \\\n  Nodes=a,b\n").switches == {"a": ("s1",), "b": ("s1",)}


def test_rings_tell_nothing_that_we_use(read):
    topology = read("RingName=r0 Nodes=n[1-8]\n")
    assert (topology.switches, topology.blocks) == (None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SwitchName=s1 Nodes=n[1-2]\nSwitchName=s1 Nodes=n3\n", "line 2: switch s1 is defined again, first on line 1"),
        ("SwitchName=s1 Nodes=n1\nSwitchName=s2 Nodes=n1\n", "line 2: node n1 is in switch s1 and in switch s2"),
        ("SwitchName=s1 Switches=s9\n", "line 1: switch s1 has the child s9, which is not defined"),
        ("SwitchName=a Switches=b Nodes=n1\nSwitchName=b Switches=a Nodes=n2\n", "is above itself"),
        (
            "SwitchName=l Nodes=n1\nSwitchName=a Switches=l\nSwitchName=b Switches=l\n",
            "line 3: switch l is below a and b",
        ),
        ("SwitchName=s1 Nodes=n[1-\n", "line 1: 'n[1-' is not a node name"),
        ("SwitchName=s1 Nodes=n[5-1]\n", "line 1: '5-1'"),
        ("SwitchName=s1\n", "line 1: switch s1 has neither Nodes nor Switches below it"),
        ("SwitchName=s1 Node=n1\n", "line 1: unknown key in 'Node=n1'; known: linkspeed, nodes, switches"),
        ("SwitchName=s1 Nodes=n1 Nodes=n2\n", "line 1: Nodes is given twice"),
        ("SwitchName=s1 Nodes = n1\n", "line 1: 'Nodes' is not Key=Value"),
        ("\n\nSwitchName=s1 Nodes=n1\nNodes=n2\n", "line 4: begins with 'Nodes=n2'"),
        ("include other.conf\n", "line 1: include is not followed"),
        ("SwitchName=s1 Nodes=n1\nBlockName=b1 Nodes=n1\n", "mixes SwitchName, BlockName and RingName"),
        ("SwitchName=s1 Nodes=n[1-99999999]\n", "names more than"),
        (b"SwitchName=s\xff Nodes=n1\n", "is not UTF-8 text (byte 12)"),
        ("# only a comment\n", "is empty"),
    ],
)
def test_a_fault_in_a_topology_conf_is_said_with_its_line(read, text, message):
    assert message in refusal(read, text)


YAML = """
    ---
    - topology: ring-of-all
      ring:
        rings:
        - ring: r0
          nodes: n[01-04]
    - topology: blocks
      block:
        block_sizes: [2, 4]
        blocks:
        - block: b1
          nodes: n[01-02]
        - block: b2
          nodes: n[03-04]
    - topology: old
      tree:
        switches:
        - switch: everything
          nodes: n[01-04],other
    - topology: fabric
      cluster_default: true
      tree:
        switches:
        - switch: root
          children: leaf[1-2]
        - switch: leaf1
          nodes: n[01-02]
        - switch: leaf2
          nodes: n[03-04]
    - topology: none
      flat: true
"""


def test_a_topology_yaml_with_several_topologies_gives_tree_and_blocks_and_the_default_one_counts(read):
    topology = read(YAML)
    assert topology.switches == {
        "n01": ("leaf1", "root"),
        "n02": ("leaf1", "root"),
        "n03": ("leaf2", "root"),
        "n04": ("leaf2", "root"),
        "other": ("everything",),
    }
    assert topology.blocks == {"n01": "b1", "n02": "b1", "n03": "b2", "n04": "b2"}


CHAIN = "SwitchName=s0 Nodes=n1\n" + "".join(f"SwitchName=s{i} Switches=s{i - 1}\n" for i in range(1, 20_000))
HELD = {"capacity_blocks": {"b": {"nodes": ["n[0-99999]"]}}, "switches": {"s": {"capacity_blocks": ["b"] * 5000}}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("".join(f"SwitchName=s{i} Nodes=n[0-999999]\n" for i in range(200)), "line 2: with this the file names more"),
        (
            "".join(f"BlockName=s{i} Nodes=n{i}x[0-9999]\n" for i in range(200)),
            "line 2: with this the file names more",
        ),
        ("node\n" + "".join(f"n{i}x[0-9999]\n" for i in range(200)), "line 3: with this the file names more"),
        (
            "- topology: t\n  block:\n    blocks:\n" + "    - {block: b, nodes: 'n[0-9999]'}\n" * 200,
            "with this the file names more",
        ),
        (json.dumps({"blocks": [{"nodes": ["n[0-9999]"] * 2000}]}), "block 1: with this the file names more"),
        (json.dumps(HELD), "switch 's': with this the file names more"),
        (CHAIN, "switch s0 has more than 16 switches above it"),
    ],
    ids=["tree", "blocks", "table", "yaml", "topograph", "blocks of a switch", "chain"],
)
@pytest.mark.timeout(60)  # what is not refused takes minutes, and all memory
def test_a_few_lines_that_stand_for_more_than_any_cluster_are_refused_in_seconds(read, text, message, monkeypatch):
    """The tree against the limit as it is, other long lists against a hundredth of it."""
    if "[0-9999]" in text:
        monkeypatch.setattr(tree, "MAX_NODES", MAX_NODES // 100)
    assert message in refusal(read, text)


def test_a_flat_topology_tells_nothing(read):
    topology = read("- topology: t\n  flat: true\n")
    assert (topology.switches, topology.blocks) == (None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- topology: t\n", "topology 't': must define exactly one of tree, block"),
        ("- topology: t\n  flat: true\n  tree: {switches: []}\n  block: {blocks: [{block: b}]}\n", "exactly one of"),
        ("- cluster_default: true\n  flat: true\n", "entry 1: is not a topology: it lacks the key 'topology'"),
        ("- topology: t\n  tree: {switch: s}\n", "topology 't': lacks the list 'switches'"),
        ("- topology: t\n  tree: {switches: [{nodes: n1}]}\n", "item 1 of switches lacks the key 'switch'"),
        (
            "- topology: t\n  tree: {switches: [{switch: s, nodes: {a: b}}]}\n",
            "topology 't', switch 's': \"{'a': 'b'}\" is not a list of names",
        ),
        ("- topology: t\n  block: {blocks: [{block: a, nodes: n1}, {block: b, nodes: n1}]}\n", "in block a and in"),
        ("- topology: t\n  flat: true\n  flat: true\n", "line 3: 'flat' is given twice"),
        ("- topology: [\n", "is not YAML that we take: line 2"),
        ("colour: green\n", "is no topology that we know"),
    ],
)
def test_a_fault_in_a_topology_yaml_is_said_with_its_entry(read, text, message):
    assert message in refusal(read, text)


MODEL = """
    switches:
      core:
        switches: [spine]
      spine:
        switches: [leaf1, leaf2]
      leaf1:
        nodes: ["n[1-2]"]
      leaf2:
        nodes: [n3]
    nodes:
      n1: {capacity_block: cb1, attributes: {nvlink: nvl1}}
      n2: {}
      n3: {}
    capacity_blocks:
      cb1:
        nodes: ["n[1-2]"]
        attributes: {nvlink: nvl1}
      cb2: {}
"""


def test_a_topograph_model_gives_tree_domains_and_capacity_blocks(read):
    topology = read(MODEL)
    assert topology.switches == {
        "n1": ("leaf1", "spine", "core"),
        "n2": ("leaf1", "spine", "core"),
        "n3": ("leaf2", "spine", "core"),
    }
    assert topology.node_domains == {"n1": "nvl1", "n2": "nvl1"}
    assert topology.blocks == {"n1": "cb1", "n2": "cb1"}


def test_a_topograph_model_with_accelerator_labels_gives_domains_and_puts_blocks_under_their_switch(read):
    topology = read("""
        switches:
          spine-1:
            switches: [leaf-1, leaf-2]
        blocks:
        - switch: leaf-1
          nodes: ["node[01-18]"]
          labels: {accelerated.topology.nvidia.com/level-0: nvl-1}
        - switch: leaf-2
          nodes: ["node[19-36]"]
          labels: {network.topology.nvidia.com/accelerator: nvl-2}
    """)
    assert topology.node_domains is not None
    assert (len(topology.node_domains), topology.node_domains["node18"], topology.node_domains["node19"]) == (
        36,
        "nvl-1",
        "nvl-2",
    )
    assert topology.switches is not None
    assert topology.switches["node36"] == ("leaf-2", "spine-1")


def test_an_older_topograph_model_with_lists_is_read_too(read):
    topology = read("""
        switches:
        - name: spine
          switches: [leaf]
        - name: leaf
          capacity_blocks: [cb]
        capacity_blocks:
        - name: cb
          nvlink: nvl7
          nodes: ["n[1-2]"]
    """)
    assert topology.switches == {"n1": ("leaf", "spine"), "n2": ("leaf", "spine")}
    assert topology.node_domains == {"n1": "nvl7", "n2": "nvl7"}


def test_topograph_graph_output_is_read(read):
    instances = [
        {"id": "i1", "type": "H100", "network_layers": ["leaf-a", "spine-a"], "attributes": {"nvlink": "nvl-1"}},
        {"id": "i2", "network_layers": []},
    ]
    topology = read(json.dumps({"instances": instances}))
    assert (topology.switches, topology.node_domains) == ({"i1": ("leaf-a", "spine-a")}, {"i1": "nvl-1"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"instances": 5}', "instances: is not a list"),
        ('{"instances": [{}]}', "instance 1: lacks the key 'id'"),
        ('{"instances": [{"id": "a", "network_layers": "x"}]}', "instance 1: network_layers must be a list"),
        ('{"instances": [', "is not a saved dict"),
        ("switches: 5\n", "switches: is neither a mapping nor a list"),
        ("switches: {s: 5}\n", "switches: 's' is not a mapping"),
        ("switches: {s: {nodes: ['n[']}}\n", "switch 's': 'n[' is not a node name"),
        ("switches: []\nblocks: [1]\n", "blocks: is not a list of mappings"),
        ("nodes: {n: {attributes: {nvlink: a}}}\ncapacity_blocks: {c: {nodes: [n], nvlink: b}}\n", "NVLink domain"),
    ],
)
def test_a_fault_in_topograph_output_is_said_with_its_entry(read, text, message):
    assert message in refusal(read, text)


def test_a_plain_table_by_white_space(read):
    topology = read("""
        # our machine
        node      leaf    spine  rack  domain
        n[01-02]  leaf1   s1     r1    nvl1
        n03       leaf2   -      r2    -
    """)
    assert topology.switches == {"n01": ("leaf1", "s1"), "n02": ("leaf1", "s1"), "n03": ("leaf2",)}
    assert topology.racks == {"n01": "r1", "n02": "r1", "n03": "r2"}
    assert topology.node_domains == {"n01": "nvl1", "n02": "nvl1"}


def test_a_plain_table_by_commas_with_columns_in_any_order(read):
    topology = read('Rack,Node,Leaf\nr1,"n[1,3]",l1\nr2,n2,\n')
    assert topology.racks == {"n1": "r1", "n3": "r1", "n2": "r2"}
    assert topology.switches == {"n1": ("l1",), "n3": ("l1",)}
    assert topology.node_domains is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n1 leaf1\nn2 leaf2\n", "line 1: 'n1 leaf1' is no header"),
        ("leaf rack\nl1 r1\n", "line 1: 'leaf rack' is no header"),
        ("node leaf leaf\nn1 a b\n", "is no header"),
        ("node leaf\nn1 l1\nn2\n", "line 3: 1 cells under 2 columns (node, leaf)"),
        ("node leaf\nn1 l1\n\nn[1-2] l2\n", "line 4: node n1 is there already"),
        ("node leaf\n", "has a header and no node"),
        ("node leaf\nn[ l1\n", "line 2: 'n[' is not a node name"),
    ],
)
def test_a_fault_in_a_table_is_said_with_its_line(read, text, message):
    assert message in refusal(read, text)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=80),
        st.lists(
            st.sampled_from(
                [
                    *("SwitchName=", "Nodes=", "Switches=", "BlockName=", "n1", "n[1-2]", "s1", ",", "#", "\n", "\\"),
                    *("-", ":", "topology", "tree", "{", "}", "[", "node", "leaf"),
                ]
            ),
            max_size=20,
        ).map(lambda parts: " ".join(parts).encode()),
    )
)
def test_whatever_a_file_holds_it_is_a_topology_or_a_clear_refusal(read, data):
    try:
        topology = read(data)
    except ConfigError:
        return
    assert isinstance(topology, Topology)
