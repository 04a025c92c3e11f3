"""`[rules]`: what a plan file, or a file of the site, says of checks: severity, need, limits."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from preflight.errors import ConfigError
from preflight.formats import read_toml, readable
from preflight.model import Need, Rule, Severity
from preflight.plan.refusals import read_value, refuse_unknown
from preflight.plan.values import WrongValueError, one_of, show

_RULE_KEYS = ("severity", "need", "limits")


def read_rules_file(path: str | Path) -> dict[str, Rule]:
    """The `[rules]` of a TOML file, which may be a plan file: its other sections are not looked at. Raises ConfigError."""
    source = readable(str(path))
    document = read_toml(path)
    if "rules" not in document:
        raise ConfigError(source, "is missing", key="rules", remedy='write for example [rules] and persistence = "off"')
    return read_rules(source, document["rules"])


def check_rules(source: str, rules: Mapping[str, Rule], known: Mapping[str, Mapping[str, float]]) -> None:
    """Raises ConfigError if the rules name a check or a limit that isn't there. `known`: check -> its limits."""
    for name, rule in rules.items():
        refuse_unknown(source, "rules", [name], known, "check")
        refuse_unknown(source, f"rules.{name}.limits", rule.limits, known[name], "limit")


def read_rules(source: str, rules: object) -> dict[str, Rule]:
    """The content of `[rules]`: name of a check -> what is said of it. Raises ConfigError for keys and values; names are for `check_rules`."""
    if not isinstance(rules, dict):
        raise ConfigError(source, f"{show(rules)} is not a section", key="rules", remedy="begin it with [rules]")
    return {name: _read_rule(source, f"rules.{name}", value) for name, value in rules.items()}


def _read_rule(source: str, key: str, value: object) -> Rule:
    """A rule is one word (a severity or a need), or a table of severity, need and limits."""
    severities, needs = get_args(Severity), get_args(Need)
    if not isinstance(value, dict):
        word = read_value(
            source, key, one_of(*severities, *needs, other="a table with severity, need or limits"), value
        )
        return Rule(severity=word) if word in severities else Rule(need=word)
    refuse_unknown(source, key, value, _RULE_KEYS, "key")
    limits = value.get("limits", {})
    if not isinstance(limits, dict):
        raise ConfigError(source, f"{show(limits)} is not a table of limit = number", key=f"{key}.limits")
    return Rule(
        severity=read_value(source, f"{key}.severity", one_of(*severities), value["severity"])
        if "severity" in value
        else None,
        need=read_value(source, f"{key}.need", one_of(*needs), value["need"]) if "need" in value else None,
        limits={name: read_value(source, f"{key}.limits.{name}", _number, limit) for name, limit in limits.items()},
    )


def _number(value: object) -> float:
    """A limit: any finite number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise WrongValueError("a finite number")
