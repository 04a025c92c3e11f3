"""How pipeline schedules spend time and memory: idle time (the bubble), and the micro-batches whose activations a stage keeps.

Symbols: p pipeline stages, m micro-batches per replica and step, v chunks per stage ("virtual stages"), F, B, W the times of one forward
pass, of the backward pass for inputs and of that for weights, all of one micro-batch on one stage, taken as equal where a schedule splits B and W.

Sources: GPipe (Huang et al. 2019), 1F1B and interleaved (Narayanan et al., SC'21, section 2.2), zero bubble ZB-H1, ZB-H2 and ZBV (Qi et al.
2023 and 2024), DualPipe (DeepSeek-V3 technical report, table 2).

Two numbers, often confused: overhead = bubble / ideal time; idle share = bubble / wall time. Worked example, 1F1B, p = 4, m = 4:
overhead 3/4 = 75 %, idle share 3/7 = 42.9 %.
"""

import math
from fractions import Fraction

from preflight.model.job import Job, Schedule

# ZBV and DualPipe cut a stage's layers in two by themselves, so v means nothing to them, nor to the other schedules without chunks
_MULTIPLE_OF_STAGES = ("interleaved",)


def schedule_of(job: Job) -> Schedule:
    """The job's schedule: as given, else "interleaved" with virtual stages, else "1f1b", which Megatron, torchtitan and DeepSpeed default to."""
    if job.parallel.schedule is not None:
        return job.parallel.schedule
    return "interleaved" if job.parallel.virtual_stages > 1 else "1f1b"


def bubble_overhead(schedule: Schedule, *, p: int, m: int, v: int = 1) -> float:
    """Bubble / ideal time of one step; 0 for p = 1.

    GPipe, 1F1B: (p-1)/m. Interleaved: (p-1)/(v m). ZB-H1: (p-1)/(3 m) with F = B = W. ZB-H2, ZBV: none. DualPipe:
    (p/2 - 1)(F&B + B - 3 W), where F&B and B are whole passes (3 and 2 of our unit), over 3 m: (p-2)/(3 m). With fewer than p (ZB-H1) or
    2 p - 1 (ZB-H2, ZBV) micro-batches there is nothing to fill the wait of the first stage for its first backward pass with: 2 p - 1 - m of 3 m units are idle.
    Worked examples: 1F1B p 8, m 64: 0.1094; interleaved p 8, m 64, v 3: 0.0365; ZB-H1 p 8, m 64: 0.0365.
    """
    return float(exact_overhead(schedule, p=p, m=m, v=v))


def exact_overhead(schedule: Schedule, *, p: int, m: int, v: int = 1) -> Fraction:
    """bubble_overhead as a fraction, for limits that it may meet exactly: 27 micro-batches on 4 stages idle for one tenth and no more."""
    bubble = _constant(schedule, p, v)
    if schedule in {"zb-h1", "zb-h2", "zbv"} and p > 1:
        bubble = max(bubble, Fraction(2 * p - 1 - m, 3))
    return bubble / m


def idle_share(overhead: float) -> float:
    """Bubble / wall time from bubble / ideal time: r / (1 + r). Worked example: 0.75 -> 0.4286."""
    return overhead / (1 + overhead)


def micro_batches_for(schedule: Schedule, *, p: int, v: int = 1, idle_share: float) -> int:
    """The fewest micro-batches whose idle share is at most that, and which the schedule takes.

    From r = x / (1 - x) and the overhead of the schedule. Interleaved schedules need a multiple of p; DualPipe an even number of at least 2 p.
    Worked example, 1F1B, p = 4: 10 % needs 27, 25 % needs 9. Raises ValueError unless 0 < idle_share < 1.
    """
    if not 0 < idle_share < 1:
        raise ValueError(f"an idle share of {idle_share} is not between 0 and 1")
    share = Fraction(str(idle_share))  # exact: 0.1 means one tenth
    step = p if schedule in _MULTIPLE_OF_STAGES else 2 if schedule == "dualpipe" else 1
    least = max(step, 2 * p if schedule == "dualpipe" else 1)
    allowed = share / (1 - share)

    def up(number: Fraction | int) -> int:
        return max(least, math.ceil(number / step) * step)

    guess = up(_constant(schedule, p, v) / allowed)  # overhead is at least constant / m
    if exact_overhead(schedule, p=p, m=guess, v=v) <= allowed:
        return guess
    # only ZB-H1, ZB-H2 and ZBV with few micro-batches come here: (2p-1-m)/(3m) <= r, so m >= (2p-1)/(1+3r)
    return up(Fraction(2 * p - 1) / (1 + 3 * allowed))


def in_flight(schedule: Schedule, *, p: int, m: int, v: int = 1, stage: int = 0) -> float:
    """The most micro-batches whose activations a stage keeps at once, counted as micro-batches through the whole stage.

    GPipe: m. 1F1B: p - stage. Interleaved: 2 (p - stage - 1) + (v - 1) p warm-up chunks and the one at work, each 1/v of the stage: for the
    first stage p + (p-1)/v. ZB-H1 and ZBV: p, ZB-H2: 2 p - 1 (of all stages alike: later ones keep what waits for W). DualPipe: p + 1. Never above m.
    Worked examples, first stage: interleaved p 4, m 8, v 2: 5.5; p 8, m 64, v 3: 10.33; p 4, m 4, v 2: 4.
    """
    if schedule == "gpipe":
        return m
    if schedule == "interleaved":
        return min(2 * (p - stage - 1) + (v - 1) * p + 1, m * v) / v
    most = {"1f1b": p - stage, "zb-h1": p, "zbv": p, "zb-h2": 2 * p - 1, "dualpipe": p + 1}[schedule]
    return min(most if p > 1 else 1, m)


def _constant(schedule: Schedule, p: int, v: int) -> Fraction:
    """Overhead x m where there are enough micro-batches."""
    if schedule == "interleaved":
        return Fraction(p - 1, v)
    if schedule == "zb-h1":
        return Fraction(p - 1, 3)
    if schedule == "dualpipe":
        return Fraction(max(0, p - 2), 3)
    return Fraction(0) if schedule in {"zb-h2", "zbv"} else Fraction(p - 1)
