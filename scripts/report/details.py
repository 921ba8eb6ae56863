"""Other contents of a report: gradient norms, FP8 statistics, speed, memory, differing config keys."""

import math

import numpy as np

from . import curves, runs

# ---- Gradient norms ----------------------------------------------------------------------------------------


def gradients(run):
    """Median and 95th percentile of the last tenth, and the number of spikes of the whole run: norms above five times the
    median of the 51 points around them. None if no norms were logged."""
    norms = run.grad_norm
    if len(norms) != len(run.tokens) or not np.isfinite(norms).any():
        return None
    tail = norms[curves.tail_mask(run.tokens)]
    tail = tail[np.isfinite(tail)]
    if not len(tail):
        return None
    around = running_median(np.where(np.isfinite(norms), norms, np.nanmedian(norms)), 51)
    spikes = int(np.sum(norms > 5 * around))
    return {"median": float(np.median(tail)), "p95": float(np.quantile(tail, 0.95)), "spikes": spikes}


def running_median(values, window):
    half = window // 2
    padded = np.pad(values, half, mode="edge")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1)


# ---- FP8 statistics --------------------------------------------------------------------------------------------

_KNOWN = {"layer", "linear", "role", "format", "amax", "scale", "saturated", "flushed"}


def fp8_health(run):
    """From metrics.jsonl: {"tokens", "saturated", "flushed": maximum over the operands of each record,
    "after_start": the records after the first 5% of the run's tokens, "counts": of all operands' records, as
    health_counts() returns}. None if there are no records."""
    file = run.folder / "metrics.jsonl" if run.folder else None
    if not file or not file.is_file():
        return None
    by_tokens = {}
    for _, record in runs.json_lines(file):
        if record.get("fp8") and "consumed_tokens" in record:
            by_tokens[float(record["consumed_tokens"])] = record["fp8"]
    if not by_tokens:
        return None
    tokens = np.array(sorted(by_tokens))
    after_start = [by_tokens[t] for t in tokens if t >= curves.end_of_start(run.tokens)]
    return {
        "tokens": tokens,
        **{
            key: np.array([max(x.get(key) or 0.0 for x in by_tokens[t]) for t in tokens])
            for key in ("saturated", "flushed")
        },
        "after_start": after_start,
        "counts": {
            "operand_records": sum(len(record) for record in by_tokens.values()),
            "saturated": _count(by_tokens, "saturated"),
            "requantized": _count(by_tokens, "recast"),
        },
    }


def _count(by_tokens, key):
    return sum(bool(x.get(key)) for record in by_tokens.values() for x in record)


def health_counts(found):
    """{"operand_records": number of operands' records in all runs, "saturated", "requantized": number of these with a
    saturated value, or that were requantized}; None without records."""
    keys = ("operand_records", "saturated", "requantized")
    return {key: sum(health["counts"][key] for health in found) for key in keys} if found else None


def worst_operands(records, count=5):
    """[(linear, role, format, largest saturated fraction, largest flushed fraction)], most saturated first."""
    found = {}
    for record in records:
        for x in record:
            key = (x.get("linear", "?"), x.get("role", "?"), x.get("format", "?"))
            saturated, flushed = found.get(key, (0.0, 0.0))
            found[key] = (max(saturated, x.get("saturated") or 0.0), max(flushed, x.get("flushed") or 0.0))
    ordered = sorted(found.items(), key=lambda item: item[1], reverse=True)
    return [(*key, *shares) for key, shares in ordered[:count]]


def other_numbers(records):
    """{name: (minimum, median, maximum)} of the operands' other numbers in the records."""
    values = {}
    for record in records:
        for x in record:
            for name, value in x.items():
                if name not in _KNOWN and isinstance(value, (int, float)) and not isinstance(value, bool):
                    values.setdefault(name, []).append(float(value))
    return {name: tuple(np.quantile(v, [0, 0.5, 1])) for name, v in sorted(values.items())}


# ---- Speed -------------------------------------------------------------------------------------------------


def speed(run):
    """Median step time and tokens/s after the first 5% of the logged steps, and the time of all steps. None if unknown."""
    if len(run.step_ms) != len(run.tokens) or not np.isfinite(run.step_ms).any():
        return None
    first = min(len(run.step_ms) - 1, math.ceil(len(run.step_ms) / 20))
    first = first if np.isfinite(run.step_ms[first:]).any() else 0
    return {
        "step_ms": float(np.nanmedian(run.step_ms[first:])),
        "tokens_per_s": float(np.nanmedian((tokens_of_steps(run) / run.step_ms)[first:])) * 1e3,
        "hours": float(run.seconds[-1]) / 3600,
        "memory": run.record.get("planned_bytes"),
    }


def tokens_of_steps(run):
    """Tokens of one step at each record: from the records, because a resume may change the batch size. In logs without
    steps from the config, because logs may skip steps; else the smallest distance of two records."""
    if knows_steps(run) and len(run.tokens) > 1:
        each = np.diff(run.tokens) / np.diff(run.steps)
        return np.concatenate([each[:1], each])
    try:
        per_step = int(run.config["training.global_batch_size"]) * int(run.config["model.seq_length"])
    except (KeyError, ValueError):
        per_step = float(np.diff(run.tokens, prepend=0.0).min())
    return np.full(len(run.tokens), float(per_step))


def knows_steps(run):
    return len(run.steps) == len(run.tokens) and bool(np.isfinite(run.steps).all() and (np.diff(run.steps) > 0).all())


def tokens_at(run, steps):
    """Consumed tokens after each of the steps, which may lie between the records, before, or after them."""
    per_step = tokens_of_steps(run)
    if not knows_steps(run):
        return steps * per_step[0]
    before, after = np.minimum(steps - run.steps[0], 0.0), np.maximum(steps - run.steps[-1], 0.0)
    return np.interp(steps, run.steps, run.tokens) + before * per_step[0] + after * per_step[-1]


def time_to_equal_loss(pair, window=None):
    """The seconds that each run of a pair needed to reach the lowest smoothed loss that both reach: {"loss", "baseline",
    "run", "speedup"}. None if times are unknown, or if a run has no lower loss than at its start."""
    sides = []
    for run, seconds in zip((pair.baseline, pair.run), common_times(pair)):
        if len(seconds) != len(run.tokens) or not np.isfinite(seconds).all():
            return None
        sides.append((seconds, curves.smooth(run.loss, window or curves.default_window(len(run.loss)))))
    target = max(float(loss.min()) for _, loss in sides)
    if any(loss[0] <= target for _, loss in sides):
        return None
    times = [first_time_at(seconds, loss, target) for seconds, loss in sides]
    return {"loss": target, "baseline": times[0], "run": times[1], "speedup": times[0] / times[1]}


def common_times(pair):
    """The seconds of both runs; of branches from one step since that step."""
    sides = (pair.baseline, pair.run)
    starts = {run.steps[0] if knows_steps(run) and np.isnan(run.seconds).all() else None for run in sides}
    if len(starts) == 1 and None not in starts:
        return [runs.wall_clock(run.steps, run.step_ms, runs.log_every(run.record), run.steps[0] - 1) for run in sides]
    return [run.seconds for run in sides]


def first_time_at(seconds, loss, target):
    """The time at which the curve first reaches `target`, interpolated linearly."""
    at = int(np.flatnonzero(loss <= target)[0])
    if at == 0 or loss[at - 1] == loss[at]:
        return float(seconds[at])
    share = (loss[at - 1] - target) / (loss[at - 1] - loss[at])
    return float(seconds[at - 1] + share * (seconds[at] - seconds[at - 1]))


# ---- Config ------------------------------------------------------------------------------------------------

_OWN_TO_EACH = {
    "logging.directory",
    "checkpoint.directory",
    "checkpoint.resume",
    "training.seed",
    "training.device_index",
}


def emulated_recipes(arm):
    """The recipes that the arm's runs emulate, separated by commas; empty if there are none."""
    return ", ".join(sorted({run.record["emulated"] for run in arm.runs if run.record.get("emulated")}))


def differing_keys(baseline, arm):
    """[(key, the baseline's values, the arm's)] of differing keys, except keys that differ in every run."""
    values = []
    for side in (baseline, arm):
        if any(not run.config for run in side.runs):
            return None
        values.append(
            {key: sorted({run.config.get(key, "-") for run in side.runs}) for run in side.runs for key in run.config}
        )
    keys = sorted((values[0].keys() | values[1].keys()) - _OWN_TO_EACH)
    return [
        (key, ", ".join(values[0].get(key, ["-"])), ", ".join(values[1].get(key, ["-"])))
        for key in keys
        if values[0].get(key) != values[1].get(key)
    ]


def other_differences(baseline, arm):
    """Lines about other differences, of the arms or of pairs of equal seed: version, commit, device, ranks."""
    lines = []
    of_seed = {run.seed: run for run in baseline.runs if run.seed is not None}
    pairs = [(of_seed[run.seed], run) for run in arm.runs if run.seed in of_seed]
    for name in ("version", "commit", "device", "ranks"):
        found = [_values(name, side.runs) for side in (baseline, arm)]
        if found[0] and found[1] and found[0] != found[1]:
            lines.append(f"{name}: {', '.join(found[0])} in {baseline.name}, {', '.join(found[1])} in {arm.name}")
            continue
        sides = [(run.seed, _values(name, [base]), _values(name, [run])) for base, run in pairs]
        seeds = [str(seed) for seed, first, second in sides if first and second and first != second]
        if seeds:
            lines.append(f"{name}: {' or '.join(found[0])}, not the same in the pairs of seed {', '.join(seeds)}")
    return lines


def _values(name, of_runs):
    """The values of all starts of the runs, as text."""
    return sorted({str(start.get(name, "")) for run in of_runs for start in run.record.get("starts", [])})


def lost_moments(*sides):
    """The number of runs that resumed without Adam moments after their first start, which may be meant to have none."""
    runs_of_sides = [run for side in sides for run in side]
    return sum(bool(_zero_moments(run, slice(1, None)) - _zero_moments(run, slice(1))) for run in runs_of_sides)


def _zero_moments(run, which):
    """The steps after which these starts began with zero moments."""
    starts = run.record.get("starts", [])[which]
    return {start["zero_moments_after"] for start in starts if "zero_moments_after" in start}
