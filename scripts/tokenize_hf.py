#!/usr/bin/env python3
"""Tokenizes text with a Hugging Face tokenizer.json and writes a Megatron .bin/.idx dataset.

    pip install tokenizers
    scripts/tokenize_hf.py --tokenizer gpt2/tokenizer.json --input books.txt --output data/books

For tokenizers that `te-data tokenize` does not support. The text is split into documents at lines equal to
--document-separator; a document is the unchanged text between two such lines; empty documents are dropped. Every
document ends with the end-of-document token. The files are written under temporary names and renamed, .bin first,
so that an interrupted run leaves no incomplete dataset. Tokens have 16 bits if the vocabulary has fewer than 65500
entries, otherwise 32.
"""

import argparse
import array
import os
import struct
import sys
import time

from script_files import complete_file, fail, run

DTYPE_CODE = {"H": 8, "i": 4}  # Megatron's codes for uint16 and int32


def documents(paths, separator):
    """Yields the documents of the files, in order. The end of a file also ends a document."""
    for path in paths:
        lines = []
        with open(path, encoding="utf-8", newline="") as file:
            for line in file:
                if line.rstrip("\r\n") == separator:
                    if lines:
                        yield "".join(lines)
                    lines = []
                else:
                    lines.append(line)
        if lines:
            yield "".join(lines)


def batches(items, max_characters=4_000_000):
    """Groups documents, so that the tokenizer can use several threads without the whole corpus in memory."""
    batch, size = [], 0
    for item in items:
        batch.append(item)
        size += len(item)
        if size >= max_characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def write_index(file, typecode, lengths):
    """Writes an index with one sequence per document; see src/data/indexed_dataset.h for the layout."""
    width = array.array(typecode).itemsize
    pointers, position = array.array("q"), 0
    for length in lengths:
        pointers.append(position)
        position += length * width
    file.write(b"MMIDIDX\x00\x00")
    file.write(struct.pack("<QBQQ", 1, DTYPE_CODE[typecode], len(lengths), len(lengths) + 1))
    array.array("i", lengths).tofile(file)
    pointers.tofile(file)
    array.array("q", range(len(lengths) + 1)).tofile(file)


def tokenize(tokenizer, end_of_document, arguments):
    typecode = "H" if tokenizer.get_vocab_size() < 65500 else "i"
    prefix = arguments.output
    folder = os.path.dirname(os.path.abspath(prefix))
    os.makedirs(folder, exist_ok=True)
    lengths, tokens, text_bytes, start = [], 0, 0, time.time()
    with complete_file(prefix + ".idx", "wb") as index, complete_file(prefix + ".bin", "wb") as file:
        for batch in batches(documents(arguments.input, arguments.document_separator)):
            text_bytes += sum(len(text.encode()) for text in batch)
            for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                ids = array.array(typecode, encoding.ids)
                ids.append(end_of_document)
                ids.tofile(file)
                lengths.append(len(ids))
                tokens += len(ids)
            rate = text_bytes / 1e6 / (time.time() - start)
            print(f"\r{len(lengths)} documents, {tokens} tokens, {text_bytes / 1e6:.1f} MB, {rate:.1f} MB/s ",
                  end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        if not lengths:
            fail("the input has no documents; pass a file with text to --input")
        write_index(index, typecode, lengths)
        for part in (file, index):
            part.flush()
            os.fsync(part.fileno())
        for old in (".idx", ".meta.json"):  # an interruption must not combine the new .bin with an old index or record
            if os.path.exists(prefix + old):
                os.remove(prefix + old)
    width = array.array(typecode).itemsize
    print(f"{prefix}.bin: {len(lengths)} documents, {tokens} tokens of {width} bytes ({tokens * width} bytes), "
          f"{text_bytes} bytes of text, {text_bytes / tokens:.3f} bytes per token")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="path of a tokenizer.json")
    parser.add_argument("--input", required=True, nargs="+", help="UTF-8 text files")
    parser.add_argument("--output", required=True, metavar="PREFIX", help="writes PREFIX.bin and PREFIX.idx")
    parser.add_argument("--end-of-document", default="<|endoftext|>", metavar="TOKEN",
                        help="name of the token that ends every document (default: %(default)s)")
    parser.add_argument("--document-separator", default="<|endoftext|>", metavar="LINE",
                        help="line that separates documents (default: %(default)s)")
    parser.add_argument("--force", action="store_true", help="replace an existing dataset with this prefix")
    arguments = parser.parse_args()
    for suffix in (".idx", ".bin"):
        if not arguments.force and os.path.lexists(arguments.output + suffix):
            fail(f"--output: {arguments.output}{suffix} exists; choose another prefix or replace the dataset with --force")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        fail("the Python package `tokenizers` is missing; pip install tokenizers")
    for path in [arguments.tokenizer] + arguments.input:
        if not os.path.isfile(path):
            fail(f"{path}: no such file")
    try:
        tokenizer = Tokenizer.from_file(arguments.tokenizer)
    except Exception as error:  # the library raises plain Exception
        fail(f"{arguments.tokenizer}: is not a Hugging Face tokenizer ({error}); name a tokenizer.json")
    tokenizer.no_truncation()  # some tokenizer.json files enable truncation or padding
    tokenizer.no_padding()
    end_of_document = tokenizer.token_to_id(arguments.end_of_document)
    if end_of_document is None:
        fail(f"{arguments.tokenizer} has no token named {arguments.end_of_document}; "
             "name the end-of-document token with --end-of-document")
    try:
        tokenize(tokenizer, end_of_document, arguments)
    except UnicodeDecodeError as error:
        fail(f"--input: a file is not UTF-8 ({error}); convert it")


if __name__ == "__main__":
    run(main)
