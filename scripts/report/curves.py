"""Comparison of two curves: alignment, smoothing, gaps, and the noise band of seeds."""

import dataclasses
import math

import numpy as np

from . import UserError


def align(baseline, run):
    """(tokens, baseline's losses, run's losses, exact) at common token counts. If the runs log at different counts
    (another batch size, or a rollback), the run is interpolated at the baseline's counts in the common range."""
    common, at_baseline, at_run = np.intersect1d(baseline.tokens, run.tokens, return_indices=True)
    if _are_enough(common, baseline, run):
        return common, baseline.loss[at_baseline], run.loss[at_run], True
    inside = (baseline.tokens >= run.tokens[0]) & (baseline.tokens <= run.tokens[-1])
    if not inside.any():
        raise UserError(
            f"{run.label}: shares no range of consumed_tokens with {baseline.label}; compare runs that overlap"
        )
    tokens = baseline.tokens[inside]
    return tokens, baseline.loss[inside], np.interp(tokens, run.tokens, run.loss), False


def _are_enough(common, baseline, run):
    """Whether the common records are half of a run's, in all and in the last tenth, and reach the common end."""
    sides = (baseline.tokens, run.tokens)
    if 2 * len(common) < min(map(len, sides)):
        return False
    end = common_end([baseline, run])
    first = end - 0.1 * (end - max(side[0] for side in sides))
    tails = [tokens[(tokens >= first) & (tokens <= end)] for tokens in (common, *sides)]
    return 2 * len(tails[0]) >= min(map(len, tails[1:])) and common[-1] >= min(side[side <= end][-1] for side in sides)


def smooth(values, window):
    """Centered moving average over up to `window` points. At the steep start the window narrows symmetrically; at the flat
    end it only loses the points that do not exist, so that the end stays smooth."""
    values = np.asarray(values, float)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    left = np.minimum((window - 1) // 2, index)
    right = np.minimum(left, len(values) - 1 - index)
    return (sums[index + right + 1] - sums[index - left]) / (left + right + 1)


def default_window(points):
    """About 3% of the points, odd."""
    return max(1, points // 30) | 1


def tail_mask(tokens):
    """Mask of the points in the last 10% of the tokens; at least one."""
    return tokens >= tokens[-1] - 0.1 * (tokens[-1] - tokens[0])


def end_of_start(tokens):
    """The token count at which the first 5% of a run's tokens end."""
    return tokens[0] + 0.05 * (tokens[-1] - tokens[0])


def last_common_valid(baseline, run):
    """(baseline's validation loss, run's, tokens) at the last token count where both have one; NaN if there is none."""
    common, at_baseline, at_run = np.intersect1d(baseline.valid_tokens, run.valid_tokens, return_indices=True)
    if len(common) == 0:
        return math.nan, math.nan, math.nan
    return float(baseline.valid_loss[at_baseline[-1]]), float(run.valid_loss[at_run[-1]]), float(common[-1])


def compare(baseline, run, window=None):
    """All numbers of one run compared with the baseline; gaps are fractions."""
    tokens, base, other, exact = align(baseline, run)
    window = window or default_window(len(tokens))
    gap = other / base - 1.0
    smoothed = smooth(other, window) / smooth(base, window) - 1.0
    tail = tail_mask(tokens)
    base_valid, run_valid, valid_tokens = last_common_valid(baseline, run)
    return {
        "label": run.label,
        "points": len(tokens),
        "exact_alignment": exact,
        "skipped_steps": run.skipped,
        "diverged": run.diverged and not baseline.diverged,
        "tokens": float(tokens[-1]),
        "smooth": window,
        "final_loss": float(np.mean(other[-window:])),
        "baseline_final_loss": float(np.mean(base[-window:])),
        "valid_loss": run_valid,
        "baseline_valid_loss": base_valid,
        "valid_tokens": valid_tokens,
        "valid_gap": run_valid / base_valid - 1.0,
        "mean_gap": float(np.mean(gap)),
        "mean_abs_gap": float(np.mean(np.abs(gap))),
        "max_abs_gap": float(np.max(np.abs(gap))),
        "max_abs_gap_tokens": float(tokens[np.argmax(np.abs(gap))]),
        "max_abs_smoothed_gap": float(np.max(np.abs(smoothed))),
        "last_tenth_gap": float(np.mean(other[tail]) / np.mean(base[tail]) - 1.0),
        "curves": {"tokens": tokens, "gap": gap, "smoothed_gap": smoothed, "baseline": base, "run": other},
    }


def band_of(gaps, kind, sigmas):
    """(low, high) of gaps [runs] or [runs, points], including the baseline itself (gap 0)."""
    gaps = np.asarray(gaps, float)
    if kind == "minmax":
        return gaps.min(axis=0), gaps.max(axis=0)
    mean, sigma = gaps.mean(axis=0), gaps.std(axis=0, ddof=1)
    return mean - sigmas * sigma, mean + sigmas * sigma


def until(run, tokens):
    """The run up to `tokens` tokens."""
    kept, valid = run.tokens <= tokens, run.valid_tokens <= tokens
    series = {
        name: getattr(run, name)[kept]
        for name in ("tokens", "loss", "grad_norm", "step_ms", "seconds", "steps")
        if len(getattr(run, name)) == len(run.tokens)
    }
    return dataclasses.replace(run, valid_tokens=run.valid_tokens[valid], valid_loss=run.valid_loss[valid], **series)


def common_end(runs):
    """The largest token count that all runs have reached."""
    return min(float(run.tokens[-1]) for run in runs)


def same_length(runs):
    """(runs up to the end of the shortest, whether any was shortened). Runs that do not overlap are not changed."""
    end = common_end(runs)
    if any(run.tokens[0] > end for run in runs):
        return list(runs), False
    return [until(run, end) for run in runs], any(run.tokens[-1] > end for run in runs)


def common_valid_tokens(runs):
    """The last token count at which all runs with validation have a validation loss; None if there is none."""
    points = [run.valid_tokens for run in runs if len(run.valid_tokens)]
    common = points[0] if points else []
    for other in points[1:]:
        common = np.intersect1d(common, other)
    return float(common[-1]) if len(common) else None


def noise_band(baseline, seeds, window=None, kind="sigma", sigmas=2.0, end=None):
    """The noise band of the baseline and its runs with other seeds, relative to the baseline: for the smoothed curve, for
    the last 10% and, if all runs have one, for the validation loss. `end`: use the tokens up to there, so that a shorter
    run is compared with seeds over the same tokens."""
    if end is not None:
        if short := [seed.label for seed in seeds if seed.tokens[-1] < 0.9 * end]:
            raise UserError(f"--band: {', '.join(short)}: ended before 90% of the compared tokens; leave it out")
        end = max(end, *(float(run.tokens[0]) for run in [baseline, *seeds]))
        baseline, seeds = until(baseline, end), [until(seed, end) for seed in seeds]
    results = [compare(baseline, seed, window) for seed in seeds]
    tokens = results[0]["curves"]["tokens"]
    for result in results[1:]:
        tokens = np.intersect1d(tokens, result["curves"]["tokens"])
    if len(tokens) == 0:
        raise UserError("--band: the runs share no range of consumed_tokens; give runs of equal length")
    curves = [np.zeros(len(tokens))]
    curves += [np.interp(tokens, r["curves"]["tokens"], r["curves"]["smoothed_gap"]) for r in results]
    # The pointwise spread of a few runs is noisy, so it is smoothed, too.
    low, high = (smooth(edge, 3 * results[0]["smooth"]) for edge in band_of(curves, kind, sigmas))
    band = {
        "runs": len(seeds) + 1,
        "kind": kind,
        "sigmas": sigmas,
        "tokens": float(tokens[-1]),
        "last_tenth": [float(v) for v in band_of([0.0] + [r["last_tenth_gap"] for r in results], kind, sigmas)],
        "seeds": results,
        "curves": {"tokens": tokens, "low": low, "high": high},
    }
    if all(math.isfinite(r["valid_gap"]) for r in results):
        band["valid"] = [float(v) for v in band_of([0.0] + [r["valid_gap"] for r in results], kind, sigmas)]
    return band


def verdicts(result, band):
    """{"last_tenth": bool, "valid": bool}: whether the run's gap is inside the band, which no gap of a diverged run is.
    Keys without data are missing; "valid", too, unless all validations are at one token count in the last tenth."""
    answer, late = {}, result["valid_tokens"] >= 0.9 * result["tokens"]
    late = late and all(seed["valid_tokens"] == result["valid_tokens"] for seed in band["seeds"])
    for key, gap in (("last_tenth", result["last_tenth_gap"]), ("valid", result["valid_gap"] if late else math.nan)):
        if key in band and math.isfinite(gap):
            answer[key] = not result["diverged"] and band[key][0] <= gap <= band[key][1]
    return answer
