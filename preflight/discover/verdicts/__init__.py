"""Verdicts of tools that a site already runs, taken over as they are. Which form a file has is seen from its content.

1. Our own, for any script:
   {"schema": "preflight.verdicts/1", "origin": "acme-health", "verdicts": [{"name": "disk", "verdict": "warn", "text": "91 % full", "gpu": 3}]}
   `verdict`: pass, ok, warn, warning, fail, critical, unknown or skip, in any case; `text` and `gpu` (index, UUID or PCI id) may be left out.
2. What `dcgmi diag -j` prints (DCGM 3 and 4): see dcgm.py.
3. Nagios: see nagios.py.
"""

from pathlib import Path
from typing import Any

import msgspec

from preflight.discover.verdicts.dcgm import is_dcgm, read_dcgm
from preflight.discover.verdicts.nagios import read_nagios
from preflight.discover.verdicts.plugin import run_plugin
from preflight.discover.verdicts.words import verdict_of
from preflight.errors import ConfigError
from preflight.formats import parse_json, read_bytes, readable
from preflight.model import OutsideVerdict

__all__ = ["SCHEMA", "read_verdicts", "run_plugin"]

SCHEMA = "preflight.verdicts/1"
MAX_BYTES = 4 * 2**20  # dcgmi's report of 8 GPUs is some 100 kB
MAX_VERDICTS = 5000
EXPECTED = (
    f'expected {{"schema": "{SCHEMA}", ...}}, the output of `dcgmi diag -j`, or of a Nagios plug-in with its exit code'
)


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    verdict: str
    text: str = ""
    gpu: str | int | None = None


class _Own(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    origin: str
    verdicts: list[_Entry]


def read_verdicts(path: str | Path, *, exit_code: int | None = None) -> tuple[OutsideVerdict, ...]:
    """The verdicts in a file. `exit_code`: of the plug-in whose output the file holds, where the file doesn't tell it.

    Raises ConfigError if the file can't be read or has none of the forms, with what was expected.
    """
    source = readable(str(path))
    data = read_bytes(path, MAX_BYTES)
    document = _document(data, source)
    if document is None:
        verdicts = read_nagios(data.decode("utf-8", "replace"), Path(path).stem, source, exit_code)
    elif isinstance(document, dict) and document.get("schema") == SCHEMA:
        verdicts = _own(document, source)
    elif is_dcgm(document):
        verdicts = read_dcgm(document, source)
    else:
        raise ConfigError(source, "holds no verdicts that we know", remedy=EXPECTED)
    if len(verdicts) > MAX_VERDICTS:
        raise ConfigError(source, f"holds {len(verdicts)} verdicts, more than {MAX_VERDICTS}")
    return verdicts


def _document(data: bytes, source: str) -> Any:
    """The JSON in a file, which dcgmi may print after a line of its own; None if it has none."""
    if not data.strip():
        raise ConfigError(source, "is empty", remedy=EXPECTED)
    if data.lstrip()[:1] in {b"{", b"["}:
        return parse_json(data, source)
    begins = data.find(b"\n{")
    if begins < 0 or not (b"DCGM" in data or SCHEMA.encode() in data):
        return None
    return parse_json(data[begins + 1 : data.rfind(b"}") + 1], source)


def _own(document: dict[str, Any], source: str) -> tuple[OutsideVerdict, ...]:
    try:
        own = msgspec.convert(document, _Own)
    except msgspec.ValidationError as error:
        raise ConfigError(source, f"is not {SCHEMA}: {error}") from error
    found = []
    for place, entry in enumerate(own.verdicts):
        verdict = verdict_of(entry.verdict)
        if verdict is None:
            raise ConfigError(
                source,
                f"{entry.verdict[:40]!r} is no verdict",
                key=f"verdicts[{place}].verdict",
                remedy="one of pass, ok, warn, warning, fail, critical, unknown, skip",
            )
        gpu = None if entry.gpu is None else str(entry.gpu)
        found.append(
            OutsideVerdict(origin=own.origin, name=entry.name, verdict=verdict, text=entry.text[:1000], gpu=gpu)
        )
    return tuple(found)
