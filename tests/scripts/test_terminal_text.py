"""Output of scripts that contains logs and configs cannot control a terminal."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from terminal_text import printable  # noqa: E402


class TerminalText(unittest.TestCase):
    def test_escapes_control_characters(self):
        self.assertEqual(printable("a\x1b[31mb\x9b\u202e\r"), r"a\x1b[31mb\x9b\u202e\r")
        self.assertEqual(printable("naïve\t模型\n"), "naïve\t模型\n")

    def test_scripts_print_no_escapes(self):
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run\x1b]0;title\x07"
            run.mkdir()
            for name in ("compare_loss.py", "dashboard.py", "export_metrics.py"):
                arguments = ["--to", "wandb"] if name == "export_metrics.py" else []
                missing = str(run / "missing\x1b[2J")
                result = subprocess.run(
                    [sys.executable, "-B", SCRIPTS / name, *arguments, missing, missing], capture_output=True, text=True
                )
                if "has no numpy" in result.stderr:
                    continue
                self.assertNotEqual(result.returncode, 0, name)
                self.assertIn(r"\x1b[2J", result.stderr, name)
                self.assertNotIn("\x1b", result.stdout + result.stderr, name)


if __name__ == "__main__":
    unittest.main()
