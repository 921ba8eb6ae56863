"""Compares arms (runs of one setting) with a baseline: seed pairs, gaps, intervals, verdicts."""

import dataclasses
import math

import numpy as np

from . import UserError, curves, details, statistics
from .words import WITHIN, OUTSIDE, INCONCLUSIVE, tokens_text

BAR_NATS, BAR_SHARE = 0.01, 0.0025  # the default tolerance: both limits must hold
PAIRS_FOR_A_VERDICT = 3  # the spread of two pairs is one difference, which is often small by chance
NO_INTERVAL = "one pair, no interval"  # value of Measure.method
VALIDATION_KEYS = (
    "data.valid",
    "training.best_valid_set",
    "model.seq_length",
    "data.format",
    "data.document_mask",
    "data.eod_mask_loss",
    "data.overlong",
)  # keys that choose the validation samples, in addition to their number


@dataclasses.dataclass
class Arm:
    name: str
    runs: list
    baseline: str | None = None  # the arm's baseline; None: the report's


@dataclasses.dataclass
class Tolerance:
    """The tolerance: the largest gap that counts as equal, fixed before the runs. Both limits must hold."""

    nats: float = BAR_NATS
    share: float = BAR_SHARE

    def of(self, loss):
        """The tolerance in nats, for a baseline with the final loss `loss`."""
        return min(self.nats, self.share * loss)


@dataclasses.dataclass
class Pair:
    baseline: object  # Run
    run: object
    tokens: np.ndarray  # common token counts
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
    """The gap in one kind of loss: over all pairs, with interval, tests and verdict."""

    name: str
    base: float  # the baseline's loss
    gaps: list  # nats, one per pair; empty for groups
    tolerance: float  # tolerance in nats
    method: str  # description
    estimate: statistics.Estimate | None = None  # None for a single pair
    low: float = math.nan
    high: float = math.nan
    verdict: str | None = INCONCLUSIVE  # None: no verdict
    why: str = ""

    @property
    def mean(self):
        return self.estimate.mean if self.estimate else self.gaps[0]


@dataclasses.dataclass
class Comparison:
    """One arm compared with its baseline."""

    baseline: Arm
    arm: Arm
    pairs: list
    groups: bool  # no seeds match: the arms are compared as groups, without pairs
    measures: list
    verdict: str
    excess: dict | None  # largest_excess() of pairs

    @property
    def name(self):
        """The arm's name; with its baseline if that is not the report's."""
        return f"{self.arm.name} - {self.baseline.name}" if self.arm.baseline else self.arm.name


def compare_arms(baseline, arm, tolerance):
    pairs, sides, short = pairs_and_sides(baseline, arm)
    groups = not pairs
    losses = group_tail_losses(*sides) if groups else tail_losses(pairs)
    measures = [measure(tolerance, pairs, "training loss, last 10% of the tokens", *losses, groups)]
    measures[0].why += measured_part(pairs, sides) + (f"; too short to compare: {', '.join(short)}" if short else "")
    if found := valid_losses(*sides):
        measures.append(measure(tolerance, pairs, *found, groups))
    judge_validation(measures, sides)
    if lost := lost_validations(*sides):
        runs = "run has" if lost == 1 else "runs have"
        measures[-1].verdict = OUTSIDE
        measures[-1].why = (
            f"{lost} of its {runs} a validation loss that is not finite, later than those compared: {measures[-1].why}"
        )
    if changed := changed_data(*sides):
        for found in measures:
            found.verdict = INCONCLUSIVE
            found.why = f"no verdict: {', '.join(changed)} had other content in some of the runs; {found.why}"
    if lost := details.lost_moments(*sides):
        for found in measures:
            found.verdict = INCONCLUSIVE
            found.why = f"no verdict: {lost} of the runs resumed without Adam moments; {found.why}"
    return Comparison(
        baseline, arm, pairs, groups, measures, overall(measures), None if groups else largest_excess(baseline, pairs)
    )


def pairs_and_sides(baseline, arm):
    """(pairs, (the baseline's runs, the arm's runs), texts about those that are too short). Groups have no pairs."""
    matched, short = match(baseline, arm), []
    if matched is None:
        found = [without_short(side.runs) for side in (baseline, arm)]
        sides, short = tuple(kept for kept, _ in found), [text for _, texts in found for text in texts]
        if min(map(len, sides)) > 1:
            return [], sides, short
        matched = zip(*sides)
    pairs, others = without_short([make_pair(b, r) for b, r in matched])
    return pairs, ([p.baseline for p in pairs], [p.run for p in pairs]), short + others


def without_short(found):
    """(runs or pairs that reach the last tenth of the longest one, texts about the others)."""
    end = max(one.tokens[-1] for one in found)
    short = [one for one in found if one.tokens[-1] < 0.9 * end]
    texts = [f"{one.label} ({tokens_text(one.tokens[-1])} of {tokens_text(end)} tokens)" for one in short]
    return [one for one in found if one.tokens[-1] >= 0.9 * end], texts


def measured_part(pairs, sides):
    """For the training loss: which part of the longest run was measured, unless its last tenth was."""
    runs = [run for side in sides for run in side]
    end = min((pair.tokens[-1] for pair in pairs), default=curves.common_end(runs))
    share = end / max(run.tokens[-1] for run in runs)
    return "" if share >= 0.9 else f"; measured up to {tokens_text(end)} tokens, {share:.0%} of the longest run"


def judge_validation(measures, sides):
    """Takes the verdict of a validation on other samples, and of one that is missing or before the last tenth."""
    measured, keys, problem = len(measures) > 1, other_validation(*sides), early_validation(*sides)
    last = measures[-1]
    if measured and keys:
        last.verdict = None
        last.why = f"no verdict: the runs differ in {', '.join(keys)}, so the samples may differ"
    elif measured and problem:
        last.verdict, last.why = INCONCLUSIVE, f"no verdict: {problem}"
    elif problem:
        last.verdict = last.verdict if keys or last.verdict == OUTSIDE else INCONCLUSIVE
        last.why += f"; {problem}"


def match(baseline, arm):
    """Pairs (baseline's run, arm's run) of equal seeds; in order if no seed is known; None if no seeds match."""
    if not knows_seeds(baseline, arm):
        return list(zip(baseline.runs, arm.runs))
    seeds = {run.seed: run for run in baseline.runs}
    for side in (baseline, arm):  # repeated runs are not independent: as pairs they would narrow the interval
        if len({run.seed for run in side.runs}) < len(side.runs):
            raise UserError(f"{side.name}: two of its runs have the same seed; give runs of different seeds")
    return [(seeds[run.seed], run) for run in arm.runs if run.seed in seeds] or None


def seeds_or_runs(arm):
    """What to call the runs of an arm: "seeds" if all have different seeds, else "runs"."""
    seeds = [run.seed for run in arm.runs]
    return "runs" if None in seeds or len(set(seeds)) < len(seeds) else "seeds"


def knows_seeds(baseline, arm):
    return all(run.seed is not None for run in (*baseline.runs, *arm.runs))


def make_pair(baseline, run):
    tokens, base, other, exact = curves.align(baseline, run)
    return Pair(baseline, run, tokens, exact, other - base, base)


def tail_losses(pairs):
    """(losses of the baseline, losses of the runs): means over the last tenth of the common tokens of each pair."""
    bases = [float(p.base_loss[p.tail].mean()) for p in pairs]
    return bases, [base + float(p.gap[p.tail].mean()) for base, p in zip(bases, pairs)]


def group_tail_losses(baseline, runs):
    """tail_losses for runs without matching seeds: over the tokens that all runs have."""
    end = curves.common_end([*baseline, *runs])
    return tuple([tail_loss(curves.until(run, end)) for run in side] for side in (baseline, runs))


def last_common_valid(runs):
    """The last token count at which all runs have a validation loss; None if there is none."""
    return curves.common_valid_tokens(runs) if all(len(run.valid_tokens) for run in runs) else None


def valid_losses(baseline, runs):
    """(name, baseline's losses, runs' losses) at the last token count at which all have a validation loss; or None."""
    at = last_common_valid([*baseline, *runs])
    if at is None:
        return None
    sides = [[float(run.valid_loss[run.valid_tokens == at][0]) for run in side] for side in (baseline, runs)]
    return f"validation loss at {tokens_text(at)} tokens", *sides


def early_validation(baseline, runs):
    """Why the last common validation says nothing about the end of the runs; empty if it does, or if no run has one."""
    every = [*baseline, *runs]
    if not any(len(run.valid_tokens) for run in every):
        return ""
    if (at := last_common_valid(every)) is None:
        return "the runs have no validation loss at the same token count"
    share = at / curves.common_end(every)
    return "" if share >= 0.9 else f"at {share:.0%} of the tokens that all runs have"


def lost_validations(baseline, runs):
    """The number of runs with a validation loss that is not finite where no run of the baseline has one, after the last
    common one and before the end of the baseline."""
    common = last_common_valid([*baseline, *runs]) or 0.0
    end, of_baseline = curves.common_end(baseline), np.concatenate([run.bad_valid for run in baseline])

    def is_lost(at):
        return (at > common) & (at <= end) & ~np.isin(at, of_baseline)

    return sum(bool(is_lost(run.bad_valid).any()) for run in runs)


def changed_data(baseline, runs):
    """The datasets (prefixes) that did not have the same content in all runs. Runs with data of other prefixes, as a
    comparison of data has them, differ in their configs."""
    contents = {}
    for run in (*baseline, *runs):
        for start in run.record.get("starts", []):
            for prefix, content in start.get("data", {}).items():
                contents.setdefault(prefix, set()).add(content)
    return [prefix for prefix, found in contents.items() if len(found) > 1]


def other_validation(baseline, runs):
    """The config keys by which the runs use different validation samples; [] if there are none. An evaluation uses
    microbatches from the beginning of the validation set."""
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


def measure(tolerance, pairs, name, base_losses, run_losses, groups):
    base = float(np.mean(base_losses))
    confidence = f"{100 * statistics.CONFIDENCE:.0f}%"
    gaps = [] if groups else [run - base for base, run in zip(base_losses, run_losses)]
    result = Measure(name, base, gaps, tolerance.of(base), "")
    if groups:
        sizes = f"{len(base_losses)} and {len(run_losses)} runs"
        result.estimate = statistics.unpaired(base_losses, run_losses)
        result.method = f"Welch's t interval ({confidence}) of two groups of {sizes} without common seeds"
    elif len(gaps) == 1:
        return single_pair(result, pairs[0], confidence)
    else:
        result.estimate = statistics.paired(gaps)
        how = (
            "equal seed"
            if all(p.run.seed is not None for p in pairs)
            else "runs in the given order (unknown seeds)"
        )
        pairs_of = f"{len(gaps)} pairs of {how}, {len(gaps) - 1} degrees of freedom"
        result.method = f"Student's t interval ({confidence}) over {pairs_of}"
    result.low, result.high = result.estimate.interval()
    judge(result)
    if result.estimate.runs < PAIRS_FOR_A_VERDICT and result.verdict != INCONCLUSIVE:
        what, needed = ("runs", "three in each group") if groups else ("pairs", "three")
        result.verdict = INCONCLUSIVE
        result.why += f", but two {what} may agree by chance: a verdict needs {needed}"
    return result


def single_pair(result, pair, confidence):
    """The gap of one pair, and its noise between steps."""
    result.verdict = INCONCLUSIVE
    result.why = "one pair: the spread between seeds is unknown; run more seeds of both arms"
    result.method = NO_INTERVAL
    if result.name.startswith("training") and (steps := int(pair.tail.sum())) >= 8:
        gaps = pair.gap[pair.tail]
        result.low, result.high = statistics.block_bootstrap(gaps)
        result.method = (
            f"{confidence} of a circular block bootstrap of one pair's {steps} logged steps, blocks of "
            f"{statistics.block_length(gaps)}: noise between steps only, not between seeds"
        )
    return result


def judge(result):
    """Sets the verdict. Within: the whole interval lies within the tolerance. Outside: beyond it. Else inconclusive."""
    e, tolerance = result.estimate, result.tolerance
    within = f"within ±{tolerance:.4f} nats"
    if -tolerance < result.low and result.high < tolerance:
        result.verdict, result.why = WITHIN, f"the whole interval lies {within}"
        if e.difference_p() < 1 - statistics.CONFIDENCE:
            result.why += "; the gap is significant, but smaller than the tolerance"
    elif result.low > tolerance or result.high < -tolerance:
        side = "above" if result.mean > 0 else "below (better)"
        result.verdict, result.why = OUTSIDE, f"the whole interval lies {side} the tolerance of {tolerance:.4f} nats"
    else:
        needed = statistics.runs_needed(e.mean, e.spread, tolerance)
        more = (
            f"about {needed} pairs would give a verdict if mean and spread stay the same"
            if needed
            else "the mean is not within the tolerance"
        )
        if needed is None and abs(e.mean) < tolerance:
            more = "more than 1000 pairs would be needed: the spread between seeds is too large"
        result.verdict, result.why = INCONCLUSIVE, f"the interval crosses the tolerance of {tolerance:.4f} nats; {more}"


def overall(measures):
    verdicts = [m.verdict for m in measures]
    for verdict in (OUTSIDE, INCONCLUSIVE):
        if verdict in verdicts:
            return verdict
    return WITHIN


def largest_excess(baseline, pairs):
    """The largest excess of a run's smoothed curve over its pair's baseline, and the largest difference of two baseline
    seeds."""
    window = curves.default_window(min(len(pair.tokens) for pair in pairs))
    best = {"window": window, "gap": -math.inf, "tokens": math.nan, "label": "", "seeds": math.nan}
    for pair in pairs:
        smoothed = full_windows(pair.gap, window)
        top = int(np.argmax(smoothed))
        if smoothed[top] > best["gap"]:
            best.update(gap=float(smoothed[top]), tokens=float(pair.tokens[top + window // 2]), label=pair.label)
    distances = []
    for i, first in enumerate(baseline.runs):
        for second in baseline.runs[i + 1 :]:
            _, a, b, _ = curves.align(first, second)
            distances.append(float(np.max(np.abs(full_windows(b - a, window)))))
    if distances:
        best["seeds"] = max(distances)
    return best


def full_windows(values, window):
    """The moving average without incomplete windows: at the ends it would be as noisy as a single step."""
    return np.convolve(values, np.full(min(window, len(values)), 1 / min(window, len(values))), mode="valid")


def gap_by_tenths(pairs):
    """Shows whether a gap grows. {"training", "validation"}: the mean over pairs of the gap in each tenth of a pair's
    common tokens (mean of training losses, last validation loss). NaN if a pair has none there."""
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
    """The values in each tenth of the pair's tokens; the last tenth equals curves.tail_mask()."""
    first, last = pair.tokens[0], pair.tokens[-1]
    edges = last - np.linspace(0.9, 0.1, 9) * (last - first)
    return np.split(values, np.searchsorted(tokens, edges))


def seed_spread(arm):
    """(standard deviation of the last tenth's loss over an arm's seeds in nats, or NaN for one run; number of runs)."""
    runs, _ = without_short(arm.runs)
    if len(runs) < 2:
        return math.nan, len(runs)
    end = curves.common_end(runs)
    return float(np.std([tail_loss(curves.until(run, end)) for run in runs], ddof=1)), len(runs)


def tail_loss(run):
    return float(run.loss[curves.tail_mask(run.tokens)].mean())
