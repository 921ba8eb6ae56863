"""Reads te-train's loss logs and compares them: the arithmetic behind compare_loss.py, without any output."""

import csv
import dataclasses
import math
from pathlib import Path

import numpy as np


class UserError(Exception):
    """A mistake that the user can mend; printed as one line, exit code 2."""


# ---- Reading -----------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Run:
    label: str
    tokens: np.ndarray  # consumed tokens, strictly rising
    loss: np.ndarray  # finite
    valid_tokens: np.ndarray
    valid_loss: np.ndarray
    dropped: int = 0  # rows without a finite loss (skipped steps)


def run_file(path):
    """The CSV file that a RUN argument means."""
    path = Path(path)
    file = path / "loss.csv" if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{file}: no such file; give a run folder with a loss.csv, or a CSV file")
    return file


def read_run(path, label=None):
    file = run_file(path)
    with open(file, newline="", encoding="utf-8", errors="replace") as stream:
        rows = list(csv.reader(stream))
    if not rows:
        raise UserError(f"{file}: is empty; wait for the run's first step")
    header = [name.strip() for name in rows[0]]
    for column in ("consumed_tokens", "loss"):
        if column not in header:
            raise UserError(
                f"{file}: column {column} is missing (found: {', '.join(header)}); give te-train's loss.csv"
            )
    points, valid, dropped = {}, {}, 0
    for number, row in enumerate(rows[1:], start=2):
        if not row or (number == len(rows) and len(row) < len(header)):
            continue  # an empty line, or the last one of a run that is still writing
        if len(row) != len(header):
            raise UserError(
                f"{file}: line {number}: {len(row)} fields where the header has {len(header)}; mend the line"
            )
        fields = dict(zip(header, row))
        tokens = parse_number(file, number, "consumed_tokens", fields["consumed_tokens"])
        loss = parse_number(file, number, "loss", fields["loss"])
        valid_loss = parse_number(file, number, "valid_loss", fields.get("valid_loss", ""))
        if not math.isfinite(tokens):
            raise UserError(f"{file}: line {number}: consumed_tokens is empty; mend the line")
        if math.isfinite(valid_loss):
            valid[tokens] = valid_loss
        if math.isfinite(loss):
            points[tokens] = loss  # a resumed run repeats steps: the last word counts
        else:
            dropped += 1
    if not points:
        raise UserError(f"{file}: has no row with a finite loss; wait for the run's first step")
    tokens, valid_tokens = sorted(points), sorted(valid)
    return Run(
        label or default_label(file),
        np.array(tokens, float),
        np.array([points[t] for t in tokens]),
        np.array(valid_tokens, float),
        np.array([valid[t] for t in valid_tokens]),
        dropped,
    )


def parse_number(file, line, column, text):
    """NaN for an empty field."""
    if not text.strip():
        return math.nan
    try:
        return float(text)
    except ValueError:
        raise UserError(
            f"{file}: line {line}: {column} is {text!r}, must be a number; mend the line"
        ) from None


def default_label(file):
    return (file.resolve().parent.name or file.stem) if file.name == "loss.csv" else file.stem


# ---- Arithmetic --------------------------------------------------------------------------------------------


def align(baseline, run):
    """(tokens, baseline's losses, run's losses, exact). At common token counts; where the runs log at
    different ones (another batch size), the run is interpolated at the baseline's where both have points."""
    common, at_baseline, at_run = np.intersect1d(baseline.tokens, run.tokens, return_indices=True)
    if 2 * len(common) >= min(len(baseline.tokens), len(run.tokens)):
        return common, baseline.loss[at_baseline], run.loss[at_run], True
    inside = (baseline.tokens >= run.tokens[0]) & (baseline.tokens <= run.tokens[-1])
    if not inside.any():
        raise UserError(
            f"{run.label}: shares no range of consumed_tokens with {baseline.label}; compare runs that overlap"
        )
    tokens = baseline.tokens[inside]
    return tokens, baseline.loss[inside], np.interp(tokens, run.tokens, run.loss), False


def smooth(values, window):
    """Centred moving average over up to `window` points. At the steep start it narrows symmetrically, at the
    flat end it loses only the points that do not exist, so that the end stays smooth."""
    values = np.asarray(values, float)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    left = np.minimum((window - 1) // 2, index)
    right = np.minimum(left, len(values) - 1 - index)
    return (sums[index + right + 1] - sums[index - left]) / (left + right + 1)


def default_window(points):
    """About 3 % of the curve, odd."""
    return max(1, points // 30) | 1


def tail_mask(tokens):
    """The points of the last 10 % of the tokens; at least one."""
    return tokens >= tokens[-1] - 0.1 * (tokens[-1] - tokens[0])


def last_common_valid(baseline, run):
    """Validation losses of both at the last token count where both have one, or (nan, nan)."""
    common, at_baseline, at_run = np.intersect1d(baseline.valid_tokens, run.valid_tokens, return_indices=True)
    if len(common) == 0:
        return math.nan, math.nan
    return float(baseline.valid_loss[at_baseline[-1]]), float(run.valid_loss[at_run[-1]])


def compare(baseline, run, window=None):
    """All numbers about one run against the baseline; gaps are fractions."""
    tokens, base, other, exact = align(baseline, run)
    window = window or default_window(len(tokens))
    gap = other / base - 1.0
    smoothed = smooth(other, window) / smooth(base, window) - 1.0
    tail = tail_mask(tokens)
    base_valid, run_valid = last_common_valid(baseline, run)
    return {
        "label": run.label,
        "points": len(tokens),
        "exact_alignment": exact,
        "skipped_steps": run.dropped,
        "tokens": float(tokens[-1]),
        "smooth": window,
        "final_loss": float(np.mean(other[-window:])),
        "baseline_final_loss": float(np.mean(base[-window:])),
        "valid_loss": run_valid,
        "baseline_valid_loss": base_valid,
        "valid_gap": run_valid / base_valid - 1.0,
        "mean_gap": float(np.mean(gap)),
        "mean_abs_gap": float(np.mean(np.abs(gap))),
        "max_abs_gap": float(np.max(np.abs(gap))),
        "max_abs_gap_tokens": float(tokens[np.argmax(np.abs(gap))]),
        "max_abs_smoothed_gap": float(np.max(np.abs(smoothed))),
        "last_tenth_gap": float(np.mean(other[tail]) / np.mean(base[tail]) - 1.0),
        "curves": {"tokens": tokens, "gap": gap, "smoothed_gap": smoothed},
    }


def band_of(gaps, kind, sigmas):
    """(low, high) of gaps [runs] or [runs, points]; one of the runs is the baseline itself (gap 0)."""
    gaps = np.asarray(gaps, float)
    if kind == "minmax":
        return gaps.min(axis=0), gaps.max(axis=0)
    mean, sigma = gaps.mean(axis=0), gaps.std(axis=0, ddof=1)
    return mean - sigmas * sigma, mean + sigmas * sigma


def noise_band(baseline, seeds, window=None, kind="sigma", sigmas=2.0):
    """The band of the baseline and its repetitions under other seeds, relative to the baseline: over the curve
    (smoothed), for the last 10 % and, where every run has one, for the validation loss."""
    results = [compare(baseline, seed, window) for seed in seeds]
    tokens = results[0]["curves"]["tokens"]
    for result in results[1:]:
        tokens = np.intersect1d(tokens, result["curves"]["tokens"])
    if len(tokens) == 0:
        raise UserError("--band: the runs share no range of consumed_tokens; give runs of equal length")
    curves = [np.zeros(len(tokens))]
    curves += [np.interp(tokens, r["curves"]["tokens"], r["curves"]["smoothed_gap"]) for r in results]
    # A spread estimated point by point from a few runs jumps; it is smoothed in turn.
    low, high = (smooth(edge, 3 * results[0]["smooth"]) for edge in band_of(curves, kind, sigmas))
    band = {
        "runs": len(seeds) + 1,
        "kind": kind,
        "sigmas": sigmas,
        "last_tenth": [
            float(v) for v in band_of([0.0] + [r["last_tenth_gap"] for r in results], kind, sigmas)
        ],
        "seeds": results,
        "curves": {"tokens": tokens, "low": low, "high": high},
    }
    if all(math.isfinite(r["valid_gap"]) for r in results):
        band["valid"] = [float(v) for v in band_of([0.0] + [r["valid_gap"] for r in results], kind, sigmas)]
    return band


def verdicts(result, band):
    """{"last_tenth": bool, "valid": bool}: is the run's gap inside the band? Absent where it cannot be said."""
    answer = {}
    for key, gap in (("last_tenth", result["last_tenth_gap"]), ("valid", result["valid_gap"])):
        if key in band and math.isfinite(gap):
            answer[key] = band[key][0] <= gap <= band[key][1]
    return answer
