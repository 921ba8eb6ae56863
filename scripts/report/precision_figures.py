"""Figures of FP8 statistics and of the guard; as in figures.py, None if the runs do not have the data."""

import math

import numpy as np

from .figures import COLORS, arms_of, color, heading, label, look, new, tokens_axis

WORST = 4  # number of quantizations that are shown per arm


def arms_having(content, found):
    """[(index, arm, [(run, its data)])] of the arms with data."""
    arms = enumerate(arms_of(content))
    having = [(i, arm, [(run, found[id(run)]) for run in arm.runs if id(run) in found]) for i, arm in arms]
    return [entry for entry in having if entry[2]]


def statistics_by_tokens(content, found):
    """Lowest SQNR, largest saturated and flushed fractions, and the two early signs of SwiGLU; one line per run."""
    arms = arms_having(content, found)
    if not arms:
        return None
    panels = [
        ("lowest_sqnr", "lowest SQNR of the run's own quantizations (dB)", "linear"),
        ("saturated", "saturated: largest fraction of any operand", "share"),
        ("flushed", "flushed to zero: largest fraction of any operand", "share"),
        ("fc2_amax", "largest input of a linear_fc2", "log"),
        ("alignment", "alignment of SwiGLU's weights, largest mean of a layer", "linear"),
    ]
    panels = [p for p in panels if any(np.isfinite(getattr(s, p[0])).any() for _, _, runs in arms for _, s in runs)]
    rows = -(-len(panels) // 2)
    figure, grid = new(0.8 + 2.8 * rows, heading(content), nrows=rows, ncols=2, squeeze=False)
    for axes, (name, title, scale) in zip(grid.flat, panels):
        size = tokens_axis(axes, content)
        for index, arm, runs in arms:
            for number, (_, s) in enumerate(runs):
                axes.plot(
                    s.tokens / size,
                    getattr(s, name),
                    **look(index),
                    linewidth=1.2,
                    marker="." if len(s.tokens) < 30 else None,
                    alpha=0.85,
                    label=label(content, index, number),
                )
        if scale == "share":
            axes.set_yscale("symlog", linthresh=1e-7)
            axes.set_ylim(0, 1)
            axes.set_yticks([0, 1e-6, 1e-4, 1e-2, 1])
        elif scale == "log":
            axes.set_yscale("log")
        axes.set_title(title, fontsize=11, loc="left")
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    grid[0][0].legend(loc="best")
    return figure


def worst_quantizations(content, found):
    """SQNR of the worst quantizations: one panel per arm, one color per quantization, one line per run."""
    worst = [(arm, runs, worst_of(runs)) for _, arm, runs in arms_having(content, found)]
    arms = [entry for entry in worst if entry[2]]
    if not arms:
        return None
    figure, grid = new(0.8 + 2.9 * -(-len(arms) // 2), heading(content), nrows=-(-len(arms) // 2), ncols=2, squeeze=False, sharey=True)
    for axes, (arm, runs, quantizations) in zip(grid.flat, arms):
        size = tokens_axis(axes, content)
        for place, key in enumerate(quantizations):
            for number, (_, s) in enumerate(runs):
                axes.plot(
                    s.tokens / size,
                    s.of_quantization(key, "sqnr_db"),
                    color=COLORS[place],
                    linewidth=1.2,
                    marker="." if len(s.tokens) < 30 else None,
                    alpha=0.85,
                    label=None if number else quantization_name(key),
                )
        axes.set_title(arm.name, fontsize=11, loc="left")
        axes.set_ylabel("SQNR (dB)")
        # The legend is below the curves, which decrease from above.
        low, high = axes.get_ylim()
        axes.set_ylim(low - 0.35 * (high - low), high)
        axes.legend(loc="lower left", fontsize=8)
    for axes in grid.flat[len(arms) :]:
        axes.set_visible(False)
    return figure


def worst_of(runs, count=WORST):
    """The worst quantizations of several runs, alternating between the runs."""
    lists = [s.worst_quantizations(count) for _, s in runs]
    alternating = [keys[i] for i in range(count) for keys in lists if i < len(keys)]
    return list(dict.fromkeys(alternating))[:count]


def quantization_name(key):
    linear, role, form = key
    parts = linear.split(".")
    place = f"layer {parts[1]} {parts[-1]}" if parts[0] == "layers" and len(parts) > 2 else linear
    return f"{place} {role}" + ("" if form == "both" else f", {form}")


def decades_on(axes, threshold, largest):
    """Sets a scale that is linear below the threshold (a power of ten) and logarithmic above it, up to the decade of the
    largest value, with a tick at each decade."""
    axes.set_yscale("symlog", linthresh=threshold)
    count = 1 + max(0, math.ceil(math.log10(max(largest, threshold) / threshold)))
    decades = [threshold * 10.0**i for i in range(count)]
    low, high = axes.get_ylim()
    ticks = [t for t in (*(-d for d in reversed(decades)), 0, *decades) if t >= low or t == -threshold]
    axes.set_yticks(ticks, [f"{t:g}" for t in ticks])
    axes.set_ylim(min(low, -threshold), max(high, 1.05 * decades[-1]))


def guard_gaps(content, found):
    """The gaps of the guard's comparisons, its limits, and the records in which a run trained in BF16."""
    arms = arms_having(content, found)
    if not arms:
        return None
    figure, axes = new(4.0, heading(content))
    size = tokens_axis(axes, content)
    for index, arm, runs in arms:
        for number, (_, g) in enumerate(runs):
            line = {"color": color(index), "alpha": 0.85}
            text = label(content, index, number)
            axes.plot(g.tokens / size, 100 * g.gap, marker="o", markersize=4, linewidth=1, label=text, **line)
            axes.plot(g.tokens / size, 100 * g.limit, linewidth=1, linestyle=(0, (4, 3)), **line)
            above = g.excess & np.isfinite(g.gap)
            axes.plot(g.tokens[above] / size, 100 * g.gap[above], "X", markersize=10, markeredgecolor="white", **line)
            if len(g.bf16_tokens):
                axes.plot(
                    g.bf16_tokens / size,
                    np.full(len(g.bf16_tokens), 0.02 + 0.03 * index),
                    "|",
                    markersize=8,
                    color=color(index),
                    transform=axes.get_xaxis_transform(),
                )
    axes.axhline(0, color="#222222", linewidth=0.8)
    edges = [100 * abs(v) for _, _, runs in arms for _, g in runs for v in (*g.gap, *g.limit) if np.isfinite(v)]
    decades_on(axes, 10.0 ** math.floor(math.log10(max(1e-3, 2 * float(np.median(edges))))), max(edges))
    axes.set_ylabel("FP8 above BF16 (% of its loss)")
    notes = "dashed: limit; X: above the limit; |: steps in BF16"
    axes.legend(loc="upper left", title=notes, title_fontsize=9)
    return figure
