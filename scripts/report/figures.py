"""The figures of a report. Each function draws and returns a new figure, or None if the runs do not have the data. An arm
has the same color in all figures, and the baseline is dark; arms after the first five are gray, because readers cannot
distinguish more than six lines."""

import numpy as np

from . import UserError, analysis, curves, details
from .plots import mark_epochs
from .words import tokens_text, tokens_unit

BASELINE = "#222222"
OTHERS = "#b8b8b8"  # arms after the first COLORED
COLORED = 5
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]  # Okabe and Ito: safe for color blindness
STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e8e8e8",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.edgecolor": "#888888",
    "legend.frameon": False,
    "legend.fontsize": 10,
}


def pyplot():
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as module
    except ImportError:
        raise UserError("matplotlib is missing; apt install python3-matplotlib, or pass --no-plot") from None
    module.rcParams.update(STYLE)
    return module


def new(height=4.2, title="", **options):
    figure, axes = pyplot().subplots(figsize=(10, height), layout="constrained", **options)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure, axes


def heading(content):
    """The title of a figure: what is compared, the number of tokens, and the device if the runs record it."""
    title = getattr(content, "title", "")
    if "tokens" in title:
        return title
    runs = [run for arm in arms_of(content) for run in arm.runs]
    starts = [start for run in runs for start in run.record.get("starts", [])]
    devices = dict.fromkeys(start["device"] for start in starts if "device" in start)
    tokens = f"{tokens_text(max(run.tokens[-1] for run in runs))} tokens"
    return ", ".join(filter(None, [title, tokens, " and ".join(devices) if len(devices) < 3 else ""]))


def color(index):
    """The color of arm `index`; 0 is the baseline."""
    return BASELINE if index == 0 else COLORS[index - 1] if index <= COLORED else OTHERS


def look(index):
    """Color and layer of the line of arm `index`: the arms after the first five are gray and below the others."""
    return {"color": color(index), "zorder": 1.9 if index > COLORED else 2}


def readable(name):
    """A variant's name without underscores."""
    return name.replace("_", " ")


def label(content, index, number=0, many=""):
    """For the legend: the name of arm `index`, once; the gray ones share one label."""
    arms = arms_of(content)
    if number or index > COLORED + 1:
        return None
    rest = len(arms) - 1 - COLORED
    return readable(arms[index].name) + many if index <= COLORED or rest == 1 else f"{rest} more variants"


def arms_of(content):
    return [content.baseline, *content.arms]


def common_window(content):
    return curves.default_window(min(len(run.loss) for arm in arms_of(content) for run in arm.runs))


def tokens_axis(axes, content):
    size, unit = tokens_unit(max(run.tokens[-1] for arm in arms_of(content) for run in arm.runs))
    axes.set_xlabel(f"consumed tokens ({unit})" if unit else "consumed tokens")
    mark_epochs(axes, getattr(content, "epochs", []), size)
    return size


def mark_clipped(axes, x, y, limit, **options):
    """Draws a triangle at the edge of the axes where values exceed it. Returns whether there are any."""
    for beyond, edge, marker in ((y > limit, limit, "^"), (y < -limit, -limit, "v")):
        starts = np.flatnonzero(beyond & ~np.concatenate([[False], beyond[:-1]]))
        axes.plot(x[starts], np.full(len(starts), 0.97 * edge), marker, markersize=5, linestyle="none", **options)
    return bool((np.abs(y) > limit).any())


def loss_by_tokens(content):
    figure, axes = new(4.8, heading(content))
    size = tokens_axis(axes, content)
    cut = losses(axes, content, lambda run: run.tokens / size)
    markers = False
    for index, arm in enumerate(arms_of(content)):
        for run in arm.runs:
            if len(run.valid_loss):
                markers = True
                axes.plot(
                    run.valid_tokens / size, run.valid_loss, linestyle="none", marker="ox"[index > 0], markersize=6,
                    color=color(index), markerfacecolor="white",
                )  # fmt: skip
    loss_legend(axes, content, cut, "markers: validation" if markers else "")
    return figure


def loss_by_time(content):
    known = [np.isfinite(run.seconds).all() and len(run.seconds) for arm in arms_of(content) for run in arm.runs]
    if not all(known):
        return None
    figure, axes = new(4.2, heading(content))
    longest = max(run.seconds[-1] for arm in arms_of(content) for run in arm.runs)
    size, unit = next(
        (s, u) for s, u in ((3600, "hours"), (60, "minutes"), (1, "seconds")) if longest >= 2 * s or s == 1
    )
    axes.set_xlabel(f"time in training steps ({unit})")
    cut = losses(axes, content, lambda run: run.seconds / size)
    loss_legend(axes, content, cut)
    return figure


def losses(axes, content, x_of):
    """Draws the losses; returns whether the first 5% exceed the scale."""
    window, low, high, largest = common_window(content), [], [], []
    for index, arm in enumerate(arms_of(content)):
        for number, run in enumerate(arm.runs):
            smoothed = curves.smooth(run.loss, window)
            # The wide line is below the narrow one, so that coinciding curves are both visible.
            width, alpha = (2.6, 0.75) if index == 0 else (1.2, 0.9)
            axes.plot(
                x_of(run),
                smoothed,
                **look(index),
                linewidth=width,
                alpha=alpha,
                label=label(content, index, number),
            )
            low.append(smoothed.min())
            # The steep initial decrease would flatten the rest of the curves.
            high.append(smoothed[run.tokens >= curves.end_of_start(run.tokens)].max())
            largest.append(smoothed.max())
    span = max(high) - min(low)
    axes.set_ylim(min(low) - 0.06 * span, max(high) + 0.06 * span)
    axes.set_ylabel("training loss (nats per token)")
    return max(largest) > max(high) + 0.06 * span


def loss_legend(axes, content, cut, markers=""):
    window = common_window(content)
    lines = f"one line per run, smoothed over {window} points" if window > 1 else "one line per run"
    notes = [lines, "the first 5% are above the axis" if cut else "", markers]
    axes.legend(loc="upper right", title="\n".join(filter(None, notes)), title_fontsize=9)


def gap_by_tokens(content, comparisons):
    """Each pair's gap, the mean of an arm, the spread of the baseline's runs, and the tolerance; None without pairs."""
    if not any(comparison.pairs for comparison in comparisons):
        return None
    figure, axes = new(4.4, heading(content))
    size = tokens_axis(axes, content)
    window = curves.default_window(min(len(pair.tokens) for c in comparisons for pair in c.pairs))
    reach, band = [], seed_band(content.baseline, window)
    if band:
        reach.append(np.quantile(band[1], 0.95))
    axes.axhline(0, color=BASELINE, linewidth=1)
    tolerance = content.tolerance.of(min(float(p.base_loss[p.tail].mean()) for c in comparisons for p in c.pairs))
    for edge in (-tolerance, tolerance):
        axes.axhline(
            edge, color="#b03030", linewidth=1, linestyle=(0, (6, 4)), label="tolerance (at the end)" if edge > 0 else None
        )
    drawn = []  # (tokens, values, style)
    for index, comparison in enumerate(comparisons, start=1):
        if comparison.groups:
            continue
        smoothed = [curves.smooth(pair.gap, window) for pair in comparison.pairs]
        if len(smoothed) > 1:
            thin = {**look(index), "linewidth": 0.8, "alpha": 0.35}
            drawn += [(pair.tokens, line, thin) for pair, line in zip(comparison.pairs, smoothed)]
        tokens = comparison.pairs[0].tokens
        tokens = tokens[tokens <= min(pair.tokens[-1] for pair in comparison.pairs)]
        mean = np.mean([np.interp(tokens, p.tokens, s) for p, s in zip(comparison.pairs, smoothed)], axis=0)
        many = f", mean of {len(smoothed)}" if len(smoothed) > 1 else ""
        drawn.append((tokens, mean, {**look(index), "linewidth": 2, "label": label(content, index, many=many)}))
        reach += [np.quantile(np.abs(line), 0.97) for line in smoothed]
    limit = 1.2 * max([*reach, 1.3 * tolerance])
    clipped = False
    for tokens, values, style in drawn:
        axes.plot(tokens / size, values, **style)
        clipped |= mark_clipped(axes, tokens / size, values, limit, color=style["color"])
    if band:
        draw_seed_band(axes, content.baseline, *band, size, limit)
    rows = -(-len(axes.get_legend_handles_labels()[1]) // 3)
    axes.set_ylim(-limit, limit * (1.1 + 0.22 * rows))  # space above the curves for the legend
    axes.set_ylabel("loss minus baseline (nats)" + ("\ntriangles: outside the axis" if clipped else ""))
    axes.legend(loc="upper right", ncol=3)
    return figure


def draw_seed_band(axes, arm, tokens, half, size, limit):
    cut = ", cut off at the axis" if (half > limit).any() else ""
    what = f"±2 σ of {len(arm.runs)} {analysis.seeds_or_runs(arm)} of {readable(arm.name)}{cut}"
    shown = np.minimum(half, limit)
    axes.fill_between(tokens / size, -shown, shown, color="#c4c4c4", alpha=0.5, linewidth=0, label=what, zorder=1)


def seed_band(arm, window):
    """(tokens, 2 standard deviations of the smoothed loss over the seeds); None with fewer than three seeds."""
    if len(arm.runs) < 3:
        return None
    tokens = arm.runs[0].tokens
    tokens = tokens[(tokens >= max(r.tokens[0] for r in arm.runs)) & (tokens <= curves.common_end(arm.runs))]
    values = [np.interp(tokens, run.tokens, curves.smooth(run.loss, window)) for run in arm.runs]
    # The pointwise spread of a few runs is noisy, so it is smoothed, too.
    return tokens, curves.smooth(2 * np.std(values, axis=0, ddof=1), 3 * window)


def gaps_with_intervals(comparisons, title=""):
    """The gap of each pair, the mean with its interval, and the tolerance, from which the verdict follows. Fewer than three
    pairs have no interval. More than six arms are sorted by their gap, and color marks intervals that exclude 0."""
    many = len(comparisons) > COLORED + 1
    if many:
        comparisons = sorted(comparisons, key=lambda c: -c.measures[0].mean)
    names = list(dict.fromkeys(m.name.split(" at ")[0] for c in comparisons for m in c.measures))
    figure, grid = new(1.7 + (0.34 if many else 0.62) * len(comparisons), title, ncols=len(names), squeeze=False)
    for axes, name in zip(grid[0], names):
        measures = [next((m for m in c.measures if m.name.startswith(name)), None) for c in comparisons]
        tolerance = min(m.tolerance for m in measures if m)
        axes.axvspan(-tolerance, tolerance, color="#2a7f3f", alpha=0.12, linewidth=0)
        axes.axvline(0, color=BASELINE, linewidth=1)
        edges = [1.5 * tolerance]
        for row, m in enumerate(measures):
            if m is None:
                continue
            with_interval = has_interval(m)
            excludes_zero = with_interval and (m.low > 0 or m.high < 0)
            line = {"color": COLORS[1 if excludes_zero else 0] if many else COLORS[row % len(COLORS)]}
            if with_interval:
                axes.plot([m.low, m.high], [-row, -row], linewidth=2.4, solid_capstyle="butt", **line)
            above = np.full(len(m.gaps), -row + (0.28 if many else 0.24))
            axes.plot(m.gaps, above, "o", markersize=4, alpha=0.55, **line)
            axes.plot(m.mean, -row, "D", markersize=5 if many else 7, markeredgecolor="white", **line)
            edges += [abs(v) for v in (m.mean, *m.gaps, *((m.low, m.high) if with_interval else ()))]
        limit = 1.15 * max(edges)
        axes.set_xlim(-limit, limit)
        axes.set_ylim(-len(comparisons) + 0.4, 0.6)
        shown = axes is grid[0][0]
        labels = [readable(c.name) if shown else "" for c in comparisons]
        axes.set_yticks([-i for i in range(len(comparisons))], labels)
        axes.grid(axis="y", visible=False)
        axes.set_title(name.replace(" %", "%"), fontsize=11, loc="left")
        axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel("loss minus baseline (nats)")
    figure.supxlabel(gaps_legend(comparisons, many), fontsize=9.5, color="#444444")
    return figure


def has_interval(measure):
    """Whether a measure gets an interval: not with one pair, which has no spread, nor two, which may agree by chance."""
    return np.isfinite(measure.low) and len(measure.gaps) not in (1, 2)


def gaps_legend(comparisons, many):
    intervals = any(has_interval(m) for c in comparisons for m in c.measures)
    parts = ["dots: pairs of one seed", "diamonds: means", "lines: 95% intervals" if intervals else "", "green: tolerance"]
    if many:
        parts.append("orange: interval excludes 0")
    if any(len(m.gaps) in (1, 2) for c in comparisons for m in c.measures):
        parts.append("no interval for fewer than three pairs")
    return "; ".join(filter(None, parts))


def gradient_norms(content):
    having = [(i, arm, run) for i, arm in enumerate(arms_of(content)) for run in arm.runs if details.gradients(run)]
    if not having:
        return None
    figure, axes = new(3.6, heading(content))
    size, window, seen = tokens_axis(axes, content), common_window(content), set()
    for index, arm, run in having:
        known = np.isfinite(run.grad_norm)
        norms = run.grad_norm[known]
        text = label(content, index, arm.name in seen)
        seen.add(arm.name)
        axes.plot(run.tokens[known] / size, norms, color=color(index), linewidth=0.6, alpha=0.15)
        axes.plot(
            run.tokens[known] / size,
            curves.smooth(norms, window),
            **look(index),
            linewidth=2.2 if index == 0 else 1.2,
            label=text,
        )
    axes.set_yscale("log")
    axes.set_ylabel("gradient norm before clipping")
    axes.legend(loc="upper right")
    return figure


def fp8_health(content, health):
    """`health`: {id of the run: details.fp8_health} of the runs that have it."""
    if not health:
        return None
    figure, grid = new(3.6, heading(content), ncols=2, sharex=True)
    titles = {
        "saturated": "saturated: largest fraction of any operand",
        "flushed": "flushed to zero: largest fraction of any operand",
    }
    for axes, (key, title) in zip(grid, titles.items()):
        size = tokens_axis(axes, content)
        axes.set_title(title, fontsize=11, loc="left")
        if not any(np.nan_to_num(found[key]).max(initial=0) > 0 for found in health.values()):
            axes.text(0.5, 0.5, "0 in all records", ha="center", va="center", transform=axes.transAxes)
            axes.set_yticks([])
            continue
        for index, arm in enumerate(arms_of(content)):
            for number, run in enumerate(r for r in arm.runs if id(r) in health):
                found = health[id(run)]
                axes.plot(
                    found["tokens"] / size,
                    found[key],
                    **look(index),
                    linewidth=1,
                    alpha=0.8,
                    label=label(content, index, number),
                )
        axes.set_yscale("symlog", linthresh=1e-7)
        axes.set_ylim(0, 1)
        axes.set_yticks([0, 1e-6, 1e-4, 1e-2, 1])
        axes.legend(loc="upper right")
    return figure
