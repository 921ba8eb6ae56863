#!/usr/bin/env python3
"""Makes a page from the results of finetune_example.sh: losses, perplexities, samples before and after.

Usage: finetune_report.py RUN_FOLDER "DEVICE" > report.md
"""

import pathlib
import re
import sys

from report.runs import read_run
from terminal_text import guard_output

NAMES = {"bf16": "BF16", "fp8": "FP8 (hybrid, delayed)"}


def perplexity(folder, name):
    """The result of te-generate perplexity from its output."""
    text = (folder / f"{name}_perplexity.txt").read_text()
    value = {key: re.search(rf"^{key} +(\S+)", text, flags=re.M)[1] for key in ("tokens", "loss", "perplexity")}
    return f"loss {float(value['loss']):.4f}, perplexity {float(value['perplexity']):.2f} ({value['tokens']} tokens)"


def samples(folder, name):
    """{prompt: text}."""
    parts = re.split(r"^> (.*)\n", (folder / f"{name}.txt").read_text(errors="replace"), flags=re.M)[1:]
    return dict(zip(parts[::2], (text.strip() for text in parts[1::2])))


def loss_table(runs):
    lines = ["| run | steps | loss, first 20 steps | loss, last 100 steps | validation, first | validation, last |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for name, run in runs.items():
        valid = [f"{v:.4f}" for v in run.valid_loss]
        ends = f"{valid[0]} | {valid[-1]}" if valid else "- | -"
        lines.append(f"| {NAMES[name]} | {len(run.loss)} | {run.loss[:20].mean():.4f} | {run.loss[-100:].mean():.4f} | {ends} |")
    return lines


def curve(runs):
    """A table of the training loss by tenths of the run."""
    steps = min(len(run.loss) for run in runs.values())
    lines = ["| steps | " + " | ".join(NAMES[n] for n in runs) + " |", "|---|" + "---|" * len(runs)]
    for i in range(10):
        begin, end = i * steps // 10, (i + 1) * steps // 10
        if begin < end:
            means = " | ".join(f"{run.loss[begin:end].mean():.4f}" for run in runs.values())
            lines.append(f"| {begin + 1} to {end} | {means} |")
    return lines


def page(folder, device):
    runs = {name: read_run(folder / name) for name in NAMES if (folder / name / "loss.csv").is_file()}
    states = {"before": "Before"} | {f"after_{name}": f"After, {NAMES[name]}" for name in runs}
    texts = {state: samples(folder, state) for state in states}
    lines = [
        "# Fine-tuning stories260K on instructions", "",
        "stories260K (karpathy/tinyllamas, MIT) is a Llama of 260 thousand parameters that was trained on children's stories with a",
        "vocabulary of 512 tokens. Here it is trained on the instructions of Dolly (CC BY-SA 3.0): loss on the responses only, whole",
        "conversations packed into samples of 512 tokens, attention within conversations, longer conversations dropped. The MLP is",
        "padded from 172 to 176 with zeros, because FP8 GEMMs need multiples of 16. A model of this size learns the form of an",
        "answer, not facts.", "",
        f"Run on: {device}.", "",
        "    scripts/finetune_example.sh --model stories260K.bin --tokenizer tok512.bin --instructions dolly-3k.json", "",
        "The configuration is `scripts/finetune_example.yaml`. This page was written by `scripts/finetune_report.py`.", "",
        "## Loss", "", *loss_table(runs), "",
        "The loss is the mean over tokens of responses (natural logarithm). By tenths of the run:", "",
        *curve(runs), "",
        "`te-generate perplexity --all-tokens` on the validation set, including prompts:", "",
        *(f"- {title}: {perplexity(folder, state)}" for state, title in states.items()), "",
        "## Samples", "",
        "Temperature 0.7, top-p 0.9, seed 1, at most 120 tokens, unedited.", "",
    ]  # fmt: skip
    for prompt in texts["before"]:
        lines += [f"### {prompt}", ""]
        for state, title in states.items():
            lines += [f"{title}:", "", *(f"    {line}".rstrip() for line in texts[state][prompt].split("\n")), ""]
    return "\n".join(lines)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(page(pathlib.Path(sys.argv[1]), sys.argv[2]), end="")


if __name__ == "__main__":
    guard_output()
    main()
