#!/usr/bin/env python3
"""Writes tests/fixtures/peft and peft_experts: LoRA adapters that PEFT has made and 50 steps in which PEFT trains them.

The base is tests/fixtures/hugging_face/llama, or mixtral for adapters of attention and the experts' down_proj. `initial`
and `trained` are PEFT folders with the adapter before and after the steps. expected.safetensors has "tokens" and
"targets" [steps, batch, sequence], "losses" [steps] (before each update), and the "logits" of the first step's tokens
with the trained adapter, all of FP32 training. The same steps with the base in BF16 and, as PEFT does by default, the
adapter in FP32 give "losses_bf16" (llama only). The metadata "optimizer" has te-train's config keys. B is not zero at
the start, so that the first step has a gradient for A. `all_experts` is an adapter of all matrices of the experts,
which gives the "logits_of_all_experts".

    pip install torch==$TORCH_VERSION transformers==$TRANSFORMERS_VERSION peft==$PEFT_VERSION safetensors
                                             # the versions of scripts/versions.env
    scripts/make_peft_fixtures.py            # writes the files
    scripts/make_peft_fixtures.py --check    # recomputes them and compares
"""

import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
STEPS, BATCH, SEQ = 50, 2, 24
OPTIMIZER = {"lr": 5e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip_grad": 1.0}
BASES = {"peft": "llama", "peft_experts": "mixtral"}
TARGETS = {
    "peft": {"target_modules": ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]},
    "peft_experts": {"target_modules": ["q_proj", "v_proj"], "target_parameters": ["mlp.experts.down_proj"]},
}
ALL_EXPERTS = {
    "target_modules": ["k_proj"],
    "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
}
# FP32 sums have another order on another processor. Adam amplifies that in elements with a small gradient, and the
# gaps of an adapter reach its logits. BF16 rounds to 2^-8 of a value.
TOLERANCES = {"losses": 1e-5, "losses_bf16": 2**-6}
ADAPTER_TOLERANCE = 1e-4


def base_model(fixture: str, dtype: str):
    import torch
    from transformers import AutoModelForCausalLM

    # Grouped GEMMs of torch need widths in multiples of 16 bytes.
    experts = {"experts_implementation": "eager"} if "experts" in fixture else {}
    base = FIXTURES / "hugging_face" / BASES[fixture]
    return AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, dtype), **experts)


def new_adapter(fixture: str, targets: dict):
    """The base with an adapter whose B is small and random."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    config = LoraConfig(r=8, lora_alpha=12, task_type="CAUSAL_LM", **targets)
    model = get_peft_model(base_model(fixture, "float32"), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def save_adapter(fixture: str, model, folder: Path):
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config["target_modules"].sort()
    if config["target_parameters"]:
        config["target_parameters"].sort()
    config["base_model_name_or_path"] = f"tests/fixtures/hugging_face/{BASES[fixture]}"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def train(model, tokens, targets):
    """Trains the adapter; returns the loss before each update."""
    import torch

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
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets[step].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, OPTIMIZER["clip_grad"])
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


def write(fixture: str, folder: Path):
    """Trains the adapter and writes all files of the fixture."""
    import torch
    from peft import PeftModel
    from safetensors.torch import save_file

    model = new_adapter(fixture, TARGETS[fixture])
    save_adapter(fixture, model, folder / "initial")
    vocabulary = model.config.vocab_size
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, vocabulary, (STEPS, BATCH, SEQ), generator=generator)
    targets = (tokens * 7 + 3) % vocabulary  # can be learned
    expected = {"tokens": tokens.int(), "targets": targets.int(), "losses": train(model, tokens, targets)}
    save_adapter(fixture, model, folder / "trained")

    def logits(adapted):
        with torch.no_grad():
            return adapted(input_ids=tokens[0]).logits.contiguous()

    expected["logits"] = logits(model)
    if "experts" in fixture:
        model = new_adapter(fixture, ALL_EXPERTS)
        save_adapter(fixture, model, folder / "all_experts")
        expected["logits_of_all_experts"] = logits(model)
    else:
        in_bf16 = PeftModel.from_pretrained(
            base_model(fixture, "bfloat16"), folder / "initial", is_trainable=True
        )
        expected["losses_bf16"] = train(in_bf16, tokens, targets)
    save_file(expected, folder / "expected.safetensors", metadata={"optimizer": json.dumps(OPTIMIZER)})


def check(fixture: str, folder: Path):
    """Compares the numbers of two folders; returns the number of differences."""
    from safetensors.torch import load_file

    faults = 0
    for path in sorted(folder.rglob("*.safetensors")):
        stored = load_file(FIXTURES / fixture / path.relative_to(folder))
        for name, tensor in load_file(path).items():
            gap = (tensor.double() - stored[name].double()).abs().max().item()
            if gap > TOLERANCES.get(name, ADAPTER_TOLERANCE):
                print(f"{path.relative_to(folder)}: {name} differs by {gap:.2e}", file=sys.stderr)
                faults += 1
    return faults


def check_versions():
    wanted = dict(re.findall(r"^(\w+)=(\S+)", (ROOT / "scripts" / "versions.env").read_text(), re.M))
    for module in ("torch", "transformers", "peft"):
        version = __import__(module).__version__.partition("+")[0]
        needed = wanted[f"{module.upper()}_VERSION"]
        if version != needed:
            sys.exit(f"make_peft_fixtures.py: error: {module} {version} is installed; pip install {module}=={needed}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="recompute the files and compare")
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    check_versions()
    faults = 0
    for fixture in BASES:
        if not arguments.check:
            write(fixture, FIXTURES / fixture)
            continue
        with tempfile.TemporaryDirectory() as folder:
            write(fixture, Path(folder))
            faults += check(fixture, Path(folder))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
