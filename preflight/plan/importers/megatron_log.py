"""The argument block that Megatron-LM prints into a job's log: every option with what it was in the end."""

import re
from typing import Any

from preflight.plan.importers.facts import Fact, Facts, Options, short
from preflight.plan.importers.megatron import read_megatron
from preflight.plan.importers.megatron_names import ALIASES

MAX_LINES, MAX_LINE = 20_000, 10_000  # of one block, which has some 400

_BEGIN, _END = b"- arguments -", b"- end of arguments -"
_LINE = re.compile(r"(?:^|[\s:\]>|])([A-Za-z_]\w{1,80}) \.{0,60} (.*)$")
_VOCABULARY = re.compile(rb"padded vocab \(size: (\d{1,12})\)")


def is_log(data: bytes) -> bool:
    """Whether there is an argument block."""
    return _BEGIN in data


def read_log(data: bytes, name: str) -> Facts:
    """What the last argument block of a log says. `name`: the file's, for origins."""
    facts = Facts()
    begin = data.rfind(_BEGIN)
    if data.count(_BEGIN) > 1:
        facts.note(f"{name}: holds {data.count(_BEGIN)} argument blocks; the last one counts")
    end = data.find(_END, begin)
    if end < 0:
        facts.note(f"{name}: the argument block has no end: options may be missing")
    line = data.count(b"\n", 0, begin) + 1
    block = (
        data[begin : end if end >= 0 else begin + MAX_LINES * 80].decode("utf-8", "replace").split("\n")[1:MAX_LINES]
    )
    said: dict[str, Fact] = {}
    for number, text in enumerate(block, line + 1):
        match = _LINE.search(text[:MAX_LINE].rstrip())
        if match:
            option = ALIASES.get(match[1], match[1])
            if option not in said or not _is_none(match[2]):
                said[option] = Fact(value_of(match[2]), f"{name}:{number} {match[1]} {short(match[2])}")
    vocabulary = _VOCABULARY.search(data, begin)
    if vocabulary and _is_none(said.get("vocab_size", Fact(None, "")).value):
        number = data.count(b"\n", 0, vocabulary.start()) + 1
        said["vocab_size"] = Fact(int(vocabulary[1]), f"{name}:{number} padded vocab (size: {int(vocabulary[1])})")
    read_megatron(Options(said, f"{name} default of Megatron-LM"), facts, name)
    return facts


def _is_none(value: Any) -> bool:
    return value is None or str(value).strip() == "None"


def value_of(text: str) -> Any:
    """A printed value: True, False, None, else the text."""
    text = text.strip()
    return {"True": True, "False": False, "None": None}.get(text, text)
