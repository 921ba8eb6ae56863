#!/usr/bin/env python3
"""Peers of the linears of experts: torch._grouped_mm, torch._scaled_grouped_mm and Transformer Engine's GroupedLinear.

    experts_baseline.py [--shape olmoe_1b_7b|qwen3_30b_a3b|mixtral_8x7b] [--tokens 32768]

All experts have as many rows (`te-bench experts --routing balanced`). PyTorch writes weight gradients in BF16, and its FP8
is the forward pass only, with a scale per row and fast accumulation. GroupedLinear is timed forward and backward with
quantized weights of an earlier microbatch and fused accumulation of FP32 weight gradients: its time includes the
quantization of inputs and gradients. Median after the GPU is warm; a table on stdout.
"""

import argparse
import sys

try:
    import torch
except ImportError as missing:
    print(f"experts_baseline.py: error: {missing}; pip install torch", file=sys.stderr)
    sys.exit(2)
try:
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe as recipes
except ImportError:
    te = None
from torch_baseline import median_ms, warm_up

DEVICE = "cuda"
# (experts, experts per token, hidden size, width of an expert)
SHAPES = {
    "olmoe_1b_7b": (64, 8, 2048, 1024),
    "qwen3_30b_a3b": (128, 8, 2048, 768),
    "mixtral_8x7b": (8, 2, 4096, 14336),
}


def normal(*shape):
    return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)


def line(linear, what, call, flops, repeats):
    warm_up(call)
    ms = median_ms(call, repeats)
    print(f"{linear:4} {what:44} {ms:8.3f} ms {flops / ms / 1e9:8.0f} TFLOP/s", flush=True)


def pytorch(linear, experts, rows, inputs, outputs, repeats):
    flops = 2 * rows * inputs * outputs
    ends = torch.arange(1, experts + 1, device=DEVICE, dtype=torch.int32) * (rows // experts)
    x, weight, grad = normal(rows, inputs), normal(experts, outputs, inputs), normal(rows, outputs)
    transposed = weight.transpose(1, 2)
    for what, call in (
        ("fprop", lambda: torch._grouped_mm(x, transposed, offs=ends)),
        ("dgrad", lambda: torch._grouped_mm(grad, weight, offs=ends)),
        ("wgrad", lambda: torch._grouped_mm(grad.t(), x, offs=ends)),
    ):
        line(linear, f"torch._grouped_mm, BF16, {what}", call, flops, repeats)
    x8, weight8 = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn).transpose(1, 2)
    of_x, of_weight = (torch.ones(shape, device=DEVICE) for shape in ((rows,), (experts, outputs)))
    line(
        linear,
        "torch._scaled_grouped_mm, FP8, fprop",
        lambda: torch._scaled_grouped_mm(x8, weight8, of_x, of_weight, offs=ends, use_fast_accum=True),
        flops,
        repeats,
    )


def transformer_engine(linear, experts, rows, inputs, outputs, repeats):
    layer = te.GroupedLinear(
        experts, inputs, outputs, bias=False, params_dtype=torch.bfloat16, fuse_wgrad_accumulation=True
    )
    for parameter in layer.parameters():
        parameter.main_grad = torch.zeros(parameter.shape, device=DEVICE)
    x, grad = normal(rows, inputs).requires_grad_(), normal(rows, outputs)
    splits = torch.full((experts,), rows // experts)
    for name, recipe in (
        ("BF16", None),
        ("FP8 delayed", recipes.DelayedScaling(fp8_format=recipes.Format.HYBRID)),
        ("FP8 blocks", recipes.Float8BlockScaling()),
    ):

        def call(first=False, recipe=recipe):
            with te.fp8_autocast(enabled=recipe is not None, fp8_recipe=recipe):
                result = layer(x, splits, is_first_microbatch=first)
            result.backward(grad)
            x.grad = None

        call(first=True)
        line(linear, f"GroupedLinear, {name}, all passes", call, 6 * rows * inputs * outputs, repeats)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="olmoe_1b_7b")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    experts, topk, hidden, width = SHAPES[arguments.shape]
    rows = arguments.tokens * topk
    if rows % (16 * experts):
        parser.error(f"--tokens {arguments.tokens}: each of {experts} experts needs a multiple of 16 rows")
    print(f"{torch.cuda.get_device_name()}, {arguments.shape}, {arguments.tokens} tokens, torch {torch.__version__}")
    for linear, inputs, outputs in (("fc1", hidden, 2 * width), ("fc2", width, hidden)):
        for peer in (pytorch, transformer_engine) if te else (pytorch,):
            peer(linear, experts, rows, inputs, outputs, arguments.repeats)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
