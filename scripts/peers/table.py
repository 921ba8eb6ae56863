#!/usr/bin/env python3
"""The table of scripts/bench_peers.sh: te-train compared with its peers, from the reports in a folder.

    scripts/peers/table.py FOLDER

The folder contains te_layer-WHICH.json and te_train-MODEL.json (reports of te-bench) and peer_NAME.jsonl (JSON lines of a
peer). Layers are compared by milliseconds on a cold GPU and after seconds of load (power-limited), training by tokens/s.
A ratio above 1 means that te-train is faster.
"""

import json
import sys
from pathlib import Path

POWER_LIMITED = ", power-limited"


def te_results(folder):
    """{(row, fp8): value}: milliseconds of a layer, tokens/s of training."""
    results = {}
    for file in sorted(folder.glob("te_layer-*.json")):
        for entry in json.loads(file.read_text())["layer"]:
            fp8 = entry["precision"] == "fp8"
            results[file.stem[3:], fp8] = entry["ms"]
            results[file.stem[3:] + POWER_LIMITED, fp8] = entry["sustained_ms"]
    for file in sorted(folder.glob("te_train-*.json")):
        for entry in json.loads(file.read_text()):
            results[file.stem[3:], entry["fp8"] != "off"] = entry["tokens_per_s"]
    return results


def peer_results(file):
    results = {}
    for line in file.read_text().splitlines():
        if not line.startswith("{"):
            continue  # other output of the program
        entry = json.loads(line)
        layer = entry["bench"] == "layer"
        row = f"layer-{entry['which']}" if layer else f"train-{entry['model']}"
        results[row, entry["fp8"]] = entry["ms"] if layer else entry["tokens_per_s"]
        if "sustained_ms" in entry:
            results[row + POWER_LIMITED, entry["fp8"]] = entry["sustained_ms"]
    return results


def text(row, value):
    if value is None:
        return "-"
    return f"{value:.2f} ms" if row.startswith("layer") else f"{value:,.0f} tokens/s"


def ratio(row, own, other):
    if own is None or other is None:
        return "-"
    return f"{other / own if row.startswith('layer') else own / other:.2f}"


def table(folder):
    own = te_results(folder)
    peers = {file.stem[5:]: peer_results(file) for file in sorted(folder.glob("peer_*.jsonl"))}
    keys = list(dict.fromkeys([*own, *(key for results in peers.values() for key in results)]))
    keys.sort(key=lambda key: (key[0].partition("-")[0], key))
    rows = [["row", "precision", "te-train", *(column for name in peers for column in (name, "ratio"))]]
    for key in keys:
        row, fp8 = key
        line = [row, "FP8" if fp8 else "BF16", text(row, own.get(key))]
        for results in peers.values():
            line += [text(row, results.get(key)), ratio(row, own.get(key), results.get(key))]
        rows.append(line)
    return rows


def main():
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print("table.py: error: the folder with the reports of bench_peers.sh is required", file=sys.stderr)
        return 2
    rows = table(Path(sys.argv[1]))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return 0


if __name__ == "__main__":
    sys.exit(main())
