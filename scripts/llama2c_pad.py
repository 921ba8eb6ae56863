#!/usr/bin/env python3
"""Pads the MLP of a llama2.c model (legacy FP32 .bin) with zeros to a multiple, for FP8 GEMMs. The model's function does
not change.

Usage: llama2c_pad.py MODEL.bin MULTIPLE OUTPUT.bin

Zero rows of w1 and w3 and zero columns of w2 do not change the output, and their gradients are zero.
"""
import pathlib
import struct
import sys

import numpy as np


def pad(data, multiple):
    """(padded bytes of the file, old width, new width)."""
    dim, ffn, layers, heads, groups, vocab, seq = struct.unpack_from("<7i", data)
    wide = -(-ffn // multiple) * multiple
    values = np.frombuffer(data, np.float32, offset=28)
    kv = dim // heads * groups
    before = abs(vocab) * dim + layers * (dim + dim * dim + 2 * kv * dim + dim * dim + dim)
    matrix = layers * ffn * dim
    rows = np.zeros((layers, wide, dim), np.float32)
    columns = np.zeros((layers, dim, wide), np.float32)
    parts = [values[:before]]
    for i, target in enumerate((rows, columns, rows)):  # w1, w2, w3
        source = values[before + i * matrix : before + (i + 1) * matrix]
        target = target.copy()
        if i == 1:
            target[:, :, :ffn] = source.reshape(layers, dim, ffn)
        else:
            target[:, :ffn, :] = source.reshape(layers, ffn, dim)
        parts.append(target.ravel())
    parts.append(values[before + 3 * matrix :])
    header = struct.pack("<7i", dim, wide, layers, heads, groups, vocab, seq)
    return header + np.concatenate(parts).tobytes(), ffn, wide


def main():
    if len(sys.argv) != 4 or not sys.argv[2].isdecimal() or int(sys.argv[2]) == 0:
        sys.exit(__doc__)
    source, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[3])
    data, ffn, wide = pad(source.read_bytes(), int(sys.argv[2]))
    output.write_bytes(data)
    print(f"{output}: MLP {ffn} -> {wide} wide, {len(data)} bytes")


if __name__ == "__main__":
    main()
