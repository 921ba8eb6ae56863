"""Run folders of te-train and te-experiment with known gaps."""

import json

import numpy as np


def write_run(
    folder,
    *,
    seed=1,
    factor=1.0,
    shift=0.0,
    steps=100,
    fp8=False,
    noise=0.0,
    step_ms=100.0,
    every=1,
    own=0,
    tokens=1000,
):
    """loss = factor * (3 + 4 / sqrt(step) + noise of the seed) + shift + noise of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    shared, alone = np.random.default_rng(seed), np.random.default_rng(seed + 1000 * own + 17)
    level = noise * shared.normal()
    rows = ["step,consumed_samples,consumed_tokens,loss,valid_loss,grad_norm,lr,tokens_per_s,step_ms,tflops,skipped"]
    records = []
    for step in range(1, steps + 1):
        wave = noise * shared.normal()
        loss = factor * (3 + 4 / step**0.5 + level + wave) + shift + (0.1 * noise * alone.normal() if own else 0.0)
        valid = f"{factor * (3.2 + 4 / step**0.5 + level) + shift:.6f}" if step % max(1, steps // 5) == 0 else ""
        norm = 5 / step + 0.5 + 0.05 * alone.random()
        if step % every == 0 or step == 1:
            rate = f"{1e3 * tokens / step_ms:.1f}"
            rows.append(f"{step},{step},{step * tokens},{loss:.6f},{valid},{norm:.4f},1e-3,{rate},{step_ms},1,0")
        if step % 10 == 0:
            record = {
                "step": step,
                "consumed_tokens": step * tokens,
                "loss": loss,
                "grad_norm": norm,
                "step_ms": step_ms,
            }
            if fp8:
                record["fp8"] = [
                    operand("layers.0.mlp.linear_fc2", "input", "e4m3", 1e-5 * alone.random(), 1e-3),
                    operand("layers.1.self_attention.linear_proj", "weight", "e4m3", 0.0, 2e-6),
                ]
            records.append(json.dumps(record))
    (folder / "loss.csv").write_text("\n".join(rows) + "\n")
    (folder / "metrics.jsonl").write_text("\n".join(records) + "\n")
    config = {
        "training.seed": str(seed), "precision.fp8": "hybrid" if fp8 else "off", "training.global_batch_size": "1",
        "model.seq_length": str(tokens), "logging.directory": str(folder),
    }  # fmt: skip
    start = {"version": "0.1.0", "commit": "abc", "device": "CPU", "ranks": 1}
    (folder / "run.json").write_text(json.dumps({"config": config, "planned_bytes": 2**30, "starts": [start]}))
    return folder


def operand(linear, role, form, saturated, flushed):
    return {
        "layer": 0,
        "linear": linear,
        "role": role,
        "format": form,
        "amax": 1.0,
        "scale": 2.0,
        "saturated": saturated,
        "flushed": flushed,
        "recast": 0.5,
    }


def write_evaluation(folder, right, task="hellaswag"):
    """evaluate.json and evaluate_items.jsonl: `right` is a list of booleans."""
    accuracy = sum(right) / len(right)
    results = {
        task: {"alias": task, "acc,none": accuracy, "acc_stderr,none": (accuracy * (1 - accuracy) / len(right)) ** 0.5}
    }
    (folder / "evaluate.json").write_text(json.dumps({"results": results}))
    items = [
        json.dumps({"task": task, "index": i, "correct": bool(r), "correct_norm": bool(r)}) for i, r in enumerate(right)
    ]
    (folder / "evaluate_items.jsonl").write_text("\n".join(items) + "\n")


def write_summary(folder, variants, baseline, states=None, baselines=None):
    """summary.json of te-experiment; `variants`: {name: [run folder's name]}; `baselines`: {name: its own baseline}."""
    states, baselines = states or {}, baselines or {}
    (folder / "summary.json").write_text(
        json.dumps(
            {
                "name": "an experiment",
                "baseline": baseline,
                "tolerance": {"nats": 0.01, "percent": 0.25},
                "variants": [
                    {"name": name, "runs": [{"folder": run, "state": states.get(run, "finished")} for run in runs]}
                    | ({"baseline": baselines[name]} if name in baselines else {})
                    for name, runs in variants.items()
                ],
            }
        )
    )
