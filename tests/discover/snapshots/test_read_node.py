"""One function for every kind of file that tells of a node; whatever else a file is, the answer is one message."""

import json
import os
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.discover.snapshots import MAX_TEXT_BYTES, read_node
from preflight.errors import ConfigError
from preflight.model import Node, to_json
from tests.builders import make_node
from tests.topology_texts import load, names, render

TOPO = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"


@pytest.fixture
def file(tmp_path):
    def write(content, name="node.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_our_own_snapshots_come_back_whole(file):
    node = make_node("n3")
    path = file(to_json(node))
    assert read_node(path) == node
    assert read_node(path, name="other").name == "other"
    for schema in ("preflight.node/1", "preflight.topology/1"):
        document = to_json({"schema": schema, "node": node, "more": [1, 2]})
        assert read_node(file(b"\xef\xbb\xbf \n" + document)) == node


@pytest.mark.parametrize(
    "facts",
    [
        {"gpus": [{"index": 0}, {"index": 0}]},
        {"gpus": [{"index": i} for i in range(1000)]},
        {"gpus": [{"index": 0, "ecc": {"uncorrected_volatile": -1}}]},
        {"memory_bytes": 10**400},
    ],
)
def test_a_snapshot_of_a_machine_that_cannot_be_is_refused_rather_than_judged(file, facts):
    with pytest.raises(ConfigError, match="can't be what a machine said"):
        read_node(file(json.dumps({"name": "n1", **facts})))


def test_a_product_fills_what_the_file_does_not_tell_and_overrides_no_driver(file):
    assert {gpu.name for gpu in read_node(file(TOPO), product="X").gpus} == {"X"}
    node = make_node("n3")
    assert read_node(file(to_json(node)), product="X") == node


def test_a_node_is_called_after_its_file(file):
    assert read_node(file(TOPO, "cn07.topo.txt")).name == "cn07.topo"
    assert read_node(file(TOPO, "cn07.txt"), name="n1").name == "n1"
    assert read_node(file(TOPO, os.fsdecode(b"n\xff.txt"))).name == "n\\xff"


def test_a_shell_may_have_written_utf16(file):
    assert len(read_node(file(TOPO.encode("utf-16"))).gpus) == 2


def test_a_page_of_a_bug_tracker_is_text_not_xml(file):
    assert len(read_node(file("<details><summary>topo</summary>\n\n```\n" + TOPO + "```\n</details>")).gpus) == 2
    assert len(read_node(file("<!-- fill in -->\n" + TOPO)).gpus) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"schema": "preflight.report/1", "answer": "go"}',
            r"'preflight.report/1', not a node\n  a report is judged by",
        ),
        ('{"schema": "preflight.plan/1"}', r"'preflight.plan/1', not a node\n  what is read: a snapshot"),
        ('{"schema": 1}', "is not a saved node: "),
        ('{"schema": "preflight.node/1"}', "is not a saved node: "),
        (
            '{"schema": "preflight.node/1", "node": {"name": 5}}',
            r"is not a saved node: Expected `str`, got `int` - at `\$.name`",
        ),
        ('{"gpus": []}', "is not a saved node: Object missing required field `name`"),
        ("{", "is not a saved node: Input data was truncated"),
        ('{"name": "\udcff"}'.encode("utf-8", "surrogateescape"), "is not a saved node: "),
        ('{"node":' + "[" * 100_000, "is not a saved node|is nested too deeply"),
        ("", "tells of no GPUs in a form that we know\n  what is read: a snapshot"),
        ("hello", "tells of no GPUs"),
        ("GPU0 GPU1\n", "tells of no GPUs"),
        (b"\x00\xff" * 100, "tells of no GPUs"),
        (b"\x7fELF" + bytes(1000), "tells of no GPUs"),
        ("[1, 2]", "tells of no GPUs"),
        (b" " * 10 + b"x" * MAX_TEXT_BYTES + b"yy", "is larger than 8 MiB"),
    ],
)
def test_any_other_file_is_one_message(file, content, message):
    with pytest.raises(ConfigError, match=message):
        read_node(file(content))


def test_folders_pipes_and_missing_files_are_messages_too(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path, "not a regular file"),
        (tmp_path / "pipe", "not a regular"),
        ("/nowhere", "can't be read"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_node(path)


ALPHABET = 'GPU0123NICX VPHBSYODEnvidia-smtopo\t\n|>`{}<>"=/\x1b[m'
WORDS = [
    "GPU0",
    "GPU1",
    "GPU2",
    "NIC0",
    "mlx5_0",
    "X",
    "NV18",
    "PIX",
    "SYS",
    "N/A",
    "0-7",
    "CPU Affinity",
    "NUMA Affinity",
    "GPU NUMA ID",
    "\n",
    "\n",
    "\t",
    "> ",
    "OK",
    "CNS",
    "topo -m",
    "topo -p2p r",
    "Legend:",
    "NV#  = x",
    "NIC0: mlx5_0",
    "<system",
    "</system>",
]


@settings(max_examples=70, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=300),
        st.text(ALPHABET, max_size=400).map(str.encode),
        st.lists(st.sampled_from(WORDS), max_size=80).map(lambda words: " ".join(words).encode()),
    )
)
def test_random_text_is_a_node_or_a_message(tmp_path, content):
    path = tmp_path / "random"
    path.write_bytes(content)
    try:
        node = read_node(path)
    except ConfigError:
        return
    assert isinstance(node, Node)
    assert to_json(node)


@settings(max_examples=70, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(names()), st.integers(0, 4000), st.text(ALPHABET, max_size=12))
def test_a_table_with_a_scratch_is_a_node_or_a_message(tmp_path, name, at, scratch):
    text = render(load(name))
    path = tmp_path / "scratched"
    path.write_text(text[:at] + scratch + text[at + len(scratch) :])
    try:
        node = read_node(path)
    except ConfigError:
        return
    assert len(node.gpus) >= 1


def test_reading_a_topology_needs_none_of_the_heavy_modules(tmp_path, file):
    import subprocess

    code = f"import sys; from preflight.discover.snapshots import read_node; read_node({str(file(TOPO))!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not {"pynvml", "psutil", "numpy", "defusedxml", "xml.etree", "yaml"} & set(done.stdout.split())
