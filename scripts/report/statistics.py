"""Intervals and tests for gaps between runs. The documentation of each function states its assumptions.

All gaps are candidate minus baseline, in the unit of the caller (nats, fractions)."""

import dataclasses
import math

import numpy as np
from scipy import special

CONFIDENCE = 0.95  # of all intervals; tests reject at 1 - CONFIDENCE
POWER = 0.8  # of the minimum detectable gap


def t_quantile(probability, df):
    return float(special.stdtrit(df, probability))


def t_tail(t, df):
    """P(T > t) of Student's t."""
    return float(special.stdtr(df, -t))


@dataclasses.dataclass
class Estimate:
    """A mean with its standard error and degrees of freedom, as needed by the tests below."""

    mean: float
    error: float  # standard error of the mean
    df: float
    runs: int  # pairs, or runs of the smaller arm
    spread: float  # standard deviation of one pair's gap

    def interval(self, confidence=CONFIDENCE):
        """Student's t interval. Assumes that the gaps of pairs are independent and approximately normal."""
        half = t_quantile(0.5 + confidence / 2, self.df) * self.error
        return self.mean - half, self.mean + half

    def difference_p(self):
        """Two-sided p-value of "the true gap is 0"."""
        if self.error == 0:
            return 1.0 if self.mean == 0 else 0.0
        return 2 * t_tail(abs(self.mean) / self.error, self.df)

    def equivalence_p(self, tolerance):
        """TOST: the p-value of "the true gap is at least `tolerance` in size", the larger of two one-sided tests. It is
        below (1 - confidence) / 2 exactly if the interval of that confidence lies within the `tolerance`."""
        if self.error == 0:
            return 0.0 if abs(self.mean) < tolerance else 1.0
        return t_tail((tolerance - abs(self.mean)) / self.error, self.df)

    def beyond_p(self, tolerance):
        """One-sided p-value of "the true gap is within the tolerance": small if it certainly is not."""
        if self.error == 0:
            return 0.0 if abs(self.mean) > tolerance else 1.0
        return t_tail((abs(self.mean) - tolerance) / self.error, self.df)

    def smallest_gap(self, confidence=CONFIDENCE, power=POWER):
        """The minimum detectable gap: the true gap that the two-sided test finds with probability `power` (noncentral t)."""
        if self.error == 0:
            return 0.0
        critical = t_quantile(0.5 + confidence / 2, self.df)
        # nctdtr(df, nc, x) decreases with nc; the other tail is negligible at this distance.
        low, high = 0.0, critical + 50.0
        while special.nctdtr(self.df, high, critical) > 1 - power:
            high *= 2
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if special.nctdtr(self.df, middle, critical) > 1 - power else (low, middle)
        return (low + high) / 2 * self.error


def paired(gaps):
    """The Estimate of at least two paired gaps."""
    gaps = np.asarray(gaps, float)
    spread = float(gaps.std(ddof=1))
    return Estimate(float(gaps.mean()), spread / math.sqrt(len(gaps)), len(gaps) - 1, len(gaps), spread)


def unpaired(baseline, candidate):
    """Welch's Estimate: runs without matching seeds and with unequal spread; at least two per arm."""
    baseline, candidate = np.asarray(baseline, float), np.asarray(candidate, float)
    parts = [values.var(ddof=1) / len(values) for values in (baseline, candidate)]
    error = math.sqrt(sum(parts))
    degrees = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (baseline, candidate)))
    df = sum(parts) ** 2 / degrees if degrees > 0 else len(baseline) + len(candidate) - 2
    spread = math.sqrt(baseline.var(ddof=1) + candidate.var(ddof=1))
    mean = float(candidate.mean() - baseline.mean())
    return Estimate(mean, error, float(df), min(len(baseline), len(candidate)), spread)


def runs_needed(mean, spread, tolerance, confidence=CONFIDENCE, max_pairs=1000):
    """The number of pairs with which the interval would lie within the `tolerance`, if mean and spread stay the
    same. None if the mean is not within it, or if more than `max_pairs` would be needed."""
    if abs(mean) >= tolerance:
        return None
    for pairs in range(2, max_pairs + 1):
        if t_quantile(0.5 + confidence / 2, pairs - 1) * spread / math.sqrt(pairs) <= tolerance - abs(mean):
            return pairs
    return None


def autocorrelation(values):
    """Autocorrelation at lags 0, 1, ...; all 0 after lag 0 for constant values."""
    values = np.asarray(values, float) - np.mean(values)
    size = 1 << (2 * len(values) - 1).bit_length()
    spectrum = np.fft.rfft(values, size)
    products = np.fft.irfft(spectrum * spectrum.conj(), size)[: len(values)]
    if products[0] <= 1e-30:
        return np.eye(1, len(values))[0]
    return products / products[0]


def block_length(values):
    """Points of a bootstrap block: the cube root of their number, or the lag at which the autocorrelation falls below
    2 / sqrt(n), if larger; at most a quarter of the points."""
    count = len(values)
    quiet = np.flatnonzero(autocorrelation(values) < 2 / math.sqrt(count))
    reach = int(quiet[0]) if len(quiet) else count
    return max(1, min(max(round(count ** (1 / 3)), reach), count // 4))


def block_bootstrap(values, confidence=CONFIDENCE, repetitions=2000, block=None, seed=0):
    """(low, high) of the mean of an autocorrelated series: percentiles of a circular block bootstrap. It covers noise
    between steps of one pair of runs, not noise between seeds."""
    values = np.asarray(values, float)
    count, block = len(values), block or block_length(values)
    draws = np.random.default_rng(seed).integers(0, count, (repetitions, -(-count // block)))
    sums = np.cumsum(np.concatenate([[0.0], values, values]))
    full = (sums[draws + block] - sums[draws])[:, :-1].sum(axis=1)
    rest = count - (draws.shape[1] - 1) * block  # the last block is shortened so that every sample has `count` points
    means = (full + sums[draws[:, -1] + rest] - sums[draws[:, -1]]) / count
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def mcnemar(only_first, only_second):
    """Exact two-sided p-value for items that only one of two models answers correctly. Null hypothesis: both are equally
    likely to be the one."""
    total, fewer = only_first + only_second, min(only_first, only_second)
    return min(1.0, 2 * float(special.bdtr(fewer, total, 0.5))) if total else 1.0


def paired_documents(differences, weights=None, confidence=CONFIDENCE):
    """(mean, low, high, p) of sum(differences) / sum(weights) over documents that both models have evaluated: Student's t
    with the standard error of a ratio, as in `te-generate evaluate --compare`. It covers the choice of documents for these
    two models, not the choice of seeds. One document has no interval."""
    differences = np.asarray(differences, float)
    weights = np.ones(len(differences)) if weights is None else np.asarray(weights, float)
    count, mean = len(differences), float(differences.sum() / weights.sum())
    if count < 2:
        return mean, math.nan, math.nan, math.nan
    squares = float(np.sum((differences - mean * weights) ** 2))
    error = math.sqrt(count / (count - 1) * squares) / float(weights.sum())
    estimate = Estimate(mean, error, count - 1, count, error * math.sqrt(count))
    return mean, *estimate.interval(confidence), estimate.difference_p()
