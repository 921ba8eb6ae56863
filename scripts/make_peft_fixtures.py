#!/usr/bin/env python3
"""Writes tests/fixtures/peft: a LoRA adapter that PEFT has made and 50 steps in which PEFT trains it.

The base is tests/fixtures/hugging_face/llama. `initial` and `trained` are PEFT folders with the adapter before and
after the steps. expected.safetensors has "tokens" and "targets" [steps, batch, sequence], "losses" [steps] (before each
update), and the "logits" of the first step's tokens with the trained adapter. Its metadata "optimizer" has te-train's
config keys. Everything is FP32. B is not zero at the start, so that the first step has a gradient for A.

    pip install torch transformers peft safetensors
    scripts/make_peft_fixtures.py            # writes the files
    scripts/make_peft_fixtures.py --check    # recomputes them and compares
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
BASE = FIXTURES / "hugging_face" / "llama"
STEPS, BATCH, SEQ = 50, 2, 24
OPTIMIZER = {"lr": 5e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip_grad": 1.0}
TARGETS = ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TOLERANCE = 1e-5


def adapted_model():
    """The base with an adapter whose B is small and random."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    config = LoraConfig(r=8, lora_alpha=12, target_modules=TARGETS, task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def save_adapter(model, folder: Path):
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config["target_modules"].sort()
    config["base_model_name_or_path"] = "tests/fixtures/hugging_face/llama"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write(folder: Path):
    """Trains the adapter and writes all files of the fixture."""
    import torch
    from safetensors.torch import save_file

    model = adapted_model()
    save_adapter(model, folder / "initial")
    vocabulary = model.config.vocab_size
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, vocabulary, (STEPS, BATCH, SEQ), generator=generator)
    targets = (tokens * 7 + 3) % vocabulary  # can be learned
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trained,
        lr=OPTIMIZER["lr"],
        betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]),
        eps=OPTIMIZER["eps"],
        weight_decay=OPTIMIZER["weight_decay"],
    )
    losses = []
    for step in range(STEPS):
        logits = model(input_ids=tokens[step]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets[step].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, OPTIMIZER["clip_grad"])
        optimizer.step()
        losses.append(loss.item())
    save_adapter(model, folder / "trained")
    with torch.no_grad():
        logits = model(input_ids=tokens[0]).logits
    save_file(
        {
            "tokens": tokens.int(),
            "targets": targets.int(),
            "losses": torch.tensor(losses),
            "logits": logits.contiguous(),
        },
        folder / "expected.safetensors",
        metadata={"optimizer": json.dumps(OPTIMIZER)},
    )


def check(folder: Path):
    """Compares the numbers of two folders; returns the number of differences."""
    from safetensors.torch import load_file

    faults = 0
    for path in sorted(folder.rglob("*.safetensors")):
        stored = load_file(FIXTURES / "peft" / path.relative_to(folder))
        for name, tensor in load_file(path).items():
            gap = (tensor.double() - stored[name].double()).abs().max().item()
            if gap > TOLERANCE:
                print(f"{path.relative_to(folder)}: {name} differs by {gap:.2e}", file=sys.stderr)
                faults += 1
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="recompute the files and compare")
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if not arguments.check:
        write(FIXTURES / "peft")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return 1 if check(Path(folder)) else 0


if __name__ == "__main__":
    sys.exit(main())
