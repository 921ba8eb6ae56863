#!/usr/bin/env python3
"""The PyTorch baseline for te-train: what a user of torch.compile would write.

    torch_baseline.py layer --which gpt|llama7b [--fp8] [--eager]
    torch_baseline.py [--compile layers] train --model gpt2_124m|llama_1b|llama2_7b [--fp8] [--micro-batch N] [--steps N]
    torchrun --standalone --nproc-per-node 4 torch_baseline.py train --model llama2_7b [--fp8]

The time of a layer is that of forward and backward with BF16 weights. A training step includes loss, clipping and fused
AdamW with BF16 parameters and moments, which is less work than te-train's FP32 master weights and moments. Attention is
cuDNN's if PyTorch has it. FP8 is the hybrid format with torch._scaled_mm and current scaling per tensor. Embedding, output
layer and attention stay in BF16. Random data, median; one JSON line on stdout. Under torchrun parameters are sharded with
FSDP2, in FP32 with BF16 compute and FP32 reduction as in torchtitan, and layers are compiled.
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time

try:
    import torch
except ImportError:
    print("torch_baseline.py: error: PyTorch is missing; pip install torch (with CUDA)", file=sys.stderr)
    sys.exit(2)
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
WARM_UP = 5
COOL_DOWN_S, WARMUP_S = 3, 2  # as in te-bench layer
ATTENTION = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]


@dataclasses.dataclass
class Shape:
    llama: bool
    hidden: int
    ffn: int
    heads: int
    batch: int
    sequence: int
    layers: int = 1
    vocab: int = 0

    def layer_flops(self):
        """FLOPs of forward and backward of one layer; causal attention counts half of the scores."""
        tokens = self.batch * self.sequence
        weights = 4 * self.hidden**2 + (3 if self.llama else 2) * self.hidden * self.ffn
        return 6 * tokens * (weights + self.sequence * self.hidden)

    def step_flops(self):
        return self.layers * self.layer_flops() + 6 * self.batch * self.sequence * self.hidden * self.vocab


LAYERS = {
    "gpt": Shape(False, 4096, 16384, 32, batch=4, sequence=2048),
    "llama7b": Shape(True, 4096, 11008, 32, batch=2, sequence=4096),
}
MODELS = {
    "gpt2_124m": Shape(False, 768, 3072, 12, batch=64, sequence=1024, layers=12, vocab=50304),
    "llama_1b": Shape(True, 2048, 5632, 16, batch=16, sequence=2048, layers=22, vocab=32000),
    "llama2_7b": Shape(True, 4096, 11008, 32, batch=2, sequence=4096, layers=32, vocab=32000),
}

# ---- FP8 ---------------------------------------------------------------------------------------------------


def to_fp8(values, dtype):
    """(FP8 values with the scale of the tensor's amax, inverse of the scale)."""
    largest = torch.finfo(dtype).max
    scale = largest / values.abs().amax().float().clamp(min=1e-12)
    return (values.float() * scale).clamp(-largest, largest).to(dtype), scale.reciprocal()


def GEMM(a, b, fast):
    """a [m, k] times b [k, n], each a result of to_fp8; a is row-major, b column-major, as Hopper requires."""
    return torch._scaled_mm(
        a[0], b[0], scale_a=a[1], scale_b=b[1], out_dtype=torch.bfloat16, use_fast_accum=fast
    )


def transposed(pair):
    return pair[0].t().contiguous(), pair[1]


class Fp8Gemm(torch.autograd.Function):
    """x [tokens, in] and weight [out, in] to [tokens, out]."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        w8, w_inverse = to_fp8(weight, torch.float8_e4m3fn)
        return GEMM(to_fp8(x, torch.float8_e4m3fn), (w8.t(), w_inverse), fast=True)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dy8 = to_fp8(dy, torch.float8_e5m2)
        w8, w_inverse = transposed(to_fp8(weight, torch.float8_e4m3fn))
        x8, x_inverse = transposed(to_fp8(x, torch.float8_e4m3fn))
        dx = GEMM(dy8, (w8.t(), w_inverse), fast=False)
        dw = GEMM(transposed(dy8), (x8.t(), x_inverse), fast=False)
        return dx, dw


class Linear(nn.Linear):
    def __init__(self, inputs, outputs, bias, fp8):
        super().__init__(inputs, outputs, bias=bias)
        self.fp8 = fp8

    def forward(self, x):
        if not self.fp8:
            return super().forward(x)
        y = Fp8Gemm.apply(x.flatten(0, -2), self.weight).view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias


# ---- The model ---------------------------------------------------------------------------------------------


def rotary_tables(shape):
    half = shape.hidden // shape.heads // 2
    frequency = 10000.0 ** (-torch.arange(half, device="cuda", dtype=torch.float32) / half)
    angle = torch.arange(shape.sequence, device="cuda", dtype=torch.float32)[:, None] * frequency
    return angle.cos().bfloat16(), angle.sin().bfloat16()


def rotate(x, tables):
    cos, sin = tables
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Layer(nn.Module):
    def __init__(self, shape, fp8):
        super().__init__()
        self.shape = shape
        hidden, bias = shape.hidden, not shape.llama
        self.attention_norm, self.mlp_norm = make_norm(shape), make_norm(shape)
        self.qkv = Linear(hidden, 3 * hidden, bias, fp8)
        self.proj = Linear(hidden, hidden, bias, fp8)
        self.fc1 = Linear(hidden, (2 if shape.llama else 1) * shape.ffn, bias, fp8)
        self.fc2 = Linear(shape.ffn, hidden, bias, fp8)

    def forward(self, x, tables):
        return self.add_mlp(self.add_attention(x, tables))

    def add_attention(self, x, tables):
        heads = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.shape.heads, -1))
        q, k, v = (part.transpose(1, 2) for part in heads.unbind(2))
        if tables is not None:
            q, k = rotate(q, tables), rotate(k, tables)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.proj(y.transpose(1, 2).flatten(2))

    def add_mlp(self, x):
        y = self.fc1(self.mlp_norm(x))
        if self.shape.llama:
            gate, up = y.chunk(2, dim=-1)
            return x + self.fc2(functional.silu(gate) * up)
        return x + self.fc2(functional.gelu(y, approximate="tanh"))


def make_norm(shape):
    return nn.RMSNorm(shape.hidden, eps=1e-5) if shape.llama else nn.LayerNorm(shape.hidden)


class Model(nn.Module):
    def __init__(self, shape, fp8):
        super().__init__()
        self.words = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = None if shape.llama else nn.Embedding(shape.sequence, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape, fp8) for _ in range(shape.layers))
        self.norm = make_norm(shape)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        for embedding in (self.words, self.positions):
            if embedding is not None:
                nn.init.normal_(embedding.weight, std=0.02)
        if not shape.llama:
            self.head.weight = self.words.weight

    def forward(self, tokens, targets, tables):
        x = self.words(tokens)
        if self.positions is not None:
            x = x + self.positions.weight
        for layer in self.layers:
            x = layer(x, tables)
        return self.loss(x, targets)

    def loss(self, x, targets):
        logits = self.head(self.norm(x)).flatten(0, 1)
        return functional.cross_entropy(logits.float(), targets.flatten())


# ---- Measuring ---------------------------------------------------------------------------------------------


def median_ms(call, repeats):
    for _ in range(WARM_UP):
        call()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in events:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)


def warm_up(call):
    """Keeps the GPU busy until power and clock are those of training."""
    end = time.monotonic() + WARMUP_S
    while time.monotonic() < end:
        for _ in range(10):
            call()
        torch.cuda.synchronize()


def report(what, arguments, shape, ms, flops):
    print(
        json.dumps(
            {
                **what,
                "fp8": arguments.fp8,
                "compiled": "no" if arguments.eager else arguments.compile,
                "torch": torch.__version__,
                "gpus": WORLD,
                "micro_batch": shape.batch,
                "sequence": shape.sequence,
                "ms": round(ms, 3),
                "tokens_per_s": round(shape.batch * shape.sequence / ms * 1e3),
                "tflops": round(flops / ms / 1e9, 1),
                "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
            }
        ),
        flush=True,
    )


def bench_layer(arguments):
    shape = LAYERS[arguments.which]
    layer = Layer(shape, arguments.fp8).to("cuda", torch.bfloat16)
    run = layer if arguments.eager else torch.compile(layer)
    tables = rotary_tables(shape) if shape.llama else None
    size = (shape.batch, shape.sequence, shape.hidden)
    x = torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(size, device="cuda", dtype=torch.bfloat16)

    def passes():
        run(x, tables).backward(dy)

    passes()
    torch.cuda.synchronize()
    time.sleep(COOL_DOWN_S)
    ms = median_ms(passes, arguments.repeats)
    warm_up(passes)
    sustained = {"sustained_ms": round(median_ms(passes, arguments.repeats), 3)}
    report({"bench": "layer", "which": arguments.which} | sustained, arguments, shape, ms, shape.layer_flops())


def compiled(model, arguments):
    if arguments.eager:
        return model
    if arguments.compile == "model":
        return torch.compile(model)
    for layer in model.layers:  # the code compiled for the first layer serves all layers
        layer.compile()
    model.loss = torch.compile(model.loss)
    return model


def sharded(shape, arguments):
    """A model with parameters sharded over the ranks of torchrun."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    with torch.device("meta"):
        model = Model(shape, arguments.fp8)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        if not arguments.eager:
            layer.compile()
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    return model


def bench_train(arguments):
    shape = dataclasses.replace(MODELS[arguments.model])
    shape.batch = arguments.micro_batch or shape.batch
    if WORLD > 1:
        model = run = sharded(shape, arguments)
        arguments.compile = "layers"
    else:
        with torch.device("cuda"):
            model = Model(shape, arguments.fp8).bfloat16()
        run = compiled(model, arguments)
    tables = rotary_tables(shape) if shape.llama else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    text = torch.randint(shape.vocab, (shape.batch, shape.sequence + 1), device="cuda")
    tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def step():
        run(tokens, targets, tables).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    ms = median_ms(step, arguments.steps)
    if WORLD > 1:
        rank = torch.distributed.get_rank()
        torch.distributed.destroy_process_group()
        if rank > 0:
            return
    report({"bench": "train", "model": arguments.model}, arguments, shape, ms, shape.step_flops())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--compile",
        choices=("model", "layers"),
        default="model",
        help="train: compile the whole model (takes minutes for many layers) or each layer",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    layer = commands.add_parser("layer", help="forward and backward of one layer")
    layer.add_argument("--which", choices=LAYERS, required=True)
    layer.add_argument("--repeats", type=int, default=30)
    train = commands.add_parser("train", help="whole training steps")
    train.add_argument("--model", choices=MODELS, required=True)
    train.add_argument("--micro-batch", type=int, help="sequences per step and GPU (default: as in the shape)")
    train.add_argument("--steps", type=int, default=20)
    for command in (layer, train):
        command.add_argument("--fp8", action="store_true")
        command.add_argument("--eager", action="store_true", help="without torch.compile")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch_baseline.py: error: PyTorch finds no CUDA device", file=sys.stderr)
        return 2
    torch.manual_seed(1234)
    with sdpa_kernel(ATTENTION):
        (bench_layer if arguments.command == "layer" else bench_train)(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
