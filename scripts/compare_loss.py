#!/usr/bin/env python3
"""Compares the loss curves of runs: a table, a verdict against seed noise, and a picture.

    scripts/compare_loss.py runs/gpt2_bf16 runs/gpt2_fp8 --band runs/gpt2_bf16_seed2 runs/gpt2_bf16_seed3

A RUN is a run folder (its loss.csv is read) or a CSV file with the columns consumed_tokens and loss, and
valid_loss where there is one. The first run is the baseline; gaps are (run - baseline) / baseline at equal
consumed tokens. Single steps are noisy, so judge by the gap over the last 10 % of the tokens. --band names
further runs of the baseline under other seeds: they and the baseline tell how far two runs differ that differ
in nothing but the seed.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

SYSTEM_PYTHON = "/usr/bin/python3"  # for which scripts/install_deps.sh installs numpy and matplotlib


def missing(module):
    """What to say where this Python lacks a module: another Python that has it, or how to install it."""
    text = f"{sys.executable} has no {module}; "
    probe = [SYSTEM_PYTHON, "-c", "import numpy, matplotlib"]
    try:
        other = sys.executable != SYSTEM_PYTHON and subprocess.run(probe, capture_output=True).returncode == 0
    except OSError:
        other = False
    if other:
        return text + f"run {SYSTEM_PYTHON} {sys.argv[0]} ..., which has it"
    return text + f"{sys.executable} -m pip install numpy matplotlib (or scripts/install_deps.sh)"


try:
    import numpy as np
except ImportError:
    print(f"compare_loss.py: error: {missing('numpy')}", file=sys.stderr)
    sys.exit(2)
from loss_curves import UserError, compare, noise_band, read_run, smooth, verdicts

# ---- Output ------------------------------------------------------------------------------------------------


def percent(value):
    return "-" if not math.isfinite(value) else f"{100 * value:+.3f} %"


def unsigned_percent(value):
    return f"{100 * value:.3f} %"


def loss_text(value):
    return "-" if not math.isfinite(value) else f"{value:.4f}"


def tokens_unit(tokens):
    """(divisor, name) for an axis or a text about so many tokens."""
    for size, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if tokens >= size:
            return size, name
    return 1.0, ""


def tokens_text(tokens):
    size, name = tokens_unit(tokens)
    return f"{tokens / size:.4g} {name}".strip()


def band_text(band):
    width = "min to max" if band["kind"] == "minmax" else f"mean ± {band['sigmas']:g} σ"
    return f"{width} of {band['runs']} seeds"


def table(baseline, results):
    head = [
        "run",
        "final loss",
        "valid loss",
        "mean gap",
        "mean |gap|",
        "max |gap|",
        "max |smoothed|",
        "last 10 %",
    ]
    own = compare(baseline, baseline, results[0]["smooth"])
    rows = [
        [
            baseline.label,
            loss_text(own["final_loss"]),
            loss_text(baseline.valid_loss[-1] if len(baseline.valid_loss) else math.nan),
        ]
        + ["baseline"]
        + [""] * 4
    ]
    for r in results:
        rows.append(
            [
                r["label"],
                loss_text(r["final_loss"]),
                loss_text(r["valid_loss"]),
                percent(r["mean_gap"]),
                unsigned_percent(r["mean_abs_gap"]),
                unsigned_percent(r["max_abs_gap"]),
                unsigned_percent(r["max_abs_smoothed_gap"]),
                percent(r["last_tenth_gap"]),
            ]
        )
    widths = [max(len(row[i]) for row in [head] + rows) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))
        ).rstrip()
        for row in [head] + rows
    ]
    lines.insert(1, "-" * (sum(widths) + 2 * len(widths) - 2))
    return "\n".join(lines)


def notes(baseline, results, band):
    for r in results:
        ending = "" if r["exact_alignment"] else "; logged at different token counts, so interpolated"
        skipped = f"; {r['skipped_steps']} rows without a loss" if r["skipped_steps"] else ""
        yield (
            f"{r['label']}: {r['points']} points up to {tokens_text(r['tokens'])} tokens, smoothed over {r['smooth']}; "
            f"baseline at its end {loss_text(r['baseline_final_loss'])}{ending}{skipped}"
        )
        if not band:
            continue
        for key, inside in verdicts(r, band).items():
            low, high = band[key]
            what = "last 10 %" if key == "last_tenth" else "validation loss"
            gap = r["last_tenth_gap"] if key == "last_tenth" else r["valid_gap"]
            yield (
                f"{r['label']}: {what}: gap {percent(gap)} is {'INSIDE' if inside else 'OUTSIDE'} the noise band "
                f"[{percent(low)}, {percent(high)}] ({band_text(band)})"
            )


def json_report(baseline, results, band):
    def plain(value):
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k != "curves"}
        if isinstance(value, list):
            return [plain(v) for v in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    report = {"baseline": baseline.label, "runs": plain(results), "band": plain(band) if band else None}
    for entry, result in zip(report["runs"], results):
        entry["inside_band"] = verdicts(result, band) if band else None
    return report


COLOURS = [
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
]  # Okabe and Ito: safe for colour blindness


def draw(path, title, baseline, runs, results, band):
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise UserError(f"{missing('matplotlib')}; or pass --no-plot") from None
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
    figure, (upper, lower) = pyplot.subplots(2, 1, sharex=True, figsize=(10, 7.5), height_ratios=[3, 2])
    size, unit = tokens_unit(baseline.tokens[-1])
    draw_losses(upper, size, baseline, runs, results)
    draw_gaps(lower, size, results, band)
    lower.set_xlabel(f"consumed tokens ({unit})" if unit else "consumed tokens")
    lower.set_ylabel(f"gap to {baseline.label} (%)" if len(baseline.label) <= 18 else "gap to baseline (%)")
    upper.set_ylabel("training loss (nats per token)")
    upper.set_title(title, loc="left", fontweight="bold")
    figure.align_ylabels()
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: the picture cannot be written: {error}") from None
    pyplot.close(figure)


def draw_losses(axes, size, baseline, runs, results):
    window = results[0]["smooth"]
    # Wide below narrow, so that curves that lie on each other are both seen.
    styles = [("#222222", 3.2)] + [(colour, 1.5) for colour in COLOURS]
    smoothed_values = []
    for index, run in enumerate([baseline] + runs):
        colour, width = styles[min(index, len(styles) - 1)]
        label = run.label + (f", validation {run.valid_loss[-1]:.4f}" if len(run.valid_loss) else "")
        if window > 1:
            axes.plot(run.tokens / size, run.loss, color=colour, alpha=0.18, linewidth=0.8)
        smoothed_values.append(smooth(run.loss, window))
        axes.plot(run.tokens / size, smoothed_values[-1], color=colour, linewidth=width, label=label)
        if len(run.valid_loss):
            axes.plot(
                run.valid_tokens / size,
                run.valid_loss,
                linestyle="none",
                marker="o" if index == 0 else "x",
                markersize=7 if index == 0 else 6,
                markerfacecolor="white",
                color=colour,
            )
    low, high = min(v.min() for v in smoothed_values), max(v.max() for v in smoothed_values)
    axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    heading = (f"lines: smoothed over {window} steps" if window > 1 else "") + (
        "; markers: validation" if len(baseline.valid_loss) else ""
    )
    axes.legend(loc="upper right", frameon=False, title=heading.lstrip("; ") or None, title_fontsize=10)


def draw_gaps(axes, size, results, band):
    reach = [1e-4]  # percent; what the limits must show
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
    for colour, result in zip(COLOURS * len(results), results):
        curves = result["curves"]
        if result["smooth"] > 1:
            axes.plot(curves["tokens"] / size, 100 * curves["gap"], color=colour, alpha=0.22, linewidth=0.8)
        axes.plot(
            curves["tokens"] / size,
            100 * curves["smoothed_gap"],
            color=colour,
            linewidth=1.8,
            label=f"{result['label']}, last 10 %: {percent(result['last_tenth_gap'])}",
        )
        reach += [
            100 * np.max(np.abs(curves["smoothed_gap"])),
            100 * np.quantile(np.abs(curves["gap"]), 0.95),
        ]
    # Room above the curves for the legend.
    limit = 1.15 * max(reach)
    axes.set_ylim(-limit, limit * 1.5)
    axes.legend(loc="upper right", frameon=False, ncols=1 if band and len(results) == 1 else 2)


# ---- Command line ------------------------------------------------------------------------------------------


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="run folders or CSV files; the first is the baseline"
    )
    parser.add_argument(
        "--band",
        "--baseline-seeds",
        nargs="+",
        default=[],
        metavar="RUN",
        dest="band",
        help="further runs of the baseline under other seeds; with it they make the noise band",
    )
    parser.add_argument(
        "--band-kind",
        choices=["sigma", "minmax"],
        default="sigma",
        help="mean ± --sigmas standard deviations (default), or smallest to largest",
    )
    parser.add_argument(
        "--sigmas", type=float, default=2.0, metavar="S", help="half width of the band (default 2)"
    )
    parser.add_argument(
        "--output", default="compare_loss.png", metavar="PNG", help="the picture (default %(default)s)"
    )
    parser.add_argument("--no-plot", action="store_true", help="print the table only")
    parser.add_argument("--json", metavar="FILE", help="write all numbers to FILE")
    parser.add_argument(
        "--smooth", type=int, metavar="N", help="points of the moving average (default: 3 %% of the run)"
    )
    parser.add_argument("--title", default="Training loss", help="the picture's title")
    parser.add_argument("--labels", nargs="+", metavar="TEXT", help="names of the runs, in their order")
    options = parser.parse_args(arguments)
    if len(options.runs) < 2:
        raise UserError("runs: one run is nothing to compare; give the baseline and at least one other")
    if options.labels and len(options.labels) != len(options.runs):
        raise UserError(
            f"--labels: {len(options.labels)} labels for {len(options.runs)} runs; give one for each"
        )
    if options.smooth is not None and options.smooth < 1:
        raise UserError(f"--smooth: {options.smooth} must be at least 1")
    if not options.sigmas > 0:
        raise UserError(f"--sigmas: {options.sigmas} must be above 0")
    return options


def compare_runs(options):
    labels = options.labels or [None] * len(options.runs)
    baseline, *runs = [read_run(path, label) for path, label in zip(options.runs, labels)]
    seeds = [read_run(path) for path in options.band]
    results = [compare(baseline, run, options.smooth) for run in runs]
    band = noise_band(baseline, seeds, options.smooth, options.band_kind, options.sigmas) if seeds else None
    print(table(baseline, results) + "\n")
    for line in notes(baseline, results, band):
        print(line)
    if options.json:
        try:
            Path(options.json).write_text(json.dumps(json_report(baseline, results, band), indent=2) + "\n")
        except OSError as error:
            raise UserError(f"{options.json}: cannot be written: {error.strerror}") from None
    if not options.no_plot:
        draw(options.output, options.title, baseline, runs, results, band)
        print(f"picture: {options.output}")


def main(arguments=None):
    try:
        compare_runs(parse_arguments(arguments))
    except UserError as error:
        print(f"compare_loss.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
