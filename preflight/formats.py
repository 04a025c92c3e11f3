"""Files in and out: the only reader of TOML, YAML and XML, and the only writer.

Reading gives a ConfigError that names the file and the fault, never a traceback. Writing goes to a file beside the target, then
renames it, so that a reader never sees half a file and a full disk never costs the old one.
"""

import contextlib
import os
import stat
import sys
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from preflight.errors import ConfigError, WorldError
from preflight.model import from_json

T = TypeVar("T")

MAX_FILE_BYTES = 512 * 2**20  # a report of 8192 GPUs is some 100 MB; more is a mistake, not a plan


MAX_TOML_BYTES, MAX_TOML_LINE = 128 * 2**10, 8192  # a plan file is a few lines
MAX_YAML_BYTES = 8 * 2**20  # a topology of 20,000 nodes that is written out node by node has some 4 MB
MAX_YAML_VALUES, MAX_YAML_DEPTH = 1_000_000, 64  # values: with all aliases followed
MAX_XML_BYTES, MAX_XML_DEPTH = 2**20, 64  # NCCL's topology of a rack of 72 GPUs has some 100 KB


def readable(text: str) -> str:
    """A path or an environment variable as text that can be saved: bytes that are no UTF-8 are spelled out."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def read_bytes(path: str | Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The content of a file. Raises ConfigError if it can't be read, is no regular file, or is absurdly large."""
    source = readable(str(path))
    try:
        # O_NONBLOCK: a named pipe nobody writes to must not hold us for ever
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise ConfigError(source, f"can't be read: {_reason(error)}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ConfigError(source, "is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        try:
            # no more room than the file needs: read(n) takes n bytes of memory at once
            data: bytes | None = file.read(min(max_bytes, max(status.st_size, 65536)) + 1)
        except OSError as error:
            raise ConfigError(source, f"can't be read: {_reason(error)}") from error
    if data is None:  # a file of the kernel's that is a queue, such as /proc/kmsg
        raise ConfigError(source, "can't be read: it holds nothing yet")
    if len(data) > max_bytes or status.st_size > max_bytes:
        raise ConfigError(source, f"is larger than {max_bytes // 1024} KiB")
    return data


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file as nested dicts. Raises ConfigError with the line of the fault."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    data = read_bytes(path, MAX_TOML_BYTES)
    longest = max(map(len, data.split(b"\n")))
    if longest > MAX_TOML_LINE:  # the parser takes quadratic time for a long dotted key
        raise ConfigError(str(path), f"has a line of {longest} bytes; {MAX_TOML_LINE} are allowed")
    try:
        # the mark by hand: the codec "utf-8-sig" is one more module on the prolog path
        document: dict[str, Any] = tomllib.loads(data.removeprefix(b"\xef\xbb\xbf").decode())
        _refuse_huge(document)
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), f"is not UTF-8 text (byte {error.start})") from error
    except ValueError as error:  # TOMLDecodeError, or Python's own refusal of a number of thousands of digits
        raise ConfigError(str(path), f"is not TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(str(path), "is nested too deeply") from error
    return document


def _refuse_huge(value: Any) -> None:
    """TOML's whole numbers have 64 bits. Raises ValueError: others can't even be shown (Python refuses to print thousands of digits)."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a whole number has more than 64 bits")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _refuse_huge(item)


def read_yaml(path: str | Path) -> Any:
    """A YAML file as dicts, lists, texts, numbers, booleans and None. A tag that names a class is passed over: nothing is ever built from it.

    None: an empty file. Needs PyYAML. Raises ConfigError: no YAML (with the line), a key given twice, several documents, nested deeper than
    MAX_YAML_DEPTH, or more than MAX_YAML_VALUES once aliases are followed (ten lines of aliases can stand for more than a memory holds).
    """
    data, source = read_bytes(path, MAX_YAML_BYTES), readable(str(path))
    try:
        import yaml
    except ImportError as error:
        remedy = "install PyYAML: pip install 'cluster-preflight[import]'"
        raise ConfigError(source, "is YAML, and PyYAML is not installed", remedy=remedy) from error
    try:
        return _load_yaml(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(source, f"is not UTF-8 text (byte {error.start})") from error
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ConfigError(source, f"is not YAML that we take: {line}{error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number or a date that is none
        raise ConfigError(source, f"is not YAML that we take: {' '.join(str(error).split())}") from error


def _load_yaml(text: str) -> Any:
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        """Builds plain values only, whatever a tag says; a date stays the text that it is."""

    def plain(loader: Any, _suffix: str, node: Any) -> Any:
        if isinstance(node, yaml.MappingNode):
            return loader.construct_mapping(node, deep=True)
        is_list = isinstance(node, yaml.SequenceNode)
        return loader.construct_sequence(node, deep=True) if is_list else loader.construct_scalar(node)

    Loader.add_multi_constructor("!", plain)
    Loader.add_multi_constructor("tag:", plain)
    Loader.add_constructor("tag:yaml.org,2002:timestamp", Loader.construct_yaml_str)
    depth = 0
    for event in yaml.parse(text, Loader=base):  # before anything is built: building goes down recursively
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_YAML_DEPTH:
            raise yaml.MarkedYAMLError(problem="is nested too deeply", problem_mark=event.start_mark)
    loader = Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_yaml(node, {})
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _check_yaml(node: Any, sizes: dict[int, int]) -> int:
    """How many values a node stands for, with aliases followed. `sizes`: of nodes seen, by id; 0 while one is being counted."""
    import yaml

    seen = sizes.get(id(node))
    if seen == 0:
        raise yaml.MarkedYAMLError(problem="an alias points into itself", problem_mark=node.start_mark)
    if seen is not None:
        return seen
    sizes[id(node)], total = 0, 1
    if isinstance(node, yaml.MappingNode):
        names = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in names:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
            names.add((key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key))
            total += _check_yaml(key, sizes) + _check_yaml(value, sizes)
    elif isinstance(node, yaml.SequenceNode):
        total += sum(_check_yaml(item, sizes) for item in node.value)
    if total > MAX_YAML_VALUES:
        raise yaml.MarkedYAMLError(problem=f"more than {MAX_YAML_VALUES} values", problem_mark=node.start_mark)
    sizes[id(node)] = total
    return total


def parse_json(data: bytes, source: str) -> Any:
    """The content of a JSON file of another program as dicts, lists, texts, numbers, booleans and None. `source`: for messages.

    Raises ConfigError: larger than MAX_YAML_BYTES, no JSON (with line and column), a number of thousands of digits, nested too deeply.
    """
    import json

    if len(data) > MAX_YAML_BYTES:
        raise ConfigError(source, f"is larger than {MAX_YAML_BYTES // 1024} KiB")
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(source, f"is not UTF-8 text (byte {error.start})") from error
    except ValueError as error:
        raise ConfigError(source, f"is not JSON: {error}") from error
    except RecursionError as error:
        raise ConfigError(source, "is nested too deeply") from error


def parse_xml(data: bytes, source: str) -> Any:
    """The root element of an XML document of another program (xml.etree's Element). `source`: for messages. Needs defusedxml.

    Raises ConfigError: larger than MAX_XML_BYTES, no XML (with line and column), a document type or entities (which can be made to fill the memory or read files), nested
    deeper than MAX_XML_DEPTH.
    """
    if len(data) > MAX_XML_BYTES:
        raise ConfigError(source, f"is larger than {MAX_XML_BYTES // 1024} KiB")
    try:
        from defusedxml import DefusedXmlException
        from defusedxml.ElementTree import ParseError, fromstring
    except ImportError as error:
        remedy = "install defusedxml: pip install 'cluster-preflight[import]'"
        raise ConfigError(source, "is XML, and defusedxml is not installed", remedy=remedy) from error
    try:
        root = fromstring(data, forbid_dtd=True)
    except ParseError as error:
        raise ConfigError(source, f"is not XML: {error}") from error
    except DefusedXmlException as error:
        raise ConfigError(source, "has a document type or entities, which are not read") from error
    except (ValueError, LookupError) as error:  # an encoding that nobody knows
        raise ConfigError(source, f"is not XML that we take: {error}") from error
    level, depth = [root], 1
    while level := [child for element in level for child in element]:
        depth += 1
        if depth > MAX_XML_DEPTH:
            raise ConfigError(source, "is nested too deeply")
    return root


def read_noun(path: str | Path, kind: type[T]) -> T:
    """A saved noun (report, snapshot, ...). Raises ConfigError with the path of the fault inside the document."""
    data = read_bytes(path)
    try:
        return from_json(data, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"is not a saved {kind.__name__}: {error}") from error
    except RecursionError as error:
        raise ConfigError(str(path), "is nested too deeply") from error


def write_atomically(path: str | Path, data: bytes | str, *, mode: int = 0o644) -> None:
    """Write beside the target, then rename. Raises WorldError (full disk, no permission); the old file then stays.

    What is there and is no regular file is refused: renaming over /dev/null would break the machine, and following a link in a
    folder that others can write to would let them choose what root overwrites.
    """
    import tempfile

    target = Path(path)
    if os.path.lexists(target) and (target.is_symlink() or not target.is_file()):
        raise WorldError(f"{target}: is a link, device, pipe or folder: name a regular file")
    beside = None
    try:
        content = data.encode() if isinstance(data, str) else data
        descriptor, beside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        Path(beside).replace(target)
    except (OSError, ValueError) as error:
        if beside:
            with contextlib.suppress(OSError):
                Path(beside).unlink()
        raise WorldError(f"{target}: can't be written: {_reason(error)}") from error
    except BaseException:  # an interruption leaves nothing beside the target
        if beside:
            with contextlib.suppress(OSError):
                Path(beside).unlink()
        raise


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
