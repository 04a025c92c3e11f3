"""What a job asks of preflight: in its comment, in --extra, or by a constraint; never in a file of the user's. deploy/slurm/README.md shows the grammar to users.

    directive = "preflight:" item ("," item)*          up to a ";", the end of the line or of the text
    item      = "on" | "off" | "plan=" NAME | DEGREE "=" NUMBER | "budget=" DURATION
    DEGREE    = "tp" | "cp" | "ep" | "etp" | "dp" | "pp"
    NAME      = a file of the site's plans_dir, without ".toml"

A typing error never costs the job: what can't be understood is a problem in words, and the job is treated as if it had said nothing.
"""

import re

from preflight.model.base import Noun
from preflight.model.units import parse_seconds

FEATURE = "preflight"  # the constraint by which a job opts in: sbatch -C preflight
DEGREES = ("tp", "cp", "ep", "etp", "dp", "pp")
MAX_DEGREE = 65536
MAX_BUDGET_S = 3600.0
MAX_DIRECTIVE = 300  # letters

_START = re.compile(r"(?:^|[;\s])preflight[ \t]*:", re.IGNORECASE)
_PLAN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_FEATURES = re.compile(r"[A-Za-z0-9_.-]+")


class Directive(Noun, frozen=True, kw_only=True):
    """`on` None: the job says nothing. `plan`: a file's name in plans_dir without its ending, None: not named. `degrees`: by axis, as they stand in a plan file. `budget_s` None: the site's.
    `problem`: what could not be understood; everything else is then as if nothing had been said.
    """

    on: bool | None = None
    plan: str | None = None
    degrees: dict[str, int] = {}
    budget_s: float | None = None
    problem: str | None = None


def read_directive(comment: str | None, extra: str | None, constraints: str | None) -> Directive:
    """What the job asks. Comment and --extra may each hold one directive, and must agree if both do; the constraint counts where neither says anything. Never raises."""
    try:
        said = [_parse(text) for source in (comment, extra) for text in _found(source)]
    except ValueError as error:
        return Directive(problem=f"{error}; the job is treated as if it said nothing")
    if any(other != said[0] for other in said[1:]):
        return Directive(problem="the job says two different things; it is treated as if it said nothing")
    if said:
        return said[0]
    return Directive(on=True) if _asks_by_feature(constraints) else Directive()


def _found(text: str | None) -> list[str]:
    """The texts behind each "preflight:"."""
    if not text:
        return []
    starts = list(_START.finditer(text[: 2**16]))
    return [re.split(r"[;\n\r]", text[start.end() : 2**16], maxsplit=1)[0] for start in starts]


def _parse(text: str) -> Directive:
    """One directive. Raises ValueError."""
    if len(text) > MAX_DIRECTIVE:
        raise ValueError(f"a directive of {len(text)} letters is too long")
    on: bool | None = None
    given: dict[str, str] = {}
    for item in (part.strip() for part in text.split(",")):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals and name in {"on", "off"} and on is None:
            on = name == "on"
        elif equals and name in {"plan", "budget", *DEGREES} and name not in given:
            given[name] = value
        else:
            raise ValueError(
                f"{_shown(item)} is not on, off, plan=NAME, budget=DURATION or a degree such as tp=8, each at most once"
            )
    if on is False and given:
        raise ValueError("off stands alone")
    return Directive(
        on=True if on is None else on,
        plan=_plan(given["plan"]) if "plan" in given else None,
        degrees={name: _degree(name, given[name]) for name in DEGREES if name in given},
        budget_s=_budget(given["budget"]) if "budget" in given else None,
    )


def _plan(value: str) -> str:
    name = value.removesuffix(".toml")
    if not _PLAN.fullmatch(name) or ".." in name:
        raise ValueError(f"plan={_shown(value)} is not the name of a plan file of this site")
    return name


def _degree(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 5 and 1 <= int(value) <= MAX_DEGREE):
        raise ValueError(f"{name}={_shown(value)} is not a whole number from 1 to {MAX_DEGREE}")
    return int(value)


def _budget(value: str) -> float:
    try:
        budget_s = parse_seconds(value)
    except ValueError:
        budget_s = 0.0
    if not 1 <= budget_s <= MAX_BUDGET_S:
        raise ValueError(f"budget={_shown(value)} is not a duration from 1s to 1h")
    return budget_s


def _asks_by_feature(constraints: str | None) -> bool:
    return bool(constraints) and FEATURE in _FEATURES.findall((constraints or "")[: 2**16])


def _shown(text: str) -> str:
    """A user's text, safe to print and short."""
    shown = ascii(text)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
