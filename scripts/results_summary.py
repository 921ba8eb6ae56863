#!/usr/bin/env python3
"""Collects the results in the README from the data in docs/results, and writes the tables that contain them.

    scripts/results_summary.py            # writes docs/results/summary.json and the tables
    scripts/results_summary.py --check    # compares them with the data, writes nothing; exit code 1 if they differ

Losses come from the reports and CSV files of experiments, speeds from docs/results/speed.json and tutorials.json. A
table is between the comments <!-- begin: NAME --> and <!-- end: NAME --> of README.md and the pages of docs/results;
edit the data, not the table.
"""

import argparse
import json
import statistics
import sys

from report.words import INCONCLUSIVE, VERDICT_TEXTS
from results_data import RESULTS, ROOT, arms, label, last_values, read_loss
from script_files import write_text

GPT2 = 124_475_904  # parameters, as counted by `te-train --dry-run`
LLAMA_1B_GPT2_TOKENS = 1_336_502_272  # configs/llama_1b_bf16.yaml with model.vocab_size=50257
LLAMA_51M = 50_929_920  # configs/experiments/gap_law_50m.yaml
EXPERTS_87M = 86_710_656  # configs/experiments/moe_30m_87m.yaml, 20,650,368 of them per token

# The rows of the README's table: the largest runs first. `arm` is a name in the report.
EXPERIMENTS = [
    ("llama_1b_100m", "fp8_delayed", "Llama 1.3B, data repeated 3.4 times", LLAMA_1B_GPT2_TOKENS, "llama-1b-100m-tokens.md"),
    ("llama_1b_unit_embeddings", "delayed", "Llama 1.3B, no repeated data", LLAMA_1B_GPT2_TOKENS, "llama-1b-seeds.md"),
    ("gpt2_124m", "fp8", "GPT-2 124M, data repeated 13.7 times", GPT2, "gpt2-124m-328m-tokens.md"),
    ("gpt2_124m_recipes", "fp8_delayed", "GPT-2 124M, learning rate 6e-4", GPT2, "gpt2-124m-recipes.md"),
    ("gap_law_50m", "delayed", "Llama 51M, data read four times", LLAMA_51M, "llama-tokens-per-parameter.md"),
    ("moe_30m_87m", "delayed", "Mixture of experts, 87M (21M per token)", EXPERTS_87M, "moe-87m.md"),
]
CONVERGENCE = "docs/results/convergence/"
STUDENT = {3: 4.302653, 4: 3.182446, 5: 2.776445}  # the 97.5% quantile of Student's t by number of pairs
FORMATS = (("30M", "gpt2_30m_formats"), ("124M", "gpt2_124m_formats"))
LAW = (("8M", "gap_law_8m"), ("16M", "gap_law_16m"), ("31M", "gap_law_30m"), ("51M", "gap_law_50m"))


def last_tenth(losses):
    """Mean loss over the last 10% of the tokens."""
    end = losses[-1][0]
    kept = [loss for tokens, loss in losses if tokens > 0.9 * end]
    return sum(kept) / len(kept)


def single_pair(folder, arm):
    """The gap of one pair without a report, from its CSV files."""
    (run, valid), (baseline, baseline_valid) = read_loss(folder / f"{arm}.csv"), read_loss(folder / "bf16.csv")
    gap, base = last_tenth(run) - last_tenth(baseline), last_tenth(baseline)
    return {"pairs": 1, "verdict": "inconclusive", "gap_nats": gap, "low": None, "high": None, "gap_percent": 100 * gap / base,
            "validation_percent": 100 * (valid / baseline_valid - 1)}


def reported(name, arm):
    found = next(x for x in arms(name) if x["name"] == arm)
    training, validation = found["measures"][:2]
    pairs = len(training["pairs"])
    return {"pairs": pairs, "verdict": VERDICT_TEXTS[found["verdict"]], "gap_nats": training["gap"],
            "low": training["low"] if pairs > 2 else None, "high": training["high"] if pairs > 2 else None,
            "gap_percent": 100 * training["gap_share"], "validation_percent": 100 * validation["gap_share"]}


def evidence():
    rows = []
    for name, arm, model, parameters, page in EXPERIMENTS:
        folder = RESULTS / name
        values = single_pair(folder, arm) if name == "gpt2_124m" else reported(name, arm)
        first = next(iter(sorted(folder.glob("bf16_seed1.csv")) or [folder / "bf16.csv"]))
        tokens = read_loss(first)[0][-1][0]
        rounded = {key: value if not isinstance(value, float) else round(value, 8) for key, value in values.items()}
        rows.append({"experiment": name, "model": model, "parameters": parameters, "tokens": tokens,
                     "tokens_per_parameter": round(tokens / parameters, 6), **rounded, "page": CONVERGENCE + page})
    return rows


def summary():
    sessions = json.loads((RESULTS / "speed.json").read_text())["sessions"]
    tutorials = json.loads((RESULTS / "tutorials.json").read_text())
    return {"evidence": evidence(), "speed": sessions, "tutorials": tutorials}


def millions(tokens):
    return f"{tokens / 1e6:,.0f}" if tokens >= 1e9 else f"{tokens / 1e6:.3g}"


def two_digits(value):
    """Two significant digits, without an exponent."""
    digits = 1
    while value < 10.0 ** (1 - digits) and digits < 8:
        digits += 1
    return f"{value:.{digits}f}"


def percent(value):
    text = f"{value:+.2f}%"
    return "0.00%" if float(text[:-1]) == 0 else text


def evidence_table(data):
    lines = ["| Model | Tokens | Tokens per parameter | Seed pairs | Training loss, FP8 minus BF16 (95% interval), nats | Validation loss | Verdict |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in data["evidence"]:
        interval = f" ({row['low']:+.4f} to {row['high']:+.4f})" if row["low"] is not None else ""
        lines.append(f"| [{row['model']}]({row['page']}) | {millions(row['tokens'])} million | {two_digits(row['tokens_per_parameter'])} | "
                     f"{row['pairs']} | {row['gap_nats']:+.4f}{interval}, {percent(row['gap_percent'])} | "
                     f"{percent(row['validation_percent'])} | {row['verdict']} |")
    return lines


def gap_text(measure):
    """Gaps of the pairs where they are too few for an interval."""
    if len(measure["pairs"]) < 3:
        return ", ".join(f"{gap:+.4f}" for gap in measure["pairs"])
    return f"{measure['gap']:+.4f} ({measure['low']:+.4f} to {measure['high']:+.4f})"


def gap_table(experiment):
    """Every arm of an experiment against BF16."""
    lines = ["| Variant | Pairs | Training gap, nats | Validation gap, nats | Verdict |", "| --- | --- | --- | --- | --- |"]
    for arm in arms(experiment, lost=True):
        cells = ["0", "-", "-"]
        if arm["measures"]:
            training, validation = arm["measures"][:2]
            gap = f"{gap_text(training)}, {percent(100 * training['gap_share'])}"
            cells = [str(len(training["pairs"])), gap, gap_text(validation)]
        name, verdict = label(experiment, arm["name"]), VERDICT_TEXTS[arm["verdict"]]
        lines.append(f"| {name} | {' | '.join(cells)} | {verdict} |")
    return lines


def interval_text(pairs):
    """Mean and 95% interval of the differences of pairs."""
    mean, half = statistics.mean(pairs), STUDENT[len(pairs)] * statistics.stdev(pairs) / len(pairs) ** 0.5
    return f"{mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f})"


def law_table():
    """The gap after each length; a verdict is written unless it is inconclusive."""
    lines = ["| Variant | 5 tokens per parameter | 10 | 20 | Validation: 5, 10, 20 |", "| --- " * 5 + "|"]
    for model, experiment in LAW:
        found = {arm["name"]: arm for arm in arms(experiment)}
        for name in [name for name in found if name + "_5" in found]:
            lengths = [found[name + suffix] for suffix in ("_5", "_10", "")]
            words = [VERDICT_TEXTS[x["verdict"]].split()[0] for x in lengths]
            verdicts = ["" if x["verdict"] == INCONCLUSIVE else f", {word}" for x, word in zip(lengths, words)]
            cells = [gap_text(x["measures"][0]) + verdict for x, verdict in zip(lengths, verdicts)]
            validation = ", ".join(f"{x['measures'][1]['gap']:+.4f}" for x in lengths)
            lines.append(f"| {label(experiment, name)}, {model} | {' | '.join(cells)} | {validation} |")
    return lines


# The gap of a trained model by parts, in steps of 122,880 tokens.
PARTS = (("gap_gemms_16m", ("delayed", "blockwise", "fprop", "dgrad", "wgrad", "control")),
         ("gap_parts_16m", ("fp8_first", "fp8_last")))
PARTS_STEP = 122_880


def step_gap(experiment, arm, first, last):
    """Mean gap to BF16 over some steps and all seeds; the CSV files have means over ten steps."""
    found = []
    for path in sorted((RESULTS / experiment).glob(f"{arm}_seed?.csv")):
        base = dict(read_loss(path.with_name("bf16" + path.stem[len(arm):] + ".csv"))[0])
        found += [loss - base[at] for at, loss in read_loss(path)[0] if first <= at / PARTS_STEP <= last]
    return statistics.mean(found)


def parts_table():
    """The control's validation has other samples."""
    lines = ["| Variant | First ten steps | Training, last 10% | Validation |", "| --- " * 4 + "|"]
    for experiment, names in PARTS:
        found = {arm["name"]: arm for arm in arms(experiment)}
        for name in names:
            training, validation = found[name]["measures"][:2]
            start = 2200 if name == "fp8_last" else 1100
            first = step_gap(experiment, name, start + 1, start + 10)
            lines.append(f"| {label(experiment, name)} | {first:+.4f} | {gap_text(training)} | "
                         f"{'-' if name == 'control' else gap_text(validation)} |")
    return lines


def tuning_table(experiment):
    """FP8 against BF16 on both validation sets; Dolly's losses are in the CSV files only."""
    lines = ["| Variant | Training | GSM8K | Dolly |", "| --- | --- | --- | --- |"]
    for arm in [arm for arm in arms(experiment) if arm.get("baseline") != "full"]:
        names = (arm["name"], arm.get("baseline", "bf16"))
        losses, baseline = (last_values(RESULTS / experiment, name, "valid_loss.dolly") for name in names)
        training, validation = arm["measures"][:2]
        lines.append(f"| {label(experiment, arm['name'])} | {gap_text(training)} | {gap_text(validation)} | "
                     f"{interval_text([x - y for x, y in zip(losses, baseline)])} |")
    return lines


def formats_table():
    """Every format against BF16, and NVFP4 against its variants without a part, paired by seed."""
    reports = [{arm["name"]: arm for arm in arms(experiment)} for _, experiment in FORMATS]
    models = [model for model, _ in FORMATS]
    columns = ["Variant", *models, *(f"NVFP4 minus it, {model}" for model in models)]
    lines = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    for name in reports[0]:
        gaps, parts = [], []
        for found in reports:
            training, nvfp4 = found[name]["measures"][0], found["nvfp4"]["measures"][0]
            count = len(training["pairs"])
            gaps.append(f"{gap_text(training)}, {VERDICT_TEXTS[found[name]['verdict']].split()[0]}"
                        + (f", {count} pairs" if count < len(nvfp4["pairs"]) else ""))
            pairs = [x - y for x, y in zip(nvfp4["pairs"], training["pairs"])]
            parts.append(interval_text(pairs) if name.startswith("nvfp4_") else "")
        lines.append(f"| {label(FORMATS[0][1], name)} | {' | '.join(gaps + parts)} |")
    return lines


# {page: {name of a table: function that writes it, its argument}}
GAP_TABLES = {
    "llama-tokens-per-parameter.md": {"gaps by size": (law_table,)},
    "llama-16m-parts.md": {"gaps by part": (parts_table,)},
    "blackwell-formats.md": {"gaps of both sizes": (formats_table,)},
    "gpt2-124m-finetuning.md": {
        f"gaps {name}": (tuning_table, name) for name in ("gpt2_124m_instructions", "gpt2_124m_lora")
    },
} | {page: {f"gaps {name}": (gap_table, name) for name in experiments} for page, experiments in {
    "moe-87m.md": ["moe_30m_87m"],
    "llama-1b-100m-tokens.md": ["llama_1b_100m"],
    "llama-1b-seeds.md": ["llama_1b_unit_embeddings"],
    "llama-1b-initialization.md": ["llama_1b_calm"],
    "llama2-7b.md": ["llama7b", "llama7b_calm"],
    "gpt2-124m-recipes.md": ["gpt2_124m_recipes_calm", "gpt2_124m_recipes"],
    "gpt2-124m-learning-rates.md": ["gpt2_124m_twice_the_rate"],
}.items()}  # fmt: skip


def cell(row, key):
    value = row.get(key)
    if value is None:
        return "-"
    text = f"{value:,}" if isinstance(value, int) else f"{value:.1f} ms"
    return f"{text} ({row[key + '_tflops']} TFLOP/s)" if key + "_tflops" in row else text


def speed_up(row):
    if "bf16" not in row:
        return "-"
    ratio = row["fp8"] / row["bf16"] if isinstance(row["fp8"], int) else row["bf16"] / row["fp8"]
    return f"{ratio:.2f}x"


def speed_table(data):
    lines = ["| Model | GPUs, layout | BF16 | FP8 | FP8 over BF16 | PyTorch FP8 | te-train over PyTorch, FP8 | Memory, GiB: BF16; FP8 | Date, commit |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for session in data["speed"]:
        for row in session["rows"]:
            memory = "; ".join("-" if gib is None else f"{gib:.2f}" for gib in row.get("planned_gib", [])) or "-"
            layout = f"{session['hardware']}, {row['layout']}" if row["layout"] else session["hardware"]
            over = f"{row['fp8'] / row['pytorch_fp8']:.2f}x" if "pytorch_fp8" in row else "-"
            lines.append(f"| {row['model']} | {layout} | {cell(row, 'bf16')} | {cell(row, 'fp8')} | {speed_up(row)} | "
                         f"{cell(row, 'pytorch_fp8')} | {over} | {memory} | {session['date']}, {session['commit']} |")
    return lines


def rows_of(data, session):
    return next(x for x in data["speed"] if x["name"] == session)["rows"]


def pytorch_table(data):
    lines = ["| Model | te-train BF16 | PyTorch BF16 | Ratio | te-train FP8 | PyTorch FP8 | Ratio | te-train FP8 over BF16 |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows_of(data, "pytorch"):
        lines.append(f"| {row['model']} | {cell(row, 'bf16')} | {row['pytorch_bf16']:,} | {row['bf16'] / row['pytorch_bf16']:.2f} | "
                     f"{cell(row, 'fp8')} | {row['pytorch_fp8']:,} | {row['fp8'] / row['pytorch_fp8']:.2f} | {speed_up(row)} |")
    return lines


def several_gpus_table(data):
    lines = ["| Model | Layout | BF16 | FP8 | FP8 over BF16 |", "| --- | --- | --- | --- | --- |"]
    for row in rows_of(data, "several_gpus"):
        lines.append(f"| {row['model']} | {row['layout']} | {cell(row, 'bf16')} | {cell(row, 'fp8')} | {speed_up(row)} |")
    return lines


def with_block(text, name, lines, path):
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        sys.exit(f"{path}: needs one {begin} and one {end}")
    head, rest = text.split(begin)
    return head + "\n".join([begin, *lines, end]) + rest.split(end)[1]


def outputs():
    """{path: text} of all files that this script writes."""
    data = summary()
    files = {RESULTS / "summary.json": json.dumps(data, indent=2) + "\n"}
    tables = {ROOT / "README.md": {"evidence": evidence_table(data), "speed": speed_table(data)},
              RESULTS / "benchmarks.md": {"pytorch": pytorch_table(data), "several GPUs": several_gpus_table(data)}}
    for page, blocks in GAP_TABLES.items():
        tables[ROOT / CONVERGENCE / page] = {name: write(*argument) for name, (write, *argument) in blocks.items()}
    for path, blocks in tables.items():
        text = path.read_text()
        for name, lines in blocks.items():
            text = with_block(text, name, lines, path)
        files[path] = text
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    stale = [path for path, text in outputs().items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)}: differs from the data in docs/results; run scripts/results_summary.py", file=sys.stderr)
        else:
            write_text(path, outputs()[path])
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
