#!/usr/bin/env python3
"""GPT-2 as llm.c's train_gpt2.py trains it, next to te-train: same tokens, same initial weights, same settings.

    llmc_parity.py train --run RUN --weights FOLDER --out FILE.csv [--micro-batch N] [--fp32] [--eager] [--device cpu]
    llmc_parity.py compare --reference FILE.csv [--json FILE] NAME=RUN|FILE.csv ...

`train` repeats the te-train run of a folder in PyTorch. Model, batch, optimizer, schedule, seed and dataset come from its
run.json, the order of samples is te-train's (training_order.py), and FOLDER is te-train's initial model, exported with
te-convert (a run of one step with lr 1e-30 has it). As in llm.c: FP32 parameters, BF16 autocast, torch.compile, fused AdamW
with weight decay on matrices, clipping, microbatches with FP32 gradients. te-train's cosine is one step ahead of llm.c's,
which counts from 0; here it is te-train's. The vocabulary is padded for speed; padding is not in the loss. The residual
stream is FP32 here and BF16 in te-train.

`compare` prints the difference of each curve to the reference as a Markdown table: mean absolute difference, difference of
the mean loss over the last steps, largest difference, and median tokens/s without the first tenth of the steps.
"""

import argparse
import csv
import json
import math
import statistics
import struct
import sys
import time
from pathlib import Path

from training_order import TrainingOrder, read_index

COLUMNS = ("step", "loss", "lr", "grad_norm", "tokens_per_s")
# What train_gpt2.py trains. Other values of these keys are other models or other data.
REQUIRED = {
    "model.family": "gpt",
    "model.activation": "gelu",
    "model.tie_word_embeddings": True,
    "model.position_embedding": "learned",
    "model.norm_placement": "pre",
    "model.qk_norm": "none",
    "model.hidden_dropout": 0.0,
    "model.attention_dropout": 0.0,
    "model.num_moe_experts": 0,
    "optimizer.name": "adamw",
    "optimizer.groups": [],
    "data.format": "pretrain",
    "data.synthetic": False,
    "data.document_mask": False,
    "data.eod_mask_loss": False,
    "training.z_loss_coefficient": 0.0,
}
DTYPES = {"F32": "float32", "BF16": "bfloat16"}


class InputError(Exception):
    pass


def parsed(value):
    """A value of run.json: JSON, or a bare name."""
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def read_config(run):
    file = Path(run) / "run.json"
    if not file.is_file():
        raise InputError(f"{file}: not found; name the folder of a te-train run (logging.directory)")
    config = {key: parsed(value) for key, value in json.loads(file.read_text())["config"].items()}
    for key, value in REQUIRED.items():
        if config[key] != value:
            raise InputError(f"{file}: {key} is {config[key]!r}; train_gpt2.py needs {value!r}")
    if config["optimizer.decay"] not in ("cosine", "constant"):
        raise InputError(f"{file}: optimizer.decay is {config['optimizer.decay']}; use cosine or constant")
    if len(config["data.train"]) != 1:
        raise InputError(f"{file}: data.train names {len(config['data.train'])} datasets; use one")
    return config


def learning_rate(config, step):
    """The rate of a step, counted from 1."""
    lr, least = config["optimizer.lr"], config["optimizer.min_lr"]
    warmup, end = config["optimizer.warmup_steps"], config["optimizer.decay_steps"]
    if step <= warmup:
        return lr * step / warmup
    if config["optimizer.decay"] == "constant":
        return lr
    progress = min(1.0, (step - warmup) / (end - warmup))
    return least + (lr - least) * 0.5 * (1.0 + math.cos(math.pi * progress))


# ---- PyTorch -----------------------------------------------------------------------------------------------


def read_weights(folder):
    """{name: FP32 tensor} of the model.safetensors of a Hugging Face folder."""
    import torch

    file = Path(folder) / "model.safetensors"
    if not file.is_file():
        raise InputError(f"{file}: not found; make it with te-convert export --dtype fp32 (one file)")
    data = bytearray(file.read_bytes())
    size = struct.unpack_from("<Q", data)[0]
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            values = torch.frombuffer(memoryview(data)[begin:end], dtype=getattr(torch, DTYPES[entry["dtype"]]))
            tensors[name.removeprefix("transformer.")] = values.float().reshape(entry["shape"])
    return tensors


def make_model(config, weights):
    import torch
    from torch import nn
    from torch.nn import functional

    hidden, heads = config["model.hidden_size"], config["model.num_attention_heads"]
    words, eps = config["model.vocab_size"], config["model.norm_epsilon"]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(hidden, eps), nn.LayerNorm(hidden, eps)
            self.c_attn, self.c_proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
            self.fc = nn.Linear(hidden, config["model.ffn_hidden_size"])
            self.proj = nn.Linear(config["model.ffn_hidden_size"], hidden)

        def forward(self, x):
            qkv = self.c_attn(self.ln_1(x)).unflatten(-1, (3, heads, hidden // heads))
            q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.c_proj(y.transpose(1, 2).flatten(2))
            return x + self.proj(functional.gelu(self.fc(self.ln_2(x)), approximate="tanh"))

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding((words + 127) // 128 * 128, hidden)
            self.wpe = nn.Embedding(config["model.max_position_embeddings"], hidden)
            self.h = nn.ModuleList(Block() for _ in range(config["model.num_layers"]))
            self.ln_f = nn.LayerNorm(hidden, eps)

        def forward(self, tokens, targets):
            x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
            for block in self.h:
                x = block(x)
            logits = functional.linear(self.ln_f(x), self.wte.weight)[..., :words]
            return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    model = Gpt2()
    renamed = {".attn.c_attn.": ".c_attn.", ".attn.c_proj.": ".c_proj.", ".mlp.c_fc.": ".fc.", ".mlp.c_proj.": ".proj."}
    state = {}
    for name, values in weights.items():
        old = next((old for old in renamed if old in name), None)
        if old:
            name = name.replace(old, renamed[old])
            values = values.t() if values.dim() == 2 else values  # Conv1D has [in, out]
        state[name] = values
    state["wte.weight"] = functional.pad(state["wte.weight"], (0, 0, 0, model.wte.num_embeddings - words))
    model.load_state_dict(state)
    return model


class Batches:
    """Tokens and targets of a step."""

    def __init__(self, config):
        import torch

        prefix = config["data.train"][0][1]
        width, tokens, documents = read_index(prefix)
        self.mask = 0x7FFFFFFF if width == 4 else 0xFFFF  # tokens of 16 bits are unsigned
        dtype = torch.int32 if width == 4 else torch.int16
        self.tokens = torch.from_file(f"{prefix}.bin", dtype=dtype, size=tokens)
        self.order = TrainingOrder(documents, config["model.seq_length"], config["training.seed"])
        self.batch = config["training.global_batch_size"]

    def __call__(self, step):
        import torch

        samples = range((step - 1) * self.batch, step * self.batch)
        parts = [self.tokens[begin:end] for sample in samples for begin, end in self.order.extents(sample)]
        rows = (torch.cat(parts).long() & self.mask).view(self.batch, -1)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def make_optimizer(model, config, fused):
    import torch

    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config["optimizer.weight_decay"]},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (config["optimizer.beta1"], config["optimizer.beta2"])
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=config["optimizer.eps"], fused=fused)


def train(arguments):
    try:
        import torch
    except ImportError:
        raise InputError("PyTorch is missing; pip install torch") from None
    config = read_config(arguments.run)
    device = torch.device(arguments.device)
    torch.set_float32_matmul_precision("highest" if arguments.fp32 else "high")
    model = make_model(config, read_weights(arguments.weights)).to(device)
    run = model if arguments.eager else torch.compile(model)
    optimizer = make_optimizer(model, config, fused=device.type == "cuda")
    batches = Batches(config)
    rows = arguments.micro_batch or config["training.micro_batch_size"]
    if batches.batch % rows:
        raise InputError(f"--micro-batch {rows}: does not divide training.global_batch_size {batches.batch}")
    clip = config["optimizer.clip_grad"] or math.inf
    with open(arguments.out, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for step in range(1, config["training.train_steps"] + 1):
            tokens, targets = batches(step)
            began = time.perf_counter()
            loss = torch.zeros((), device=device)
            for micro in zip(tokens.to(device).split(rows), targets.to(device).split(rows)):
                with torch.autocast(device.type, torch.bfloat16, enabled=not arguments.fp32):
                    part = run(*micro) * (rows / batches.batch)
                part.backward()
                loss += part.detach()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            lr = learning_rate(config, step)
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if device.type == "cuda":
                torch.cuda.synchronize()
            tokens_per_s = tokens.numel() / (time.perf_counter() - began)
            table.writerow((step, loss.item(), lr, norm.item(), tokens_per_s))
            if step % 50 == 0 or step == 1:
                print(f"step {step}: loss {loss.item():.4f}, {tokens_per_s:,.0f} tokens/s", flush=True)
    return 0


# ---- Comparison --------------------------------------------------------------------------------------------


def read_curve(place):
    """{step: {column: number}} of a CSV file of `train`, or of the metrics.jsonl of a te-train run."""
    path = Path(place)
    file = path / "metrics.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{file}: not found; name a CSV file of `train` or the folder of a te-train run")
    with file.open() as lines:
        records = [json.loads(line) for line in lines] if file.suffix == ".jsonl" else list(csv.DictReader(lines))
    return {int(record["step"]): {name: float(record[name]) for name in COLUMNS[1:]} for record in records}


def speed(curve):
    steps = sorted(curve)
    return statistics.median(curve[step]["tokens_per_s"] for step in steps[len(steps) // 10 :])


def difference(curve, reference, last):
    """Statistics of a curve minus the reference, over the same steps."""
    steps = sorted(reference)
    if sorted(curve) != steps:
        raise InputError(f"has {len(curve)} steps, the reference {len(steps)}; repeat it with logging.every 1")
    for step in steps:
        if not math.isclose(curve[step]["lr"], reference[step]["lr"], rel_tol=1e-5, abs_tol=1e-12):
            raise InputError(f"step {step}: lr is {curve[step]['lr']:g}, in the reference {reference[step]['lr']:g}")
    gaps = [curve[step]["loss"] - reference[step]["loss"] for step in steps]
    end = statistics.fmean(curve[step]["loss"] for step in steps[-last:])
    return {
        "steps": len(steps),
        "first_loss": curve[steps[0]]["loss"],
        "first_difference": gaps[0],
        "mean_absolute_difference": statistics.fmean(map(abs, gaps)),
        "largest_difference": max(map(abs, gaps)),
        "end_loss": end,
        "end_difference": statistics.fmean(gaps[-last:]),
        "end_difference_percent": 100 * statistics.fmean(gaps[-last:]) / (end - statistics.fmean(gaps[-last:])),
        "tokens_per_s": speed(curve),
        "speed_ratio": speed(curve) / speed(reference),
    }


def compare(arguments):
    reference = read_curve(arguments.reference)
    if not reference:
        raise InputError(f"{arguments.reference}: has no steps")
    rows = {"reference": difference(reference, reference, arguments.last)}
    for item in arguments.curves:
        name, equals, place = item.partition("=")
        if not equals:
            raise InputError(f"{item}: write NAME=RUN")
        try:
            rows[name] = difference(read_curve(place), reference, arguments.last)
        except InputError as problem:
            raise InputError(f"{place}: {problem}") from None
    print(f"| run | loss at step 1 | loss of the last {arguments.last} steps | difference | mean absolute difference "
          "| largest | tokens/s | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, row in rows.items():
        print(f"| {name} | {row['first_loss']:.5f} | {row['end_loss']:.5f} | {row['end_difference']:+.5f} "
              f"({row['end_difference_percent']:+.3f}%) | {row['mean_absolute_difference']:.5f} "
              f"| {row['largest_difference']:.5f} | {row['tokens_per_s']:,.0f} | {row['speed_ratio']:.2f} |")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"last": arguments.last, "runs": rows}, indent=1) + "\n")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    reference = commands.add_parser("train", help="the reference run")
    reference.add_argument("--run", required=True, help="folder of the te-train run to repeat")
    reference.add_argument("--weights", required=True, help="Hugging Face folder of the initial model")
    reference.add_argument("--out", required=True, help="CSV file to write")
    reference.add_argument("--micro-batch", type=int, help="sequences per pass (default: that of the run)")
    reference.add_argument("--fp32", action="store_true", help="without autocast and TF32")
    reference.add_argument("--eager", action="store_true", help="without torch.compile")
    reference.add_argument("--device", default="cuda")
    comparison = commands.add_parser("compare", help="differences to the reference")
    comparison.add_argument("--reference", required=True, help="CSV file of `train`")
    comparison.add_argument("--last", type=int, default=50, help="steps of the end (default 50)")
    comparison.add_argument("--json", help="also write the numbers to this file")
    comparison.add_argument("curves", nargs="+", metavar="NAME=RUN")
    arguments = parser.parse_args()
    try:
        return (train if arguments.command == "train" else compare)(arguments)
    except (InputError, ValueError, OSError) as problem:
        print(f"llmc_parity.py: error: {problem}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
