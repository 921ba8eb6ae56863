#!/usr/bin/env python3
"""Draws the operations of a step over time, from the trace events of te-bench step --timeline.

    mpirun -n 2 te-bench step --config configs/llama_1b_fp8.yaml --set parallel.tensor=2 --timeline step.trace.json
    scripts/plot_timeline.py step.trace.json --output timeline.png

Each rank and CUDA stream has a lane; colors show the kind of operation. Communication is hidden if another lane of the same
rank computes at the same time, else exposed. By default the figure has two windows, the forward and the backward pass of a
layer in the middle of the step; --from-ms and --to-ms choose one window instead. Time 0 of each rank is the start of its
step's first operation, so that the lanes of different ranks may be shifted. Several files, such as BF16 and FP8 of one
model, are drawn below each other with one scale.
"""

import argparse
import json
import lzma
import re
from pathlib import Path

from script_files import reason, run, save_figure
from terminal_text import guard_output

KINDS = {  # in the order of the legend, with their colors and the profile's groups
    "GEMMs": ("#1f5f8b", {"GEMMs", "grouped GEMMs"}),
    "attention": ("#3f9ac9", {"attention"}),
    "norms, activations, quantization": (
        "#a9c46c",
        {"norm", "activation", "routing", "quantization", "rope", "elementwise"},
    ),
    "communication": ("#b5524a", {"communication"}),
    "other": ("#a0a0a0", set()),
}
# A pass of a layer starts with the GEMM of its first linear layer: linear_qkv forward, the MLP's last one backward.
LINEAR = re.compile(r"(?:^| )(linear_\w+|output_layer) (fprop|dgrad)$")
FORWARD, BACKWARD = "linear_qkv fprop", "linear_fc2 dgrad"

WIDTH, LEFT, RIGHT, TOP = 14.0, 1.6, 0.2, 0.95  # inches: the figure, its margins next to the lanes, title and legend
LETTER = 0.065  # width of a letter in a bar, in inches


class UserError(Exception):
    """A mistake that the user can correct; printed as one line, exit code 2."""


def kind_of(event):
    for kind, (_, groups) in KINDS.items():
        if event["kind"] in groups:
            return kind
    return "other"


def read_events(path):
    """(title, operations by start) of a file; times in milliseconds."""
    try:
        data = Path(path).read_bytes()
        trace = json.loads(lzma.decompress(data) if str(path).endswith(".xz") else data)
        events = [
            {
                "lane": (int(event["pid"]), int(event["tid"])),
                "from": event["ts"] / 1e3,
                "to": (event["ts"] + event["dur"]) / 1e3,
                "name": event["name"],
                "kind": event["cat"],
                "label": event["args"]["label"],
                "group": event["args"]["group"],
            }
            for event in trace["traceEvents"]
            if event["ph"] == "X"
        ]
        title = str(trace.get("otherData", {}).get("config", Path(path).stem))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, lzma.LZMAError) as error:
        raise UserError(f"{path}: not a timeline of te-bench ({error}); write one with te-bench step --timeline") from error
    if not events:
        raise UserError(f"{path}: contains no operations; write one with te-bench step --timeline")
    return title, sorted(events, key=lambda event: event["from"])


def linear_calls(events):
    """[(linear layer and pass, start)] of a rank in order. Chunks of one call count once. Weight gradients are ignored, since
    they may overlap with other operations."""
    calls = []
    for event in events:
        match = LINEAR.search(event["label"])
        if match and (not calls or calls[-1][0] != f"{match[1]} {match[2]}"):
            calls.append((f"{match[1]} {match[2]}", event["from"]))
    return calls


def layer_windows(events):
    """[(title, from, to)] of the forward and the backward pass of a layer in the middle of the lowest rank's step, if they
    exist. Forward passes are searched before the first backward pass only, because later ones may be recomputation."""
    rank = min(event["lane"][0] for event in events)
    mine = [event for event in events if event["lane"][0] == rank]
    calls = linear_calls(mine)
    turn = next((i for i, (name, _) in enumerate(calls) if name.endswith("dgrad")), len(calls))
    windows = []
    for what, first, places in (("forward", FORWARD, range(turn)), ("backward", BACKWARD, range(turn, len(calls)))):
        starts = [i for i in places if calls[i][0] == first]
        # From a layer to the next, with at most one recomputed forward pass between them.
        layers = []
        for one, following in zip(starts, starts[1:]):
            between = [name for name, _ in calls[one + 1 : following]]
            if between.count(FORWARD) <= 1 and "output_layer fprop" not in between:
                layers.append((calls[one][1], calls[following][1]))
        if not layers and starts:  # single layer: until the next pass, or until the end
            after = [at for name, at in calls[starts[0] + 1 :] if name.split()[0] == "output_layer" or name in (FORWARD, BACKWARD)]
            layers = [(calls[starts[0]][1], after[0] if after else max(event["to"] for event in mine))]
        if layers:
            windows.append((f"{what} pass of a layer", *layers[len(layers) // 2]))
    return windows


def chosen_windows(events, start, end):
    """The window of the command line, else two of the middle layer, else the whole step."""
    last = max(event["to"] for event in events)
    if start is None and end is None:
        return layer_windows(events) or [("step", 0.0, last)]
    start, end = start or 0.0, last if end is None else end
    if not start < end:
        raise UserError(f"--from-ms {start:g} --to-ms {end:g}: the window is empty; the step ends at {last:.3f}")
    if not any(event["from"] < end and event["to"] > start for event in events):
        raise UserError(f"--from-ms {start:g} --to-ms {end:g}: no operation in this window; the step ends at {last:.3f}")
    return [("window", start, end)]


def text_of(event, letters):
    """The longest of the event's names with at most `letters` letters, or an empty string."""
    if event["kind"] == "communication":
        initials = "".join(word[0] for word in event["name"].split("_")).upper()
        words = event["name"].replace("_", " ")
        candidates = [f"{words} {event['group']}".strip(), words, initials]
    else:
        label = event["label"].removeprefix("linear_").replace("output_layer", "output")
        candidates = [label, label.split(" ")[0]] if label else [event["name"].replace("_", " ")]
    return next((text for text in candidates if len(text) <= letters), "")


def lane_names(lanes):
    """Names of (rank, CUDA stream); without the rank if there is only one."""
    one = len({rank for rank, _ in lanes}) == 1
    return [("" if one else f"rank {rank}, ") + (f"CUDA stream {stream}" if stream else "main stream") for rank, stream in lanes]


def draw_window(axes, panel, lanes):
    """Draws a panel's operations from its window's start on; `span` is the axis' length in ms."""
    events, (what, start, end), span = panel
    inches = WIDTH - LEFT - RIGHT
    for event in events:
        left, right = max(event["from"], start), min(event["to"], end)
        if right <= left:
            continue
        row = lanes.index(event["lane"])
        kind = kind_of(event)
        axes.barh(row, right - left, 0.8, left=left, color=KINDS[kind][0], edgecolor="white", linewidth=0.3)
        text = text_of(event, int((right - left) / span * inches / LETTER))
        if text:
            color = "black" if kind in ("norms, activations, quantization", "other") else "white"
            axes.text((left + right) / 2, row, text, ha="center", va="center", fontsize=7, color=color, clip_on=True)
    axes.set_xlim(start, start + span)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_yticks(range(len(lanes)), lane_names(lanes), fontsize=8)
    axes.set_title(f"{what}, {end - start:.3f} ms", fontsize=9, loc="left")
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("ms since the step's first operation" + (" of each rank" if len({rank for rank, _ in lanes}) > 1 else ""),
                    fontsize=8)  # fmt: skip
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def panels_of(timelines):
    """[(operations, (title, from, to), span in ms)] of [(title, operations, windows)]: each window of all files on one scale."""
    panels = []
    for index in range(max(len(windows) for _, _, windows in timelines)):
        present = [(title, events, windows[index]) for title, events, windows in timelines if index < len(windows)]
        span = max(end - start for _, _, (_, start, end) in present)
        for title, events, (what, start, end) in present:
            seen = [event for event in events if event["from"] < end and event["to"] > start]
            panels.append((seen, (f"{title}: {what}" if len(timelines) > 1 else what, start, end), span))
    return panels


def draw(title, panels, output):
    try:
        import matplotlib
    except ImportError as error:
        raise UserError("matplotlib is missing; pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    seen = [event for events, _, _ in panels for event in events]
    lanes = sorted({event["lane"] for event in seen})
    height = TOP + len(panels) * (0.9 + 0.36 * len(lanes))
    figure, rows = pyplot.subplots(len(panels), 1, figsize=(WIDTH, height), squeeze=False)
    for axes, panel in zip(rows[:, 0], panels):
        draw_window(axes, panel, lanes)
    used = {kind_of(event) for event in seen}
    patches = [Patch(color=color, label=kind) for kind, (color, _) in KINDS.items() if kind in used]
    figure.suptitle(title, fontsize=10, x=0.01, y=1 - 0.08 / height, ha="left", va="top")
    figure.legend(handles=patches, loc="upper left", bbox_to_anchor=(0.005, 1 - 0.28 / height), ncol=len(KINDS), fontsize=8,
                  frameon=False)  # fmt: skip
    figure.subplots_adjust(left=LEFT / WIDTH, right=1 - RIGHT / WIDTH, top=1 - TOP / height, bottom=0.5 / height,
                           hspace=0.9 / (0.36 * len(lanes)))  # fmt: skip
    try:
        save_figure(figure, output, dpi=150)
    except (OSError, ValueError) as error:
        raise UserError(f"--output {output}: cannot be written ({reason(error)})") from error
    print(f"{output}: {len(seen)} operations, {len(lanes)} lanes; " +
          ", ".join(f"{what} {start:.3f} to {end:.3f} ms" for _, (what, start, end), _ in panels))  # fmt: skip


def name_and_path(argument):
    """(NAME or "", FILE) of [NAME=]FILE, both of which may contain an equals sign: the longest FILE that exists."""
    if Path(argument).exists():
        return "", argument
    parts = argument.split("=")
    choices = [("=".join(parts[:i]), "=".join(parts[i:])) for i in range(1, len(parts))]
    return next((choice for choice in choices if Path(choice[1]).exists()), choices[-1] if choices else ("", argument))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("timelines", metavar="[NAME=]FILE", nargs="+",
                        help="files of te-bench step --timeline, also as .xz; NAME is written above the lanes (default: the config's)")  # fmt: skip
    parser.add_argument("--from-ms", type=float, metavar="A", help="start of the window (default: a layer in the middle)")
    parser.add_argument("--to-ms", type=float, metavar="B", help="end of the window")
    parser.add_argument("--title", metavar="TEXT", help="title of the figure (default: the first file's)")
    parser.add_argument("--output", "--out", metavar="PNG", help="figure to write (default: FILE with .png)")
    arguments = parser.parse_args()
    timelines = []
    files = [name_and_path(argument) for argument in arguments.timelines]
    for name, path in files:
        title, events = read_events(path)
        timelines.append((name or title, events, chosen_windows(events, arguments.from_ms, arguments.to_ms)))
    output = arguments.output or str(Path(files[0][1]).with_suffix(".png"))
    draw(arguments.title or timelines[0][0], panels_of(timelines), output)


if __name__ == "__main__":
    guard_output()
    run(main, UserError)
