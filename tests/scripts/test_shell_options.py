"""Wrong arguments of the shell scripts: one line, exit code 2, before the script does anything."""

import re
import subprocess
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in sorted(SCRIPTS.glob("*.sh"))}


class ShellOptions(unittest.TestCase):
    def expect_refused(self, name, arguments, message):
        result = subprocess.run([SCRIPTS / name, *arguments], capture_output=True, text=True, timeout=30)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (2, "", f"error: {message}\n"), name)

    def test_unknown_options(self):
        names = [name for name, text in TEXTS.items() if "unknown option $1; " in text]
        self.assertIn("quickstart.sh", names)
        for name in names:
            end = re.search(r"unknown option \$1; (.*?)\"", TEXTS[name])[1]
            self.expect_refused(name, ["--none"], f"unknown option --none; {end}")

    def test_options_without_their_value(self):
        found = [
            (name, option, what)
            for name, text in TEXTS.items()
            for option, what in re.findall(r"^ +(--[a-z]+)\) .*?\"([^\"]+)\" \"\$@\" && ", text, re.MULTILINE)
        ]
        self.assertIn(("quickstart.sh", "--steps", "a number"), found)
        for name, option, what in found:
            self.expect_refused(name, [option], f"{option} needs {what}")
            self.assertNotRegex(TEXTS[name], r"\{2:\?")

    def test_missing_files(self):
        self.expect_refused("quickstart.sh", ["--text", "/none"], "--text: /none does not exist; name a text file or a folder")
        self.expect_refused("package.sh", ["--build", "/none"], "--build: /none does not exist; name a build folder")
        self.expect_refused("test_package.sh", ["/none"], "'/none' is not a package of scripts/package.sh; see --help")
        self.expect_refused("test_distribution.sh", ["none"], "unknown distribution none; see --help")
        self.expect_refused("record_bits.sh", [], "usage: scripts/record_bits.sh FOLDER_OF_BINARIES")


if __name__ == "__main__":
    unittest.main()
