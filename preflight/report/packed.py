"""A report of many measurements as bytes: its JSON packed with gzip, made a piece at a time. `zcat report.json.gz` gives what report.json would hold, on one line.

Of 2,048 nodes with eight GPUs the JSON has some 300 MB, of which more than nine tenths are names of fields and figures that several ranks share: packed 28 MB.
"""

import zlib
from collections.abc import Iterator

import msgspec

from preflight.model import Report

MANY = 50_000  # measurements: a report of more is packed; its JSON would have 40 to 75 MB
MAGIC = b"\x1f\x8b"
_LEVEL, _GZIP = 3, zlib.MAX_WBITS | 16  # as small as higher levels for twice the speed
_PIECE = 4096  # measurements: some MB at a time
_NONE = b'"measurements":[]'


def is_large(report: Report) -> bool:
    """Whether a folder of a run holds it packed."""
    return len(report.evidence.measurements or ()) > MANY


def pack(report: Report) -> bytes:
    """The report's JSON in gzip's format. Its whole text is never in memory."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    parts = [packer.compress(piece) for piece in _pieces(report)]
    return b"".join([*parts, packer.flush()])


def unpack(data: bytes, max_bytes: int) -> bytes:
    """What `pack` packed, or gzip. Raises ValueError: not whole, not gzip, followed by something else, or more than max_bytes."""
    unpacker = zlib.decompressobj(_GZIP)
    try:
        text = unpacker.decompress(data, max_bytes)
    except zlib.error as error:
        raise ValueError(f"can't be unpacked: {error}") from error
    if not unpacker.eof:
        raise ValueError("is not whole" if len(text) < max_bytes else f"unpacks to more than {max_bytes >> 20} MiB")
    if unpacker.unused_data:
        raise ValueError("goes on behind its end")
    return text


def _pieces(report: Report) -> Iterator[bytes]:
    measurements = report.evidence.measurements or ()
    bare = msgspec.structs.replace(report, evidence=msgspec.structs.replace(report.evidence, measurements=()))
    head, found, tail = msgspec.json.encode(bare).partition(_NONE)
    if not found or _NONE in tail:  # the only place where they can go, unless something else has such a field one day
        yield msgspec.json.encode(report)
        return
    yield head + _NONE[:-1]
    for first in range(0, len(measurements), _PIECE):
        piece = msgspec.json.encode(measurements[first : first + _PIECE])[1:-1]
        yield b"," + piece if first else piece
    yield _NONE[-1:] + tail
