"""The content of a plan file as TOML text."""

import json
import re
from collections.abc import Mapping
from typing import Any

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


def plan_toml(document: Mapping[str, Mapping[str, Any]]) -> str:
    """A plan file that says the same: sections in order, a key per line. Values are texts, numbers, true, false and lists of them.

    >>> print(plan_toml({"parallel": {"tp": 8, "framework": "megatron"}}), end="")
    [parallel]
    tp = 8
    framework = "megatron"
    """
    sections = []
    for name, section in document.items():
        lines = [f"{_key(key)} = {_value(value)}" for key, value in section.items()]
        sections.append("\n".join([f"[{_key(name)}]", *lines]) + "\n")
    return "\n".join(sections)


def _key(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return _text(str(value))


def _text(text: str) -> str:
    """A basic string of TOML: that of JSON, with DEL escaped too and other characters as they are."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
