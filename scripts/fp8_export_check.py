#!/usr/bin/env python3
"""Checks exports of `te-convert export --fp8` with the libraries that load them, on the CPU.

    pip install torch transformers accelerate compressed-tensors safetensors numpy
    scripts/fp8_export_check.py FOLDER [--reference BF16_FOLDER] [--te-generate build/cpu/apps/te-generate]
    scripts/fp8_export_check.py FOLDER --samples valid.bin --seq-length 16 --count 6 --dtype bf16

1. transformers loads the folder (on a CPU it dequantizes the weights, with its own code or compressed-tensors). Its FP32
   logits of random tokens are compared with those of te-generate for the same folder.
2. The linear layers are emulated as a serving program runs them, with FP8 inputs: block: one scale per 128 inputs of a
   token; tensor: input_scale. Prints mean KL and top-1 agreement against --reference, a BF16 export.
3. --samples: the loss of this emulation on consecutive samples of a dataset (tokens of 2 bytes), for comparison with the
   valid_loss of the te-train FP8 run of the export.

Exits with code 1 if the logits of 1. differ by more than 1e-4 of the largest.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig
except ImportError as error:
    sys.exit(f"fp8_export_check.py: error: {error}; pip install torch transformers accelerate compressed-tensors numpy")

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parent.parent
E4M3 = torch.float8_e4m3fn
BATCH, SEQ, BOUND = 4, 32, 1e-4


def load(folder, method, dtype=torch.float32, stored_as=torch.bfloat16):
    """Loads the model; the library dequantizes FP8 weights to `stored_as`, and the model computes in `dtype`."""
    how = {"quantization_config": CompressedTensorsConfig(run_compressed=False)} if method == "compressed-tensors" else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=stored_as, **how)
    if hasattr(model, "hf_quantizer") and method == "compressed-tensors":
        for module in model.modules():  # disables the fake quantization of compressed-tensors
            if hasattr(module, "quantization_enabled"):
                module.quantization_enabled = False
    left = [name for name, tensor in model.state_dict().items() if tensor.dtype == E4M3]
    if left:
        sys.exit(f"fp8_export_check.py: error: still in FP8 after loading: {left[:3]}")
    return model.to(dtype).eval()


def stored(folder):
    """All tensors of the folder's safetensors files."""
    tensors = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def fp8(values, scale):
    """Quantizes to E4M3 with saturation, and dequantizes."""
    return (values.float() * scale).clamp(-448, 448).to(E4M3).float()


def emulate(model, tensors, method, dtype):
    """Replaces the forward pass of each FP8 linear layer with an emulation; returns the number of layers."""
    count = 0
    for name, module in model.named_modules():
        weight = tensors.get(f"{name}.weight")
        if not isinstance(module, torch.nn.Linear) or weight is None or weight.dtype != E4M3:
            continue
        count += 1
        if method == "fp8":
            scales = tensors[f"{name}.weight_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
            wide = weight.float() * scales[: weight.shape[0], : weight.shape[1]]

            def forward(x, wide=wide, bias=module.bias):
                groups = x.to(dtype).float().unflatten(-1, (-1, 128))
                amax = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10)
                quantized = (fp8(groups, 448 / amax) * (amax / 448)).flatten(-2)
                out = (quantized @ wide.T).to(dtype).to(x.dtype)
                return out if bias is None else out + bias
        else:
            scale, own = tensors[f"{name}.input_scale"], tensors[f"{name}.weight_scale"]

            def forward(x, weight=weight.float(), scale=scale, own=own, bias=module.bias):
                out = ((fp8(x.to(dtype), 1 / scale) @ weight.T) * (scale * own)).to(dtype).to(x.dtype)
                return out if bias is None else out + bias
        module.forward = forward
    return count


def logits_of(model, tokens):
    """Logits in FP32."""
    with torch.no_grad():
        return model(tokens).logits.float()


def te_logits(program, folder, tokens):
    """Logits of te-generate for the folder, in FP32."""
    with tempfile.TemporaryDirectory() as scratch:
        save_file({"tokens": tokens.to(torch.int32)}, f"{scratch}/tokens.safetensors")
        subprocess.run([program, "logits", "--checkpoint", folder, "--tokens", f"{scratch}/tokens.safetensors", "--out",
                        f"{scratch}/logits.safetensors", "--device", "cpu", "--dtype", "fp32"], check=True,
                       stdout=subprocess.DEVNULL)
        with safe_open(f"{scratch}/logits.safetensors", "pt") as file:
            return file.get_tensor("logits")


def divergence(reference, actual):
    """Mean KL(reference || actual), and the fraction of positions with the same most probable token."""
    p, q = reference.log_softmax(-1).double(), actual.log_softmax(-1).double()
    return (p.exp() * (p - q)).sum(-1).mean().item(), (p.argmax(-1) == q.argmax(-1)).double().mean().item()


def loss_of(model, path, seq_length, count):
    """Mean loss on the first samples of a dataset."""
    ids = torch.from_numpy(np.fromfile(path, dtype=np.uint16).astype(np.int64))
    losses = []
    for i in range(count):
        cut = ids[i * seq_length : (i + 1) * seq_length + 1]
        losses.append(torch.nn.functional.cross_entropy(logits_of(model, cut[None, :-1])[0], cut[1:]))
    return torch.stack(losses).mean().item()


def main():
    """Runs the checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--reference", help="a BF16 export of the same checkpoint")
    parser.add_argument("--te-generate", default=ROOT / "build/cpu/apps/te-generate")
    parser.add_argument("--samples", help=".bin of a dataset")
    parser.add_argument("--seq-length", type=int, default=16)
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="dtype of inputs and outputs of linear layers")
    arguments = parser.parse_args()
    config = json.loads((Path(arguments.folder) / "config.json").read_text())
    method = config["quantization_config"]["quant_method"]
    tokens = torch.randint(0, config["vocab_size"], (BATCH, SEQ), generator=torch.Generator().manual_seed(1))
    model = load(arguments.folder, method)
    theirs, ours = logits_of(model, tokens), te_logits(arguments.te_generate, arguments.folder, tokens)
    difference = ((theirs - ours).abs().max() / theirs.abs().max()).item()
    if config["torch_dtype"] != "bfloat16":
        print("note: this export is FP32; its weights are rounded to BF16 here, so the results below do not check it")
    print(f"dequantized, transformers against te-generate: largest difference {difference:.1e} of the largest logit")
    if arguments.reference:
        reference = logits_of(AutoModelForCausalLM.from_pretrained(arguments.reference, dtype=torch.float32).eval(), tokens)
        print("weights in FP8, against BF16:            mean KL {:.3e}, top-1 agreement {:.4f}".format(
            *divergence(reference, theirs)))
    dtype = torch.bfloat16 if arguments.dtype == "bf16" else torch.float32
    if arguments.samples:
        model = load(arguments.folder, method, dtype, dtype)
    count = emulate(model, stored(arguments.folder), method, dtype)
    if arguments.reference:
        kl, top = divergence(reference, logits_of(model, tokens))
        print(f"also inputs in FP8 ({count} linear layers):   mean KL {kl:.3e}, top-1 agreement {top:.4f}")
    if arguments.samples:
        loss = loss_of(model, arguments.samples, arguments.seq_length, arguments.count)
        print(f"emulated loss of {arguments.count} samples ({count} linear layers in FP8): {loss:.6f}")
    return 0 if difference <= BOUND or config["torch_dtype"] != "bfloat16" else 1


if __name__ == "__main__":
    sys.exit(main())
