#!/usr/bin/env python3
"""Draws the two figures of docs/explanation/fp8-primer.md: the FP8 formats on a number line, and a simulation of delayed and current
scaling.

    scripts/fp8_figures.py                      # writes fp8_formats.png and fp8_scaling.png to docs/explanation
    scripts/fp8_figures.py --folder FOLDER
"""

import argparse
import math
import sys
from pathlib import Path

from script_files import run, save_figure

try:
    import matplotlib
    import numpy as np

    matplotlib.use("Agg")
    from matplotlib import pyplot
except ImportError:
    print("numpy or matplotlib is missing; scripts/install_deps.sh installs both", file=sys.stderr)
    sys.exit(77)

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "explanation"
BLUE, ORANGE, DARK, LIGHT = "#0072b2", "#d55e00", "#30363d", "#b8c4d0"
STYLE = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#888888", "axes.titlesize": 12.5,
         "axes.titlelocation": "left", "axes.titleweight": "bold", "legend.frameon": False}

# name: (mantissa bits, exponent of the smallest normal number, largest number)
FORMATS = {"BF16": (7, -126, (2 - 2**-7) * 2.0**127), "E5M2": (2, -14, 57344.0), "E4M3": (3, -6, 448.0)}


def quantize(x, scale, name="E4M3"):
    """x quantized and dequantized: rounded to nearest even and saturated."""
    mantissa, least, largest = FORMATS[name]
    scaled = np.asarray(x, float) * scale
    exponent = np.maximum(np.frexp(scaled)[1] - 1, least)
    step = np.exp2(exponent - mantissa)
    return np.clip(np.round(scaled / step) * step, -largest, largest) / scale


def numbers_of(name, low, high):
    """The numbers of a format from low to high, both above its smallest normal number."""
    mantissa = FORMATS[name][0]
    octaves = range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)
    every = sorted((1 + m / 2**mantissa) * 2.0**e for e in octaves for m in range(2**mantissa))
    return [number for number in every if low <= number <= high]


def draw_ranges(axes):
    left, right = -22, 22
    for row, (name, (mantissa, least, largest)) in enumerate(FORMATS.items()):
        color = DARK if name == "BF16" else BLUE if name == "E5M2" else ORANGE
        top, bottom = math.log2(largest), least - mantissa
        axes.barh(row, min(top, right) - max(least, left), left=max(least, left), height=0.42, color=color)
        if bottom > left:
            axes.barh(row, least - bottom, left=bottom, height=0.42, color=color, alpha=0.35)
            axes.text(bottom, row + 0.36, f"$2^{{{bottom}}}$", ha="right" if name == "E5M2" else "center", fontsize=10)
            axes.text(least, row + 0.36, f"$2^{{{least}}}$", ha="center", fontsize=10)
            axes.text(top, row + 0.36, f"{largest:,.0f}", ha="center", fontsize=10)
        else:
            axes.text(0, row + 0.36, f"continues to $2^{{{bottom}}}$ on the left and to $2^{{128}}$ on the right", ha="center", fontsize=10)
            for side, end in ((left, left - 1.2), (right, right + 1.2)):
                axes.annotate("", (end, row), (side, row), arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": 3})
    axes.set_yticks(range(len(FORMATS)), FORMATS)
    axes.set_ylim(-0.45, 2.75)
    axes.set_xlim(left - 2, right + 2)
    axes.set_xticks(range(-20, 21, 4), [f"$2^{{{e}}}$" for e in range(-20, 21, 4)])
    axes.set_xlabel("magnitude (logarithmic; light: subnormal numbers, with fewer bits towards the left)")
    axes.set_title("Range of each format at scale 1")


def draw_precision(axes):
    for row, name in enumerate(FORMATS):
        color = DARK if name == "BF16" else BLUE if name == "E5M2" else ORANGE
        numbers = numbers_of(name, 1, 4)
        axes.vlines(np.log2(numbers), row - 0.25, row + 0.25, color=color, linewidth=0.7 if name == "BF16" else 2)
    axes.set_yticks(range(len(FORMATS)), [f"{name}\n{2**FORMATS[name][0]} per octave" for name in FORMATS])
    axes.set_ylim(-0.5, 2.5)
    axes.set_xticks([0, 1, 2], ["1", "2", "4"])
    axes.set_xlabel("magnitude (logarithmic)")
    axes.set_title("All numbers from 1 to 4")


def draw_formats(path):
    with pyplot.rc_context(STYLE):
        figure, (ranges, precision) = pyplot.subplots(1, 2, figsize=(13, 3.6), gridspec_kw={"width_ratios": (2, 1)}, layout="constrained")
        draw_ranges(ranges)
        draw_precision(precision)
        save_figure(figure, path, dpi=110, metadata={"Software": None})
        pyplot.close(figure)


STEPS, HISTORY, VALUES, JUMP = 60, 16, 8192, 30
LIMIT = FORMATS["E4M3"][2]


def simulate(seed=1):
    """Simulates normally distributed values with a drifting standard deviation, which is multiplied by five at step JUMP and decays over 12
    steps. Returns for each step the amax, the largest value that the delayed scale can represent, the SQNR in dB of each kind of scaling,
    and the share of saturated values."""
    random = np.random.default_rng(seed)
    history, result = [], {"amax": [], "limit": [], "saturating": [], "requantizing": [], "current": [], "saturated": []}
    for step in range(STEPS):
        size = math.exp(0.004 * step + random.normal(0, 0.04))
        if step >= JUMP:
            size *= 1 + 4 * max(0.0, 1 - (step - JUMP) / 12)
        x = random.normal(0, size, VALUES)
        amax = float(np.abs(x).max())
        own = LIMIT / amax
        delayed = LIMIT / max(history[-HISTORY:]) if history else own  # calibrated before the first step
        result["amax"].append(amax)
        result["limit"].append(LIMIT / delayed)
        result["saturated"].append(float((np.abs(x) * delayed > LIMIT).mean()))
        for name, scale in (("saturating", delayed), ("requantizing", own if amax * delayed > LIMIT else delayed), ("current", own)):
            error = quantize(x, scale) - x
            result[name].append(10 * math.log10(np.mean(x**2) / np.mean(error**2)))
        history.append(amax)
    return {name: np.array(values) for name, values in result.items()}


def draw_scaling(path):
    run = simulate()
    steps = np.arange(1, STEPS + 1)
    over = run["amax"] > run["limit"]
    with pyplot.rc_context(STYLE):
        figure, (sizes, errors) = pyplot.subplots(2, 1, figsize=(11, 6), sharex=True, gridspec_kw={"height_ratios": (1.15, 1)}, layout="constrained")
        sizes.step(steps, run["limit"], where="mid", color=BLUE, label=f"largest value that the delayed scale represents (maximum of {HISTORY} steps)")
        sizes.plot(steps, run["amax"], color=DARK, label="amax of the tensor; current scaling uses it directly")
        sizes.plot(steps[over], run["amax"][over], "o", color=ORANGE, label="overflow: the tensor is requantized with its own amax")
        sizes.text(40.5, 25.5, f"the scale stays until the peak\nleaves the history of {HISTORY} steps", fontsize=10, color=BLUE, va="center")
        sizes.set_ylabel("magnitude")
        sizes.set_ylim(0, 1.35 * run["amax"].max())
        sizes.legend(loc="upper left", fontsize=10)
        sizes.set_title("Delayed scaling reacts to a jump one step late")
        errors.plot(steps, run["saturating"], color=ORANGE, linestyle="--", label="delayed, overflowing values saturate")
        errors.plot(steps, run["requantizing"], color=BLUE, label="delayed, overflowing tensors are requantized (te-train)")
        errors.plot(steps, run["current"], color=DARK, linewidth=1, label="current scaling")
        worst = int(np.argmin(run["saturating"]))
        errors.annotate(f"{100 * run['saturated'][worst]:.0f}% of the values saturate", (steps[worst], run["saturating"][worst]),
                        (steps[worst] + 2, run["saturating"][worst] + 2), fontsize=10, color=ORANGE, va="center")
        errors.text(41, 25, "the other two lines coincide", fontsize=10, color=DARK, va="center")
        errors.set_ylabel("SQNR (dB, higher is better)")
        errors.set_xlabel("step")
        errors.set_ylim(0, 36)
        errors.legend(loc="lower left", fontsize=10)
        errors.set_title("Quantization error of the same tensor")
        save_figure(figure, path, dpi=110, metadata={"Software": None})
        pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="output folder (default: docs/explanation)")
    folder = parser.parse_args().folder
    draw_formats(folder / "fp8_formats.png")
    draw_scaling(folder / "fp8_scaling.png")
    print(f"{folder}/fp8_formats.png, fp8_scaling.png")


if __name__ == "__main__":
    run(main)
