"""The figure of the short comparison: losses above, gaps below."""

import numpy as np
from script_files import reason, save_figure

from . import UserError
from .curves import common_end, common_valid_tokens, smooth
from .table import band_text
from .words import percent, tokens_text, tokens_unit

COLORS = [
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
]  # Okabe and Ito: safe for color blindness


def draw(path, title, baseline, runs, results, band, epochs=()):
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise UserError("matplotlib is missing; pip install matplotlib, or pass --no-plot") from None
    pyplot.rcParams.update(
        {
            "font.size": 12,
            "axes.titlesize": 14,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#e4e4e4",
            "grid.linewidth": 0.8,
            "axes.axisbelow": True,
        }
    )
    figure, (upper, lower) = pyplot.subplots(2, 1, sharex=True, figsize=(10, 7.5), gridspec_kw={"height_ratios": [3, 2]})
    size, unit = tokens_unit(baseline.tokens[-1])
    draw_losses(upper, size, baseline, runs, results)
    draw_gaps(lower, size, unit, results, band, common_end([baseline, *runs]))
    for axes in (upper, lower):
        mark_epochs(axes, epochs, size)
    lower.set_xlabel(f"consumed tokens ({unit})" if unit else "consumed tokens")
    lower.set_ylabel(f"gap to {baseline.label} (%)" if len(baseline.label) <= 18 else "gap to baseline (%)")
    upper.set_ylabel("training loss (nats per token)")
    upper.set_title(title, loc="left", fontweight="bold")
    figure.align_ylabels()
    figure.tight_layout()
    try:
        save_figure(figure, path, dpi=150)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: the figure cannot be written: {reason(error)}") from None
    pyplot.close(figure)


def mark_epochs(axes, epochs, size):
    """Draws a dotted line at each token count at which the training data repeats."""
    for number, tokens in enumerate(epochs, start=2):
        axes.axvline(tokens / size, color="#777777", linestyle=":", linewidth=1.2)
        axes.text(
            tokens / size, 0.02, f" epoch {number}", fontsize=9, color="#555555", transform=axes.get_xaxis_transform()
        )


def draw_losses(axes, size, baseline, runs, results):
    window = results[0]["smooth"]
    valid_at = common_valid_tokens([baseline, *runs])  # the same token count for all runs: shorter runs have no later one
    # The wide line is below the narrow ones, so that coinciding curves are all visible.
    styles = [("#222222", 3.2)] + [(color, 1.5) for color in COLORS]
    smoothed_values = []
    for index, run in enumerate([baseline] + runs):
        color, width = styles[min(index, len(styles) - 1)]
        label = run.label
        if valid_at is not None and valid_at in run.valid_tokens:
            label += f", {run.valid_loss[run.valid_tokens == valid_at][0]:.4f}"
        if window > 1:
            axes.plot(run.tokens / size, run.loss, color=color, alpha=0.18, linewidth=0.8)
        smoothed_values.append(smooth(run.loss, window))
        axes.plot(run.tokens / size, smoothed_values[-1], color=color, linewidth=width, label=label)
        if len(run.valid_loss):
            axes.plot(
                run.valid_tokens / size,
                run.valid_loss,
                linestyle="none",
                marker="o" if index == 0 else "x",
                markersize=7 if index == 0 else 6,
                markerfacecolor="white",
                color=color,
            )
    low, high = min(v.min() for v in smoothed_values), max(v.max() for v in smoothed_values)
    axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    heading = f"lines: smoothed over {window} points" if window > 1 else ""
    if len(baseline.valid_loss):
        heading += "; markers: validation"
    if valid_at is not None:
        heading += f" (numbers: at {tokens_text(valid_at)} tokens)"
    axes.legend(loc="upper right", frameon=False, title=heading.lstrip("; ") or None, title_fontsize=10)


def draw_gaps(axes, size, unit, results, band, end):
    """The numbers in the legend are gaps over the same tokens for all runs: the last tenth before `end`."""
    reach = [1e-4]  # percent; the limits of the axis must include these values
    if band:
        low, high = 100 * band["curves"]["low"], 100 * band["curves"]["high"]
        axes.fill_between(
            band["curves"]["tokens"] / size,
            low,
            high,
            color="#bbbbbb",
            alpha=0.55,
            linewidth=0,
            label=f"seed noise, {band_text(band)}",
        )
        reach += [np.quantile(np.abs(low), 0.98), np.quantile(np.abs(high), 0.98)]
    axes.axhline(0.0, color="#222222", linewidth=1.2)
    for color, result in zip(COLORS * len(results), results):
        curves = result["curves"]
        if result["smooth"] > 1:
            axes.plot(curves["tokens"] / size, 100 * curves["gap"], color=color, alpha=0.22, linewidth=0.8)
        axes.plot(
            curves["tokens"] / size,
            100 * curves["smoothed_gap"],
            color=color,
            linewidth=1.8,
            label=f"{result['label']}: {percent(gap_before(curves, end))}",
        )
        reach += [
            100 * np.max(np.abs(curves["smoothed_gap"])),
            100 * np.quantile(np.abs(curves["gap"]), 0.95),
        ]
    # Space above the curves for the legend.
    limit = 1.15 * max(reach)
    columns = 1 if band and len(results) == 1 else 2
    rows = 1 + -(-(len(results) + bool(band)) // columns)
    axes.set_ylim(-limit, limit * (1.15 + 0.28 * rows))
    start = results[0]["curves"]["tokens"][0]
    heading = f"numbers: gap from {(end - 0.1 * (end - start)) / size:.4g} to {end / size:.4g} {unit} tokens"
    axes.legend(loc="upper right", frameon=False, ncol=columns, title=heading, title_fontsize=10)


def gap_before(curves, end):
    """The gap of the mean losses over the last tenth of the tokens before `end`: a run's "last 10%" if it ended there."""
    tokens = curves["tokens"]
    inside = (tokens <= end) & (tokens >= end - 0.1 * (end - tokens[0]))
    return float(np.mean(curves["run"][inside]) / np.mean(curves["baseline"][inside]) - 1) if inside.any() else np.nan
