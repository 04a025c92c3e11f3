"""What the history tells: runs, findings, figures and verdicts of nodes, as they were kept."""

from typing import TYPE_CHECKING

from preflight.model.base import Noun
from preflight.model.finding import Answer, PartKind, Verdict

if TYPE_CHECKING:
    from preflight.model.report import Report

MAX_TEXT = 240


class NodeVerdict(Noun, frozen=True, kw_only=True):
    """What one run says of one node. `doubt`: something of the run failed that no node was found guilty of, and this node took part in it. `text`: the reason, in a line.

    `checks`: of the findings that it rests on. `partners`: the other nodes of the run. `sweep`: of a scan, None: another run. `drained`: the node was drained for it. `at_s`: Unix time.
    """

    node: str
    verdict: Verdict
    at_s: float
    run_id: str
    text: str = ""
    checks: tuple[str, ...] = ()
    partners: tuple[str, ...] = ()
    sweep: str | None = None
    doubt: bool = False
    drained: bool = False


class RunLine(Noun, frozen=True, kw_only=True):
    """One run in a line. `plan`: its fingerprint, None: it had none. `worst`: its worst finding that is no PASS, "FAIL slow_part n3: ...", None: there is none."""

    run_id: str
    started_at_s: float
    duration_s: float
    command: str
    answer: Answer
    backend: str | None
    plan: str | None
    sweep: str | None
    simulated: bool
    num_nodes: int = 0
    worst: str | None = None


class FindingLine(Noun, frozen=True, kw_only=True):
    """A finding that is no PASS. `node`: whom it is about, None: not one node alone."""

    run_id: str
    at_s: float
    check: str
    subject: str
    verdict: Verdict
    observed: str
    expected: str
    remedy: str
    node: str | None
    part: str | None
    part_kind: PartKind | None


class Figure(Noun, frozen=True, kw_only=True):
    """What a pair or group reached in one run, in bytes per second of busbw. None: it failed. `expected` None: nobody can say."""

    run_id: str
    at_s: float
    collective: str
    size_bytes: int
    busbw_bytes_per_s: float | None
    expected_bytes_per_s: float | None


class Line(Noun, frozen=True, kw_only=True):
    """The figures of one pair or group of a node over time. `members`: "n1/0 n2/0" (node/local rank), or a digest of a large group's. Rates in bytes per second of busbw, oldest first; None: it failed."""

    axis: str
    collective: str
    size_bytes: int
    members: str
    at_s: tuple[float, ...]
    busbw_bytes_per_s: tuple[float | None, ...]


class NodeStory(Noun, frozen=True, kw_only=True):
    """What is known of one node, newest first."""

    node: str
    runs: tuple[RunLine, ...]
    verdicts: tuple[NodeVerdict, ...]
    findings: tuple[FindingLine, ...]


def node_verdict(report: "Report", node: str, *, guilty: bool | None = None, drained: bool = False) -> NodeVerdict:
    """What a report about this node alone says of it. `guilty`: whether it is to blame for what failed, None: as the report has it. `drained`: for this.

    FAIL: something failed, and the node is to blame. UNKNOWN: nobody is, or a required check could not tell. Else PASS.
    """
    failed = [finding for finding in report.findings if finding.verdict is Verdict.FAIL]
    to_blame = bool(failed) if guilty is None else guilty
    verdict = Verdict.FAIL if to_blame else Verdict.PASS if report.answer == "go" else Verdict.UNKNOWN
    said = [each for each in report.findings if each.verdict in {Verdict.FAIL, Verdict.UNKNOWN}]
    text = f"{said[0].check} {said[0].subject}: {said[0].observed}" if said and verdict is not Verdict.PASS else ""
    return NodeVerdict(
        node=node,
        verdict=verdict,
        at_s=report.started_at_s,
        run_id=report.run_id,
        text=text[:MAX_TEXT],
        checks=tuple(dict.fromkeys(finding.check for finding in failed)) if to_blame else (),
        drained=drained,
    )
