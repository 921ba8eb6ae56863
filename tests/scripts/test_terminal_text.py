"""Output of scripts that contains logs and configs cannot control a terminal, and needs no open streams."""

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
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

    def run_closed(self, closed, *arguments, **options):
        """Runs a script with standard streams closed, such as `>&- 2>&-`."""
        command = ["bash", "-c", f'exec "$@" {closed}', "bash", sys.executable, "-B", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

    def test_closed_streams(self):
        with self.run_closed(">&-", SCRIPTS / "plot_step_time.py", "--help") as process:
            self.assertEqual((*process.communicate(), process.returncode), ("", "", 0))
        with self.run_closed("2>&-", SCRIPTS / "plot_step_time.py", "none.json", "--markdown") as process:
            self.assertEqual((*process.communicate(), process.returncode), ("", "", 2))
        with self.run_closed("2>&-", SCRIPTS / "plot_step_time.py", "--help") as process:
            self.assertEqual((process.communicate()[1], process.returncode), ("", 0))

    def test_dashboard_without_streams(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            free.close()
            process = self.run_closed("<&- >&- 2>&-", SCRIPTS / "dashboard.py", "--port", str(port), folder)
            try:
                end = time.monotonic() + 60
                while True:
                    try:
                        page = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                        page.request("GET", "/")
                        self.assertEqual(page.getresponse().status, 200)
                        page.close()
                        break
                    except OSError:
                        self.assertIsNone(process.poll(), "dashboard.py has ended")
                        self.assertLess(time.monotonic(), end)
                        time.sleep(0.1)
            finally:
                process.kill()
                process.communicate()

    def test_a_charset_without_the_characters(self):
        code = "import terminal_text; terminal_text.guard_output(); print('a\xb1\u03c3')"
        command = [sys.executable, "-B", "-c", code]
        environment = {**os.environ, "PYTHONIOENCODING": "koi8-r"}
        done = subprocess.run(command, cwd=SCRIPTS, env=environment, capture_output=True)
        self.assertEqual((done.stdout, done.stderr), (b"a??\n", b""))


if __name__ == "__main__":
    unittest.main()
