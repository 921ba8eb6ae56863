"""FP8 records of runs: fp8_statistics.jsonl (logging.fp8_statistics_every), and the guard's comparisons with BF16 in
metrics.jsonl (guard.every)."""

import math

import numpy as np

from . import curves, details, runs

TRIED = " (tried)"  # suffix of recipes that the run only evaluated (logging.fp8_what_if)

# ---- FP8 statistics ----------------------------------------------------------------------------------------


class Fp8Statistics:
    """FP8 statistics of one run. `tokens` belong to the records, `end_of_start` is curves.end_of_start() of the run;
    the other arrays have one value per record, NaN if a record has none."""

    def __init__(self, tokens, end_of_start, records):
        self.tokens = tokens
        self.end_of_start = end_of_start
        self.records = records
        own = [[x for x in record["operands"] if is_own_quantization(x)] for record in records]
        self.lowest_sqnr = np.array([lowest(x.get("sqnr_db") for x in quantizations) for quantizations in own])
        self.saturated = np.array([highest(x.get("saturated") for x in quantizations) for quantizations in own])
        self.flushed = np.array([highest(x.get("flushed") for x in quantizations) for quantizations in own])
        self.fc2_amax = np.array([highest(map(fc2_input_amax, record["operands"])) for record in records])
        self.alignment = np.array([highest(x.get("mean") for x in record.get("swiglu", [])) for record in records])
        self._own = own

    def worst_quantizations(self, count):
        """[(linear, role, form)] of the run's own quantizations, sorted by their lowest SQNR after the first 5% of the tokens."""
        worst = {}
        for quantizations in self.after_start(self._own):
            for x in quantizations:
                value = number(x.get("sqnr_db"))
                if math.isfinite(value):
                    worst[key_of(x)] = min(value, worst.get(key_of(x), math.inf))
        return sorted(worst, key=worst.get)[:count]

    def of_quantization(self, key, name):
        """A number of one of the run's own quantizations, per record."""
        found = [next((x for x in quantizations if key_of(x) == key), {}) for quantizations in self._own]
        return np.array([number(x.get(name)) for x in found])

    def recipes(self):
        """{recipe: (lowest SQNR of any operand, median)} of the run's own quantizations and of the recipes that were only evaluated."""
        values = {}
        for record in self.after_start(self.records):
            for x in record["operands"]:
                if x.get("recipe", "none") != "none" and math.isfinite(number(x.get("sqnr_db"))):
                    name = x["recipe"] + (TRIED if x.get("what_if") else "")
                    values.setdefault(name, []).append(x["sqnr_db"])
        return {name: (min(v), float(np.median(v))) for name, v in values.items()}

    def after_start(self, items):
        """The items after the first 5% of the run's tokens."""
        return [item for tokens, item in zip(self.tokens, items) if tokens >= self.end_of_start]


def fp8_statistics(run):
    """The run's FP8 statistics; None if it recorded none."""
    file = run.folder / "fp8_statistics.jsonl" if run.folder else None
    if not file or not file.is_file():
        return None
    # A step that is repeated after a resume is recorded again.
    by_step = {r["step"]: r for _, r in runs.json_lines(file) if isinstance(r.get("operands"), list) and "step" in r}
    if not by_step:
        return None
    steps = sorted(by_step)
    tokens = details.tokens_at(run, np.array(steps, float))
    return Fp8Statistics(tokens, curves.end_of_start(run.tokens), [by_step[s] for s in steps])


def is_own_quantization(x):
    return x.get("recipe", "none") != "none" and not x.get("what_if")


def key_of(x):
    return (x.get("linear", "?"), x.get("role", "?"), x.get("form", "both"))


def fc2_input_amax(x):
    """The amax of a linear_fc2 input; it does not depend on the recipe."""
    return x.get("amax") if x.get("linear", "").endswith("linear_fc2") and x.get("role") == "input" else None


def number(value):
    return float(value) if isinstance(value, (int, float)) else math.nan


def finite(values):
    return [v for v in map(number, values) if math.isfinite(v)]


def lowest(values):
    return min(finite(values), default=math.nan)


def highest(values):
    return max(finite(values), default=math.nan)


# ---- The guard ---------------------------------------------------------------------------------------------


class Guard:
    """The guard of one run: its comparisons, and the steps in BF16."""

    def __init__(self, comparisons, bf16_tokens, action):
        self.tokens = np.array([t for t, _ in comparisons])
        self.gap, self.limit, self.seconds = (
            np.array([number(c.get(name)) for _, c in comparisons]) for name in ("gap", "limit", "seconds")
        )
        # A gap that is not finite (because FP8's loss is not) is written as null.
        self.excess = np.array([bool(c.get("excess")) for _, c in comparisons], bool)
        self.bf16_tokens = np.array(sorted(bf16_tokens))
        self.action = action


def guard(run):
    """The run's guard; None if it has no comparisons."""
    file = run.folder / "metrics.jsonl" if run.folder else None
    if not file or not file.is_file():
        return None
    records = {float(r["consumed_tokens"]): r for _, r in runs.json_lines(file) if "consumed_tokens" in r}
    found = [(tokens, records[tokens].get("guard")) for tokens in sorted(records)]
    comparisons = [(tokens, guard) for tokens, guard in found if isinstance(guard, dict) and "limit" in guard]
    if not comparisons:
        return None
    # Because of the precision schedule, or because of the guard.
    bf16 = [tokens for tokens, record in records.items() if record.get("in_fp8") is False]
    return Guard(comparisons, bf16, run.config.get("guard.action", ""))
