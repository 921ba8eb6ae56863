#!/usr/bin/env python3
"""Trains a byte-level BPE tokenizer, such as a small vocabulary for a small model, and writes it as tokenizer.json.

    pip install tokenizers
    scripts/train_tokenizer.py --vocab-size 8192 --bytes 25000000 --output data/small/tokenizer.json text-*.txt.xz

Reads the first --bytes bytes of each file (default: all), also of .xz, .gz and (from Python 3.14) .zst files. Lines
equal to the document separator divide documents and are the only special token. The splitting into words is GPT-2's.
The same files give the same tokenizer.
"""

import argparse
import sys
from pathlib import Path

from script_files import READ_ERRORS, fail, open_input, reason, refuse_input, run, write_text


def text_of(path, limit):
    """The first `limit` bytes of a file without the character that the limit divides; None: the whole file."""
    try:
        with open_input(path) as file:
            data = file.read(limit)
    except READ_ERRORS as error:
        fail(f"{path}: {reason(error)}")
    if b"\0" in data:
        fail(f"{path}: contains a NUL byte, so it is not text in UTF-8; convert it, or decompress it first")
    try:
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        if len(data) == limit and error.reason == "unexpected end of data":
            return data[: error.start].decode().removeprefix("\ufeff")
        fail(f"{path}: byte {error.start} is not UTF-8; convert the file, or decompress it first")


def documents(paths, limit, separator):
    empty = True
    for path in paths:
        for document in text_of(path, limit).split(separator):
            document = document.strip("\n")
            empty = empty and not document
            yield document
    if empty:
        fail(f"{', '.join(map(str, paths))}: no text to train on; name other files, or raise --bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--vocab-size", type=int, required=True, metavar="N", help="tokens, with the 256 bytes and the separator")
    parser.add_argument("--bytes", type=int, metavar="N", help="bytes of text to read of each file")
    parser.add_argument("--document-separator", default="<|endoftext|>", metavar="TEXT")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    options = parser.parse_args()
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        print(f"train_tokenizer.py: error: {error}; pip install tokenizers", file=sys.stderr)
        return 77
    if options.vocab_size < 257:
        fail(f"--vocab-size {options.vocab_size}: must be 257 or more")
    if options.bytes is not None and options.bytes < 1:
        fail(f"--bytes {options.bytes}: must be 1 or more")
    refuse_input("--output", options.output, options.files)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=options.vocab_size, special_tokens=[options.document_separator],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(documents(options.files, options.bytes, options.document_separator), trainer)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.output, tokenizer.to_str(pretty=True))
    made = tokenizer.get_vocab_size()
    fewer = f" instead of {options.vocab_size}: the text has no more pairs to merge"
    fewer = fewer if made < options.vocab_size else ""
    print(f"wrote {options.output}: {made} tokens{fewer}")
    return 0


if __name__ == "__main__":
    run(main)
