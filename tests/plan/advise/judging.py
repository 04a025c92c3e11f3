"""Judging plans in tests: by all registered checks, or by one rule that a test makes up."""

from collections.abc import Callable, Sequence

import msgspec

from preflight.judge.run import judge
from preflight.model import Advice, Answer, Evidence, Finding, Job, Plan, Topology, Verdict
from preflight.plan.build import build_plan
from preflight_checks import CHECKS


def by_all_checks(plan: Plan) -> Sequence[Finding]:
    return judge(Evidence(plan=plan), CHECKS)[0]


def answer(plan: Plan) -> Answer:
    return judge(Evidence(plan=plan), CHECKS)[2]


def one_per_group(axis: str, limit: int = 1, what: str = "domains") -> Callable[[Plan], Sequence[Finding]]:
    """A rule: groups of this axis touch at most so many domains (or leaves)."""

    def judged(plan: Plan) -> Sequence[Finding]:
        counts = (getattr(plan.footprints[axis], what) or ()) if axis in plan.footprints else ()
        return [
            Finding(
                check=f"{axis}_{what}",
                subject=f"{axis}{index}",
                verdict=Verdict.WARN if count > limit else Verdict.PASS,
                observed="",
            )
            for index, count in enumerate(counts)
        ]

    return judged


def applied(job: Job, advice: Advice, folder: object, *, topology: Topology | None = None) -> Plan:
    """The plan of the job after a person has done what the advice says: its files written to `folder`, its keys put into the plan file."""
    from pathlib import Path

    from preflight.model.hostlist import unfold

    for name, content in advice.files.items():
        (Path(str(folder)) / name).write_text(content)
    sections: dict[str, dict[str, object]] = {}
    for change in advice.changes:
        for key, text in change.keys.items():
            section, name = key.split(".")
            value: object = None if text is None else text.strip('"') if text.startswith('"') else int(text)
            if name == "hostfile" and value is not None:
                value = str(Path(str(folder)) / str(value))
            if name == "hosts" and value is not None:
                value = tuple(unfold(str(value)))
            if name == "order" and value is not None:
                value = tuple(str(value).split("-"))
            sections.setdefault(section, {})[name] = value
    for section, values in sections.items():
        job = msgspec.structs.replace(job, **{section: msgspec.structs.replace(getattr(job, section), **values)})
    return build_plan(job, topology=topology)
