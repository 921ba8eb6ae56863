#!/usr/bin/env python3
"""Trains a byte-level BPE tokenizer, such as a small vocabulary for a small model, and writes it as tokenizer.json.

    pip install tokenizers
    scripts/train_tokenizer.py --vocab-size 8192 --bytes 25000000 --output data/small/tokenizer.json text-*.txt.xz

Reads the first --bytes bytes of each file (default: all), also of .xz and .gz files. Lines equal to the document separator
divide documents and are the only special token. The splitting into words is GPT-2's. The same files give the same tokenizer.
"""

import argparse
import sys
from pathlib import Path

from script_files import READ_ERRORS, fail, open_input, reason, run, write_text


def documents(paths, limit, separator):
    for path in paths:
        try:
            with open_input(path) as file:
                text = file.read(limit).decode("utf-8-sig", "ignore")
        except READ_ERRORS as error:
            fail(f"{path}: {reason(error)}")
        for document in text.split(separator):
            yield document.strip("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--vocab-size", type=int, required=True, metavar="N", help="tokens, with the 256 bytes and the separator")
    parser.add_argument("--bytes", type=int, default=-1, metavar="N", help="bytes of text to read of each file")
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
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=options.vocab_size, special_tokens=[options.document_separator],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(documents(options.files, options.bytes, options.document_separator), trainer)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.output, tokenizer.to_str(pretty=True))
    print(f"wrote {options.output}: {tokenizer.get_vocab_size()} tokens")
    return 0


if __name__ == "__main__":
    run(main)
