"""Nested documents (JSON, YAML, TOML) as flat options "section.key", each with the line that it stands on."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from preflight.plan.importers.facts import Fact, Options, short

MAX_LEAVES, MAX_DEPTH = 20_000, 12  # a dump of a training framework has some 600 values, five levels deep
MAX_KEYS = 200_000  # that lines are remembered of

_KEY = re.compile(r"""^\s*\[{1,2}([\w.\-]{1,200})\]|["']?([A-Za-z_][\w.\-]{0,199})["']?[ \t]{0,20}[:=]""", re.MULTILINE)


class Lines:
    """Where the keys of a document stand. `name`: the file's, for origins."""

    def __init__(self, text: str, name: str, first_line: int = 1) -> None:
        self.name = name
        self.first_line = first_line
        self.lines: dict[str, list[int]] = {}
        line, before = first_line, 0
        for count, match in enumerate(_KEY.finditer(text)):
            if count >= MAX_KEYS:
                break
            line += text.count("\n", before, match.end())
            before = match.end()
            for part in (match[1] or match[2]).split("."):
                self.lines.setdefault(part, []).append(line)

    def of(self, path: tuple[str, ...]) -> int:
        """The line of a nested key: each key is looked for from the line of the key it belongs to."""
        line = self.first_line
        for key in path:
            known = self.lines.get(key, ())
            line = next((number for number in known if number >= line), line)
        return line

    def origin(self, path: tuple[str, ...], value: object) -> str:
        """The origin "file:line key = value"."""
        return f"{self.name}:{self.of(path)} {'.'.join(path)} = {short(value)}"


def options_of(document: Mapping[str, Any], lines: Lines, framework: str) -> Options:
    """The leaves of a document as options named by their path: "parallelism.tensor_parallel_degree"."""
    said = {".".join(path): Fact(value, lines.origin(path, value)) for path, value in leaves(document)}
    return Options(said, f"{lines.name} default of {framework}")


def leaves(document: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path, value) of everything that is no mapping; typed values of configuration dumps as the plain value that they stand for."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), document)]
    found = 0
    while waiting and found < MAX_LEAVES:
        path, value = waiting.pop()
        value = _plain(value)
        if isinstance(value, Mapping) and len(path) < MAX_DEPTH:
            inner = [((*path, str(key)[:200]), item) for key, item in list(value.items())[:MAX_LEAVES]]
            waiting += reversed(inner)
        else:
            found += 1
            yield path, value


def _plain(value: Any) -> Any:
    """The text of a typed value: {_target_: torch.bfloat16, _call_: false} is "torch.bfloat16", an enumeration its name or number."""
    if not isinstance(value, Mapping) or "_target_" not in value:
        return value
    if value.get("_call_") is False:
        return value["_target_"]
    if "_name_" in value:
        return value["_name_"]
    arguments = value.get("_args_")
    if isinstance(arguments, list) and len(arguments) == 1 and set(value) <= {"_target_", "_args_", "_call_"}:
        return arguments[0]
    return value
