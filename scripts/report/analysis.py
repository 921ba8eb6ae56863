"""Arms (several runs of one setting) against a baseline: pairs of equal seeds, gaps, intervals, verdicts."""

import dataclasses
import math

import numpy as np

from . import UserError, curves, statistics
from .words import tokens_text

BAR_NATS, BAR_SHARE = 0.01, 0.0025  # the default bar: both must hold
PAIRS_FOR_A_VERDICT = 3  # the spread of two is one difference, which is small by chance too often
NO_INTERVAL = "one pair, no interval"  # a method
VALIDATION_KEYS = (
    "data.valid",
    "training.best_valid_set",
    "model.seq_length",
    "data.format",
    "data.document_mask",
    "data.eod_mask_loss",
)  # what a validation loss is of, beside the number of its samples
INSIDE, OUTSIDE, UNDECIDED = "inside", "outside", "not enough runs to say"


@dataclasses.dataclass
class Arm:
    name: str
    runs: list
    baseline: str | None = None  # of its own; None: that of the whole report


@dataclasses.dataclass
class Bar:
    """How large a gap may be to count as none. Written down before the runs; both limits must hold."""

    nats: float = BAR_NATS
    share: float = BAR_SHARE

    def of(self, loss):
        """In nats, for a baseline that ends at `loss`."""
        return min(self.nats, self.share * loss)


@dataclasses.dataclass
class Pair:
    baseline: object  # Run
    run: object
    tokens: np.ndarray  # common ones
    exact: bool  # logged at the same token counts; otherwise interpolated
    gap: np.ndarray  # nats, at `tokens`
    base_loss: np.ndarray

    @property
    def label(self):
        seed = self.run.seed
        return f"seed {seed}" if seed is not None else self.run.label

    @property
    def same_seed(self):
        return self.run.seed is not None and self.run.seed == self.baseline.seed

    @property
    def tail(self):
        return curves.tail_mask(self.tokens)


@dataclasses.dataclass
class Measure:
    """One way to look at the gap: of all pairs, with interval, tests and verdict."""

    name: str
    base: float  # the baseline's loss
    gaps: list  # nats, one a pair; none for groups
    bar: float  # nats
    method: str  # in words
    estimate: statistics.Estimate | None = None  # absent for a single pair
    low: float = math.nan
    high: float = math.nan
    verdict: str | None = UNDECIDED  # None: not judged
    why: str = ""

    @property
    def mean(self):
        return self.estimate.mean if self.estimate else self.gaps[0]


@dataclasses.dataclass
class Comparison:
    """One arm against its baseline."""

    baseline: Arm
    arm: Arm
    pairs: list
    groups: bool  # no two seeds match: the arms are compared as groups, `pairs` are in the given order
    measures: list
    verdict: str
    excess: dict | None  # largest_excess() of pairs

    @property
    def name(self):
        """The arm's; with what is subtracted where that is no matter of course."""
        return f"{self.arm.name} - {self.baseline.name}" if self.arm.baseline else self.arm.name


def compare_arms(baseline, arm, bar):
    matched = match(baseline, arm)
    pairs = [make_pair(b, r) for b, r in (matched or zip(baseline.runs, arm.runs))]
    groups = matched is None and min(len(baseline.runs), len(arm.runs)) > 1
    sides = (baseline.runs, arm.runs) if groups else ([p.baseline for p in pairs], [p.run for p in pairs])
    losses = group_tail_losses(*sides) if groups else tail_losses(pairs)
    measures = [measure(bar, pairs, "training loss, last 10 % of the tokens", *losses, groups)]
    if found := valid_losses(*sides):
        measures.append(measure(bar, pairs, *found, groups))
        if keys := other_validation(*sides):
            measures[-1].verdict = None
            measures[-1].why = f"not judged: the runs differ in {', '.join(keys)}, so it may be of other samples"
    return Comparison(
        baseline, arm, pairs, groups, measures, overall(measures), None if groups else largest_excess(baseline, pairs)
    )


def match(baseline, arm):
    """Pairs (baseline's run, arm's run) of equal seeds; by order where no seed is known; None when none match."""
    if not knows_seeds(baseline, arm):
        return list(zip(baseline.runs, arm.runs))
    seeds = {run.seed: run for run in baseline.runs}
    if len(seeds) < len(baseline.runs):
        raise UserError(f"{baseline.name}: two of its runs have the same seed; give runs of different seeds")
    return [(seeds[run.seed], run) for run in arm.runs if run.seed in seeds] or None


def seeds_or_runs(arm):
    """What the runs of an arm may be called: seeds where they have different ones."""
    seeds = [run.seed for run in arm.runs]
    return "runs" if None in seeds or len(set(seeds)) < len(seeds) else "seeds"


def knows_seeds(baseline, arm):
    return all(run.seed is not None for run in (*baseline.runs, *arm.runs))


def make_pair(baseline, run):
    tokens, base, other, exact = curves.align(baseline, run)
    return Pair(baseline, run, tokens, exact, other - base, base)


def tail_losses(pairs):
    """(baseline's losses, runs' losses): means over the last tenth of the tokens that a pair has in common."""
    bases = [float(p.base_loss[p.tail].mean()) for p in pairs]
    return bases, [base + float(p.gap[p.tail].mean()) for base, p in zip(bases, pairs)]


def group_tail_losses(baseline, runs):
    """The same for runs without twins: up to where the shortest ends."""
    end = curves.common_end([*baseline, *runs])
    return tuple([tail_loss(curves.until(run, end)) for run in side] for side in (baseline, runs))


def valid_losses(baseline, runs):
    """(name, baseline's, runs') at the last token count at which all have a validation loss; or None."""
    everyone = [*baseline, *runs]
    at = curves.common_valid_tokens(everyone) if all(len(run.valid_tokens) for run in everyone) else None
    if at is None:
        return None
    sides = [[float(run.valid_loss[run.valid_tokens == at][0]) for run in side] for side in (baseline, runs)]
    return f"validation loss at {tokens_text(at)} tokens", *sides


def other_validation(baseline, runs):
    """The config keys by which the runs' validation losses are means over other samples; [] where none is known to be.
    The samples of an evaluation are microbatches, from the beginning of the set."""
    configs = [run.config for run in (*baseline, *runs) if run.config]

    def values(key):
        return {config.get(key) for config in configs}

    keys = [key for key in VALIDATION_KEYS if len(values(key)) > 1]
    counts = ("training.eval_microbatches", "training.micro_batch_size")
    if len({samples_of(config, counts) for config in configs}) > 1:
        keys += [key for key in counts if len(values(key)) > 1]
    return keys


def samples_of(config, counts):
    numbers = [config.get(key, "") for key in counts]
    return math.prod(map(int, numbers)) if all(n.isdigit() for n in numbers) else None


def measure(bar, pairs, name, base_losses, run_losses, groups):
    base = float(np.mean(base_losses))
    confidence = f"{100 * statistics.CONFIDENCE:.0f} %"
    gaps = [] if groups else [run - base for base, run in zip(base_losses, run_losses)]
    result = Measure(name, base, gaps, bar.of(base), "")
    if groups:
        sizes = f"{len(base_losses)} and {len(run_losses)} runs"
        result.estimate = statistics.unpaired(base_losses, run_losses)
        result.method = f"Welch's t interval ({confidence}) of two groups of {sizes}: they have no seeds in common"
    elif len(gaps) == 1:
        return single_pair(result, pairs[0], confidence)
    else:
        result.estimate = statistics.paired(gaps)
        how = (
            "equal seed"
            if all(p.run.seed is not None for p in pairs)
            else "runs in the given order (their seeds are not known)"
        )
        pairs_of = f"{len(gaps)} pairs of {how}, {len(gaps) - 1} degrees of freedom"
        result.method = f"Student's t interval ({confidence}) over {pairs_of}"
    result.low, result.high = result.estimate.interval()
    judge(result)
    if not groups and len(gaps) < PAIRS_FOR_A_VERDICT and result.verdict != UNDECIDED:
        result.verdict, result.why = UNDECIDED, f"{result.why}, but two pairs may agree by chance: a verdict takes three"
    return result


def single_pair(result, pair, confidence):
    """What one pair can tell: its gap, and how much that depends on the steps that were looked at."""
    result.verdict = UNDECIDED
    result.why = "one pair: nothing says where pairs of other seeds would lie, so run more seeds of both arms"
    result.method = NO_INTERVAL
    if result.name.startswith("training") and (steps := int(pair.tail.sum())) >= 8:
        gaps = pair.gap[pair.tail]
        result.low, result.high = statistics.block_bootstrap(gaps)
        result.method = (
            f"{confidence} of a circular block bootstrap of one pair's {steps} logged steps, blocks of "
            f"{statistics.block_length(gaps)}: noise from step to step alone, not from seed to seed"
        )
    return result


def judge(result):
    """Inside: the whole interval lies within the bar. Outside: beyond it. Otherwise the runs do not say."""
    e, bar = result.estimate, result.bar
    within = f"within ±{bar:.4f} nats"
    if -bar < result.low and result.high < bar:
        result.verdict, result.why = INSIDE, f"the whole interval lies {within}"
        if e.difference_p() < 1 - statistics.CONFIDENCE:
            result.why += "; there is a gap, and it is smaller than the tolerance"
    elif result.low > bar or result.high < -bar:
        side = "above" if result.mean > 0 else "below (better)"
        result.verdict, result.why = OUTSIDE, f"the whole interval lies {side} the tolerance of {bar:.4f} nats"
    else:
        needed = statistics.runs_needed(e.mean, e.spread, bar)
        more = (
            f"about {needed} pairs would settle it if mean and spread stayed"
            if needed
            else "the mean is not within the tolerance"
        )
        if needed is None and abs(e.mean) < bar:
            more = "more than 1000 pairs would be needed: the runs differ too much from seed to seed"
        result.verdict, result.why = UNDECIDED, f"the interval crosses the tolerance of {bar:.4f} nats; {more}"


def overall(measures):
    verdicts = [m.verdict for m in measures]
    for verdict in (OUTSIDE, UNDECIDED):
        if verdict in verdicts:
            return verdict
    return INSIDE


def largest_excess(baseline, pairs):
    """By how much the smoothed curve of a run was above its twin's at most, and two of the baseline's seeds apart."""
    window = curves.default_window(min(len(pair.tokens) for pair in pairs))
    best = {"window": window, "gap": -math.inf, "tokens": math.nan, "label": "", "seeds": math.nan}
    for pair in pairs:
        smoothed = full_windows(pair.gap, window)
        top = int(np.argmax(smoothed))
        if smoothed[top] > best["gap"]:
            best.update(gap=float(smoothed[top]), tokens=float(pair.tokens[top + window // 2]), label=pair.label)
    apart = []
    for i, first in enumerate(baseline.runs):
        for second in baseline.runs[i + 1 :]:
            _, a, b, _ = curves.align(first, second)
            apart.append(float(np.max(np.abs(full_windows(b - a, window)))))
    if apart:
        best["seeds"] = max(apart)
    return best


def full_windows(values, window):
    """The moving average where it has all its points: at the ends it would be as noisy as a single step."""
    return np.convolve(values, np.full(min(window, len(values)), 1 / min(window, len(values))), mode="valid")


def gap_by_tenths(pairs):
    """Does a gap grow? {"training", "validation"}: the mean over pairs of the gap in each tenth of the tokens that a
    pair has in common, of training losses their mean, of validation losses the last. NaN where a pair has none there."""
    training, validation = zip(*((training_by_tenths(pair), valid_by_tenths(pair)) for pair in pairs))
    return {
        "training": np.mean([[np.mean(part) if len(part) else math.nan for part in of] for of in training], axis=0),
        "validation": np.mean([[part[-1] if len(part) else math.nan for part in of] for of in validation], axis=0),
    }


def training_by_tenths(pair):
    return split_by_tenths(pair.tokens, pair.gap, pair)


def valid_by_tenths(pair):
    sides = (pair.baseline, pair.run)
    tokens, *at = np.intersect1d(*(side.valid_tokens for side in sides), return_indices=True)
    base, other = (side.valid_loss[where] for side, where in zip(sides, at))
    inside = tokens <= pair.tokens[-1]
    return split_by_tenths(tokens[inside], (other - base)[inside], pair)


def split_by_tenths(tokens, values, pair):
    """The values in each tenth of the pair's tokens; the last tenth is curves.tail_mask()'s."""
    first, last = pair.tokens[0], pair.tokens[-1]
    edges = last - np.linspace(0.9, 0.1, 9) * (last - first)
    return np.split(values, np.searchsorted(tokens, edges))


def seed_spread(arm):
    """Standard deviation of the last tenth's loss over an arm's seeds, in nats; NaN for one run."""
    if len(arm.runs) < 2:
        return math.nan
    end = curves.common_end(arm.runs)
    return float(np.std([tail_loss(curves.until(run, end)) for run in arm.runs], ddof=1))


def tail_loss(run):
    return float(run.loss[curves.tail_mask(run.tokens)].mean())
