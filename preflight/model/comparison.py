"""Two plans beside each other, and a plan beside what a run measured, as nouns."""

from preflight.model.base import Noun


class TermChange(Noun, frozen=True, kw_only=True):
    """One term of the step in two plans: GPU-seconds that the whole job spends on it per thousand tokens."""

    term: str
    before: float
    after: float

    @property
    def added(self) -> float:
        """GPU-seconds per thousand tokens that it costs more; negative: less."""
        return self.after - self.before


class Comparison(Noun, frozen=True, kw_only=True):
    """From one plan to another. `speedup`: tokens per second of the second over the first; `ideal`: GPUs of the second over the first, times peak per GPU;
    `terms`: what each part of the step costs in both, the greatest increase first. `culprit`: the term that eats most of the difference to the
    ideal; None: there is none to eat. `text`: the same in sentences.
    """

    tokens_per_s_before: float
    tokens_per_s_after: float
    gpus_before: int
    gpus_after: int
    speedup: float
    ideal: float
    terms: tuple[TermChange, ...]
    culprit: str | None
    text: tuple[str, ...]

    @property
    def efficiency(self) -> float:
        """Speed-up over ideal speed-up."""
        return self.speedup / self.ideal


class Suspect(Noun, frozen=True, kw_only=True):
    """One term as the explanation of a gap: it would have to take `needed_s` in place of `predicted_s`, `factor` times as long. `text`: what that would mean.
    `plausible`: something known would make it take about that long.
    """

    term: str
    predicted_s: float
    needed_s: float
    factor: float
    plausible: bool
    text: str


class StepGap(Noun, frozen=True, kw_only=True):
    """A measured step beside the predicted one. `gap_s`: measured - predicted. `within_error`: no larger than the estimate was wrong on published runs.
    `suspects`: plausible ones first, then those that would have to grow least; empty within the error. `text`: the summary.
    """

    predicted_s: float
    measured_s: float
    gap_s: float
    within_error: bool
    suspects: tuple[Suspect, ...]
    text: str
