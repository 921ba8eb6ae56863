#!/usr/bin/env python3
"""Converts Parquet and Arrow files, such as those of Hugging Face datasets, to JSON lines for te-data and te-generate evaluate.

    pip install pyarrow
    scripts/parquet_to_jsonl.py data/train-*.parquet | te-data tokenize --input - --format jsonl --tokenizer gpt2 --output data/web
    scripts/parquet_to_jsonl.py validation-00000-of-00001.parquet --out eval/hellaswag.jsonl
    scripts/parquet_to_jsonl.py all/test-*.parquet --split-by subject --out 'eval/mmlu_{}.jsonl'
    scripts/parquet_to_jsonl.py all/dev-*.parquet --split-by subject --out 'eval/mmlu_{}_dev.jsonl'

Rows keep their order and fields, and are read a few thousand at a time. --columns reads only the given fields, which is
faster for Parquet files with other long fields. --split-by writes one file per value of a field; the value, which must
be a file name, replaces {} in the name of --out. Without --out, rows are written to standard output, which ends with a
line that is not JSON if the script fails.
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
    missing = isinstance(error, ModuleNotFoundError) and error.name == "pyarrow"  # not a module that pyarrow needs
    print(f"parquet_to_jsonl.py: error: {reason(error)}{'; pip install pyarrow' if missing else ''}", file=sys.stderr)
    sys.exit(77)


def arrow_batches(file, columns, split_by):
    """The batches of an Arrow file in the IPC file format (Feather) or the stream format, which the cache of `datasets` uses."""
    source = pyarrow.memory_map(str(file))
    try:
        reader = pyarrow.ipc.open_file(source)
        batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
    except pyarrow.ArrowInvalid:
        source.seek(0)
        reader = batches = pyarrow.ipc.open_stream(source)
    check_columns(file, columns, split_by, reader.schema.names)
    for batch in batches:
        yield batch.select(columns) if columns else batch


def parquet_batches(file, columns, split_by):
    parquet = pyarrow.parquet.ParquetFile(file)
    check_columns(file, columns, split_by, parquet.schema_arrow.names)
    yield from parquet.iter_batches(batch_size=4096, columns=columns)


def check_columns(file, columns, split_by, names):
    for option, wanted in (("--columns", columns or []), ("--split-by", [split_by] if split_by else [])):
        missing = [name for name in wanted if name not in names]
        if missing:
            fail(f"{option}: {file} has no column {', '.join(missing)}; its columns are {', '.join(names)}")


def rows(files, columns, split_by):
    """(file, number from 0, row) of all rows."""
    for file in files:
        number = 0
        try:
            with open(file, "rb") as head:
                batches = parquet_batches if head.read(4) == b"PAR1" else arrow_batches
            for batch in batches(file, columns, split_by):
                for row in batch.to_pylist():
                    yield file, number, row
                    number += 1
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            fail(f"{file}: {reason(error)}")


class Outputs:
    """Standard output, one file, or one file per value of a field."""

    def __init__(self, out, split_by, inputs, stack):
        """stack: an ExitStack, at whose end the files are complete."""
        self.out, self.split_by, self.inputs, self.stack = out, split_by, inputs, stack
        self.files, self.counts = {}, {}
        if not split_by:
            self.open("", out)

    def open(self, value, path):
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.files[value] = self.stack.enter_context(complete_lines(path, self.inputs))
        self.counts[value] = 0

    def write(self, file, number, row):
        value = ""
        if self.split_by:
            found = row[self.split_by]
            value = str(found)
            # None would share a file with the text "None"; the others would name a folder, or a file of another one.
            if found is None or value in ("", ".", "..") or "/" in value or "\0" in value:
                fail(f"--split-by: {file}: row {number}: {self.split_by} is {found!r}, which is not a file name; "
                     "split by another field")
        if value not in self.files:
            self.open(value, self.out.replace("{}", value))
        try:
            line = json.dumps(row, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            fail(f"{file}: row {number}: {error}; JSON cannot represent the value: exclude the field with --columns")
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
    columns, split_by = arguments.columns, arguments.split_by
    if columns and split_by and split_by not in columns:
        fail(f"--split-by {split_by}: not among --columns; add it")
    with contextlib.ExitStack() as stack:
        outputs = Outputs(arguments.out, split_by, arguments.files, stack)
        for file, number, row in rows(arguments.files, columns, split_by):
            outputs.write(file, number, row)
    outputs.report()


if __name__ == "__main__":
    run(main)
