#!/usr/bin/env python3
"""Writes tests/fixtures/quantize: tensors quantized to microscaling formats by reference implementations.

mxfp8_FORMAT.bin, by torchao's to_mx with scales rounded up (RCEIL, the rule of Transformer Engine's MXFP8), little-endian:

    uint16 x[ROWS, COLS]                 BF16
    uint8  rowwise[ROWS, COLS]           codes of x's rows
    uint8  rowwise_scales[ROWS, COLS / 32]
    uint8  columnwise[COLS, ROWS]        codes of x's columns
    uint8  columnwise_scales[COLS, ROWS / 32]

nvfp4_VARIANT.bin, by Transformer Engine's reference quantizer (reference_nvfp4.py), of rows (1x16), blocks (16x16),
hadamard (1x16, with a random Hadamard transform of the columns) and tiny (rows of values times 2^-126). E2M1 codes are packed in pairs, the first in the low bits:

    uint16 x[ROWS, COLS]                 BF16
    uint8  rowwise[ROWS, COLS / 2], rowwise_scales[ROWS, COLS / 16]            scales are E4M3
    uint8  columnwise[COLS, ROWS / 2], columnwise_scales[COLS, ROWS / 16]
    float  rowwise_amax, columnwise_amax

tests/kernels/quantize_mx_test.cpp and quantize_nvfp4_test.cpp require the same values and scales from te-train. They do not
need torch.

    pip install torch torchao
    scripts/make_quantization_fixtures.py --transformer-engine FOLDER [--folder FOLDER]     (FOLDER/transformer_engine/pytorch/...)
"""

import argparse
import importlib.util
import sys
import types
from pathlib import Path

import numpy as np
import torch
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_mx

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "quantize"
ROWS, COLS = 64, 96


def values(rows, cols, seed):
    """Normally distributed values whose magnitude changes from group to group, zeros, ties and powers of two."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((rows, cols))
    r, c = np.indices((rows, cols))
    x = np.ldexp(x, (r // 5 + c // 12) * 3 % 60 - 30)
    x[:8, :32] = 0
    x[8, :32] = np.ldexp(1.0625 + np.arange(32) % 4 / 8, np.arange(32) % 9)  # ties of E4M3
    x[9, :32] = np.ldexp(448.0, np.arange(32) % 3)  # the largest number
    x[10, :32] = np.ldexp(1.0, -np.arange(32))  # subnormal codes
    x[11, :32] = np.ldexp(1.5, -100)  # small scales; torchao flushes subnormal ones
    x[12, :32] = -np.ldexp(449.0, -4)  # just above a power of two times the largest number
    return torch.tensor(x).to(torch.bfloat16)


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def mx(x, dtype):
    """Codes and E8M0 scales of the rows."""
    scales, codes = to_mx(x.contiguous(), dtype, 32, ScaleCalculationMode.RCEIL)
    return raw(codes) + raw(scales)


def nvfp4_reference(folder):
    """The module of Transformer Engine's reference quantizer, without its native library."""
    package = "transformer_engine.pytorch"
    for name in ("transformer_engine", package, f"{package}.custom_recipes"):
        sys.modules[name] = types.ModuleType(name)
    gemm = sys.modules[f"{package}.custom_recipes.gemm"] = types.ModuleType("gemm")
    gemm.GEMMType, gemm.MMParams = types.SimpleNamespace(FPROP=0), object
    sys.modules[f"{package}.custom_recipes"].gemm = gemm
    storage = sys.modules[f"{package}.quantized_tensor"] = types.ModuleType(f"{package}.quantized_tensor")
    storage.QuantizedTensorStorage = object
    storage.Quantizer = type("Quantizer", (), {"__init__": quantizer_init})
    for name in ("reference_utils", "reference_nvfp4"):
        path = folder / "transformer_engine/pytorch/custom_recipes" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"{package}.custom_recipes.{name}", path)
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        setattr(sys.modules[f"{package}.custom_recipes"], name, module)
        spec.loader.exec_module(module)
    return module


def quantizer_init(self, *, rowwise, columnwise):
    self.rowwise_usage, self.columnwise_usage = rowwise, columnwise


def nvfp4(module, x, **options):
    """Codes, scales and amaxes of both layouts."""
    quantizer = module.NVFP4QuantizerRef(module.reference_utils.Fp4Formats.E2M1, **options)
    rows, row_scales, columns, column_scales, *amaxes = quantizer._quantize(x)
    return b"".join(map(raw, (rows, row_scales, columns, column_scales, *amaxes)))


def nvfp4_values(rows, cols, seed):
    """Multiples of 1/64 below 32, whose sums of 16 are exact, of varying magnitude; zeros, a group and a block of zeros."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((rows, cols))
    r, c = np.indices((rows, cols))
    x = np.clip(np.ldexp(x, (r // 16 + c // 16) % 6 - 3), -31, 31)
    x[3, 16:32] = 0
    x[16:32, 32:48] = 0
    x[40, :16] = [0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5]  # ties
    x[0, 0] = 31
    return torch.tensor(np.round(x * 64) / 64).to(torch.bfloat16)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to write (default: %(default)s)")
    parser.add_argument("--transformer-engine", type=Path, required=True, help="where its Python package is")
    arguments = parser.parse_args()
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        x = values(ROWS, COLS, 1)
        (folder / f"mxfp8_{name}.bin").write_bytes(raw(x) + mx(x, dtype) + mx(x.T, dtype))
    module = nvfp4_reference(arguments.transformer_engine)
    x = nvfp4_values(ROWS, COLS, 2)
    for name, options in (
        ("rows", {}),
        ("blocks", {"quant_tile_shape": (16, 16)}),
        ("hadamard", {"with_rht": True}),
    ):
        (folder / f"nvfp4_{name}.bin").write_bytes(raw(x) + nvfp4(module, x, **options))
    tiny = torch.ldexp(x, torch.tensor(-126))
    (folder / "nvfp4_tiny.bin").write_bytes(raw(tiny) + nvfp4(module, tiny))


if __name__ == "__main__":
    main()
