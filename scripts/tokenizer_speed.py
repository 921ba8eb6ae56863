#!/usr/bin/env python3
"""Measures the speed of `te-data tokenize` and Hugging Face tokenizers and prints a Markdown table.

    pip install tokenizers numpy
    scripts/tokenizer_speed.py --te-data build/cpu/apps/te-data --tokenizers FOLDER --inputs FILE... [--mb 20]

FOLDER has one folder per tokenizer, with its tokenizer.json. A FILE is text, with documents separated by lines
<|endoftext|>, or .jsonl, where every string is a document. --mb limits the input to the beginning of each file.

The two programs run alternately in separate processes, --pairs times, on the same CPU cores (the first N for N threads), so
that other load on the machine affects both. te-data is measured as a whole with `te-data tokenize --threads N`: it loads the
tokenizer, reads, encodes and writes. Hugging Face tokenizers run with RAYON_NUM_THREADS=N in a Python program that loads the
tokenizer, reads the same file, encodes all documents with encode_batch_fast (in one batch, the fastest way) and writes the
tokens as u16 or i32; the whole program and encoding alone are measured. The table has medians of MB of text per second of
wall time, CPU seconds (user and system), and peak resident memory. "speedup" is the median ratio of the time of Hugging
Face's encoding alone to the time of the whole te-data program, in wall time and in CPU time.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from json_strings import strings
from script_files import fail, run as run_script


def prepare(path, limit, folder):
    """(path of a copy of the beginning of a file, te-data options that split it into documents)."""
    lines, size = [], 0
    with open(path, encoding="utf-8", newline="") as file:
        for line in file:
            texts = strings(json.loads(line)) if path.suffix == ".jsonl" else [line]
            for text in texts:
                size += len(text.encode())
                lines.append(json.dumps({"text": text}) + "\n" if path.suffix == ".jsonl" else text)
            if size >= limit:
                break
    copy = folder / path.name
    copy.write_text("".join(lines), encoding="utf-8")
    return copy, ["--document-separator", "<|endoftext|>"] if path.suffix != ".jsonl" else []


def read_documents(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line)["text"] for line in text.splitlines()]
    return [document for document in re.split(r"^<\|endoftext\|>\r?\n", text, flags=re.M) if document]


# --- measured processes ------------------------------------------------------------------------------------------


def run(command, threads, environment=None):
    """Runs a process on the first `threads` CPU cores. Returns wall seconds, CPU seconds, peak memory in MiB, and output."""
    processors = sorted(os.sched_getaffinity(0))[:threads]
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        process = subprocess.Popen(
            command, stdout=output, env={**os.environ, **(environment or {})},
            preexec_fn=lambda: os.sched_setaffinity(0, processors),
        )  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode()
    if process.returncode != 0:
        fail(f"{' '.join(map(str, command))}: exit code {process.returncode}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, text


def run_te_data(arguments, tokenizer, path, options, threads, folder):
    wall, cpu, memory, _ = run(
        [arguments.te_data, "tokenize", "--input", path, "--tokenizer", tokenizer, "--output", folder / "te",
         "--threads", str(threads), *options], threads)  # fmt: skip
    return {"wall": wall, "cpu": cpu, "memory": memory}


def run_hugging_face(arguments, tokenizer, path, threads, folder):
    wall, cpu, memory, text = run(
        [sys.executable, __file__, "--encode", path, "--tokenizers", tokenizer, "--output", folder / "hf.bin"],
        threads, {"RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"})  # fmt: skip
    return {"wall": wall, "cpu": cpu, "memory": memory, **json.loads(text)}


def encode(arguments):
    """The Hugging Face program, which run_hugging_face() starts as a process."""
    import numpy as np
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(arguments.tokenizers))
    documents = read_documents(arguments.encode)
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    encodings = tokenizer.encode_batch_fast(documents, add_special_tokens=False)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_SELF)
    dtype = np.uint16 if tokenizer.get_vocab_size() < 65500 else np.int32
    with open(arguments.output, "wb") as file:
        for encoding in encodings:
            np.array(encoding.ids, dtype).tofile(file)
    print(json.dumps({
        "encode_wall": wall,
        "encode_cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "text_mb": sum(len(d.encode()) for d in documents) / 1e6,
        "tokens": sum(len(e.ids) for e in encodings),
        "documents": len(documents),
    }))  # fmt: skip


# --- table -------------------------------------------------------------------------------------------------------


def measure(arguments, tokenizer, path, options, threads, folder):
    pairs = []
    for _ in range(arguments.pairs):
        te = run_te_data(arguments, tokenizer, path, options, threads, folder)
        pairs.append((te, run_hugging_face(arguments, tokenizer, path, threads, folder)))
    ours, theirs = [te for te, _ in pairs], [hf for _, hf in pairs]
    tokens = os.path.getsize(folder / "te.bin") // (os.path.getsize(folder / "hf.bin") // theirs[0]["tokens"])
    if tokens != theirs[0]["tokens"] + theirs[0]["documents"]:  # te-data adds one end-of-document token each
        fail(f"{tokenizer}, {path.name}: te-data wrote {tokens} tokens, Hugging Face {theirs[0]['tokens']}")

    def median(rows, key):
        return statistics.median(row[key] for row in rows)

    size = theirs[0]["text_mb"]
    times_wall = statistics.median(hf["encode_wall"] / te["wall"] for te, hf in pairs)
    times_cpu = statistics.median(hf["encode_cpu"] / te["cpu"] for te, hf in pairs)
    print(
        f"| {tokenizer.parent.name} | {path.name} | {size:.1f} | {threads} | {size / median(ours, 'wall'):.1f} | "
        f"{size / median(theirs, 'encode_wall'):.1f} | {size / median(theirs, 'wall'):.1f} | {times_wall:.1f} | "
        f"{median(ours, 'cpu'):.2f} | {median(theirs, 'encode_cpu'):.2f} | {median(theirs, 'cpu'):.2f} | {times_cpu:.1f} | "
        f"{median(ours, 'memory'):.0f} | {median(theirs, 'memory'):.0f} |",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--te-data", default="build/cpu/apps/te-data")
    parser.add_argument("--tokenizers", type=pathlib.Path, required=True)
    parser.add_argument("--inputs", type=pathlib.Path, nargs="+", default=[])
    parser.add_argument("--mb", type=float, default=20)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--encode", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--output", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.encode:
        return encode(arguments)
    if max(arguments.threads) > len(os.sched_getaffinity(0)):
        fail(f"--threads {max(arguments.threads)}: only {len(os.sched_getaffinity(0))} CPU cores are available")
    tokenizers = sorted(arguments.tokenizers.glob("*/tokenizer.json"))
    if not tokenizers:
        fail(f"--tokenizers {arguments.tokenizers}: none of its folders contains a tokenizer.json")
    print("| tokenizer | input | MB | threads | te-data MB/s | HF encoding MB/s | HF program MB/s | speedup, wall | te-data CPU s | "
          "HF encoding CPU s | HF program CPU s | speedup, CPU | te-data memory MB | HF memory MB |")  # fmt: skip
    print("|---" * 14 + "|")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for source in arguments.inputs:
            path, options = prepare(source, arguments.mb * 1e6, folder)
            for tokenizer in tokenizers:
                for threads in arguments.threads:
                    measure(arguments, tokenizer, path, options, threads, folder)
    load = os.getloadavg()
    print(f"\nload average at the end: {load[0]:.2f} (1 min), {load[1]:.2f} (5 min), {load[2]:.2f} (15 min)")


if __name__ == "__main__":
    run_script(main)
