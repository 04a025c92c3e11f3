"""Many fleets of one family, by two processes of low priority. By hand, with a line for everything that isn't exact:

.venv/bin/python -m tests.fleets.campaign FAMILY FIRST_SEED LAST_SEED [LARGEST]
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from tests.fleets.compare import Blamed, ours_on
from tests.fleets.examine import Examined, examine
from tests.fleets.fleets import MAX_NODES, random_fleet
from tests.fleets.score import Score, kind_of, score
from tests.fleets.tally import EXCLUDED, Tally

PROCESSES = 2


class Job(NamedTuple):
    seed: int
    family: str = "faults"
    max_nodes: int = MAX_NODES


class Outcome(NamedTuple):
    """`nodes`: what it says of nodes, for comparison with schemes that know only those. `rounds`: of follow-ups. `seconds`: of examining, the simulated measurements included. `story`: what isn't exact, for people; empty if all is."""

    job: Job
    score: Score
    nodes: Blamed
    rounds: int
    seconds: float
    story: str


def run(job: Job) -> Outcome:
    fleet = random_fleet(*job[:2], max_nodes=job.max_nodes)
    began = time.perf_counter()
    examined = examine(fleet.cluster, fleet.seed)
    seconds = time.perf_counter() - began
    result = score(examined)
    return Outcome(job, result, ours_on(examined), examined.follow_up_rounds, seconds, story(examined, result))


def story(examined: Examined, result: Score) -> str:
    cluster, verdict = examined.fabric.cluster, examined.localisation
    fates = [fate for _, fate in result.faults]
    as_it_should = all(fate in {"exact", *EXCLUDED} for fate in fates) and all(
        what == "exact" for _, what in result.blamed
    )
    if as_it_should and ("exact" in fates or not result.blamed):
        return ""
    planted = [fault for fault in cluster.faults if fault.kind != "busy"]
    lines = [
        f"  {len(cluster.nodes)} nodes, {len(set(cluster.leaves))} leaves, CV {cluster.noise:.2%}, floor {verdict.floor}"
    ]
    lines += [f"  planted {kind_of(fault)}: {short(fault)}: {fate}" for fault, fate in zip(planted, fates, strict=True)]
    blames = iter(result.blamed)
    for culprit in verdict.culprits:
        if culprit.kind is not None and (what := next(blames)[1]):
            lines.append(f"  named {culprit.kind}: {short(culprit)}: {what}")
    open_questions = [len(culprit.candidates) for culprit in verdict.culprits if culprit.kind is None]
    if open_questions:
        lines.append(f"  not identifiable: {len(open_questions)}, with candidates: {open_questions[:20]}")
    lines += [f"  note: {note[:200]}" for note in (*verdict.notes, verdict.unjudged) if note]
    return "\n".join(lines)


def short(part) -> str:
    """The fields that identify a fault or a culprit."""
    told = {
        name: getattr(part, name)
        for name in ("ends", "nodes", "other_nodes", "leaf", "slot", "direction", "share", "depth")
    }
    told = {name: round(value, 3) if isinstance(value, float) else value for name, value in told.items()}
    cut = {
        name: f"{len(value)} nodes ({value[0]}...)" if isinstance(value, tuple) and len(value) > 3 else value
        for name, value in told.items()
        if value not in ((), None, "both")
    }
    return ", ".join(f"{name} {value}" for name, value in cut.items())


def outcomes(jobs: Iterable[Job]) -> Iterable[Outcome]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context, initializer=os.nice, initargs=(10,)) as pool:
        yield from pool.map(run, jobs)


def campaign(family: str, seeds: Iterable[int], *, max_nodes: int = MAX_NODES) -> Tally:
    return Tally(outcome.score for outcome in outcomes(Job(seed, family, max_nodes) for seed in seeds))


def main(family: str, first: str, last: str, largest: str = str(MAX_NODES)) -> None:
    tally, rounds, seconds = Tally(), [], []
    for outcome in outcomes(Job(seed, family, int(largest)) for seed in range(int(first), int(last) + 1)):
        tally.add(outcome.score)
        rounds.append(outcome.rounds)
        seconds.append(outcome.seconds)
        if outcome.story:
            print(f"seed {outcome.job.seed}\n{outcome.story}", flush=True)
    print(tally.table())
    print(
        f"follow-up rounds: mean {sum(rounds) / len(rounds):.1f}, most {max(rounds)}; seconds a fleet: mean {sum(seconds) / len(seconds):.1f}, most {max(seconds):.1f}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
