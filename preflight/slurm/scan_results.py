"""What becomes of the report of a scan's job: verdicts of its nodes, an entry in the history, and a drain where it has been said often enough."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from preflight.config import Site
from preflight.errors import PreflightError
from preflight.model import Report
from preflight.model.finding import Finding, Verdict
from preflight.model.history import NodeVerdict
from preflight.slurm.commands import Slurm
from preflight.slurm.drain import drain
from preflight.slurm.guilty import guilty_node, guilty_nodes, known_nodes
from preflight.slurm.nodes import SlurmNode
from preflight.slurm.reason import reason_of
from preflight.slurm.scan_files import within
from preflight.slurm.scan_tell import Told, tell_agents
from preflight.slurm.scan_verdicts import agreeing, verdicts_of

if TYPE_CHECKING:
    from preflight.fleet.history import History

Say = Callable[[str, str], None]  # text, level


class Results:
    """Takes one report after the other. `history`: where they are kept. `verdicts`: the newest of each node in this sweep; `drained`: the nodes drained; `lost`: reports that the history did not take."""

    def __init__(self, slurm: Slurm, site: Site, history: "History", sweep: str, say: Say) -> None:
        self.slurm, self.site, self.history, self.sweep, self.say = slurm, site, history, sweep, say
        self.verdicts: dict[str, NodeVerdict] = {}
        self.drained: list[str] = []
        self.lost = 0

    def take(self, report: Report, nodes: Mapping[str, SlurmNode], partition: str, *, cut: bool = False) -> None:
        """Keep it, and act on it. `nodes`: as Slurm sees them now. `cut`: the job was cancelled. Never raises PreflightError: what could not be done is said.

        A run that was cut says nothing against anybody: agents that were ended with it look like nodes that went away.
        """
        if cut:
            report = msgspec.structs.replace(report, partial=True)
        guilty = {} if report.partial else self._guilty(report)
        reasons = {node: reason_of(findings, report.run_id, node=node) for node, findings in guilty.items()}
        verdicts = verdicts_of(report, guilty, self.sweep, reasons)
        self.verdicts.update({verdict.node: verdict for verdict in verdicts})
        if not self._keep(report, verdicts):
            return  # without a history nothing is known to be a repeat
        told = {v.node: Told(run_id=v.run_id, verdict=v.verdict) for v in verdicts if v.verdict is Verdict.PASS}
        for node, findings in guilty.items():
            if self._is_repeated(node, nodes.get(node)):
                drained = self._drain(node, reasons[node], report.run_id, partition)
                told[node] = Told(run_id=report.run_id, verdict=Verdict.FAIL, findings=findings, drained=drained)
            else:
                self.say(
                    f"{node} is suspected, and waits for a repeat before it is drained: {reasons[node]}", "warning"
                )
        failed = tell_agents(told, nodes, self.site) if told else {}
        if failed:
            first = next(iter(failed))
            self.say(f"{len(failed)} of {len(told)} agents did not take the verdict; {first}: {failed[first]}", "info")

    def _guilty(self, report: Report) -> dict[str, tuple[Finding, ...]]:
        """The nodes to suspect; nobody where the judging breaks, which is said."""
        let_off: list[str] = []
        try:
            guilty = guilty_nodes(report.findings, report.evidence, alike=self.site.brake.alike, let_off=let_off)
        except Exception as error:  # noqa: BLE001 - a mistake of ours accuses nobody, and costs the sweep no other report
            self.say(
                f"run {report.run_id}: who is to blame could not be told: {type(error).__name__}: {error}", "warning"
            )
            return {}
        for text in dict.fromkeys(let_off):
            self.say(text, "warning")
        return guilty

    def _keep(self, report: Report, verdicts: Sequence[NodeVerdict]) -> bool:
        from preflight.plan.fingerprint import fingerprint

        known = known_nodes(report.evidence)
        nodes_of = {i: node for i, finding in enumerate(report.findings) if (node := guilty_node(finding, known))}
        plan = report.evidence.plan
        try:
            within(
                "the history",
                lambda: self.history.add(
                    report,
                    plan=fingerprint(plan) if plan else None,
                    sweep=self.sweep,
                    verdicts=verdicts,
                    nodes_of=nodes_of,
                ),
            )
        except PreflightError as error:
            self.lost += 1
            self.say(f"a result is not in the history, and nothing is drained for it: {error}", "error")
            return False
        return True

    def _is_repeated(self, node: str, slurm_node: SlurmNode | None) -> bool:
        """Whether sweeps have said it often enough. What can't be found out counts as no."""
        try:
            verdicts = within("the history", lambda: self.history.verdicts(node, sweeps=True))
        except PreflightError as error:
            self.say(f"{node} is not drained: {error}", "error")
            return False
        boot_s = slurm_node.boot_at_s if slurm_node else None
        agreed = agreeing(verdicts, since_s=time.time() - self.site.scan.age_s, boot_s=boot_s)
        return len(agreed) >= self.site.scan.repeats

    def _drain(self, node: str, reason: str, run_id: str, partition: str) -> bool:
        """Whether the node is drained with a reason of ours: who resumes it has read it, and what was found before counts no more."""
        result = drain(self.slurm, [node], reason, self.site, partition=partition)
        self.say(result.text, "warning")
        if node not in {*result.done, *result.kept}:
            return False
        if node in result.done:
            self.drained.append(node)
        try:
            within("the history", lambda: self.history.note_drained(run_id, node))
        except PreflightError as error:
            self.say(f"the history does not know that {node} was drained: {error}", "error")
        return True
