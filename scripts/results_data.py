"""Experiments in docs/results: display names, titles and data, for results_summary.py, which writes the tables, and
results_pictures.py, which draws the figures."""

import csv
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"

CONTROL = "BF16 control"
RECIPES = {
    "bf16": "BF16",
    "delayed": "FP8 delayed", "tensorwise": "FP8 tensorwise", "rowwise": "FP8 rowwise", "blockwise": "FP8 blockwise",
    "bf16_other_order": CONTROL, "bf16_control": CONTROL, "mxfp8": "MXFP8", "nvfp4": "NVFP4",
    "nvfp4_ends_bf16": "NVFP4, first and last layer in BF16", "nvfp4_no_blocks": "NVFP4 without weight blocks",
    "nvfp4_no_hadamard": "NVFP4 without Hadamard transform", "nvfp4_no_stochastic": "NVFP4 without stochastic rounding",
    "full": "full fine-tuning", "lora": "LoRA",
    "lora_delayed": "FP8 delayed base", "lora_tensorwise": "FP8 tensorwise base",
    "lora_rowwise": "FP8 rowwise base", "lora_blockwise": "FP8 blockwise base",
    "control": CONTROL, "fprop": "FP8 in fprop only", "dgrad": "FP8 in dgrad only", "wgrad": "FP8 in wgrad only",
    "qkv": "fprop of linear_qkv", "proj": "fprop of linear_proj",
    "fc1": "fprop of linear_fc1", "fc2": "fprop of linear_fc2",
    "delayed_end": "FP8 delayed, BF16 from step 2,201",
    "fp8_first": "FP8 until step 2,200", "fp8_last": "FP8 from step 2,201",
}  # fmt: skip
# Variants of the 30-million-parameter experiment; names without a recipe are of delayed scaling with E5M2 gradients.
VARIANTS = {
    "bf16_other_order": CONTROL,
    "delayed_hybrid": "delayed (default)",
    "delayed_e4m3": "delayed, E4M3 gradients",
    "tensorwise_hybrid": "tensorwise, FP32 scales",
    "tensorwise_e4m3": "tensorwise, FP32 scales, E4M3 gradients",
    "tensorwise_power_of_two": "tensorwise, power-of-two scales",
    "rowwise_hybrid": "rowwise",
    "rowwise_e4m3": "rowwise, E4M3 gradients",
    "blockwise_hybrid": "blockwise",
    "blockwise_e4m3": "blockwise, E4M3 gradients",
    "history_16": "amax history of 16 steps",
    "most_recent": "scale from the last amax only",
    "margin_1": "margin 1",
    "no_recast": "no requantization",
    "ends_bf16": "first and last layer in BF16",
    "fc2_input_bf16": "input of linear_fc2 in BF16",
    "output_layer_fp8": "output layer in FP8",
    "moments_bf16": "Adam moments in BF16",
    "moments_fp8": "Adam moments in FP8",
}
# {experiment: (report, title of its figures)}
REPORTS = {
    "gap_law_8m": ("report.json", "Llama 8M, 170 million tokens (20 per parameter), five seeds, four H100"),
    "gap_law_16m": ("report.json", "Llama 16M, 320 million tokens (20 per parameter), four seeds, four H100, H200"),
    "gap_law_30m": ("report.json", "Llama 31M, 623 million tokens (20 per parameter), four seeds, two H200"),
    "gap_law_50m": ("report.json", "Llama 51M, 1,006 million tokens (20 per parameter), three seeds, two H200"),
    "gap_law_127m": ("report.json", "Llama 127M, 1,006 million tokens (7.9 per parameter), three seeds, two H200"),
    "gap_gemms_16m": ("report.json", "Llama 16M from one checkpoint, 184 million tokens, four seeds, two H200"),
    "gap_parts_16m": ("report.json", "Llama 16M from one checkpoint, 184 million tokens, three seeds, two H200"),
    "gpt2_30m_formats": ("report.json", "GPT-2 30M, 26.2 million tokens, MXFP8 and NVFP4 emulated, four seeds, four H100"),
    "gpt2_124m_formats": ("report.json", "GPT-2 124M, 26.2 million tokens, MXFP8 and NVFP4 emulated, four seeds, four H200"),
    "gpt2_124m_lora": ("report.json", "GPT-2 124M tuned with LoRA on GSM8K and Dolly, 4.9 million tokens, five seeds, four H100"),
    "moe_30m_87m": ("report.json", "Mixture of experts, 87M (21M per token), 65.5 million tokens, five seeds, four H200"),
    "llama_1b_100m": ("report.json", "Llama 1.3B, 100 million tokens in 3.4 epochs, H100 and H200"),
    "llama_1b_unit_embeddings": ("report_five_seeds.json",
                                 "Llama 1.3B, 9.8 million tokens, embedding init std 1, two H100, H200"),
    "llama_1b_calm": ("report.json", "Llama 1.3B, 9.8 million tokens, embedding init std 0.02, one H200"),
    "gpt2_124m_recipes": ("report.json", "GPT-2 124M, 65.5 million tokens, learning rate 6e-4, two H200"),
    "gpt2_124m_recipes_calm": ("report.json", "GPT-2 124M, 26.2 million tokens, learning rate 2e-4, one H200"),
    "gpt2_124m_twice_the_rate": ("report.json", "GPT-2 124M, 32.8 million tokens, learning rate 1.2e-3, one H200"),
    "gpt2_124m_instructions": ("report.json", "GPT-2 124M tuned on GSM8K and Dolly, 4.9 million tokens, one H200"),
    "gpt2_30m_ablations_calm": ("report.json", "GPT-2 30M, 26.2 million tokens, learning rate 2.5e-4, four seeds, one H200"),
    "small_llama": ("report.json", "Small Llama (156 thousand parameters), 410 thousand tokens, five seeds, CPU"),
    "llama7b": ("report.json", "Llama 2 7B, 3.9 million tokens, weight init std 0.02, two H100"),
    "llama7b_calm": ("report.json", "Llama 2 7B, 3.9 million tokens, weight init std 0.014, two H100"),
}


def label(experiment, arm):
    """The display name of a variant."""
    names = VARIANTS if experiment.startswith("gpt2_30m_ablations") else RECIPES
    run, _, length = arm.rpartition("_")
    if run in names and length.isdigit():  # a decay that branches off a run after so many tokens per parameter
        return f"{names[run]}, {length} tokens per parameter"
    return names.get(arm) or names[arm.removeprefix("fp8_")]


def arms(experiment, lost=False):
    """The arms of an experiment's report, the BF16 control last. Without arms that have no measures, because none of
    their runs could be compared, unless `lost`."""
    found = json.loads((RESULTS / experiment / REPORTS[experiment][0]).read_text())["arms"]
    found = [arm for arm in found if arm["measures"] or lost]
    return sorted(found, key=lambda arm: label(experiment, arm["name"]).startswith(CONTROL))


def read_loss(path):
    """([(consumed tokens, loss)], last validation loss) of a run's CSV file."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    valid = [float(row["valid_loss"]) for row in rows if row.get("valid_loss")]
    return [(int(row["consumed_tokens"]), float(row["loss"])) for row in rows], valid[-1] if valid else None


def last_values(folder, arm, column):
    """The last value of a column in each seed's CSV file."""
    found = []
    for path in sorted(folder.glob(f"{arm}_seed?.csv")):
        with path.open(newline="") as file:
            found.append([float(row[column]) for row in csv.DictReader(file) if row[column]][-1])
    return found


def gpu_hours(experiments):
    """GPU time of the runs of experiments (cost.json): recorded, or from their tokens and the speed of their recipe."""
    cost, seconds = json.loads((RESULTS / "cost.json").read_text()), 0.0
    for name in experiments:
        entry = cost["experiments"][name]
        if "minutes" in entry:
            seconds += 60 * entry["gpus"] * entry["minutes"]
            continue
        speeds = cost["tokens_per_s"][entry["speeds"]]
        for path in sorted((RESULTS / name).glob("*.csv")):
            if path.stem in entry.get("runs", [path.stem]):
                recipe = next((recipe for recipe in speeds if recipe in path.stem), "delayed" if "fp8" in path.stem else "bf16")
                seconds += read_loss(path)[0][-1][0] / speeds[recipe]
    return seconds / 3600
