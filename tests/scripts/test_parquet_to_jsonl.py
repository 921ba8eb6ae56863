"""Tests of scripts/parquet_to_jsonl.py."""

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

from folder_testing import InFolder

# scripts/install_deps.sh --dev installs it here; PYTHONPATH makes it available to the script under test.
PYARROW = str(Path(__file__).resolve().parents[2] / ".deps" / "pyarrow")
sys.path.append(PYARROW)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), PYARROW]))
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "parquet_to_jsonl.py"

try:
    import pyarrow
    import pyarrow.ipc
    import pyarrow.parquet
except ImportError:
    sys.exit(77)

ROWS = [
    {"subject": "anatomy", "question": "Où?", "choices": ["a", "b"], "answer": 1},
    {"subject": "virology", "question": "Who?", "choices": ["c", "d"], "answer": 0},
    {"subject": "anatomy", "question": "Why?", "choices": ["e", "f"], "answer": 0},
]


class ParquetToJsonl(InFolder):
    def setUp(self):
        super().setUp()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), self.folder / "rows.parquet")

    def run_script(self, *arguments):
        command = [sys.executable, SCRIPT, self.folder / "rows.parquet", *arguments]
        return subprocess.run([str(part) for part in command], capture_output=True, text=True)

    def read(self, name):
        return [json.loads(line) for line in (self.folder / name).read_text(encoding="utf-8").splitlines()]

    def test_rows_keep_order_and_fields(self):
        self.assertEqual(self.run_script("--out", self.folder / "all.jsonl").returncode, 0)
        self.assertEqual(self.read("all.jsonl"), ROWS)

    def test_split_by_writes_one_file_per_value(self):
        self.assertEqual(self.run_script("--split-by", "subject", "--out", self.folder / "mmlu_{}.jsonl").returncode, 0)
        self.assertEqual(self.read("mmlu_anatomy.jsonl"), [ROWS[0], ROWS[2]])
        self.assertEqual(self.read("mmlu_virology.jsonl"), [ROWS[1]])

    def test_split_by_with_values_that_resemble_temporary_files(self):
        rows = [{"subject": "x" + ".tmp" * count, "answer": count} for count in (0, 1, 2, 1, 0)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), self.folder / "rows.parquet")
        result = self.run_script("--split-by", "subject", "--out", self.folder / "{}")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(list(self.folder.iterdir())), 4)
        for name in {row["subject"] for row in rows}:
            self.assertEqual(self.read(name), [row for row in rows if row["subject"] == name])

    def test_compressed_output_is_refused(self):
        for out, options in (("all.jsonl.gz", []), ("{}.zst", ["--split-by", "subject"])):
            result = self.run_script("--out", self.folder / out, *options)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
            self.assertIn("is written without compression; end its name with .jsonl", result.stderr)
            self.assertEqual([path.name for path in self.folder.iterdir()], ["rows.parquet"])

    def test_values_that_are_not_file_names(self):
        (self.folder / "out").mkdir()
        for value in ("../esc", str(self.folder / "abs"), "a/b", "", ".", "..", "a\0b", None):
            table = pyarrow.Table.from_pylist([*ROWS, {**ROWS[0], "subject": value}])
            pyarrow.parquet.write_table(table, self.folder / "rows.parquet", row_group_size=2)
            for out in ("out/{}", "{}", "folders/{}/x.jsonl"):
                result = self.run_script("--split-by", "subject", "--out", self.folder / out)
                self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
                self.assertIn(f"{self.folder}/rows.parquet: row 3: subject is {value!r}, ", result.stderr)
                files = [path for path in self.folder.rglob("*") if path.is_file()]
                self.assertEqual(files, [self.folder / "rows.parquet"])

    def test_output_that_is_an_input(self):
        path = self.folder / "rows.parquet"
        before = path.read_bytes()
        (self.folder / "anatomy").hardlink_to(path)
        for options in (["--out", path], ["--split-by", "subject", "--out", self.folder / "{}"]):
            result = self.run_script(*options)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
            self.assertIn("is an input", result.stderr)
            self.assertEqual(path.read_bytes(), before)
            self.assertEqual(len(list(self.folder.iterdir())), 2)

    def test_field_of_a_file_without_rows(self):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS)[:0], self.folder / "rows.parquet")
        for field, code in (("subject", 0), ("none", 2)):
            result = self.run_script("--split-by", field, "--out", self.folder / "{}.jsonl")
            self.assertEqual((result.returncode, result.stderr.count("\n")), (code, code // 2), result.stderr)

    def test_standard_output_and_columns(self):
        result = self.run_script("--columns", "question,answer")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual(lines, [{"question": row["question"], "answer": row["answer"]} for row in ROWS])

    def test_arrow_files_and_streams(self):
        table = pyarrow.Table.from_pylist(ROWS)
        for name, make in (("file", pyarrow.ipc.new_file), ("stream", pyarrow.ipc.new_stream)):
            path = self.folder / f"{name}.arrow"
            with make(str(path), table.schema) as writer:
                writer.write_table(table)
            command = [sys.executable, SCRIPT, path]
            result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual([json.loads(line) for line in result.stdout.splitlines()], ROWS)

    def test_invalid_table_is_one_line_error(self):
        (self.folder / "rows.parquet").write_bytes(b"PAR1 and nothing more")
        result = self.run_script()
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr.count("\n"), 1)

    def damage_second_row_group(self):
        path = self.folder / "rows.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS * 4000), path, row_group_size=6000, use_dictionary=False)
        chunk = pyarrow.parquet.ParquetFile(path).metadata.row_group(1).column(1)
        data = bytearray(path.read_bytes())
        data[chunk.data_page_offset : chunk.data_page_offset + 64] = bytes(64)
        path.write_bytes(data)

    def test_damaged_file_leaves_no_output(self):
        self.damage_second_row_group()
        for options in (["--out", self.folder / "all.jsonl"], ["--split-by", "subject", "--out", self.folder / "{}.jsonl"]):
            self.write("all.jsonl", "old\n")
            result = self.run_script(*options)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
            self.assertIn(f"{self.folder}/rows.parquet: ", result.stderr)
            self.assertEqual((self.folder / "all.jsonl").read_text(), "old\n")
            self.assertEqual({path.name for path in self.folder.iterdir()}, {"rows.parquet", "all.jsonl"})

    def test_damaged_file_ends_standard_output_with_a_line_that_is_not_json(self):
        self.damage_second_row_group()
        *lines, last = self.run_script().stdout.splitlines()
        self.assertEqual(json.loads(lines[0]), ROWS[0])
        self.assertEqual(last, "incomplete: parquet_to_jsonl.py has failed")

    def test_output_that_cannot_be_opened(self):
        for path in (self.folder, self.folder / "rows.parquet" / "x"):
            result = self.run_script("--out", path)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
            self.assertIn(f"error: {self.folder}", result.stderr)

    def test_wrong_options_are_one_line_errors(self):
        for arguments in (
            ["--split-by", "subject", "--out", "x"],
            ["--split-by", "x", "--out", "{}"],
            ["--columns", "subject,none"],
            ["--columns", "question", "--split-by", "subject", "--out", str(self.folder / "{}")],
        ):
            result = self.run_script(*arguments)
            self.assertEqual(result.returncode, 2)
            self.assertEqual(result.stderr.count("\n"), 1)


if __name__ == "__main__":
    unittest.main()
