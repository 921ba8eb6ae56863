#!/usr/bin/env python3
"""Converts a llama2.c tokenizer (tokenizer.bin, tok512.bin) to a tokenizer.json for te-data and te-generate.

Usage: llama2c_tokenizer.py TOK.bin OUTPUT_FOLDER

The file contains i32 longest token, then per token f32 score, i32 length, bytes. It comes from a SentencePiece model:
byte-pair encoding that merges the pair with the highest score of the result, with byte fallback.
"""
import json
import pathlib
import struct
import sys

from script_files import fail, run, write_text

SPECIAL = ["<unk>", "<s>", "</s>"]


def read_tokens(path):
    """[(text, score)] by id; special tokens have SentencePiece's names."""
    data = path.read_bytes()
    tokens, at = [], 4
    try:
        while at < len(data):
            score, length = struct.unpack_from("<fi", data, at)
            at += 8
            if not 0 <= length <= len(data) - at:
                raise ValueError(f"a token of {length} bytes")
            tokens.append((data[at : at + length].decode("utf-8"), score))
            at += length
    except (ValueError, struct.error) as error:
        fail(f"{path}: token {len(tokens)}: {error}; the file is not a tokenizer of llama2.c, or is truncated")
    return [(name, 0.0) for name in SPECIAL] + tokens[len(SPECIAL) :]


def merges(scores):
    """All pairs of tokens that merge to a token, highest score first."""
    pairs = []
    for rank, token in enumerate(sorted(scores, key=lambda t: -scores[t])):
        if token.startswith("<0x") or token in SPECIAL:
            continue
        for i in range(1, len(token)):
            if token[:i] in scores and token[i:] in scores:
                pairs.append((rank, [token[:i], token[i:]]))
    return [pair for _, pair in pairs]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    tokens = [(text.replace(" ", "\u2581"), score) for text, score in read_tokens(pathlib.Path(sys.argv[1]))]
    scores = dict(tokens)
    if len(scores) != len(tokens):
        fail(f"{sys.argv[1]}: a token occurs twice")
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    words = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for i, name in enumerate(SPECIAL)
        ],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, spaces]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [words, {"type": "ByteFallback"}, {"type": "Fuse"},
                         {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
        },
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
            "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "vocab": {text: i for i, (text, _) in enumerate(tokens)},
            "merges": [" ".join(pair) for pair in merges(scores)],
        },
    }  # fmt: skip
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "tokenizer.json", json.dumps(tokenizer, ensure_ascii=False, indent=1))
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}  # llama2.c always starts texts with it
    write_text(folder / "tokenizer_config.json", json.dumps(config) + "\n")
    print(f"{folder}: {len(tokens)} tokens, {len(tokenizer['model']['merges'])} merges")


if __name__ == "__main__":
    run(main)
