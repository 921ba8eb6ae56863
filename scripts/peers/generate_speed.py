#!/usr/bin/env python3
"""Compares the speed of te-generate with transformers' generate() and lm-evaluation-harness on one GPU.

    scripts/peers/generate_speed.py generate --te-generate build/cuda/apps/te-generate --tokenizer gpt2/
    scripts/peers/generate_speed.py evaluate --te-generate build/cuda/apps/te-generate --tokenizer gpt2/ --data eval/

`generate` continues prompts of 64 tokens by 256 tokens, greedily and past ends of documents, with a random Llama of the
shape of llama_1b or Llama 2 7B (with GPT-2's vocabulary) in BF16; te-generate also with FP8 weights. `--batches 1,8,64`
sets the numbers of concurrent prompts, `--megakernel` is passed to te-generate. `evaluate` evaluates a random GPT-2
124M on HellaSwag; its time is that of the requests, without loading. Needs torch with CUDA and transformers, and
lm_eval for `evaluate`. `--tokenizer` is a folder with GPT-2's tokenizer.json. Prints one line of JSON per measurement.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

PROMPT_TOKENS, NEW_TOKENS = 64, 256
LLAMA_1B = {"vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
            "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 2048,
            "tie_word_embeddings": False}  # fmt: skip
LLAMA2_7B = {**LLAMA_1B, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
             "num_attention_heads": 32, "num_key_value_heads": 32}  # fmt: skip


def report(**fields):
    print(json.dumps(fields), flush=True)


def make_model(model, tokenizer, folder):
    """Saves a model with its tokenizer for from_pretrained and te-generate."""
    model.to(torch.bfloat16).save_pretrained(folder)
    shutil.copy(Path(tokenizer) / "tokenizer.json", folder)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>",
              "clean_up_tokenization_spaces": False}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def generate_here(arguments, folder, batch, prompts, fp8):
    """Reports the speed that te-generate prints."""
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")
    command = [arguments.te_generate, "--checkpoint", folder, "--prompts", file, "--output", folder / "texts.jsonl",
               "--batch", batch, "--max-tokens", NEW_TOKENS, "--ignore-end", "--fp8", fp8]  # fmt: skip
    command += ["--megakernel", arguments.megakernel]
    run = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    found = re.search(r"([\d.]+) tokens/s\)(?:.* ([\d.]+)% of the memory)?", run.stderr)
    report(program="te-generate", weights=fp8 if fp8 != "off" else "bf16", batch=batch, tokens_per_s=float(found[1]),
           bandwidth_percent=float(found[2] or 0), says=run.stderr.strip().splitlines()[-1])  # fmt: skip


def generate_there(model, tokenizer, batch, prompts):
    """Times generate() without its first token, which the pass over the prompts computes."""
    tokens = torch.stack([torch.tensor(tokenizer(prompt).input_ids[:PROMPT_TOKENS]) for prompt in prompts]).cuda()

    def run(count):
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.inference_mode():
            model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=count,
                           min_new_tokens=count, eos_token_id=None, pad_token_id=0)  # fmt: skip
        torch.cuda.synchronize()
        return time.perf_counter() - start

    run(8)
    first, all_tokens = run(1), run(NEW_TOKENS)
    rate = batch * (NEW_TOKENS - 1) / (all_tokens - first)
    report(program="transformers", weights="bf16", batch=batch, tokens_per_s=round(rate, 1))


def generate(arguments, folder):
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(**(LLAMA_1B if arguments.model == "llama_1b" else LLAMA2_7B)))
    make_model(model, arguments.tokenizer, folder)
    model = model.cuda().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for batch in map(int, arguments.batches.split(",")):
        prompts = [" ".join(["The"] * (PROMPT_TOKENS - 1) + [f"{i % 10}"]) for i in range(batch)]
        generate_there(model, tokenizer, batch, prompts)
        for fp8 in ("off", "hybrid"):
            generate_here(arguments, folder, batch, prompts, fp8)


def evaluate(arguments, folder):
    from evaluate_agreement import task_config
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    torch.manual_seed(1)
    make_model(GPT2LMHeadModel(GPT2Config()), arguments.tokenizer, folder)
    command = [arguments.te_generate, "evaluate", "--checkpoint", folder, "--tasks", "hellaswag",
               "--data", arguments.data, "--output", folder / "te.json"]  # fmt: skip
    run = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    line = next(line for line in run.stderr.splitlines() if "tokens/s" in line)
    seconds = float(re.search(r"in ([\d.]+) s", line)[1])
    mine = json.loads((folder / "te.json").read_text(encoding="utf-8"))["results"]["hellaswag"]
    report(program="te-generate", seconds=seconds, acc_norm=mine["acc_norm,none"], says=line.strip())

    lm = HFLM(pretrained=str(folder), dtype="bfloat16", batch_size=arguments.batch, device="cuda")
    config = task_config("hellaswag", Path(arguments.data), folder)
    start = time.perf_counter()
    theirs = simple_evaluate(model=lm, tasks=[config], bootstrap_iters=0, log_samples=False)
    seconds = time.perf_counter() - start
    acc_norm = theirs["results"]["hellaswag"]["acc_norm,none"]
    report(program="lm_eval", batch=arguments.batch, seconds=round(seconds, 1), acc_norm=acc_norm)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["generate", "evaluate"])
    parser.add_argument("--te-generate", required=True, help="te-generate executable")
    parser.add_argument("--tokenizer", required=True, help="folder with GPT-2's tokenizer.json")
    parser.add_argument("--data", help="evaluate: folder with HellaSwag")
    parser.add_argument("--model", choices=["llama_1b", "llama2_7b"], default="llama_1b", help="generate: shape of the model")
    parser.add_argument("--batches", default="1,8,64", help="generate: numbers of concurrent prompts")
    parser.add_argument("--megakernel", default="auto", help="generate: passed to te-generate")
    parser.add_argument("--batch", type=int, default=256, help="evaluate: lm_eval's batch")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        {"generate": generate, "evaluate": evaluate}[arguments.what](arguments, Path(folder))


if __name__ == "__main__":
    main()
