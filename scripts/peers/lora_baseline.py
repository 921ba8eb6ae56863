#!/usr/bin/env python3
"""The PEFT baseline for LoRA in te-train: transformers and PEFT, with and without torch.compile.

    lora_baseline.py --model llama3.1_8b|qwen3_8b [--compile layers|model] [--recompute] [--adapter fp32]

A step is one microbatch of random tokens with forward, loss, backward, clipping and fused AdamW on the adapter. The base
has random BF16 weights that are made on the GPU. The adapter is in BF16, which is less work than te-train's FP32 master
weights; `--adapter fp32` is PEFT's default under autocast to BF16. Attention is PyTorch's, cuDNN's if it has it. Median;
one JSON line on stdout.
"""

import argparse
import contextlib
import json
import sys

try:
    import peft
    import torch
    import transformers
except ImportError as missing:
    print(f"lora_baseline.py: error: {missing}; pip install torch transformers peft", file=sys.stderr)
    sys.exit(2)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch_baseline import median_ms

DEVICE = "cuda"
# Efficient attention is for the mask that transformers makes while the whole model is compiled.
ATTENTION = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
WIDTHS = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
# (config, its keys, tokens per sequence)
MODELS = {
    "llama3.1_8b": (
        transformers.LlamaConfig,
        {"num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 128256, "rms_norm_eps": 1e-5} | WIDTHS,
        4096,
    ),
    "qwen3_8b": (
        transformers.Qwen3Config,
        {"num_hidden_layers": 36, "intermediate_size": 12288, "vocab_size": 151936, "rms_norm_eps": 1e-6} | WIDTHS,
        2048,
    ),
}


def adapted(arguments):
    kind, shape, sequence = MODELS[arguments.model]
    config = kind(max_position_embeddings=sequence, tie_word_embeddings=False, use_cache=False, **shape)
    with torch.device(DEVICE):
        base = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    lora = peft.LoraConfig(
        r=arguments.rank,
        lora_alpha=2 * arguments.rank,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    model = peft.get_peft_model(base, lora, autocast_adapter_dtype=arguments.adapter == "fp32").train()
    if arguments.recompute:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if arguments.compile == "model":
        model.compile()
    elif arguments.compile == "layers":
        for layer in base.model.layers:  # the code compiled for the first layer serves all layers
            layer.compile()
        base.loss_function = torch.compile(base.loss_function)
    return model


def measure(arguments):
    """(milliseconds per step, loss)"""
    model = adapted(arguments)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    size = (arguments.micro_batch, arguments.sequence)
    tokens = torch.randint(MODELS[arguments.model][1]["vocab_size"], size, device=DEVICE)
    autocast = torch.autocast(DEVICE, torch.bfloat16) if arguments.adapter == "fp32" else contextlib.nullcontext()
    losses = []

    def step():
        with autocast:
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses[:] = [loss.detach()]

    with sdpa_kernel(ATTENTION, set_priority=True):
        ms = median_ms(step, arguments.steps)
    return ms, losses[0].item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--compile", choices=("no", "layers", "model"), default="no", help="what is compiled")
    parser.add_argument("--recompute", action="store_true", help="gradient checkpointing of the layers")
    parser.add_argument("--adapter", choices=("bf16", "fp32"), default="bf16", help="the adapter's weights")
    parser.add_argument("--rank", type=int, default=16, help="alpha is twice the rank")
    parser.add_argument("--micro-batch", type=int, default=1, help="sequences per step")
    parser.add_argument("--sequence", type=int, help="tokens per sequence (default: 4096 for Llama, 2048 for Qwen3)")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    arguments.sequence = arguments.sequence or MODELS[arguments.model][2]
    if DEVICE == "cuda" and not torch.cuda.is_available():
        print("lora_baseline.py: error: PyTorch finds no CUDA device", file=sys.stderr)
        return 2
    torch.manual_seed(1234)
    ms, loss = measure(arguments)
    report = {
        "bench": "lora",
        **vars(arguments),
        "ms": round(ms, 3),
        "tokens_per_s": round(arguments.micro_batch * arguments.sequence / ms * 1e3),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "loss": round(loss, 4),
        "versions": {library.__name__: library.__version__ for library in (torch, transformers, peft)},
    }
    print(json.dumps(report), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
