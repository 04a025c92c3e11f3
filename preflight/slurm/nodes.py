"""Nodes and partitions as `scontrol show` prints them, in the form of many lines: there each fact stands at the beginning of a line or behind others that no user writes (pure).

The form of one line (-o) can't be told apart safely: reasons and comments hold spaces and "=". JSON is not there in 22.05. Printed by 22.05 to 26.05: scontrol(1), "show node".
"""

import calendar
import re

from preflight.model.base import Noun
from preflight.model.hostlist import unfold

DRAINED = {"drain", "fail"}  # what an operator, or we, asked for
DOWN = {"down", "error", "unknown", "future", "invalid", "invalid_reg"}
AWAY = {
    *("powered_down", "powering_down", "powering_up", "power_down", "power_up"),
    *("reboot_requested", "reboot_issued", "reboot^", "reboot@", "reboot"),
}  # on their way down or up: none of our business
RESERVED = {"maintenance", "maint", "reserved", "planned"}
_REASON = re.compile(r"^(?P<text>.*) \[(?P<by>[^\[\]@]*)@(?P<at>[^\[\]@]*)\]$")
_TIME = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})")
_LINE = re.compile(r"^ {3}([A-Za-z]+)=(.*)$", re.MULTILINE)


class SlurmNode(Noun, frozen=True, kw_only=True):
    """One node as the controller sees it. `states`: the base state ("idle", "allocated", "mixed", "down", ...) with all flags ("drain", "not_responding", ...), in lower case.

    `reason`, `comment`, `extra`: None: none is set. `reason_at_s`, `boot_at_s`: Unix time by the controller's clock. `gres`: as configured ("gpu:8"), None: none.
    """

    name: str
    states: frozenset[str]
    address: str | None = None
    hostname: str | None = None
    partitions: tuple[str, ...] = ()
    gres: str | None = None
    reason: str | None = None
    reason_by: str | None = None
    reason_at_s: float | None = None
    boot_at_s: float | None = None
    comment: str | None = None
    extra: str | None = None

    @property
    def drained(self) -> bool:
        """Whether no new job goes there because someone said so, jobs still running or not."""
        return bool(self.states & DRAINED)

    @property
    def absent(self) -> bool:
        """Whether it is down, switched off, or on its way to either or back: then nothing that we say would help."""
        return bool(self.states & (DOWN | AWAY))


class SlurmPartition(Noun, frozen=True, kw_only=True):
    """One partition: its nodes, its state in lower case ("up", "down", "drain", "inactive"), and whether jobs go there that name none."""

    name: str
    nodes: tuple[str, ...] = ()
    state: str | None = None
    default: bool = False


def parse_nodes(text: str) -> list[SlurmNode]:
    """All nodes of the answer to `scontrol show node`."""
    return [_node(record) for record in _records(text, "NodeName")]


def _node(record: str) -> SlurmNode:
    told = _facts(record)
    reason, by, at_s = _reason(clean(told.get("Reason", "")))
    states = (_word(told, "State") or "unknown").split("+")
    return SlurmNode(
        name=record.partition("\n")[0].partition("=")[2].partition(" ")[0],
        states=frozenset(state.rstrip("*~#!%$@^-").lower() for state in states if state),
        address=_word(told, "NodeAddr"),
        hostname=_behind(told, "NodeAddr", "NodeHostName"),
        partitions=tuple(filter(None, (_word(told, "Partitions") or "").split(","))),
        gres=_word(told, "Gres"),
        reason=reason,
        reason_by=by,
        reason_at_s=at_s,
        boot_at_s=parse_time(_word(told, "BootTime") or ""),
        comment=clean(told.get("Comment", "")),
        extra=clean(told.get("Extra", "")),
    )


def _reason(whole: str | None) -> tuple[str | None, str | None, float | None]:
    """Text, who set it, and when. Of a text of several lines the first: who set it stands at its end."""
    match = _REASON.match(whole or "")
    if match is None:
        return whole, None, None
    return match["text"], match["by"] or None, parse_time(match["at"])


def parse_partitions(text: str) -> list[SlurmPartition]:
    """All partitions of the answer to `scontrol show partition`."""
    found = []
    for record in _records(text, "PartitionName"):
        told = _facts(record)
        nodes = _word(told, "Nodes")
        found.append(
            SlurmPartition(
                name=record.partition("\n")[0].partition("=")[2].strip(),
                nodes=tuple(unfold(nodes)) if nodes else (),
                state=(_word(told, "State") or "").lower() or None,
                default=_behind(told, "AllocNodes", "Default") == "YES",
            )
        )
    return found


def parse_time(text: str) -> float | None:
    """Unix time of "2026-11-30T18:15:34" as UTC, which the commands are asked for; None: "Unknown", "None", nonsense."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None
    try:
        return float(calendar.timegm(tuple(map(int, match.groups()))))
    except ValueError:  # month 13
        return None


def _records(text: str, key: str) -> list[str]:
    """The answer, cut where a line begins with the key, behind an empty line or at the start."""
    return [record for record in re.split(rf"(?:\A|\n\s*\n)(?={key}=)", text) if record.startswith(f"{key}=")]


def _facts(record: str) -> dict[str, str]:
    """What stands behind each key that begins a line; of a key that is there twice, the first."""
    return dict(reversed(_LINE.findall(record)))


def _word(told: dict[str, str], key: str) -> str | None:
    """The value up to the next space; None: there is none, or it says that there is nothing."""
    return clean(told.get(key, "").partition(" ")[0])


def _behind(told: dict[str, str], first: str, key: str) -> str | None:
    """A value that stands behind another key on its line."""
    match = re.search(rf" {re.escape(key)}=(\S*)", f" {told.get(first, '')}")
    return clean(match[1]) if match else None


def clean(text: str) -> str | None:
    """None for Slurm's words for nothing."""
    return None if text.strip() in {"", "(null)", "N/A", "n/a", "None", "none"} else text.strip()
