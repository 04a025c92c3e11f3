"""Files that tell how nodes hang together: Slurm's topology.conf and topology.yaml, topograph's output and models, a plain table."""

import re
from pathlib import Path

from preflight.discover.topology_files.slurm_conf import read_slurm_conf
from preflight.discover.topology_files.slurm_yaml import read_slurm_yaml
from preflight.discover.topology_files.table import read_table
from preflight.discover.topology_files.topograph import read_topograph
from preflight.errors import ConfigError
from preflight.formats import read_bytes, read_noun, read_yaml, readable
from preflight.model import Topology

MAX_TEXT_BYTES = 32 * 2**20  # a table of 20,000 nodes has about 1 MB

_REMEDY = "give Slurm's topology.conf or topology.yaml, topograph's output, or a table with a header such as: node leaf rack domain"


def read_topology(path: str | Path) -> Topology:
    """What a topology file tells: switches above each node, blocks, racks, NVLink domains. `source` is the file's name.

    The kind is told by the content, not by the name. A file that tells nothing about nodes (flat) gives an empty Topology.
    Raises ConfigError with the line or the entry of the fault.
    """
    source = readable(str(path))
    text = _text(read_bytes(path, MAX_TEXT_BYTES), source)
    first = next((line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")), "")
    if not first:
        raise ConfigError(source, "is empty", remedy=_REMEDY)
    if re.match(r"(switchname|blockname|blocksizes|ringname|include)\b", first, re.IGNORECASE):
        return read_slurm_conf(text, source)
    if first.startswith("{"):
        return _read_document(read_noun(path, dict), source)
    if first.startswith(("-", "[", "%")) or re.match(r"[\w\"'./-]+:(\s|$)", first):
        return _read_document(read_yaml(path), source)
    return read_table(text, source)


def _text(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(source, f"is not UTF-8 text (byte {error.start})") from error


def _read_document(document: object, source: str) -> Topology:
    if isinstance(document, list):
        return read_slurm_yaml(document, source)
    if isinstance(document, dict) and {"switches", "nodes", "blocks", "capacity_blocks", "instances"} & set(document):
        return read_topograph(document, source)
    raise ConfigError(source, "is no topology that we know", remedy=_REMEDY)
