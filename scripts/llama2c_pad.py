#!/usr/bin/env python3
"""Widens the MLP of a model of llama2.c (legacy FP32 .bin) to a multiple, with zeros: the same function, in a shape that
FP8 can multiply.

Usage: llama2c_pad.py MODEL.bin MULTIPLE OUTPUT.bin

Rows of w1 and w3 and columns of w2 that are zero add nothing, and their gradients are zero too.
"""
import pathlib
import struct
import sys

import numpy as np


def pad(data, multiple):
    """The file's bytes, wider; and the two widths."""
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
