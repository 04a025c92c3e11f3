"""What an operator reads at night in `sinfo -R`: one line that says which check, which part, what was seen, what to do, and where the report is (pure).

`sinfo -R` shows the first 20 letters by default: our prefix and the check come first, without a space between. Everything else may hold texts of users (names of processes, of devices): what Slurm, a shell or a log reader might stumble over is taken out.
"""

import re
from collections.abc import Sequence
from typing import Literal

from preflight.model.finding import Finding

PREFIX = "preflight:"
MAX_LETTERS = 240
MAX_PART, MAX_RUN = 48, 40
LEAST_OBSERVED, LEAST_REMEDY = 60, 30  # letters that are kept of each where room is short
Kind = Literal["local", "fabric"]
# checks that look at what was measured between GPUs or nodes: the node alone can't clear what they found
MEASURED = frozenset(
    {
        "data_correct",
        "gpu_speed",
        "group_busbw",
        "group_contention",
        "logged_runs",
        "own_history",
        "reachable",
        "slow_part",
        "straggler_cost",
        "transport_used",
    }
)
SPELT = str.maketrans(
    {"µ": "u", "\u2265": "at least ", "\u2264": "at most ", "\u00d7": "x", "\u2013": "-", "\u2019": "'", "°": ""}
    | {">": " over ", "<": " under ", "&": " and ", "|": "/", ";": ",", "{": "(", "}": ")"}
)
_OURS = re.compile(rf"{PREFIX}([a-z][a-z0-9_]{{0,63}})(?:[ :]|$)")
_TAIL = re.compile(r"\[(?P<run>[A-Za-z0-9_.-]+), (?P<kind>local|fabric)\]$")
_MORE = re.compile(r"; \+[0-9]+ more \(([a-z0-9_., ]+)\) \[")
SAME_CHECK = "same check"
_UUID = re.compile(r"\((GPU|MIG)-([0-9a-fA-F]{8})[0-9a-fA-F-]*\)")


def reason_of(findings: Sequence[Finding], run_id: str, *, node: str | None = None, kind: Kind | None = None) -> str:
    """The reason of a node with these findings, the worst first; the same for the same findings in any order.

    `node`: its name, which need not be repeated in the reason. `kind`: "local": a local check can clear it; "fabric": only a new measurement can; None: told by the names of the checks.
    """
    assert findings
    worst, *others = sorted(findings, key=_order)
    kind = kind or ("fabric" if any(finding.check in MEASURED for finding in findings) else "local")
    head = f"{PREFIX}{_name(worst.check)} {_part(worst, node)}: "
    tail = f" [{_name(run_id)[:MAX_RUN] or 'unknown'}, {kind}]"
    if others:
        tail = f"; +{len(others)} more ({_others(worst, others)}){tail}"
    observed, expected = readable(worst.observed, node), readable(worst.expected, node)
    remedy = readable(worst.remedy, node)
    room = MAX_LETTERS - len(head) - len(tail)
    if expected and len(observed) + len(expected) + len(remedy) + len("; wants ; ") <= room:
        observed = f"{observed}; wants {expected}"
    if not remedy:
        return head + shortened(observed, room) + tail
    room -= len("; ")
    least = max(LEAST_REMEDY, room - max(LEAST_OBSERVED, len(observed)))
    remedy = shortened(remedy, least)
    return f"{head}{shortened(observed, room - len(remedy))}; {remedy}{tail}"


def is_ours(reason: str | None) -> bool:
    """Whether a reason was set by preflight. Slurm's own and an operator's are not."""
    return check_of(reason) is not None


def check_of(reason: str | None) -> str | None:
    """The check that a reason of ours names; None: it is not ours."""
    match = _OURS.match(reason or "")
    return match[1] if match else None


def checks_of(reason: str | None) -> tuple[frozenset[str], bool]:
    """All checks that a reason of ours names, and whether these are all that there were: a long list is cut. None of them, if it is not ours."""
    first = check_of(reason)
    match = _MORE.search(reason or "")
    if first is None or match is None:
        return frozenset({first} if first else ()), True
    others = [name for name in match[1].split(", ") if name != SAME_CHECK]
    whole = not match[1].endswith("..")
    return frozenset({first, *(name for name in others if not name.endswith(".."))}), whole


def kind_of(reason: str | None) -> Kind | None:
    """Whether a local check can clear what a reason of ours says ("local"), or only a new measurement ("fabric"); None: it is not ours.

    One whose end is cut or edited is "fabric": nothing local clears it.
    """
    if not is_ours(reason):
        return None
    match = _TAIL.search(reason or "")
    return "local" if match and match["kind"] == "local" else "fabric"


def run_of(reason: str | None) -> str | None:
    """The run that a reason of ours rests on; None: not told."""
    match = _TAIL.search(reason or "") if is_ours(reason) else None
    return match["run"] if match else None


def readable(text: str, node: str | None = None) -> str:
    """Printable ASCII on one line without quotes and what shells read, single spaces, without the node's own name before its parts, UUIDs by their first eight digits."""
    line = _UUID.sub(r"(\1-\2)", text).translate(SPELT).replace("can't", "cannot").replace("n't", " not")
    line = "".join(letter if " " <= letter <= "~" else " " if letter.isspace() else "?" for letter in line)
    line = re.sub(r"[\"'`\\$!*]", "", line)
    if node:
        line = re.sub(rf"(?<![A-Za-z0-9._-]){re.escape(node)} (?=GPU |NIC |NVSwitch )", "", line)
    return " ".join(line.split())


def shortened(text: str, letters: int) -> str:
    """The text, cut between words where it is too long."""
    if len(text) <= letters:
        return text
    cut = text[: max(0, letters - 2)]
    at = cut.rfind(" ")
    return (cut[:at] if at > letters // 2 else cut).rstrip(" ,:(") + ".."


def _order(finding: Finding) -> tuple[int, int, str, str, str]:
    sure = ("certain", "likely", "possible")
    return (
        finding.verdict.rank,
        sure.index(finding.blames.confidence) if finding.blames else len(sure),
        finding.check,
        finding.subject,
        finding.observed,
    )


def _part(finding: Finding, node: str | None) -> str:
    """The part, without the node's name; the node as a whole is just "node"."""
    part = finding.blames
    name = readable(part.name if part else finding.subject, node)
    if part and part.kind == "node":
        return "node"
    if node:
        name = name.removeprefix(f"{node} ")
    elif match := re.match(r"\S+ (GPU .*|NVSwitch .*)", name):
        name = match[1]
    return shortened(name, MAX_PART) or "node"


def _others(worst: Finding, others: Sequence[Finding]) -> str:
    names = [name for name in dict.fromkeys(_name(finding.check) for finding in others) if name != _name(worst.check)]
    return shortened(", ".join(names), 40) if names else SAME_CHECK


def _name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "", text)[:64]
