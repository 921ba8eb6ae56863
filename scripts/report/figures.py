"""The pictures of a report: one function each, which draws on a figure of its own and returns it, or None where the
runs do not have the data. An arm has one colour in all of them, the baseline is dark; from the seventh on, the colours
come again with dashes."""

import numpy as np

from . import UserError, analysis, curves, details
from .words import tokens_unit

BASELINE = "#222222"
DASHES = ["solid", (0, (5, 1.5)), (0, (1, 1))]
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]  # Okabe and Ito: safe for colour blindness
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


def new(height=4.2, **options):
    return pyplot().subplots(figsize=(10, height), layout="constrained", **options)


def colour(index):
    """Of arm `index`; 0 is the baseline."""
    return BASELINE if index == 0 else COLOURS[(index - 1) % len(COLOURS)]


def look(index):
    """What tells the line of arm `index` from all others': no two of nineteen arms are alike."""
    return {"color": colour(index), "linestyle": DASHES[max(index - 1, 0) // len(COLOURS) % len(DASHES)]}


def arms_of(content):
    return [content.baseline, *content.arms]


def common_window(content):
    return curves.default_window(min(len(run.loss) for arm in arms_of(content) for run in arm.runs))


def tokens_axis(axes, content):
    size, unit = tokens_unit(max(run.tokens[-1] for arm in arms_of(content) for run in arm.runs))
    axes.set_xlabel(f"consumed tokens ({unit})" if unit else "consumed tokens")
    return size


def loss_by_tokens(content):
    figure, axes = new(4.8)
    size = tokens_axis(axes, content)
    cut = losses(axes, content, lambda run: run.tokens / size)
    markers = False
    for index, arm in enumerate(arms_of(content)):
        for run in arm.runs:
            if len(run.valid_loss):
                markers = True
                axes.plot(
                    run.valid_tokens / size, run.valid_loss, linestyle="none", marker="ox"[index > 0], markersize=6,
                    color=colour(index), markerfacecolor="white",
                )  # fmt: skip
    loss_legend(axes, content, cut, "markers: validation" if markers else "")
    return figure


def loss_by_time(content):
    known = [np.isfinite(run.seconds).all() and len(run.seconds) for arm in arms_of(content) for run in arm.runs]
    if not all(known):
        return None
    figure, axes = new(4.2)
    longest = max(run.seconds[-1] for arm in arms_of(content) for run in arm.runs)
    size, unit = next(
        (s, u) for s, u in ((3600, "hours"), (60, "minutes"), (1, "seconds")) if longest >= 2 * s or s == 1
    )
    axes.set_xlabel(f"time in training steps ({unit})")
    cut = losses(axes, content, lambda run: run.seconds / size)
    loss_legend(axes, content, cut)
    return figure


def losses(axes, content, x_of):
    """Draws them; whether the first 5 % go beyond the scale."""
    window, low, high, most = common_window(content), [], [], []
    for index, arm in enumerate(arms_of(content)):
        for number, run in enumerate(arm.runs):
            smoothed = curves.smooth(run.loss, window)
            # Wide below narrow, so that curves that lie on each other are both seen.
            width, alpha = (2.6, 0.75) if index == 0 else (1.2, 0.9)
            axes.plot(
                x_of(run),
                smoothed,
                **look(index),
                linewidth=width,
                alpha=alpha,
                label=arm.name if number == 0 else None,
            )
            low.append(smoothed.min())
            # The fall of the first steps would press all that matters into a line.
            early = run.tokens >= run.tokens[0] + 0.05 * (run.tokens[-1] - run.tokens[0])
            high.append(smoothed[early].max())
            most.append(smoothed.max())
    span = max(high) - min(low)
    axes.set_ylim(min(low) - 0.06 * span, max(high) + 0.06 * span)
    axes.set_ylabel("training loss (nats per token)")
    return max(most) > max(high) + 0.06 * span


def loss_legend(axes, content, cut, markers=""):
    window = common_window(content)
    lines = f"one line a run, smoothed over {window} points" if window > 1 else "one line a run"
    notes = [lines, "the first 5 % are beyond the scale" if cut else "", markers]
    axes.legend(loc="upper right", title="\n".join(filter(None, notes)), title_fontsize=9, alignment="left")


def gap_by_tokens(content, comparisons):
    """Each run against its pair, the mean of an arm, the spread of the baseline's runs, and the tolerance."""
    figure, axes = new(4.4)
    size = tokens_axis(axes, content)
    window = curves.default_window(min(len(pair.tokens) for c in comparisons for pair in c.pairs))
    reach = []
    if band := seed_band(content.baseline, window):
        tokens, half = band
        axes.fill_between(
            tokens / size,
            -half,
            half,
            color="#c4c4c4",
            alpha=0.5,
            linewidth=0,
            label=f"±2 σ of {len(content.baseline.runs)} {analysis.seeds_or_runs(content.baseline)} of {content.baseline.name}",
        )
        reach.append(np.quantile(half, 0.95))
    axes.axhline(0, color=BASELINE, linewidth=1)
    bar = content.bar.of(min(float(p.base_loss[p.tail].mean()) for c in comparisons for p in c.pairs))
    for edge in (-bar, bar):
        axes.axhline(
            edge, color="#b03030", linewidth=1, linestyle=(0, (6, 4)), label="tolerance (at the end)" if edge > 0 else None
        )
    for index, comparison in enumerate(comparisons, start=1):
        smoothed = [curves.smooth(pair.gap, window) for pair in comparison.pairs]
        for pair, line in zip(comparison.pairs, smoothed):
            axes.plot(
                pair.tokens / size, line, color=colour(index), linewidth=0.8, alpha=0.35 if len(smoothed) > 1 else 0
            )
        tokens = comparison.pairs[0].tokens
        tokens = tokens[tokens <= min(pair.tokens[-1] for pair in comparison.pairs)]
        mean = np.mean([np.interp(tokens, p.tokens, s) for p, s in zip(comparison.pairs, smoothed)], axis=0)
        many = f", mean of {len(smoothed)}" if len(smoothed) > 1 else ""
        axes.plot(tokens / size, mean, **look(index), linewidth=2, label=comparison.name + many)
        reach += [np.quantile(np.abs(line), 0.97) for line in smoothed]
    limit = 1.2 * max([*reach, 1.3 * bar])
    rows = -(-len(axes.get_legend_handles_labels()[1]) // 3)
    axes.set_ylim(-limit, limit * (1.1 + 0.22 * rows))  # room above the curves for the legend
    axes.set_ylabel("gap to the baseline (nats)")
    axes.legend(loc="upper right", ncols=3)
    return figure


def seed_band(arm, window):
    """(tokens, 2 standard deviations of the smoothed loss over the seeds); None below three seeds."""
    if len(arm.runs) < 3:
        return None
    tokens = arm.runs[0].tokens
    tokens = tokens[(tokens >= max(r.tokens[0] for r in arm.runs)) & (tokens <= curves.common_end(arm.runs))]
    values = [np.interp(tokens, run.tokens, curves.smooth(run.loss, window)) for run in arm.runs]
    # A spread estimated point by point from a few runs jumps; it is smoothed in turn.
    return tokens, curves.smooth(2 * np.std(values, axis=0, ddof=1), 3 * window)


def gaps_with_intervals(comparisons):
    """Every pair's gap, the mean with its interval, and the tolerance: what the verdict is made of."""
    names = list(dict.fromkeys(m.name.split(" at ")[0] for c in comparisons for m in c.measures))
    figure, grid = new(1.5 + 0.62 * len(comparisons), ncols=len(names), squeeze=False)
    for axes, name in zip(grid[0], names):
        measures = [next((m for m in c.measures if m.name.startswith(name)), None) for c in comparisons]
        bar = min(m.bar for m in measures if m)
        axes.axvspan(-bar, bar, color="#2a7f3f", alpha=0.12, linewidth=0)
        axes.axvline(0, color=BASELINE, linewidth=1)
        for row, m in enumerate(measures):
            if m is None:
                continue
            if np.isfinite(m.low):
                dashed = "solid" if m.estimate else (0, (2, 1.5))
                axes.plot(
                    [m.low, m.high],
                    [-row, -row],
                    color=colour(row + 1),
                    linewidth=2.4,
                    linestyle=dashed,
                    solid_capstyle="butt",
                )
            axes.plot(m.gaps, np.full(len(m.gaps), -row + 0.24), "o", markersize=4, color=colour(row + 1), alpha=0.55)
            axes.plot(m.mean, -row, "D", markersize=7, color=colour(row + 1), markeredgecolor="white")
        edges = [1.5 * bar]
        for m in filter(None, measures):
            # An interval of two pairs is so wide that nothing else could be seen: it may leave the picture.
            ends = (m.low, m.high) if len(m.gaps) > 2 else ()
            edges += [abs(v) for v in (m.mean, *m.gaps, *ends) if np.isfinite(v)]
        limit = 1.15 * max(edges)
        axes.set_xlim(-limit, limit)
        axes.set_ylim(-len(comparisons) + 0.4, 0.6)
        shown = axes is grid[0][0]
        axes.set_yticks([-i for i in range(len(comparisons))], [c.name if shown else "" for c in comparisons])
        axes.grid(axis="y", visible=False)
        axes.set_title(name, fontsize=11, loc="left")
        axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel("gap (nats); green: within the tolerance")
    return figure


def gradient_norms(content):
    having = [(i, arm, run) for i, arm in enumerate(arms_of(content)) for run in arm.runs if details.gradients(run)]
    if not having:
        return None
    figure, axes = new(3.6)
    size, window, seen = tokens_axis(axes, content), common_window(content), set()
    for index, arm, run in having:
        known = np.isfinite(run.grad_norm)
        norms = run.grad_norm[known]
        label = None if arm.name in seen else arm.name
        seen.add(arm.name)
        axes.plot(run.tokens[known] / size, norms, color=colour(index), linewidth=0.6, alpha=0.15)
        axes.plot(
            run.tokens[known] / size,
            curves.smooth(norms, window),
            **look(index),
            linewidth=2.2 if index == 0 else 1.2,
            label=label,
        )
    axes.set_yscale("log")
    axes.set_ylabel("gradient norm before clipping")
    axes.legend(loc="upper right")
    return figure


def fp8_health(content, health):
    """`health`: {run's id: details.fp8_health} of the runs that have it."""
    if not health:
        return None
    figure, grid = new(3.4, ncols=2, sharex=True)
    titles = {
        "saturated": "saturated: largest share of any operand",
        "flushed": "flushed to zero: largest share of any operand",
    }
    for axes, (key, title) in zip(grid, titles.items()):
        size = tokens_axis(axes, content)
        for index, arm in enumerate(arms_of(content)):
            for number, run in enumerate(r for r in arm.runs if id(r) in health):
                found = health[id(run)]
                axes.plot(
                    found["tokens"] / size,
                    found[key],
                    **look(index),
                    linewidth=1,
                    alpha=0.8,
                    label=None if number else arm.name,
                )
        axes.set_yscale("symlog", linthresh=1e-7)
        axes.set_ylim(0, 1)
        axes.set_yticks([0, 1e-6, 1e-4, 1e-2, 1])
        axes.set_title(title, fontsize=11, loc="left")
    grid[0].legend(loc="upper right")
    return figure
