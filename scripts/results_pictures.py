#!/usr/bin/env python3
"""Draws the figures of docs/results/convergence, of the guard and of a tutorial from the data in docs/results.

    scripts/results_pictures.py                       # writes all figures to docs/results
    scripts/results_pictures.py --folder DIR          # writes them to DIR
    scripts/results_pictures.py llama_1b_100m         # only the figures of one experiment

Gaps with intervals come from the reports of the experiments, which use every step; curves come from the CSV files.
"""

import argparse
import sys
import types
from pathlib import Path

try:
    import numpy as np
    from report import curves, figures
    from report.analysis import Arm, Tolerance, compare_arms
    from report.experiment import Content
    from report.plots import mark_epochs
    from report.runs import read_run
except ImportError as missing:
    print(f"{missing}; scripts/install_deps.sh installs numpy, scipy and matplotlib", file=sys.stderr)
    sys.exit(77)
from results_data import REPORTS, RESULTS, arms, label
from script_files import run, save_figure

# Tokens at which the books of llama_1b_100m repeat, which are 80% of its data. The mixed corpus repeats at 29, 57 and
# 86 million.
EPOCHS = (30e6, 60e6, 90e6)
STEP = 65_536  # tokens of a step of gpt2_124m_switch


def runs(experiment, arm):
    return [read_run(path) for path in sorted((RESULTS / experiment).glob(f"{arm}_seed?.csv"))]


def content_of(experiment, names, title="", epochs=()):
    """Content of a report with display names; the first arm is the baseline."""
    baseline, *others = [Arm(label(experiment, name), runs(experiment, name)) for name in names]
    return Content(title or REPORTS[experiment][1], baseline, others, Tolerance(), epochs=list(epochs))


def gaps(experiment, skipped=()):
    """Pairs, means and intervals of a report, without the arms in `skipped`."""
    def measure(found):
        limits = {key: np.nan if found[key] is None else found[key] for key in ("low", "high")}
        taken = {"name": found["name"], "gaps": found["pairs"], "mean": found["gap"], "tolerance": found["tolerance"]}
        return types.SimpleNamespace(**taken, **limits)

    shown = [arm for arm in arms(experiment) if arm["name"] not in skipped]
    rows = [types.SimpleNamespace(name=label(experiment, arm["name"]), measures=[*map(measure, arm["measures"])])
            for arm in shown]
    return figures.gaps_with_intervals(rows, REPORTS[experiment][1])


def gap_curves(experiment, names, **options):
    content = content_of(experiment, names, **options)
    return figures.gap_by_tokens(content, [compare_arms(content.baseline, arm, content.tolerance) for arm in content.arms])


def gap_line(experiment, arm, baseline="bf16", window=None):
    """(tokens, smoothed gap) of one pair."""
    (base,), (run,) = (list(read_run(RESULTS / experiment / f"{name}.csv") for name in [x]) for x in (baseline, arm))
    tokens, before, after, _ = curves.align(base, run)
    return tokens, curves.smooth(after - before, window or curves.default_window(len(tokens)))


def repeated_data():
    """One seed with repeated data, and with as many tokens without repetition."""
    figure, axes = figures.new(4.2, "Llama 1.3B, 100 million tokens, FP8 delayed minus BF16, seed 1")
    for name, color, text in (
        ("llama_1b_100m", figures.COLORS[1], "data repeated 3.4 times (H100)"),
        ("llama_1b_100m_once", figures.COLORS[0], "no repeated data (H200)"),
    ):
        tokens, gap = gap_line(name, "fp8_delayed_seed1", "bf16_seed1")
        axes.plot(tokens / 1e6, gap, color=color, linewidth=2, label=text)
    axes.axhline(0, color=figures.BASELINE, linewidth=1)
    mark_epochs(axes, EPOCHS, 1e6)
    axes.set_xlabel("consumed tokens (million); dotted: epochs of the repeated books")
    axes.set_ylabel("training loss, FP8 minus BF16 (nats)")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 0.08))
    return figure


# (experiment, model, parameters, seeds, variants) of each size
LAW = (
    ("gap_law_8m", "8M", 8_456_960, 5, ("delayed", "tensorwise", "blockwise", "bf16_control")),
    ("gap_law_16m", "16M", 15_880_320, 4, ("delayed", "tensorwise", "blockwise", "bf16_control")),
    ("gap_law_30m", "31M", 31_008_960, 4, ("delayed", "tensorwise", "bf16_control")),
    ("gap_law_50m", "51M", 50_929_920, 3, ("delayed",)),
)


def tolerance_of(measure):
    """In nats; both limits of the experiments of the law."""
    return min(0.01, 0.0025 * measure["baseline"])


def gap_law():
    """All sizes: the gap during the whole run, whose learning rate is constant before the last 15%, and after the decay
    of each length."""
    title = "Llama with 8M to 51M parameters, 20 tokens per parameter, three to five seeds, H100 and H200"
    figure, (*panels, right) = figures.new(4.8, title, ncols=5, gridspec_kw={"width_ratios": (1.2, 1, 1, 1, 2)})
    for axes in panels[1:]:
        axes.sharey(panels[0])
        axes.tick_params(labelleft=False)
    colors = {arm: figures.color(index) for index, arm in enumerate(LAW[0][4], start=1)}
    count, drawn = sum(len(row[4]) for row in LAW), 0
    tolerance = {"color": "#2a7f3f", "alpha": 0.12, "linewidth": 0}
    for axes, (name, model, parameters, seeds, variants), marker in zip(panels, LAW, "Dovs"):
        found = {arm["name"]: arm["measures"][0] for arm in arms(name)}
        for arm in variants:
            own = [seed for seed in range(1, seeds + 1) if (RESULTS / name / f"{arm}_seed{seed}.csv").exists()]
            pairs = [gap_line(name, f"{arm}_seed{seed}", f"bf16_seed{seed}", 9) for seed in own]
            style = {"color": colors[arm]}
            for tokens, gap in pairs:
                axes.plot(tokens / parameters, gap, linewidth=0.5, alpha=0.4, **style)
            mean = np.mean([gap for _, gap in pairs], axis=0)
            axes.plot(pairs[0][0] / parameters, mean, linewidth=2.4, label=label(name, arm), **style)
            for place, suffix in enumerate(("_5", "_10", "")):
                at, measure = place + 0.8 * ((drawn + 0.5) / count - 0.5), found[arm + suffix]
                half, limit = 0.4 / count, tolerance_of(measure)
                right.fill_between([at - half, at + half], -limit, limit, **tolerance)
                right.plot([at, at], [measure["low"], measure["high"]], linewidth=2, solid_capstyle="butt", **style)
                right.plot(at, measure["gap"], marker, markersize=4, **style)
            drawn += 1
        right.plot([], [], marker, color="#888888", markersize=4, label=model)
        axes.set_title(f"{model}, whole run", loc="left", fontsize=11)
        axes.set_xticks([0, 10, 20])
        axes.axhspan(-tolerance_of(found["delayed"]), tolerance_of(found["delayed"]), **tolerance)
    for axes in (*panels, right):
        axes.axhline(0, color=figures.BASELINE, linewidth=1)
    panels[0].set_ylim(-0.055, 0.235)  # space for the legend
    panels[0].legend(loc="upper right", handlelength=1)
    panels[0].set_ylabel("training loss minus BF16 (nats)")
    right.set_title("after a decay (other scale)", loc="left", fontsize=11)
    right.set_xticks([0, 1, 2], ["5", "10", "20"])
    right.legend(loc="upper right")
    text = "tokens per parameter; thin lines: seed pairs; thick lines, markers: means; "
    text += "vertical lines: 95% intervals; green: tolerance at the end"
    figure.supxlabel(text, fontsize=9.5, color="#444444")
    return figure


def gap_parts():
    """The gap from one checkpoint on: by GEMMs, and with FP8 only before or after the learning rate falls."""
    panels = (
        ("gap_gemms_16m", (("delayed", 1), ("fprop", 2), ("dgrad", 3), ("wgrad", 4), ("control", 5)), "by GEMMs"),
        ("gap_parts_16m", (("fp8_first", 2), ("fp8_last", 3)), "FP8 before or after step 2,200"),
    )
    title = "Llama 16M, 184 million tokens from one checkpoint on, means of four and three seeds, two H200"
    figure, grid = figures.new(4.4, title, ncols=2, sharey=True)
    for axes, (name, variants, title) in zip(grid, panels):
        drawn = [(name, arm, color) for arm, color in variants]
        if name == "gap_parts_16m":
            drawn.insert(0, ("gap_gemms_16m", "delayed", 1))
        for experiment, arm, color in drawn:
            seeds = len(list((RESULTS / experiment).glob(f"{arm}_seed?.csv")))
            lines = [gap_line(experiment, f"{arm}_seed{seed}", f"bf16_seed{seed}", 1) for seed in range(1, seeds + 1)]
            mean = np.mean([gap for _, gap in lines], axis=0)
            style = {"color": figures.color(color), "label": label(experiment, arm)}
            axes.plot(lines[0][0] / 122_880, mean, linewidth=1.8, **style)
        axes.axvline(2200, color="#777777", linestyle=":", linewidth=1.2)
        axes.axhline(0, color=figures.BASELINE, linewidth=1)
        axes.axhspan(-0.0073, 0.0073, color="#2a7f3f", alpha=0.12, linewidth=0)
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_ylim(-0.0018, 0.0105)
        axes.legend(loc="upper left", ncol=2, fontsize=9)
    grid[0].set_ylabel("training loss minus BF16 (nats)")
    figure.supxlabel("step; dotted: the learning rate begins to fall; green: tolerance", fontsize=9.5, color="#444444")
    return figure


def llama_7b():
    """Both experiments, one pair each."""
    figure, grid = figures.new(4.2, "Llama 2 7B, 3.9 million tokens, two H100, one pair each", ncols=2, sharey=True)
    for axes, name, std in zip(grid, ("llama7b", "llama7b_calm"), (0.02, 0.014)):
        for index, arm in enumerate(("fp8_delayed", "fp8_blockwise", "bf16_other_order"), start=1):
            if (RESULTS / name / f"{arm}_seed1.csv").exists():
                tokens, gap = gap_line(name, f"{arm}_seed1", "bf16_seed1", 1)
                axes.plot(tokens / 1e6, gap, color=figures.color(index), linewidth=1.6, label=label(name, arm))
        axes.axhline(0, color=figures.BASELINE, linewidth=1)
        axes.set_title(f"weight init std {std}", loc="left", fontsize=11)
        axes.set_xlabel("consumed tokens (million)")
    grid[0].set_ylabel("training loss minus BF16 (nats)")
    grid[1].legend(loc="lower right")
    return figure


def experts():
    """Means over the seeds during the run; pairs, means and intervals at its end."""
    name, drawn = "moe_30m_87m", ("bf16_control", "delayed", "tensorwise", "blockwise")
    figure, (left, right) = figures.new(4.6, REPORTS[name][1], ncols=2, gridspec_kw={"width_ratios": (1.7, 1)})
    found = {arm["name"]: arm["measures"][0] for arm in arms(name)}
    for place, arm in enumerate(drawn):
        measure, style = found[arm], {"color": figures.color(place + 1)}
        lines = [gap_line(name, f"{arm}_seed{seed}", f"bf16_seed{seed}") for seed in range(1, 6)]
        mean = np.mean([gap for _, gap in lines], axis=0)
        left.plot(lines[0][0] / 1e6, mean, linewidth=2, label=label(name, arm), **style)
        right.plot([place, place], [measure["low"], measure["high"]], linewidth=2.4, **style)
        right.plot(place, measure["gap"], "D", markersize=7, markeredgecolor="white", **style)
        right.plot([place + 0.2] * len(measure["pairs"]), measure["pairs"], "o", markersize=4, alpha=0.55, **style)
    for axes in (left, right):
        axes.axhspan(-measure["tolerance"], measure["tolerance"], color="#2a7f3f", alpha=0.12, linewidth=0)
        axes.axhline(0, color=figures.BASELINE, linewidth=1)
    left.set_title("means of five seeds", loc="left", fontsize=11)
    left.set_xlabel("consumed tokens (million)")
    left.set_ylabel("training loss minus BF16 (nats)")
    left.legend(loc="upper right", title="green: tolerance at the end", title_fontsize=9)
    right.set_title("end: pairs, means, 95% intervals", loc="left", fontsize=11)
    right.set_xticks(range(len(drawn)), [label(name, arm).replace(" ", "\n") for arm in drawn], fontsize=9)
    right.set_xlim(-0.5, len(drawn) - 0.4)
    return figure


def learning_rates():
    """One panel per learning rate."""
    name, rates = "gpt2_124m_learning_rates", (("half", "3e-4"), ("1x", "6e-4"), ("2x", "1.2e-3"), ("4x", "2.4e-3"))
    figure, grid = figures.new(6.4, "GPT-2 124M, 32.8 million tokens, seed 1, one H200", nrows=2, ncols=2, sharex=True, sharey=True)
    for axes, (rate, text) in zip(grid.flat, rates):
        for index, (arm, shown) in enumerate((("bf16", "BF16"), ("delayed", "FP8 delayed"), ("blockwise", "FP8 blockwise"))):
            (run,) = runs(name, f"{arm}_{rate}")
            width = 2.8 if index == 0 else 1.3
            axes.plot(run.tokens / 1e6, curves.smooth(run.loss, 3), color=figures.color(index), linewidth=width, label=shown)
        axes.set_title(f"learning rate {text}", loc="left", fontsize=11)
        axes.set_ylim(5, 7.5)
    grid[0][0].legend(loc="upper right", title="smoothed over 3 points;\nthe first steps are above the axis", title_fontsize=9)
    for axes in grid[1]:
        axes.set_xlabel("consumed tokens (million)")
    for axes in grid[:, 0]:
        axes.set_ylabel("training loss (nats)")
    return figure


def switch():
    """The gap at each step of runs that switch to FP8 and back."""
    figure, axes = figures.new(4.2, "GPT-2 124M, 19.7 million tokens, minus the BF16 run of the same seed, one H200")
    for index, (arm, text) in enumerate((
        ("delayed_from_101", "FP8 delayed from step 101 to the end"),
        ("delayed_101_to_200", "FP8 delayed in steps 101 to 200"),
        ("blockwise_101_to_200", "FP8 blockwise in steps 101 to 200"),
    ), start=1):  # fmt: skip
        for seed in (1, 2):
            tokens, gap = gap_line("gpt2_124m_switch", f"{arm}_seed{seed}", f"bf16_seed{seed}", 5)
            axes.plot(tokens / STEP, gap, color=figures.color(index), linewidth=1.2, label=None if seed > 1 else text)
    axes.axvspan(100, 200, color="#c4c4c4", alpha=0.4, linewidth=0, label="FP8 phase of the runs that switch back")
    for step in (100, 200):
        axes.axvline(step, color="#777777", linewidth=1)
    axes.axhline(0, color=figures.BASELINE, linewidth=1)
    axes.set_ylim(-0.003, 0.0045)
    axes.set_xlim(0, 300)
    axes.set_xlabel("step (65,536 tokens)")
    axes.set_ylabel("training loss minus BF16 (nats)")
    axes.legend(loc="upper left", title="two seeds each, smoothed over 5 steps; tolerance: ±0.01 nats", title_fontsize=9)
    return figure


def gpt2_curves():
    """Losses and gaps of the longest run, compared with BF16 runs of other seeds."""
    names = (("bf16", "BF16"), ("fp8", "FP8 delayed"), ("bf16_seed2", "BF16, seed 2"), ("bf16_seed3", "BF16, seed 3"))
    found = {text: read_run(RESULTS / "gpt2_124m" / f"{name}.csv") for name, text in names}
    base = found["BF16"]
    figure, (upper, lower) = figures.new(7, "GPT-2 124M, 328 million tokens in 13.7 epochs, one H200 per run", nrows=2, sharex=True)
    window = 9
    for index, (text, run) in enumerate(list(found.items())[:2]):
        style = {"color": figures.color(2 * index), "linewidth": (2.8, 1.3)[index]}
        upper.plot(run.tokens / 1e6, curves.smooth(run.loss, window), label=f"{text}, training", **style)
        upper.plot(run.valid_tokens / 1e6, run.valid_loss, "ox"[index], markerfacecolor="white", color=style["color"], label=f"{text}, validation")
    for index, text in ((3, "BF16, seed 2"), (4, "BF16, seed 3"), (2, "FP8 delayed")):
        tokens, before, after, _ = curves.align(base, found[text])
        gap = 100 * (curves.smooth(after, window) / curves.smooth(before, window) - 1)
        lower.plot(tokens / 1e6, gap, color=figures.color(index), linewidth=2 if index == 2 else 1.1, label=f"{text} minus BF16, seed 1")
    lower.axhline(0, color=figures.BASELINE, linewidth=1)
    epoch = 23_952_868
    for axes in (upper, lower):
        for number in range(1, 14):
            axes.axvline(number * epoch / 1e6, color="#999999", linestyle=":", linewidth=0.8)
    upper.set_ylim(3.3, 6.5)
    lower.set_ylim(-1.2, 1.8)
    upper.set_ylabel("loss (nats per token)")
    lower.set_ylabel("training loss, difference (%)")
    lower.set_xlabel("consumed tokens (million); dotted: epochs")
    upper.legend(loc="upper right", title=f"smoothed over {5 * window} steps;\nthe first steps are above the axis", title_fontsize=9)
    lower.legend(loc="upper right", ncol=3)
    return figure


def guard():
    """A run with an injected outlier, with each action of the guard."""
    figure, axes = figures.new(4.4, "Guard: two-layer Llama, 123 thousand tokens, outlier injected from step 55, CPU")
    for index, (name, text) in enumerate((
        ("bf16", "BF16"), ("warn", "FP8, the guard warns"), ("action_bf16", "FP8, the guard switches to BF16"),
        ("rollback", "FP8, the guard rolls back"),
    )):  # fmt: skip
        run = read_run(RESULTS / "guard" / f"{name}.csv")
        axes.plot(run.tokens / 1024, run.loss, color=figures.color((0, 2, 1, 3)[index]), linewidth=2 if index == 0 else 1.4, label=text)
    for number, start in enumerate((40, 60, 80, 100)):
        text = None if number else "steps compared with BF16 by the guard"
        axes.axvspan(start, start + 4, color="#c4c4c4", alpha=0.6, linewidth=0, label=text)
    axes.axvline(55, color="#777777", linestyle=":", linewidth=1.2)
    axes.set_xlim(35, 120)
    axes.set_ylim(2.4, 4.4)
    axes.set_xlabel("step (1,024 tokens)")
    axes.set_ylabel("training loss (nats per byte)")
    axes.legend(loc="upper left", ncol=2)
    return figure


FP8_ARMS = ("fp8_delayed", "fp8_tensorwise", "fp8_blockwise")
# {file: function that draws it}
PICTURES = {
    "guard.png": guard,
    "gap_law_16m/gap.png": gap_law,
    "gap_gemms_16m/gap.png": gap_parts,
    "gpt2_30m_formats/gaps.png": lambda: gaps("gpt2_30m_formats"),
    "gpt2_124m_formats/gaps.png": lambda: gaps("gpt2_124m_formats"),
    "gpt2_124m_lora/gaps.png": lambda: gaps("gpt2_124m_lora", skipped=("lora",)),
    "moe_30m_87m/gap.png": experts,
    "llama_1b_100m/gap.png": lambda: gap_curves("llama_1b_100m", ("bf16", *FP8_ARMS), epochs=EPOCHS),
    "llama_1b_100m_once/gap.png": repeated_data,
    "llama_1b_unit_embeddings/gaps.png": lambda: gaps("llama_1b_unit_embeddings"),
    "llama_1b_calm/gaps.png": lambda: gaps("llama_1b_calm"),
    "llama_1b_recipes/loss.png": lambda: figures.loss_by_tokens(
        content_of("llama_1b_recipes", ("bf16", *FP8_ARMS, "fp8_rowwise"), "Llama 1.3B, 14.7 million tokens, seed 1, two H200")
    ),
    "llama7b/gap.png": llama_7b,
    "small_llama/gaps.png": lambda: gaps("small_llama"),
    "gpt2_124m/curves.png": gpt2_curves,
    "gpt2_124m_recipes/gaps.png": lambda: gaps("gpt2_124m_recipes"),
    "gpt2_124m_recipes_calm/gaps.png": lambda: gaps("gpt2_124m_recipes_calm"),
    "gpt2_124m_learning_rates/loss.png": learning_rates,
    "gpt2_124m_twice_the_rate/gaps.png": lambda: gaps("gpt2_124m_twice_the_rate"),
    "gpt2_124m_switch/gap.png": switch,
    "gpt2_124m_instructions/gaps.png": lambda: gaps("gpt2_124m_instructions"),
    "gpt2_30m_ablations_calm/gaps.png": lambda: gaps("gpt2_30m_ablations_calm"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="experiments to draw (default: all)")
    parser.add_argument("--folder", type=Path, default=RESULTS, metavar="DIR", help="output folder (default: docs/results)")
    options = parser.parse_args()
    for name, draw in PICTURES.items():
        if options.experiments and name.split("/")[0].removesuffix(".png") not in options.experiments:
            continue
        path = options.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        figure = draw()
        save_figure(figure, path, dpi=120)
        figures.pyplot().close(figure)
        print(f"wrote {path}")


if __name__ == "__main__":
    run(main)
