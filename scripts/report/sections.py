"""The sections of a report, one function each: blocks (blocks.py) with the results of analysis.py and details.py.
`pictures` draws a figure of figures.py, or returns nothing if figures are off or the data is missing."""

import math

import numpy as np

from . import analysis, details, figures, statistics
from . import curves as curves_of
from . import tasks as task_results
from .blocks import Bullets, Heading, Paragraph, Table
from .words import bytes_text, nats, p_text, percent, seconds_text, tokens_text

CONFIDENCE = f"{100 * statistics.CONFIDENCE:.0f}%"


TESTS = ["p: no gap", "p: beyond tolerance", "minimum detectable gap"]
TEST_NOTES = [
    "**p: no gap** is the test for a difference: small if there is certainly a gap, however small.",
    f"**p: beyond tolerance** is the test for equivalence (TOST): below {(1 - statistics.CONFIDENCE) / 2:.3f} when "
    "the gap is certainly smaller than the tolerance, that is, if the interval lies within it.",
    f"**minimum detectable gap**: the true gap (nats) that the test for a difference finds in "
    f"{100 * statistics.POWER:.0f}% of such experiments, given the spread between these runs.",
]


def gaps(report, pictures):
    measures = [(c.name, m) for c in report.comparisons for m in c.measures]
    tested = any(m.estimate for _, m in measures)  # several pairs, or groups
    head = ["run", "pairs", "baseline", "gap (nats)", "gap", f"{CONFIDENCE} interval (nats)", *(TESTS if tested else [])]
    tables = []
    for name in dict.fromkeys(m.name for _, m in measures):
        rows = [gap_row(run, m)[: len(head)] for run, m in measures if m.name == name]
        tables += [Paragraph(f"**{name[0].upper() + name[1:]}**"), Table(head, rows)]
    methods = dict.fromkeys(m.method for _, m in measures)
    notes = [
        *(f"Interval: {method}." for method in methods if method != analysis.NO_INTERVAL),
        *(TEST_NOTES if tested else []),
    ]
    intervals = ", the mean with its interval," if any(figures.has_interval(m) for _, m in measures) else ""
    pairs = [
        [c.name, pair.label, tokens_text(pair.tokens[-1]), "yes" if pair.exact else "interpolated"]
        + [
            cell
            for m in c.measures
            for cell in ([nats(m.gaps[i]), percent(m.gaps[i] / m.base)] if i < len(m.gaps) else ["-", "-"])
        ]
        for c in report.comparisons
        if not c.groups
        for i, pair in enumerate(c.pairs)
    ]
    columns = max(len(c.measures) for c in report.comparisons)
    names = ["training (nats)", "training", "validation (nats)", "validation"][: 2 * columns]
    pairs = [row + ["-"] * (4 + 2 * columns - len(row)) for row in pairs]
    return [
        Heading("The gap"),
        *pictures(
            "gaps.png",
            f"Every pair's gap{intervals} and the tolerance",
            lambda: figures.gaps_with_intervals(report.comparisons, figures.heading(report.content)),
        ),
        *tables,
        *([Bullets(notes)] if notes else []),
        *(
            [
                Paragraph(f"All pairs, {pairing(report)}:"),
                Table(["run", "pair", "up to (tokens)", "same tokens logged", *names], pairs),
            ]
            if pairs
            else []
        ),
    ]


def pairing(report):
    """How the runs of a pair are matched."""
    pairs = [pair for c in report.comparisons if not c.groups for pair in c.pairs]
    if all(pair.same_seed for pair in pairs):
        return "a run minus the baseline of the same seed (initial weights and data order)"
    if any(pair.same_seed for pair in pairs):
        return "a run minus the baseline of the same seed, or in the given order if a seed is unknown"
    return "a run minus the baseline in the given order, because their seeds are unknown or differ"


def curves(report, pictures):
    return [
        Heading("Curves"),
        *pictures("loss.png", "Training loss by tokens", lambda: figures.loss_by_tokens(report.content)),
        *pictures(
            "gap.png", "Gap to the baseline by tokens", lambda: figures.gap_by_tokens(report.content, report.comparisons)
        ),
        *tenths(report),
    ]


def tenths(report):
    """The gap over the run, for arms with pairs and records in every tenth."""
    rows = []
    for comparison in report.comparisons:
        if comparison.groups:
            continue
        found = analysis.gap_by_tenths(comparison.pairs)
        judged = {m.name.split()[0]: m.verdict is not None for m in comparison.measures}
        if not np.isfinite(found["training"]).all():
            continue
        rows += [
            [comparison.name, which, *(nats(value) for value in values)]
            for which, values in found.items()
            if judged.get(which) and np.isfinite(values).any()
        ]
    if not rows:
        return []
    return [
        Paragraph(
            "The gap by tenths of the tokens, in nats, mean over pairs: the mean of training losses"
            + (", the last of validation losses." if any(row[1] == "validation" for row in rows) else ".")
        ),
        Table(["run", "loss", *(f"{10 * i} to {10 * i + 10}%" for i in range(10))], rows),
    ]


def noise(report):
    items = []
    for arm in report.arms():
        spread, count = analysis.seed_spread(arm)
        if spread == spread:
            items.append(
                f"{arm.name}: {count} {analysis.seeds_or_runs(arm)} differ by σ = {spread:.4f} nats in the loss "
                "of the last 10%."
            )
    for comparison in report.comparisons:
        e = comparison.excess
        if e is None:
            continue
        items.append(excess_text(comparison, e))
    return [Heading("Noise"), Bullets(items)] if items else []


def excess_text(comparison, e):
    """The result of analysis.largest_excess() as text."""
    base, smoothed = comparison.baseline, f"smoothed over {e['window']} points"
    if not e["gap"] > 0:
        return f"{comparison.arm.name}: never above {base.name} ({smoothed})."
    text = (
        f"{comparison.arm.name}: largest excess over {base.name} ({smoothed}): {e['gap']:.4f} nats, {e['label']}, at "
        f"{tokens_text(e['tokens'])} tokens"
    )
    if math.isfinite(e["seeds"]):
        side = "less" if e["gap"] <= e["seeds"] else "**more**"
        text += f": {side} than the largest difference of two {analysis.seeds_or_runs(base)} of {base.name} ({e['seeds']:.4f})"
    return text + "."


def of_equal_tokens(report):
    """([(arm, its runs up to the tokens that all runs have)], a note if any run was shortened)."""
    runs, cut = curves_of.same_length(report.runs())
    left = iter(runs)
    arms = [(arm, [next(left) for _ in arm.runs]) for arm in report.arms()]
    end = tokens_text(curves_of.common_end(report.runs()))
    return arms, [Paragraph(f"All runs up to {end} tokens, the end of the shortest run.")] if cut else []


def speed(report, pictures):
    arms, note = of_equal_tokens(report)
    speeds = [(arm, [s for run in runs if (s := details.speed(run))]) for arm, runs in arms]
    speeds = [(arm, found) for arm, found in speeds if found]
    if not speeds:
        return []
    rates = {arm.name: mean(s["tokens_per_s"] for s in found) for arm, found in speeds}
    emulated = {arm.name: names for arm in report.arms() if (names := details.emulated_recipes(arm))}
    rows = []
    for arm, found in speeds:
        rate, base = rates[arm.name], rates.get(report.content.base_of(arm).name)
        rows.append(
            [
                arm.name,
                f"{mean(s['step_ms'] for s in found):.1f}",
                f"{rate:,.0f}",
                "emulated" if arm.name in emulated else f"{rate / base:.3f}" if base else "-",
                seconds_text(3600 * mean(s["hours"] for s in found)),
                bytes_text(max((s["memory"] or 0) for s in found)),
            ]
        )
    worth = []
    for comparison in report.comparisons:
        times = [t for pair in comparison.pairs if (t := details.time_to_equal_loss(pair))]
        if times and not emulated.keys() & {comparison.arm.name, comparison.baseline.name}:
            average = {key: mean(t[key] for t in times) for key in times[0]}
            ratios = sorted(t["speedup"] for t in times)
            span = f" ({ratios[0]:.3f} to {ratios[-1]:.3f} over {len(ratios)} pairs)" if len(ratios) > 1 else ""
            worth.append(
                f"{comparison.arm.name} reached the loss {average['loss']:.4f} in {seconds_text(average['run'])}, "
                f"{comparison.baseline.name} in {seconds_text(average['baseline'])}: "
                f"**{average['speedup']:.3f} times as fast to equal loss**{span}."
            )
    return [
        Heading("Speed and memory"),
        *note,
        *(
            Paragraph(f"{name}: {recipes} emulated, so its speed and memory are not those of the recipe.")
            for name, recipes in emulated.items()
        ),
        Table(["runs", "median step (ms)", "tokens/s", "relative", "time in steps", "planned memory"], rows),
        *([Bullets(worth)] if worth else []),
        *pictures("time.png", "Training loss by wall clock", lambda: figures.loss_by_time(report.content)),
    ]


def tasks(report):
    """Evaluation tasks: means of the arms, gaps of the pairs, and comparisons of documents."""
    arms = report.arms()
    values = task_results.arm_values(arms)
    if not values:
        return []
    counts = [max((cells[i][2] for cells in values.values() if cells[i]), default=0) for i in range(len(arms))]
    head = ["task", "metric", *(f"{arm.name} ({count})" for arm, count in zip(arms, counts))]
    means = [
        [task, metric, *(value_text(metric, cell) if cell else "-" for cell in cells)]
        for (task, metric), cells in values.items()
    ]
    gaps, items = [], []
    for comparison in report.comparisons:
        for row in task_results.compare_tasks(comparison.pairs):
            gaps.append(gap_of_task(comparison.name, row))
            items += [item_row(comparison.name, row, item) for item in row["items"]]
    blocks = [Heading("Tasks"), Table(head, means), Paragraph(error_note(values))]
    if gaps:
        names = {c.baseline.name for c in report.comparisons}
        base = names.pop() if len(names) == 1 else "baseline"
        interval = "; the interval is over pairs" if any(row[-1] != "-" for row in gaps) else ""
        blocks += [
            Paragraph(f"Gaps to {base}: {pairing(report)}{interval}:"),
            Table(["task", "metric", "run", base, "run", "gap", f"{CONFIDENCE} interval over pairs"], gaps),
        ]
    if groups := [c.name for c in report.comparisons if c.groups]:
        blocks.append(Paragraph(f"No gaps for {', '.join(groups)}: no seeds match the baseline's."))
    if items:
        blocks += [Paragraph(item_note(items)), Table(ITEM_HEAD, items)]
    return blocks


def error_note(values):
    """Explains the numbers in brackets and the ± of the table of arms."""
    cells = [cell for row in values.values() for cell in row if cell and math.isfinite(cell[1])]
    kinds = []
    if any(count > 1 for _, _, count in cells):
        kinds.append("the standard error of the mean over runs")
    if any(count == 1 for _, _, count in cells):
        kinds.append("for a single run, the standard error over its documents")
    return "In brackets: the number of evaluated runs." + (f" ± is {', or '.join(kinds)}." if kinds else "")


def item_note(items):
    """Explains the columns of the table of documents, as far as they have values."""
    column = {name: [row[i] for row in items] for i, name in enumerate(ITEM_HEAD)}
    text = (
        "Per document: the interval (Student's t over documents) is the uncertainty from the choice of documents, for "
        "these models."
    )
    counted = any(cell != "-" for cell in column["run only"])
    if counted:
        text += (
            " **baseline only** and **run only** count the documents that only one of them answers correctly, and **p** is "
            "McNemar's exact test"
        )
        text += "; in other rows, of the t test." if "-" in column["run only"] else "."
    elif any(cell != "-" for cell in column["p"]):
        text += " **p** is that of the t test."
    if set(column["metric"]) & set(task_results.UNITS.values()):
        text += " Perplexities are compared as log-probabilities; above 0 is better than the baseline."
    return text


ITEM_HEAD = [
    "task",
    "metric",
    "run",
    "pair",
    "documents",
    "gap",
    f"{CONFIDENCE} interval",
    "baseline only",
    "run only",
    "p",
]


def scale_of(metric):
    """(factor, places, unit): fractions of correct answers in percent, other metrics (such as perplexities) unchanged."""
    return (100, 2, "%") if task_results.is_share(metric) else (1, 4, "")


def shown(metric, value, sign=""):
    """A value in the metric's unit; large perplexities are shown without decimals."""
    scale, places, _ = scale_of(metric)
    return f"{scale * value:{sign}.{places}f}" if abs(value) < 1e5 else f"{value:{sign}.4g}"


def value_text(metric, cell):
    value, error, _ = cell
    return shown(metric, value) + (f" ± {shown(metric, error)}" if math.isfinite(error) else "") + scale_of(metric)[2]


def gap_of_task(name, row):
    metric, unit = row["metric"], scale_of(row["metric"])[2]
    low, high = row["estimate"].interval() if row["estimate"] else (math.nan, math.nan)
    span = f"{shown(metric, low, '+')} to {shown(metric, high, '+')}" if math.isfinite(low) else "-"
    values = [shown(metric, row[side]) + unit for side in ("baseline", "run")]
    return [row["task"], metric, name, *values, shown(metric, row["gap"], "+"), span]


def item_row(name, row, item):
    metric = task_results.UNITS.get(row["metric"], row["metric"])
    numbers = [shown(row["metric"], v, "+") for v in (item.difference, item.low, item.high)]
    only = ["-" if count is None else str(count) for count in (item.only_baseline, item.only_run)]
    span = f"{numbers[1]} to {numbers[2]}"
    return [row["task"], metric, name, item.label, str(item.documents), numbers[0], span, *only, p_text(item.p)]


def gradients(report, pictures):
    arms, note = of_equal_tokens(report)
    norms = [[g for run in runs if (g := details.gradients(run))] for _, runs in arms]
    rows = [
        [
            arm.name,
            *(f"{mean(g[name] for g in found):.4f}" if found else "-" for name in ("median", "p95")),
            str(sum(g["spikes"] for g in found)) if found else "-",
            str(sum(run.skipped for run in arm.runs)),
        ]
        for (arm, _), found in zip(arms, norms)
    ]
    if not any(norms) and not any(run.skipped for run in report.runs()):
        return []
    return [
        Heading("Gradient norms"),
        *note,
        Table(
            [
                "runs",
                "median, last 10%",
                "95th percentile, last 10%",
                "spikes (all runs)",
                "skipped steps (all runs)",
            ],
            rows,
        ),
        Paragraph("A spike is a norm above five times the median of the 51 records around it."),
        *pictures("gradients.png", "Gradient norms by tokens", lambda: figures.gradient_norms(report.content)),
    ]


def fp8(report, pictures):
    rows, other, measured = [], [], False
    for arm in report.arms():
        found = [report.health[id(run)] for run in arm.runs if id(run) in report.health]
        after_start = [record for f in found for record in f["after_start"]]
        worst = details.worst_operands(after_start)
        measured = measured or any("saturated" in x and "flushed" in x for record in after_start for x in record)
        rows += [
            [arm.name, linear, f"{role} ({form})", f"{saturated:.1e}", f"{flushed:.1e}"]
            for linear, role, form, saturated, flushed in worst
            if saturated or flushed
        ]
        numbers = details.other_numbers(after_start)
        other += [[arm.name, name, *(f"{v:.4g}" for v in values)] for name, values in numbers.items()]
    if not report.health:
        return []
    blocks = [
        Heading("FP8 saturation and underflow"),
        *pictures(
            "fp8.png",
            "Saturated and flushed fractions by tokens",
            lambda: figures.fp8_health(report.content, report.health),
        ),
    ]
    if rows:
        blocks += [
            Paragraph(
                "The operands with the largest saturated or flushed fractions after the first 5% of the tokens (maximum "
                "over records):"
            ),
            Table(["run", "linear", "operand", "saturated", "flushed to zero"], rows),
        ]
    elif measured:
        blocks.append(Paragraph("No value was saturated or flushed to zero in any record after the first 5% of the tokens."))
    if other:
        blocks.append(Table(["run", "statistic of operands", "smallest", "median", "largest"], other))
    return blocks


def settings(report):
    blocks = [Heading("Differences in settings")]
    for arm in report.content.arms:
        base = report.content.base_of(arm)
        differing = details.differing_keys(base, arm)
        others = details.other_differences(base, arm)
        if differing is None:
            blocks.append(
                Paragraph(f"{arm.name}: some runs have no `run.json`, so the settings cannot be compared.")
            )
        elif not differing:
            blocks.append(Paragraph(f"{arm.name}: no config key differs from {base.name}'s."))
        else:
            blocks += [
                Paragraph(f"{arm.name}:"),
                Table(["key", base.name, arm.name], [[f"`{k}`", a, b] for k, a, b in differing]),
            ]
        if others:
            blocks.append(Bullets([f"Differs outside the config: {line}" for line in others]))
    return blocks


def sources(report):
    rows = [
        [
            arm.name,
            f"`{run.folder or run.label}`",
            "-" if run.seed is None else str(run.seed),
            str(len(run.loss)),
            tokens_text(run.tokens[-1]),
            str(run.dropped),
            run.note,
        ]
        for arm in report.arms()
        for run in arm.runs
    ]
    blocks = [Heading("Runs"), Table(["arm", "run", "seed", "records", "tokens", "without a loss", "note"], rows)]
    if report.content.unfinished:
        blocks += [
            Paragraph("Not compared:"),
            Table(["arm", "run", "state"], [list(row) for row in report.content.unfinished]),
        ]
    return blocks


def gap_row(name, m):
    e = m.estimate
    tests = [p_text(e.difference_p()), p_text(e.equivalence_p(m.tolerance)), f"{e.smallest_gap():.4f}"] if e else ["-"] * 3
    interval = interval_text(m) + ("" if e or m.method == analysis.NO_INTERVAL else " (steps only)")
    gap = [f"{m.base:.4f}", nats(m.mean), percent(m.mean / m.base)]
    return [name, str(len(m.gaps) or "-"), *gap, interval, *tests]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def interval_text(measure):
    return f"{nats(measure.low)} to {nats(measure.high)}" if math.isfinite(measure.low) else "-"
