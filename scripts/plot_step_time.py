#!/usr/bin/env python3
"""Draws the time of a step or layer by kind of operation, from a report of te-bench --profile.

    te-bench step --config configs/gpt2_124m_bf16.yaml --profile --json step.json
    scripts/plot_step_time.py step.json --output step_time.png --markdown

Each measurement has two bars: the measured time, and the speed-of-light time of the same operations, in percent of the
measured step. The rest of the first bar is time between operations. The lower bound of a GEMM is its time alone; if an
operation was faster in the step, the figure uses that time as its bound. --markdown prints the numbers as a table.
"""

import argparse
import json
from pathlib import Path

from script_files import reason, run, save_figure
from terminal_text import guard_output

GROUPS = {  # in the order of the bars, with their colors
    "GEMMs": "#1f5f8b",
    "grouped GEMMs": "#2c7aa8",
    "attention": "#3f9ac9",
    "norm": "#7a9e3b",
    "activation": "#a9c46c",
    "routing": "#6aa38f",
    "quantization": "#e0a030",
    "rope": "#c9b458",
    "elementwise": "#b08d57",
    "loss": "#8e6bb0",
    "embedding": "#b49ad0",
    "optimizer": "#b5524a",
    "communication": "#5a5a5a",
    "copies, fills": "#a0a0a0",
}
GAPS = "between operations"


class UserError(Exception):
    """A mistake that the user can correct; printed as one line, exit code 2."""


def entries_of(report):
    """The measurements of a report: te-bench step writes a list, te-bench layer an object."""
    return report if isinstance(report, list) else report.get("layer", [])


def title_of(entry):
    if "which" in entry:
        return f"{entry['which']} layer, {entry['precision'].upper()}"
    return entry["config"]


def read_profiles(path):
    """(title, profile) of each measurement of a file that has a profile."""
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
        found = [(title_of(e), e["profile"]) for e in entries_of(report) if "profile" in e]
        for title, profile in found:  # a value that is missing is found here, before anything is written
            markdown(title, profile), bars_of(profile)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise UserError(f"{path}: not a report of te-bench ({error}); write one with te-bench step --json") from error
    if not found:
        raise UserError(f"{path}: contains no profile; run te-bench with --profile")
    return found


def sums_of(profile):
    """{group: (bound ms, measured ms)}, in the order of GROUPS."""
    sums = {}
    for row in profile["operations"]:
        bound, ms = sums.get(row["group"], (0.0, 0.0))
        sums[row["group"]] = (bound + row["lower_bound_ms"], ms + row["ms"])
    order = [*GROUPS, *(group for group in sums if group not in GROUPS)]
    return {group: sums[group] for group in order if group in sums}


def bars_of(profile):
    """{group: (bound, measured)} in percent of the whole. The bound of each operation is at most its measured time. The
    whole is the step without the profiler, or the sum of the operations if that is longer."""
    whole = max(profile["run_ms"], sum(ms for _, ms in sums_of(profile).values()))
    held = [{**row, "lower_bound_ms": min(row["lower_bound_ms"], row["ms"])} for row in profile["operations"]]
    sums = sums_of({"operations": held})
    return {group: (100 * bound / whole, 100 * ms / whole) for group, (bound, ms) in sums.items()}


def gap_of(profile):
    return max(0.0, profile["span_ms"] - profile["busy_ms"])


def markdown(title, profile):
    run = profile["run_ms"]
    header = "| operations | bound ms | measured ms | share | of the whole |"
    lines = [f"### {title}", "", header, "|---|---|---|---|---|"]
    for group, (bound, ms) in sums_of(profile).items():
        share = f"{100 * bound / ms:.0f}%" if bound > 0 else ""
        lines.append(f"| {group} | {bound:.2f} | {ms:.2f} | {share} | {100 * ms / run:.1f}% |")
    lines.append(f"| {GAPS} | | {gap_of(profile):.2f} | | {100 * gap_of(profile) / run:.1f}% |")
    bound = profile["lower_bound_ms"]
    lines.append(f"| **without the profiler** | **{bound:.2f}** | **{run:.2f}** | **{100 * bound / run:.1f}%** | |")
    return "\n".join(lines) + "\n"


def draw(profiles, output):
    try:
        import matplotlib
    except ImportError as error:
        raise UserError("matplotlib is missing; pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 1.2 + 0.9 * len(profiles)))
    used = {}
    for number, (title, profile) in enumerate(profiles):
        run = profile["run_ms"]
        for offset, column in ((0.2, 1), (-0.2, 0)):
            left = 0.0
            for group, values in bars_of(profile).items():
                width = values[column]
                bar = axes.barh(
                    -number + offset, width, 0.36, left=left, color=GROUPS.get(group, "#d0d0d0"), edgecolor="white",
                    linewidth=0.5, alpha=1.0 if column else 0.55,
                )  # fmt: skip
                used.setdefault(group, bar)
                left += width
            text = f"{run:.4g} ms" if column else f"bound {left:.1f}%"
            axes.text(max(left, 100.0) + 0.7, -number + offset, text, va="center", fontsize=8)
    axes.set_yticks([-number for number in range(len(profiles))], [title for title, _ in profiles])
    axes.set_xlim(0, 118)
    axes.set_xlabel("percent of the measured time (upper bar: measured, lower bar: speed-of-light time)")
    axes.axvline(100, color="black", linewidth=0.6)
    figure.legend(used.values(), used.keys(), loc="upper center", ncol=6, fontsize=8, frameon=False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.5 / figure.get_figheight()))
    try:
        save_figure(figure, output, dpi=150)
    except (OSError, ValueError) as error:
        raise UserError(f"--output {output}: cannot be written ({reason(error)})") from error


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", metavar="FILE", help="reports of te-bench step or layer --profile --json")
    parser.add_argument("--output", metavar="PNG", help="figure to write")
    parser.add_argument("--markdown", action="store_true", help="print the tables")
    arguments = parser.parse_args()
    if not arguments.output and not arguments.markdown:
        raise UserError("nothing to do; use --output PNG, --markdown or both")
    profiles = [found for path in arguments.reports for found in read_profiles(path)]
    try:
        if arguments.output:
            draw(profiles, arguments.output)
    finally:  # the figure does not depend on standard output, which may be full, nor the tables on the figure
        if arguments.markdown:
            print("\n".join(markdown(title, profile) for title, profile in profiles))
    if arguments.output:
        print(f"{arguments.output}: {len(profiles)} measurements")


if __name__ == "__main__":
    guard_output()
    run(main, UserError)
