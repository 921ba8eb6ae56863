#!/usr/bin/env python3
"""Turns Parquet files, as Hugging Face's datasets have them, into JSON lines that te-generate evaluate reads.

    pip install pyarrow
    scripts/parquet_to_jsonl.py validation-00000-of-00001.parquet --out eval/hellaswag.jsonl
    scripts/parquet_to_jsonl.py all/test-*.parquet --split-by subject --out 'eval/mmlu_{}.jsonl'
    scripts/parquet_to_jsonl.py all/dev-*.parquet --split-by subject --out 'eval/mmlu_{}_dev.jsonl'

Rows keep their order and fields. --split-by writes a file per value of a field, which takes the place of {} in the name.
"""

import argparse
import json
import sys
from pathlib import Path

try:
    import pyarrow.parquet
except ImportError as error:
    print(f"parquet_to_jsonl.py: error: {error}; pip install pyarrow", file=sys.stderr)
    sys.exit(77)


def fail(message):
    print(f"parquet_to_jsonl.py: error: {message}", file=sys.stderr)
    sys.exit(2)


def rows(files):
    for file in files:
        try:
            parquet = pyarrow.parquet.ParquetFile(file)
        except (OSError, pyarrow.ArrowInvalid) as error:
            fail(f"{file}: {error}")
        for batch in parquet.iter_batches():
            yield from batch.to_pylist()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="Parquet files, in the order of their rows")
    parser.add_argument("--out", required=True, help="file to write; with --split-by, {} stands for the field's value")
    parser.add_argument("--split-by", help="field whose values get a file each")
    arguments = parser.parse_args()
    if bool(arguments.split_by) != ("{}" in arguments.out):
        fail("--out needs {} in its name with --split-by, and only then")
    outputs, counts = {}, {}
    for row in rows(arguments.files):
        if arguments.split_by and arguments.split_by not in row:
            fail(f"--split-by {arguments.split_by}: the rows have {', '.join(row)}")
        value = str(row[arguments.split_by]) if arguments.split_by else ""
        if value not in outputs:
            path = Path(arguments.out.replace("{}", value))
            path.parent.mkdir(parents=True, exist_ok=True)
            outputs[value] = open(path, "w", encoding="utf-8")
        try:
            line = json.dumps(row, ensure_ascii=False)
        except TypeError as error:
            fail(f"row {sum(counts.values())}: {error}; JSON cannot hold it")
        outputs[value].write(line + "\n")
        counts[value] = counts.get(value, 0) + 1
    for value, file in outputs.items():
        file.close()
        print(f"{file.name}: {counts[value]} rows")


if __name__ == "__main__":
    main()
