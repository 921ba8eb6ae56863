#!/usr/bin/env python3
"""Writes docs/results/speed.json from the reports of scripts/speed_table.sh.

    scripts/peers/speed_rows.py FOLDER --ranks N --commit HASH [--output FILE]

Every row of a table must have been measured, so that the table is of one session; only Llama 2 7B on one GPU may be
missing, which does not fit into 80 GB, and rows that need four GPUs. A table without a row stays as it is in the file.
"""

import argparse
import datetime
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODELS = {"gpt2_124m": "GPT-2 124M", "llama_1b": "Llama 1.3B", "llama2_7b": "Llama 2 7B"}
# (report, model, layout on N GPUs)
SEVERAL_GPUS = [
    ("8b_dp", "Llama 3.1 8B, sequence 8192", "data parallel {}"),
    ("7b_dp", "Llama 2 7B", "data parallel {}"),
    ("7b_zero3", "Llama 2 7B", "ZeRO-3 over {}"),
    ("7b_tp", "Llama 2 7B", "tensor parallel {}"),
]
FOUR_GPUS = [
    ("7b_pp", "Llama 2 7B", "pipeline parallel 4"),
    ("7b_tp_pp", "Llama 2 7B", "tensor parallel 2, pipeline parallel 2"),
    ("8b_context", "Llama 3.1 8B, sequence 32,768", "context parallel 4"),
    ("8b_context_long", "Llama 3.1 8B, sequence 131,072", "context parallel 4"),
]
FSDP2_ROW = "7b_zero3"  # the te-train row with the same sharding


def precision(entry):
    return "bf16" if entry["fp8"] == "off" else "fp8"


def peers(path):
    """{bf16, fp8: tokens/s per GPU} of the JSON lines of torch_baseline.py."""
    entries = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    return {f"pytorch_{'fp8' if entry['fp8'] else 'bf16'}": entry["tokens_per_s"] for entry in entries}


def steps(path, model, layout):
    """A row from a report of te-bench step."""
    row = {"model": model, "layout": layout}
    entries = sorted(json.loads(path.read_text()), key=precision)
    for entry in entries:
        name = precision(entry)
        row[name] = round(entry["tokens_per_s_per_gpu"])
        row[name + "_tflops"] = round(entry["tflops"])
    planned = {precision(entry): round(entry["memory_bytes"] / 2**30, 2) for entry in entries}
    row["planned_gib"] = [planned.get("bf16"), planned.get("fp8")]
    return row, entries[0]["device"]


def layer(path, ranks):
    """The row of the 70B layer: milliseconds, starting on a cold GPU."""
    row = {"model": "Llama 3.1 70B, one layer", "layout": f"tensor parallel {ranks}"}
    for entry in json.loads(path.read_text())["layer"]:
        if entry["precision"] == "bf16" or entry["recipe"] == "delayed":
            row[entry["precision"]] = round(entry["ms"], 3)
            row[entry["precision"] + "_tflops"] = round(entry["tflops"])
    return row


def one_gpu(folder, common):
    rows = []
    for name, model in MODELS.items():
        if name == "llama2_7b" and not (folder / name).exists():
            continue
        row, device = steps(folder / name / f"te_train-{name}.json", model, "")
        rows.append(row | peers(folder / name / "peer_torch.jsonl"))
    return session("pytorch", device, 1, common, "tokens/s", rows)


def several_gpus(folder, ranks, common):
    rows = []
    for name, model, layout in SEVERAL_GPUS + (FOUR_GPUS if ranks == 4 else []):
        row, device = steps(folder / f"{name}.json", model, layout.format(ranks))
        rows.append(row | (peers(folder / "fsdp2.jsonl") if name == FSDP2_ROW else {}))
    return session("several_gpus", device, ranks, common, "tokens/s per GPU", rows)


def session(name, device, ranks, common, unit, rows):
    hardware = f"{ranks}x {device.removeprefix('NVIDIA ').split()[0]}"
    return {"name": name, "hardware": hardware, "gpu": device, **common, "unit": unit, "rows": rows}


def sessions(folder, ranks, commit, known):
    """The three tables; `known` has the tables of the file, by name."""
    common = {"date": datetime.date.today().isoformat(), "commit": commit, "source": "docs/results/benchmarks.md"}
    several = ["fsdp2.jsonl", *(f"{name}.json" for name, _, _ in SEVERAL_GPUS + FOUR_GPUS)]
    found = dict(known)
    if any((folder / name).exists() for name in MODELS) or "pytorch" not in known:
        found["pytorch"] = one_gpu(folder, common)
    if any((folder / name).exists() for name in several) or "several_gpus" not in known:
        found["several_gpus"] = several_gpus(folder, ranks, common)
    if (folder / "layer_70b.json").exists() or "layer" not in known:
        device = json.loads((folder / "layer_70b.json").read_text())["device"]
        found["layer"] = session("layer", device, ranks, common, "ms", [layer(folder / "layer_70b.json", ranks)])
    return list(found.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="GPUs of the rows of several GPUs")
    parser.add_argument("--commit", required=True, metavar="HASH")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results" / "speed.json", metavar="FILE")
    arguments = parser.parse_args()
    try:
        known = json.loads(arguments.output.read_text())["sessions"] if arguments.output.exists() else []
        found = sessions(arguments.folder, arguments.ranks, arguments.commit, {entry["name"]: entry for entry in known})
    except (OSError, ValueError, KeyError) as wrong:
        print(f"speed_rows.py: error: {arguments.folder}: a row is missing or incomplete ({wrong}); run scripts/speed_table.sh",
              file=sys.stderr)
        return 2
    arguments.output.write_text(json.dumps({"sessions": found}, indent=2) + "\n")
    print(f"wrote {arguments.output}; now run scripts/results_summary.py and scripts/readme_picture.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
