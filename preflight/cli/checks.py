"""`preflight checks`: what is checked, why, and with which limits."""

import click

from preflight.errors import UsageError
from preflight.model import Check
from preflight.registry import load_checks_with_source

_GIVES = {
    "inventory": "inventory (what discovery found)",
    "health": "health (what a node tells of itself; the text of a topology doesn't)",
    "before": "before (an earlier snapshot of the same nodes)",
    "plan": "plan (the job laid out)",
    "measurements": "measurements (what probing gave)",
}


@click.group(name="checks")
def command() -> None:
    """List or explain the checks."""


@command.command(name="list")
def list_checks() -> int:
    """Name, claim and providing distribution of every installed check."""
    from preflight.cli.output import print_text
    from preflight.report.text import clean, columns

    rows = [(item.check.name, clean(item.check.claim), item.distribution) for item in load_checks_with_source()]
    print_text("".join(f"{line}\n" for line in columns(rows, left=3, indent=0)))
    return 0


@command.command()
@click.argument("name")
def explain(name: str) -> int:
    """What the check NAME claims, why, what it looks at, and its limits."""
    from preflight.cli.output import print_text

    installed = {item.check.name: item for item in load_checks_with_source()}
    if name not in installed:
        from difflib import get_close_matches

        near = get_close_matches(name, installed, n=1)
        hint = f"did you mean {near[0]}?" if near else "`preflight checks list` shows them all"
        raise UsageError(f"NAME: no check {name!r} is installed; {hint}")
    print_text(_explained(installed[name].check, installed[name].distribution))
    return 0


def _explained(check: Check, distribution: str) -> str:
    from preflight.report.text import hang

    uses = ", ".join(_GIVES[fact] for fact in check.uses) or "nothing in particular"
    needs = {
        "required": "required: UNKNOWN leaves the run undecided",
        "advisory": "advisory: UNKNOWN doesn't stop a run",
    }
    limits = [f"{key} = {value:g}" for key, value in check.limits.items()]
    parts = [
        ("claim", check.claim),
        ("why", check.why),
        ("source", check.source),
        ("remedy", check.remedy),
        ("uses", uses),
        ("need", needs[check.need]),
        ("limits", "; ".join(limits) or "none"),
        ("from", distribution),
    ]
    lines = [
        check.name,
        *(line for label, text in parts if text for line in hang(label.ljust(8), text, width=100, indent=2)),
    ]
    lines += ["", "In a plan file, or in a file for --rules:", *_example(check)]
    return "".join(f"{line}\n" for line in lines)


def _example(check: Check) -> list[str]:
    """Lines for a plan file that change the check; its own limits as they are."""
    lines = ["  [rules]", f'  {check.name} = "warn"    # or "fail" (as it is), "off"']
    if check.limits:
        lines += [
            "  # or",
            f"  [rules.{check.name}.limits]",
            *(f"  {key} = {value:g}" for key, value in check.limits.items()),
        ]
    return lines
