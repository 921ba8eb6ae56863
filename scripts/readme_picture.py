#!/usr/bin/env python3
"""Draws the figure of the README from the data in docs/results: BF16 and FP8 losses, their gap, and speed.

    scripts/readme_picture.py                       # writes docs/results/overview.png
    scripts/readme_picture.py --output FILE.png
"""

import argparse
import csv
import json
import sys
from pathlib import Path

from script_files import run, save_figure

try:
    import matplotlib
    import numpy as np

    matplotlib.use("Agg")
    from matplotlib import pyplot
except ImportError:
    print("numpy or matplotlib is missing; run scripts/install_deps.sh", file=sys.stderr)
    sys.exit(77)

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
RUNS = RESULTS / "llama_1b_100m"
SEEDS = (1, 2, 3)
EPOCHS = (30e6, 60e6, 90e6)  # tokens at which the books repeat (docs/results/convergence/llama-1b-100m-tokens.md)
BF16, FP8, PYTORCH = "#30363d", "#d55e00", "#8cb4d8"
WINDOW = 41  # steps of the moving averages: 4 million tokens
STYLE = {"font.size": 11.5, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#888888", "axes.titlesize": 13,
         "axes.titlelocation": "left", "axes.titleweight": "bold", "legend.frameon": False}


def read(name):
    with (RUNS / name).open(newline="") as file:
        rows = list(csv.DictReader(file))
    return np.array([float(row["consumed_tokens"]) for row in rows]), np.array([float(row["loss"]) for row in rows])


def smooth(values):
    """Moving average over WINDOW steps, without the incomplete ends."""
    return np.convolve(values, np.full(WINDOW, 1 / WINDOW), mode="valid")


def draw_losses(axes, tokens, bf16, fp8):
    for losses, color, width, label in ((bf16, BF16, 2.6, "BF16, 3 seeds"), (fp8, FP8, 1.1, "FP8, the same 3 seeds")):
        for number, loss in enumerate(losses):
            axes.plot(smooth(tokens) / 1e6, smooth(loss), color=color, linewidth=width, label=None if number else label)
    axes.set_ylim(3.5, 6.5)
    axes.set_ylabel("training loss (nats per token)")
    axes.set_title("Loss: BF16 and FP8 coincide")
    axes.legend(loc="upper right", title="the first steps are above the axis", title_fontsize=9.5)


def draw_gap(axes, tokens, bf16, fp8, row):
    mean = np.mean([smooth(loss) for loss in bf16], axis=0)
    spread = 200 * np.std([smooth(loss) for loss in bf16], axis=0, ddof=1) / mean
    at = smooth(tokens) / 1e6
    axes.fill_between(at, -spread, spread, color="#cfd4da", linewidth=0, label="BF16 seed noise (2 standard deviations)")
    for number, (candidate, baseline) in enumerate(zip(fp8, bf16)):
        axes.plot(at, 100 * smooth(candidate - baseline) / smooth(baseline), color=FP8, linewidth=1.3,
                  label=None if number else "FP8 minus BF16, each seed")
    for limit in (-0.25, 0.25):
        axes.axhline(limit, color="#0072b2", linestyle="--", linewidth=1.2, label="tolerance at the end, fixed in advance" if limit > 0 else None)
    axes.axhline(0, color="#555555", linewidth=0.8)
    for epoch in EPOCHS:
        axes.axvline(epoch / 1e6, color="#999999", linestyle=":", linewidth=1)
    axes.text(EPOCHS[0] / 1e6 + 1, -1.03, "dotted: epochs of the books", fontsize=9.5, color="#555555")
    axes.annotate(f"end: {row['gap_percent']:+.2f}%\n(validation {row['validation_percent']:+.2f}%)", (97, row["gap_percent"]), (68, -0.62),
                  fontsize=10.5, arrowprops={"arrowstyle": "-", "color": "#555555"})
    axes.set_ylim(-1.1, 1.45)
    axes.set_ylabel("difference in loss (%)")
    axes.set_title("Gap: smaller than the tolerance")
    axes.legend(loc="upper right", fontsize=9.5, borderaxespad=0)


def draw_speed(axes, rows, gpus):
    """Bars relative to te-train's BF16, labeled with tokens per second."""
    width = 0.27
    bars = (("bf16", BF16, "te-train BF16"), ("fp8", FP8, "te-train FP8"), ("pytorch_fp8", PYTORCH, "PyTorch FP8 (torch.compile)"))
    for place, (key, color, label) in enumerate(bars):
        for number, row in enumerate(rows):
            height = row[key] / row["bf16"]
            axes.bar(number + (place - 1) * width, height, width * 0.94, color=color, label=None if number else label)
            axes.text(number + (place - 1) * width, height + 0.02, f"{row[key] / 1000:#.3g}".rstrip(".") + "k", ha="center", fontsize=9.5)
    axes.set_xticks(range(len(rows)), [row["model"] for row in rows])
    axes.set_ylim(0, 2.05)
    axes.set_yticks([0, 0.5, 1, 1.5])
    axes.set_ylabel("speed relative to te-train BF16")
    axes.set_title(f"Speed: tokens per second, {gpus}")
    axes.legend(loc="upper left", fontsize=10)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS / "overview.png", metavar="FILE")
    output = parser.parse_args().output
    summary = json.loads((RESULTS / "summary.json").read_text())
    row = next(x for x in summary["evidence"] if x["experiment"] == RUNS.name)
    speed = next(x for x in summary["speed"] if x["name"] == "pytorch")
    bf16 = [read(f"bf16_seed{seed}.csv")[1] for seed in SEEDS]
    fp8 = [read(f"fp8_delayed_seed{seed}.csv")[1] for seed in SEEDS]
    tokens = read("bf16_seed1.csv")[0]
    pyplot.rcParams.update(STYLE)
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(16, 5), layout="constrained", gridspec_kw={"width_ratios": [1, 1.15, 1.05]})
    draw_losses(left, tokens, bf16, fp8)
    draw_gap(middle, tokens, bf16, fp8, row)
    draw_speed(right, speed["rows"], speed["hardware"].replace("1x", "one"))
    for axes in (left, middle):
        axes.set_xlabel("million tokens trained on")
        axes.set_xlim(0, 101)
    ratios = [x["fp8"] / x["bf16"] for x in speed["rows"]]
    figure.suptitle(f"FP8 ends {row['gap_percent']:.2f}% above BF16 (Llama, 1.3 billion parameters, "
                    f"{row['tokens'] / 1e6:.0f} million tokens, {row['pairs']} seeds), "
                    f"{min(ratios):.1f} to {max(ratios):.1f} times the speed", fontsize=14.5, fontweight="bold")
    save_figure(figure, output, dpi=100)


if __name__ == "__main__":
    run(main)
