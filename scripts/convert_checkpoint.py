#!/usr/bin/env python3
"""Compares the logits of a te-train checkpoint with those of a Hugging Face folder.

    scripts/convert_checkpoint.py --verify HF_FOLDER --checkpoint CHECKPOINT [--dtype fp32|bf16]

transformers loads HF_FOLDER (the export of CHECKPOINT, or its source) and computes the logits of random tokens in FP32 on
the CPU; te-generate computes the logits of CHECKPOINT (default: of HF_FOLDER) in --dtype. The script prints the largest
difference and the mean KL divergence of the next-token distributions. It exits with code 1 if one exceeds its bound: FP32
logits may differ by 1e-5 times the largest logit (at least 1e-5). BF16 logits may have a divergence from transformers'
FP32 logits of 1e-5 or 1.25 times that of transformers' own BF16 logits, whichever is larger, because rounding weights and
activations of a trained model alone gives more than 1e-5 (docs/results/conformance/convert.md).

    pip install torch transformers safetensors
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from script_files import fail, run

try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as error:
    fail(f"{error}; pip install torch transformers safetensors")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--verify", type=Path, required=True, metavar="HF_FOLDER")
    parser.add_argument("--checkpoint", type=Path, help="te-train checkpoint (default: HF_FOLDER itself)")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="precision of te-generate")
    parser.add_argument("--device", default="cpu", help="device of te-generate: cpu or cuda")
    parser.add_argument("--te-generate", default=None, help="te-generate executable (default: on PATH, then build/*/apps)")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64, help="tokens per sequence, at most the model's context")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def find_te_generate(given):
    """The te-generate executable: `given`, or on PATH, or in a build tree of this repository."""
    if given:
        return given
    builds = Path(__file__).resolve().parent.parent.glob("build/*/apps/te-generate")
    found = shutil.which("te-generate") or next((str(path) for path in builds), None)
    return found or fail("te-generate is not on PATH and not built; set --te-generate")


def transformers_logits(folder, tokens, dtype):
    """FP32 logits [sequences, tokens, vocab] of a forward pass in `dtype`."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    with torch.no_grad():
        return model.eval()(tokens).logits.float()


def te_logits(arguments, tokens):
    with tempfile.TemporaryDirectory() as folder:
        save_file({"tokens": tokens}, f"{folder}/tokens.safetensors")
        command = [find_te_generate(arguments.te_generate), "logits", "--checkpoint"]
        command += [str(arguments.checkpoint or arguments.verify), "--dtype", arguments.dtype, "--device", arguments.device]
        command += ["--tokens", f"{folder}/tokens.safetensors", "--out", f"{folder}/logits.safetensors"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            fail(result.stderr.strip() or f"te-generate exited with code {result.returncode}")
        return load_file(f"{folder}/logits.safetensors")["logits"]


def divergence(actual, expected):
    """Mean KL(expected || actual) of the next-token distributions, in double precision."""
    p = expected.double().log_softmax(-1)
    q = actual.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).mean().item()


def main():
    arguments = parse_arguments()
    if not (arguments.verify / "config.json").is_file():
        fail(f"--verify {arguments.verify}: has no config.json; give a Hugging Face folder")
    transformers.logging.set_verbosity_error()
    config = transformers.AutoConfig.from_pretrained(arguments.verify)
    length = min(arguments.tokens, config.max_position_embeddings)
    generator = torch.Generator().manual_seed(arguments.seed)
    tokens = torch.randint(config.vocab_size, (arguments.sequences, length), generator=generator)
    exact = transformers_logits(arguments.verify, tokens, torch.float32)
    ours = te_logits(arguments, tokens)
    difference = (ours - exact).abs().max().item()
    scale = exact.abs().max().item()
    kl = divergence(ours, exact)
    print(f"{tuple(ours.shape)} logits in {arguments.dtype}, largest {scale:.3f}")
    print(f"from transformers in fp32: largest difference {difference:.2e}, KL {kl:.2e}")
    if arguments.dtype == "fp32":
        good = difference <= 1e-5 * max(1.0, scale)
    else:
        theirs = transformers_logits(arguments.verify, tokens, torch.bfloat16)
        own = divergence(theirs, exact)
        between = divergence(ours, theirs)
        print(f"from transformers in bf16: largest difference {(ours - theirs).abs().max().item():.2e}, KL {between:.2e}")
        print(f"transformers in bf16 from fp32: KL {own:.2e}")
        good = kl <= max(1e-5, 1.25 * own)
    print("equal within the bound" if good else "NOT equal: above the bound")
    if not good and arguments.checkpoint and arguments.dtype == "fp32" and config.dtype == torch.bfloat16:
        print("the folder has BF16 weights; if the checkpoint's are FP32, compare with --dtype bf16")
    return 0 if good else 1


if __name__ == "__main__":
    run(main)
