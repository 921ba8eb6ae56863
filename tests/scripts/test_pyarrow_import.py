"""Tests of scripts/parquet_to_jsonl.py with a Python whose pyarrow is missing or does not work."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

from folder_testing import InFolder

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "parquet_to_jsonl.py"


class PyarrowImport(InFolder):
    def errors(self, module):
        """What the script prints if `import pyarrow` runs this code."""
        self.write("pyarrow/__init__.py", module)
        command = [sys.executable, "-B", SCRIPT, "x.parquet"]
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        self.assertEqual((done.returncode, done.stdout), (77, ""))
        return done.stderr

    def test_missing(self):
        errors = self.errors("raise ModuleNotFoundError(\"No module named 'pyarrow'\", name='pyarrow')\n")
        self.assertEqual(errors, "parquet_to_jsonl.py: error: No module named 'pyarrow'; pip install pyarrow\n")

    def test_other_errors_keep_their_text(self):
        for module, expected in (
            ("raise ImportError('libarrow.so: not\\nfound', name='pyarrow')\n", "libarrow.so: not found"),
            ("import no_such_module\n", "No module named 'no_such_module'"),
        ):
            self.assertEqual(self.errors(module), f"parquet_to_jsonl.py: error: {expected}\n")


if __name__ == "__main__":
    unittest.main()
