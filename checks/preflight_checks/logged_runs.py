"""Every run of the logs came to its end.

Claim: each run of nccl-tests whose output was given printed its figures and its summary. Why: a run that died measured nothing, so that its nodes and the way between them are unknown,
not healthy. A run that crosses a part which the localiser names is explained by it; one that died after its last figure lost nothing but its end.
Source: public logs of two H100 clusters (xxrjun/nccl-tests-cluster): 5 of 136 runs died, all of them across the one sick path, and no node of theirs is bad.

Only for logs: in a run of preflight's own, `reachable` judges what failed.
"""

from collections.abc import Iterator, Sequence

from preflight.model import Check, Evidence, Finding, Measurement, Verdict
from preflight.model.hostlist import unfold
from preflight.model.localisation import Culprit, Ends

NAME = "logged_runs"
AFTER_ALL = "after its last size"
MOST_SHOWN, MOST_NOTES = 12, 3
LEFT_OUT = ": left out"  # the end of a note on a run that can't be judged


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each run that died, and one for those that ended."""
    assert evidence.measurements is not None
    if evidence.plan is not None or evidence.localisation is None:
        return
    ends, culprits = evidence.localisation.ends, evidence.localisation.culprits
    died = [m for m in evidence.measurements if m.failure is not None]
    explained: dict[str, list[Measurement]] = {}
    for measurement in died:
        culprit = _explaining(measurement, culprits, ends)
        if culprit:
            explained.setdefault(_name(culprit), []).append(measurement)
        else:
            yield _unexplained(measurement)
    for name, measurements in explained.items():
        yield _explained(name, measurements)
    ended = {m.probe.subject for m in evidence.measurements if m.failure is None}
    left_out = [note for note in evidence.localisation.notes if note.endswith(LEFT_OUT)]
    if left_out:
        text = f"{len(left_out)} run{'s are' if len(left_out) > 1 else ' is'} not judged: {'; '.join(left_out[:MOST_NOTES])}"
        yield _finding("logs left out", Verdict.WARN, text, "see what these logs say, or run them again")
    if ended and not died and not left_out:
        yield _finding("logs", Verdict.PASS, f"all runs came to their end, over {len(ended)} sets of nodes")


def _finding(
    subject: str, verdict: Verdict, observed: str, remedy: str = "", evidence: Sequence[Measurement] = ()
) -> Finding:
    return Finding(
        check=NAME,
        subject=subject,
        verdict=verdict,
        observed=observed,
        expected="each run prints its summary",
        remedy=remedy,
        evidence=tuple(m.probe.key for m in evidence),
    )


def _unexplained(measurement: Measurement) -> Finding:
    failure, subject = measurement.failure, measurement.probe.subject
    assert failure is not None
    how = {"timed_out": "did not end in time,", "error": "stopped"}.get(failure.kind, "crashed")
    lost = failure.stage != AFTER_ALL
    return _finding(
        subject,
        Verdict.UNKNOWN if lost else Verdict.WARN,
        f"{how} {failure.stage}: {failure.text}",
        f"run {subject} again, with NCCL_DEBUG=INFO",
        [measurement],
    )


def _explained(name: str, measurements: Sequence[Measurement]) -> Finding:
    subjects = [m.probe.subject for m in measurements]
    more = f" and {len(subjects) - MOST_SHOWN} more" if len(subjects) > MOST_SHOWN else ""
    first = next(m.failure.text for m in measurements if m.failure)
    return _finding(
        subjects[0] if len(subjects) == 1 else "logs",
        Verdict.WARN,
        f"{len(subjects)} run{'s' if len(subjects) > 1 else ''} died, explained by {name}: {', '.join(subjects[:MOST_SHOWN])}{more}; the first said: {first}",
        "mend what explains it, then run again what died",
        measurements,
    )


def _name(culprit: Culprit) -> str:
    if culprit.kind == "path":
        return "the path between the two sets of nodes that are named"
    named = ", ".join(culprit.nodes[:4])
    return f"the {culprit.kind} {named}".rstrip() if named else f"the {culprit.kind} that is named"


def _explaining(measurement: Measurement, culprits: Sequence[Culprit], ends: Ends) -> Culprit | None:
    """The part that is named and that the run crosses; None: there is none."""
    hosts = _hosts(measurement.probe.subject, frozenset(ends.nodes))
    leaves = dict(zip(ends.nodes, ends.leaves, strict=True)) if ends.leaves else {}
    for culprit in culprits:
        crossed = bool(hosts & set(culprit.nodes))
        if culprit.kind == "path":
            crossed = crossed and bool(hosts & set(culprit.other_nodes))
        elif culprit.kind == "link":
            crossed = {ends.nodes[ends.node[end]] for end in culprit.ends} == hosts
        elif culprit.kind in {"uplink", "leaf"}:
            touched = {leaves.get(host) for host in hosts}
            crossed = culprit.leaf in touched and (culprit.kind == "leaf" or len(touched) > 1)
        if crossed and culprit.kind is not None:
            return culprit
    return None


def _hosts(subject: str, nodes: frozenset[str]) -> frozenset[str]:
    """The nodes that a run's subject names: one, two with a hyphen between, or a folded list."""
    if subject in nodes:
        return frozenset({subject})
    for place, letter in enumerate(subject):
        if letter == "-" and subject[:place] in nodes and subject[place + 1 :] in nodes:
            return frozenset({subject[:place], subject[place + 1 :]})
    try:
        return frozenset(unfold(subject)) & nodes
    except ValueError:
        return frozenset()


CHECK = Check(
    name=NAME,
    claim="Every run of the logs came to its end.",
    why="A run that died measured nothing: its nodes and the way between them are unknown, not healthy.",
    source="public logs of nccl-tests (xxrjun/nccl-tests-cluster): 5 of 136 runs died across one sick path, with no bad node",
    remedy="Run what died again, with NCCL_DEBUG=INFO, once what explains it is mended.",
    uses=("measurements",),
    judge=judge,
)
