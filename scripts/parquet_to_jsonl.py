#!/usr/bin/env python3
"""Converts Parquet and Arrow files, such as those of Hugging Face datasets, to JSON lines for te-data and te-generate evaluate.

    pip install pyarrow
    scripts/parquet_to_jsonl.py data/train-*.parquet | te-data tokenize --input - --format jsonl --tokenizer gpt2 --output data/web
    scripts/parquet_to_jsonl.py validation-00000-of-00001.parquet --out eval/hellaswag.jsonl
    scripts/parquet_to_jsonl.py all/test-*.parquet --split-by subject --out 'eval/mmlu_{}.jsonl'
    scripts/parquet_to_jsonl.py all/dev-*.parquet --split-by subject --out 'eval/mmlu_{}_dev.jsonl'

Rows keep their order and fields, and are read a few thousand at a time. --columns reads only the given fields, which is
faster for Parquet files with other long fields. --split-by writes one file per value of a field; the value replaces {} in the
name of --out. Without --out, rows are written to standard output, which ends with a line that is not JSON if the script fails.
"""

import argparse
import contextlib
import json
import sys
from pathlib import Path

from script_files import complete_lines, fail, reason, run

try:
    import pyarrow
    import pyarrow.ipc
    import pyarrow.parquet
except ImportError as error:
    print(f"parquet_to_jsonl.py: error: {error}; pip install pyarrow", file=sys.stderr)
    sys.exit(77)


def arrow_batches(file, columns):
    """The batches of an Arrow file in the IPC file format (Feather) or the stream format, which the cache of `datasets` uses."""
    source = pyarrow.memory_map(str(file))
    try:
        reader = pyarrow.ipc.open_file(source)
        batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
    except pyarrow.ArrowInvalid:
        source.seek(0)
        reader = batches = pyarrow.ipc.open_stream(source)
    check_columns(file, columns, reader.schema.names)
    for batch in batches:
        yield batch.select(columns) if columns else batch


def parquet_batches(file, columns):
    parquet = pyarrow.parquet.ParquetFile(file)
    check_columns(file, columns, parquet.schema_arrow.names)
    yield from parquet.iter_batches(batch_size=4096, columns=columns)


def check_columns(file, columns, names):
    missing = [name for name in columns or [] if name not in names]
    if missing:
        fail(f"--columns: {file} has no column {', '.join(missing)}; its columns are {', '.join(names)}")


def rows(files, columns):
    for file in files:
        try:
            with open(file, "rb") as head:
                batches = parquet_batches if head.read(4) == b"PAR1" else arrow_batches
            for batch in batches(file, columns):
                yield from batch.to_pylist()
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            fail(f"{file}: {reason(error)}")


class Outputs:
    """Standard output, one file, or one file per value of a field."""

    def __init__(self, out, split_by, stack):
        """stack: an ExitStack, at whose end the files are complete."""
        self.out, self.split_by, self.stack = out, split_by, stack
        self.files, self.counts = {}, {}
        if not split_by:
            self.open("", out)

    def open(self, value, path):
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.files[value] = self.stack.enter_context(complete_lines(path))
        self.counts[value] = 0

    def write(self, row):
        if self.split_by and self.split_by not in row:
            fail(f"--split-by {self.split_by}: no such field; the rows have {', '.join(row)}")
        value = str(row[self.split_by]) if self.split_by else ""
        if value not in self.files:
            self.open(value, self.out.replace("{}", value))
        try:
            line = json.dumps(row, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            fail(f"row {sum(self.counts.values())}: {error}; JSON cannot represent the value: exclude the field with --columns")
        self.files[value].write(line + "\n")
        self.counts[value] += 1

    def report(self):
        for value, count in self.counts.items():
            if self.out:
                print(f"{self.out.replace('{}', value)}: {count} rows")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="Parquet or Arrow files; rows are written in this order")
    parser.add_argument("--out", help="output file (default: standard output); with --split-by, {} is replaced by the field's value")
    parser.add_argument("--split-by", help="write one file per value of this field")
    parser.add_argument("--columns", type=lambda text: text.split(","), help="fields to read, separated by commas (default: all)")
    arguments = parser.parse_args()
    if bool(arguments.split_by) != ("{}" in (arguments.out or "")):
        fail("--out must contain {} with --split-by, and must not contain it otherwise")
    with contextlib.ExitStack() as stack:
        outputs = Outputs(arguments.out, arguments.split_by, stack)
        for row in rows(arguments.files, arguments.columns):
            outputs.write(row)
    outputs.report()


if __name__ == "__main__":
    run(main)
