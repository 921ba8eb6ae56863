#!/usr/bin/env python3
"""Writes tests/fixtures/quantize: tensors quantized to microscaling formats by reference implementations.

mxfp8_FORMAT.bin, by torchao's to_mx with scales rounded up (RCEIL, the rule of Transformer Engine's MXFP8), little-endian:

    uint16 x[ROWS, COLS]                 BF16
    uint8  rowwise[ROWS, COLS]           codes of x's rows
    uint8  rowwise_scales[ROWS, COLS / 32]
    uint8  columnwise[COLS, ROWS]        codes of x's columns
    uint8  columnwise_scales[COLS, ROWS / 32]

tests/kernels/quantize_mx_test.cpp requires the same values and scales from te-train. It does not need torch.

    pip install torch torchao
    scripts/make_quantization_fixtures.py [--folder FOLDER]
"""

import argparse
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to write (default: %(default)s)")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        x = values(ROWS, COLS, 1)
        (folder / f"mxfp8_{name}.bin").write_bytes(raw(x) + mx(x, dtype) + mx(x.T, dtype))


if __name__ == "__main__":
    main()
