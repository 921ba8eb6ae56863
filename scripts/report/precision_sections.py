"""The sections about FP8: quantization errors of operands, and comparisons of the guard. Empty if no run has recorded
them."""

import math

import numpy as np

from . import precision
from . import precision_figures as figures
from .blocks import Bullets, Heading, Paragraph, Table
from .words import percent, seconds_text, tokens_text


SIGNS = {"fc2_amax": "largest input of a linear_fc2", "alignment": "alignment of SwiGLU's weights"}
QUANTIZATION_HEAD = [
    "run", "quantization", "lowest SQNR (dB)", "at (tokens)", "at the end", "saturated", "flushed to zero",
]  # fmt: skip


def decibels(value):
    return f"{value:.1f}" if math.isfinite(value) else "-"


def share(value):
    return f"{value:.1e}" if math.isfinite(value) else "-"


def fp8_statistics(report, pictures):
    found = report.fp8_statistics
    arms = figures.arms_having(report.content, found)
    if not arms:
        return []
    rows, recipes, trends = [], [], []
    for _, arm, runs in arms:
        rows += [quantization_row(arm.name, runs, key) for key in figures.worst_of(runs)]
        recipes += recipe_rows(arm.name, runs)
        for name, what in SIGNS.items():
            trends += trend(arm.name, what, [getattr(s, name) for _, s in runs])
    blocks = [
        Heading("FP8 statistics"),
        *pictures(
            "fp8_statistics.png",
            "Quantization errors of operands, by tokens",
            lambda: figures.statistics_by_tokens(report.content, found),
        ),
        *pictures(
            "fp8_sqnr.png",
            "SQNR of the worst quantizations, by tokens",
            lambda: figures.worst_quantizations(report.content, found),
        ),
    ]
    if rows:
        blocks += [
            Paragraph(
                "The quantizations with the lowest SQNR after the first 5% of the tokens. Normally distributed values have "
                "31.5 dB in E4M3 and 25.5 dB in E5M2; fractions are the largest of any record."
            ),
            Table(QUANTIZATION_HEAD, rows),
        ]
    if recipes:
        tried = any(recipe.endswith(precision.TRIED) for _, recipe, *_ in recipes)
        blocks += [
            Paragraph("All quantizations" + (", and the same values with other recipes:" if tried else ":")),
            Table(["run", "recipe", "lowest SQNR (dB)", "median"], recipes),
        ]
    if trends:
        blocks += [
            Paragraph(
                "In long runs with SwiGLU both grow before the loss shows a problem (arXiv 2409.12517):"
                if all(any(what in text for text in trends) for what in SIGNS.values())
                else "From the first record to the last:"
            ),
            Bullets(trends),
        ]
    return blocks


def quantization_row(name, runs, key):
    """The worst of each number over the runs of an arm."""
    sqnr = [(s, s.of_quantization(key, "sqnr_db")) for _, s in runs]
    sqnr = [(s, values) for s, values in sqnr if np.isfinite(values).any()]
    where, values = min(sqnr, key=lambda item: np.nanmin(after_start(*item)))
    at = where.tokens[len(values) - len(after_start(where, values)) + int(np.nanargmin(after_start(where, values)))]
    lost = []
    for counter in ("saturated", "flushed"):
        late = [v for _, s in runs for v in s.after_start(s.of_quantization(key, counter))]
        lost.append(max(filter(math.isfinite, late), default=math.nan))
    ends = [v[np.isfinite(v)][-1] for _, v in sqnr]
    return [
        name,
        figures.quantization_name(key),
        decibels(float(np.nanmin(after_start(where, values)))),
        tokens_text(at),
        decibels(float(min(ends))),
        *map(share, lost),
    ]


def after_start(statistics, values):
    """The values after the first 5% of the tokens; all values if these are NaN."""
    late = np.array(statistics.after_start(values), float)
    return late if np.isfinite(late).any() else values


def recipe_rows(name, runs):
    values = {}
    for _, s in runs:
        for recipe, pair in s.recipes().items():
            values.setdefault(recipe, []).append(pair)
    return [
        [name, recipe, decibels(min(low for low, _ in pairs)), decibels(float(np.median([m for _, m in pairs])))]
        for recipe, pairs in values.items()
    ]


def trend(name, what, series):
    """A line about the mean of the runs from the first record to the last, and the maximum."""
    known = [v[np.isfinite(v)] for v in series]
    known = [v for v in known if len(v) > 1 and v.max() > 0]
    if not known:
        return []
    first, last = (float(np.mean([v[i] for v in known])) for i in (0, -1))
    largest = max(float(v.max()) for v in known)
    times = f" ({last / first:.2f} times)" if first > 0 else ""
    return [f"{name}: {what} from {first:.4g} to {last:.4g}{times}; maximum {largest:.4g}."]


def guard(report, pictures):
    arms = figures.arms_having(report.content, report.guards)
    if not arms:
        return []
    rows, events = [], []
    for _, arm, runs in arms:
        for run, g in runs:
            known = g.gap[np.isfinite(g.gap)]
            rows.append(
                [
                    arm.name,
                    run.label,
                    str(len(g.tokens)),
                    percent(float(np.median(known))) if len(known) else "-",
                    percent(float(known.max())) if len(known) else "-",
                    str(int(g.excess.sum())),
                    g.action or "-",
                    str(len(g.bf16_tokens)),
                    seconds_text(float(np.nansum(g.seconds))),
                ]
            )
            events += [event(run.label, g, i) for i in np.flatnonzero(g.excess)]
    return [
        Heading("The guard"),
        Paragraph(
            "At regular intervals the guard runs the same steps in FP8 and in BF16 from the same state. A gap is FP8's mean "
            "loss minus BF16's, in percent of BF16's."
        ),
        *pictures(
            "guard.png",
            "Gaps to BF16 by tokens, and their limits",
            lambda: figures.guard_gaps(report.content, report.guards),
        ),
        Table(GUARD_HEAD, rows),
        *([Paragraph("Above the limit:"), Bullets(events)] if events else []),
    ]


GUARD_HEAD = [
    "arm",
    "run",
    "comparisons",
    "median gap",
    "largest gap",
    "above the limit",
    "action",
    "records in BF16",
    "time",
]


def event(label, g, i):
    gap = percent(g.gap[i]) if math.isfinite(g.gap[i]) else "FP8's loss was not finite"
    acted = {
        "warn": "the run continued",
        "bf16": "the run continued in BF16",
        "rollback": "the run rolled back and continued in BF16",
    }
    done = f"; {acted.get(g.action, g.action)}" if g.action else ""
    return f"{label}: at {tokens_text(g.tokens[i])} tokens {gap} (limit {percent(g.limit[i])}){done}."
