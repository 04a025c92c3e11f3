"""Nodes from files: our own snapshots, `nvidia-smi topo` as text, NCCL's topology as XML. So a bug report can be judged on a laptop."""

from pathlib import Path
from typing import Any

import msgspec

from preflight.errors import ConfigError
from preflight.formats import parse_xml, read_bytes, readable
from preflight.model import Node, from_json
from preflight.model.possible import impossible

MAX_BYTES = 64 * 2**20  # a snapshot of 16 GPUs with all counters has some 300 KB
MAX_TEXT_BYTES = 8 * 2**20  # a pasted report; the table in it has 10 KB
SCHEMAS = ("preflight.node/1", "preflight.topology/1")  # documents of ours that hold one node
READ = "what is read: a snapshot (preflight node --save), the text of `nvidia-smi topo -m`, an XML file of NCCL's (NCCL_TOPO_DUMP_FILE)"


class _Document(msgspec.Struct):
    """What tells our documents apart."""

    schema: str | None = None
    node: msgspec.Raw = msgspec.Raw(b"null")


def read_node(path: str | Path, *, product: str | None = None, name: str | None = None) -> Node:
    """The node that a file tells of, whichever kind of file it is.

    `product`: the NVML name of the GPUs, where the file doesn't tell it. `name`: what the node is to be called; by default its name in a snapshot, else the file's name
    without its ending. Raises ConfigError: can't be read, too large, none of the kinds, or figures that can't be.
    """
    data = read_bytes(path, MAX_BYTES)
    source = readable(str(path))
    text = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"{"):
        node = _from_snapshot(text, source)
        problem = impossible(node)
        if problem is not None:
            raise ConfigError(source, f"can't be what a machine said of itself: {problem}", remedy=READ)
        return _complete(node, product, name)
    called = name or readable(Path(path).stem) or "node"
    return _from_text(text, source, called, product)


def _from_snapshot(data: bytes, source: str) -> Node:
    try:
        document = from_json(data, _Document)
        if document.schema is None:
            return from_json(data, Node)
        if document.schema in SCHEMAS:
            return from_json(bytes(document.node), Node)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(source, f"is not a saved node: {error}", remedy=READ) from error
    except RecursionError as error:
        raise ConfigError(source, "is nested too deeply") from error
    kind = document.schema[:60]
    remedy = "a report is judged by `preflight judge`" if kind.startswith("preflight.report/") else READ
    raise ConfigError(source, f"is a document of the kind {kind!r}, not a node", remedy=remedy)


def _complete(node: Node, product: str | None, name: str | None) -> Node:
    """The node of a snapshot, with what it doesn't tell. A product that the driver named stands."""
    changes: dict[str, Any] = {"name": name} if name else {}
    if product is not None and node.gpus:
        changes["gpus"] = tuple(gpu if gpu.name else msgspec.structs.replace(gpu, name=product) for gpu in node.gpus)
    return msgspec.structs.replace(node, **changes)


def _from_text(data: bytes, source: str, name: str, product: str | None) -> Node:
    from preflight.discover.snapshots.nccl_xml import read_nccl_xml
    from preflight.discover.snapshots.topo_text import read_topo

    if len(data) > MAX_TEXT_BYTES:
        raise ConfigError(source, f"is larger than {MAX_TEXT_BYTES // 2**20} MiB")
    is_xml = data.startswith((b"<?xml", b"<!DOCTYPE", b"<system"))
    begin, end = data.find(b"<system"), data.rfind(b"</system>")
    node = None
    if not is_xml:
        wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))  # as some shells redirect
        node = read_topo(data.decode("utf-16" if wide else "utf-8", "replace"), name, product)
    if node is None and (is_xml or 0 <= begin < end):
        document = data if is_xml else data[begin : end + len(b"</system>")]
        node = read_nccl_xml(parse_xml(document, source), name, product)
    if node is None:
        raise ConfigError(source, "tells of no GPUs in a form that we know", remedy=READ)
    return node
