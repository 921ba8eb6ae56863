"""Tests of scripts/parquet_to_jsonl.py."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "parquet_to_jsonl.py"

try:
    import pyarrow
    import pyarrow.parquet
except ImportError:
    sys.exit(77)

ROWS = [
    {"subject": "anatomy", "question": "Où?", "choices": ["a", "b"], "answer": 1},
    {"subject": "virology", "question": "Who?", "choices": ["c", "d"], "answer": 0},
    {"subject": "anatomy", "question": "Why?", "choices": ["e", "f"], "answer": 0},
]


class ParquetToJsonl(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = Path(self.temporary.name)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), self.folder / "rows.parquet")

    def run_script(self, *arguments):
        command = [sys.executable, SCRIPT, self.folder / "rows.parquet", *arguments]
        return subprocess.run([str(part) for part in command], capture_output=True, text=True)

    def read(self, name):
        return [json.loads(line) for line in (self.folder / name).read_text(encoding="utf-8").splitlines()]

    def test_rows_keep_order_and_fields(self):
        self.assertEqual(self.run_script("--out", self.folder / "all.jsonl").returncode, 0)
        self.assertEqual(self.read("all.jsonl"), ROWS)

    def test_a_file_per_value(self):
        self.assertEqual(self.run_script("--split-by", "subject", "--out", self.folder / "mmlu_{}.jsonl").returncode, 0)
        self.assertEqual(self.read("mmlu_anatomy.jsonl"), [ROWS[0], ROWS[2]])
        self.assertEqual(self.read("mmlu_virology.jsonl"), [ROWS[1]])

    def test_mistakes_are_one_line(self):
        for arguments in (["--split-by", "subject", "--out", "x"], ["--split-by", "x", "--out", "{}"]):
            result = self.run_script(*arguments)
            self.assertEqual(result.returncode, 2)
            self.assertEqual(result.stderr.count("\n"), 1)


if __name__ == "__main__":
    unittest.main()
