"""What the history tells: runs, findings, figures and verdicts of nodes, as they were kept."""

from preflight.model.base import Noun
from preflight.model.finding import Answer, PartKind, Verdict


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
