"""One sweep over the idle nodes: chooses sets of them, measures each set in a small job of its own, gives way to users, and acts on what was found.

Nothing of it outlives it: its jobs are cancelled at its end, however it ends. Those of one that was killed end by their own time limit, and are cancelled by the next.
"""

import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from preflight.config import Site
from preflight.errors import PreflightError, SlurmError
from preflight.model.history import NodeVerdict
from preflight.model.hostlist import fold
from preflight.slurm import scan_jobs
from preflight.slurm.commands import Slurm
from preflight.slurm.nodes import SlurmNode
from preflight.slurm.scan_choice import Pair, choose, pair_of, share_covered
from preflight.slurm.scan_files import keep_newest, last_words, read_report, within
from preflight.slurm.scan_nodes import Kind, kinds_of
from preflight.slurm.scan_nouns import ScanJob, Swept, Wishes
from preflight.slurm.scan_plan import command_of, roots_of, write_plan
from preflight.slurm.scan_results import Results, Say
from preflight.slurm.scan_verdicts import suspects

if TYPE_CHECKING:
    from preflight.fleet.history import History

POLL_S = (1.0, 15.0)  # of a small and of a large cluster: each look asks for all nodes and jobs
NODES_PER_S = 50
PENDING_S = 60.0  # a job of ours that has not started by then finds its nodes taken
GRACE_S = 30.0  # after a job's end, for its report to be seen on a shared file system
SETTLE_S = 35.0  # Slurm's backfill looks again every 30 s (bf_interval)
SILENT_S = 120.0  # without an answer of Slurm's the sweep ends
MAX_REFUSED = 3  # jobs that Slurm did not take


class Sweep:
    """One sweep. `stop`: set when it shall end."""

    def __init__(
        self, slurm: Slurm, site: Site, history: "History", wishes: Wishes, *, stop: threading.Event, say: Say
    ) -> None:
        self.slurm, self.site, self.history, self.wishes = slurm, site, history, wishes
        self.stop, self.say = stop, say
        self.name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-" + secrets.token_hex(3)
        self.results = Results(slurm, site, history, self.name, say)
        self.ends_at = time.monotonic() + site.scan.sweep_s
        self.jobs: list[ScanJob] = []
        self.tried: set[Pair] = set()
        self.rounds: Counter[str] = Counter()
        self.refused = 0
        self.roots = roots_of(site.slurm.topology)
        self.problem = ""
        self.forgetful = False
        self.poll_s = POLL_S[0]

    def run(self) -> Swept:
        """The whole sweep. Raises PreflightError before anything was begun; later faults are told in `problem`."""
        answered_at: float | None = None
        self._cancel_leftovers()
        try:
            while not self.stop.is_set():
                try:
                    more = self._turn()
                    answered_at = time.monotonic()
                except SlurmError as error:
                    if answered_at is None:
                        raise
                    if time.monotonic() - answered_at > SILENT_S:
                        self.problem = f"Slurm gives no answer: {error}"
                        break
                    more = True
                if not more:
                    break
                self.stop.wait(self.poll_s)
        finally:
            self._cancel_own()
        if self.stop.is_set():
            self.problem = "interrupted"
        return self._swept()

    def _turn(self) -> bool:
        """One look at queue and nodes, and what follows from it. False: nothing is left to do. Raises SlurmError."""
        if self.wishes.dry:
            self._begin_jobs(self.slurm.nodes(), [])
            return False
        own = scan_jobs.own_jobs(self.slurm)
        nodes = self.slurm.nodes()
        waiting = scan_jobs.waiting_jobs(self.slurm, own)
        self.poll_s = min(max(POLL_S[0], len(nodes) / NODES_PER_S), POLL_S[1])
        self._follow(own)
        self._give_way(waiting, nodes)
        self._collect(nodes)
        time_is_up = time.monotonic() + self.site.scan.time_limit_s > self.ends_at
        held_back = not time_is_up and self._begin_jobs(nodes, waiting)
        return bool(self._open()) or held_back or (not time_is_up and self._is_settling())

    def _is_settling(self) -> bool:
        """Whether nodes may still be marked as planned for a job of ours that we took back."""
        gone = [
            job.gone_at for job in self.jobs if job.outcome in {"not started", "gave way"} and job.gone_at is not None
        ]
        return bool(gone) and time.monotonic() - max(gone) < SETTLE_S

    # --- jobs under way -------------------------------------------------------------------------------------------------

    def _open(self) -> list[ScanJob]:
        return [job for job in self.jobs if not job.done]

    def _queued(self) -> list[ScanJob]:
        return [job for job in self.jobs if not job.done and job.gone_at is None]

    def _follow(self, own: Mapping[str, scan_jobs.Queued]) -> None:
        """How it stands with our jobs. One that Slurm took although it did not say so is cancelled."""
        now = time.monotonic()
        for job in self._queued():
            queued = own.get(job.id)
            if queued is None:
                job.gone_at = now
                continue
            job.ran |= queued.state != "PENDING"
            if job.outcome and queued.state in {"PENDING", "RUNNING"}:
                scan_jobs.cancel(self.slurm, [job.id])  # Slurm did not hear it the first time
            elif not job.ran and now - job.begun_at > PENDING_S and not job.outcome:
                self._cancel(job, "not started", "its nodes were taken")
        strays = set(own) - {job.id for job in self.jobs}
        if strays:
            scan_jobs.cancel(self.slurm, strays)

    def _give_way(self, waiting: Sequence[scan_jobs.Waiting], nodes: Mapping[str, SlurmNode]) -> None:
        """Cancel our jobs on nodes that a user's job waits for."""
        for job in self._queued():
            if not job.outcome and self._is_wanted(job.nodes, nodes, waiting):
                self._cancel(job, "gave way", "a job of a user waits for nodes")
                self.tried -= _pairs(job.nodes)

    def _is_wanted(
        self, names: Sequence[str], nodes: Mapping[str, SlurmNode], waiting: Iterable[scan_jobs.Waiting]
    ) -> bool:
        """Whether a job that waits could start if we left these nodes, and all others that we have, alone."""
        ours = {name for job in self._queued() for name in job.nodes} | set(names)
        partitions = {each for name in names if name in nodes for each in nodes[name].partitions}
        others = [node for node in nodes.values() if node.name not in ours and "idle" in node.states]
        idle = sum(1 for node in others if partitions & set(node.partitions))
        return any(scan_jobs.wants(job, names if job.named else ours, partitions, idle) for job in waiting)

    def _cancel(self, job: ScanJob, outcome: str, why: str) -> None:
        self.say(f"job {job.id} on {fold(job.nodes)} is cancelled: {why}", "info")
        job.outcome = outcome
        scan_jobs.cancel(self.slurm, [job.id])

    def _collect(self, nodes: Mapping[str, SlurmNode]) -> None:
        """Take the reports of jobs that have left the queue. One that was cancelled may have left a partial one."""
        for job in self._open():
            if job.gone_at is None:
                continue
            late = time.monotonic() - job.gone_at > GRACE_S or (bool(job.outcome) and not job.ran)
            try:
                report = read_report(job.folder, job.nodes)
            except PreflightError as error:
                self.say(f"job {job.id}: {error}", "error")
                report, late = None, True
            if report is not None:
                job.outcome, job.answer, job.done = job.outcome or "measured", report.answer, True
                self.rounds.update(job.nodes)
                self.results.take(report, nodes, job.kind.partition, cut=job.outcome != "measured")
            elif late:
                job.done = True
                if not job.outcome:
                    job.outcome = "no report"
                    self.rounds.update(job.nodes)
                    self.say(f"job {job.id} on {fold(job.nodes)} left no report{last_words(job.folder)}", "error")

    # --- new jobs -------------------------------------------------------------------------------------------------------

    def _choices(self, nodes: Mapping[str, SlurmNode]) -> dict[Kind, tuple[tuple[str, ...], ...]]:
        """Sets of idle nodes that are worth a job now."""
        scan = self.site.scan
        room = scan.max_jobs - len(self._queued())
        if self.wishes.limit is not None:
            room = min(room, self.wishes.limit - len(self.jobs))
        taken = {name for job in self.jobs if not job.done or self.wishes.once for name in job.nodes}
        free = [node for node in nodes.values() if node.name not in taken]
        kinds = kinds_of(free, self._partitions(), self.roots)
        if not kinds or room <= 0 or self.refused >= MAX_REFUSED:
            return {}
        covered, last = self._remembered()
        doubtful = suspects(last, self.rounds, scan.repeats)
        found: dict[Kind, tuple[tuple[str, ...], ...]] = {}
        for kind, names in kinds.items():
            found[kind] = choose(
                names,
                covered,
                size=scan.nodes_per_job,
                now_s=time.time(),
                age_s=scan.age_s,
                most=room,
                suspects={name: doubtful[name] for name in names if name in doubtful},
                tried=self.tried,
            )
            room -= len(found[kind])
        return found

    def _remembered(self) -> tuple[dict[Pair, float], dict[str, NodeVerdict]]:
        """When pairs were measured, and what was said of nodes last; nothing of either where the history can't be read, which is said once."""
        try:
            return within("the history", self.history.covered), within(
                "the history", lambda: self.history.last_verdicts(sweeps=True)
            )
        except PreflightError as error:
            if not self.forgetful:
                self.say(f"what was measured before is not known: {error}", "error")
            self.forgetful = True
            return {}, {}

    def _partitions(self) -> list[str]:
        """Those that may be used, the default one first."""
        if self.site.scan.partition is not None:
            return [self.site.scan.partition]
        known = [each for each in self.slurm.partitions().values() if each.state == "up"]
        return [each.name for each in sorted(known, key=lambda each: (not each.default, each.name))]

    def _begin_jobs(self, nodes: Mapping[str, SlurmNode], waiting: Sequence[scan_jobs.Waiting]) -> bool:
        """Put jobs into the queue. True: some were not begun, since users wait for their nodes."""
        held_back = False
        for kind, sets in self._choices(nodes).items():
            for names in sets:
                if self._is_wanted(names, nodes, waiting):
                    held_back = True
                else:
                    self._begin(names, kind)
        return held_back

    def _begin(self, names: tuple[str, ...], kind: Kind) -> None:
        folder = self.wishes.out / f"{self.name}-{len(self.jobs) + 1:04d}"
        job = ScanJob(id="", nodes=names, kind=kind, folder=folder, begun_at=time.monotonic())
        self.tried |= _pairs(names)
        self.jobs.append(job)
        if self.wishes.dry:
            self.say(f"would measure {fold(names)} in partition {kind.partition}, {kind.gpus or 'on CPUs'}", "info")
            job.outcome, job.done = "not submitted", True
            return
        try:
            within(str(folder), lambda: folder.mkdir(mode=0o700))
            plan = within(str(folder), lambda: write_plan(folder, kind, self.site))
            command = command_of(plan, self.wishes.out / "state.json", self.site)
            job.id = scan_jobs.submit(self.slurm, names, kind, self.site.scan, folder=folder, command=command)
        except (OSError, PreflightError) as error:
            self.refused += 1
            job.outcome, job.done = "not submitted", True
            self.say(f"no job for {fold(names)}: {error}", "error")
        else:
            self.say(f"job {job.id} measures {fold(names)}", "info")

    # --- beginning and end ----------------------------------------------------------------------------------------------

    def _cancel_leftovers(self) -> None:
        """Jobs of a sweep that was killed."""
        left = () if self.wishes.dry else scan_jobs.own_jobs(self.slurm)
        if left:
            self.say(f"jobs of an earlier sweep are cancelled: {', '.join(left)}", "warning")
            scan_jobs.cancel(self.slurm, left)

    def _cancel_own(self) -> None:
        """Nothing of ours stays in the queue."""
        if self.wishes.dry:
            return
        try:
            scan_jobs.cancel_all(self.slurm, [job.id for job in self._queued()])
        except SlurmError as error:
            self.say(f"jobs may be left, which end by their time limit: {error}", "error")
        for job in self._open():
            job.outcome = job.outcome or "gave way"

    def _swept(self) -> Swept:
        coverage = None
        try:
            kinds = kinds_of(self.slurm.nodes().values(), self._partitions(), self.roots, free=False)
            covered = within("the history", self.history.covered)
            coverage = share_covered(kinds.values(), covered, now_s=time.time(), age_s=self.site.scan.age_s)
        except PreflightError as error:
            self.say(f"how much is covered can't be told: {error}", "warning")
        if not self.problem and self.refused >= MAX_REFUSED:
            self.problem = f"Slurm did not take {self.refused} jobs"
        keep_newest(self.wishes.out, {job.folder for job in self.jobs})
        return Swept(
            sweep=self.name,
            jobs=tuple((job.nodes, job.outcome, job.answer) for job in self.jobs),
            verdicts=tuple(self.results.verdicts[name] for name in sorted(self.results.verdicts)),
            drained=tuple(self.results.drained),
            coverage=coverage,
            lost=self.results.lost,
            problem=self.problem,
        )


def _pairs(names: Sequence[str]) -> set[Pair]:
    return {pair_of(a, b) for a in names for b in names if a != b}
