"""Wrong arguments of the shell scripts: one line, exit code 2, before the script does anything. And locales in which
the decimal separator is a comma."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from folder_testing import InFolder

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


# te-train for kill_test.sh: the first start takes a second; a run without an end sleeps, with its config in its name.
FAKE_RUN = r"""#!/usr/bin/env bash
set -e
for word in "$@"; do
  case "$word" in
    logging.directory=*) folder="${word#*=}" ;;
    training.train_steps=*) steps="${word#*=}" ;;
  esac
done
[[ -n "${steps:-}" ]] || exec -a "te-train $*" "$SLEEP" 60
[[ "$folder" != */first ]] || "$SLEEP" 1
name="$(printf 'step_%08d' "$steps")"
mkdir -p "$folder/checkpoints/$name"
echo state >"$folder/checkpoints/$name/model.safetensors"
echo "$name" >"$folder/checkpoints/latest"
echo resumed from
"""


class DecimalComma(InFolder):
    @classmethod
    def setUpClass(cls):
        if not shutil.which("localedef"):
            raise unittest.SkipTest("localedef is missing")
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.locales = temporary.name
        command = ["localedef", "-i", "de_DE", "-f", "UTF-8", f"{cls.locales}/de_DE.UTF-8"]
        subprocess.run(command, capture_output=True)

    def setUp(self):
        super().setUp()
        path = f"{self.folder / 'programs'}:{os.environ['PATH']}"
        self.environment = os.environ | {"LOCPATH": self.locales, "LC_ALL": "de_DE.UTF-8", "PATH": path}
        if not self.bash("printf %.1f 1,5", check=False).startswith("1,5"):
            self.skipTest("localedef has no source of de_DE (apt install locales)")

    def bash(self, text, *arguments, check=True):
        command = ["bash", "-euo", "pipefail", "-c", text, "bash", *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        if check:
            self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout

    def program(self, name, text):
        self.write(f"programs/{name}", text).chmod(0o755)

    def test_compute_capability_of_a_gpu(self):
        self.program("nvidia-smi", "#!/bin/sh\necho $CAPABILITY\n")
        text = 'source "$1"; for least in 8.0 8.9; do if has_gpu $least; then echo $least; fi; done'
        for capability, expected in (("7.5", ""), ("8.6", "8.0"), ("8.9", "8.0 8.9"), ("10.0", "8.0 8.9")):
            self.environment["CAPABILITY"] = capability
            self.assertEqual(self.bash(text, SCRIPTS / "lib.sh").split(), expected.split(), capability)

    def test_size_of_compiled_kernels(self):
        self.write("kernels/a.cubin", b"x" * 1_500_000)
        definition = 'sed -n "/^summary() {/,/^}/p" "$1/compile_all_architectures.sh"'
        text = f'source "$1/lib.sh"; source <({definition}); summary "$2"'
        self.assertEqual(self.bash(text, SCRIPTS, self.folder / "kernels"), "1 sources, 1.5 MB")

    def test_time_of_a_kill(self):
        if not shutil.which("pkill"):
            self.skipTest("pkill is missing")
        self.environment["SLEEP"] = shutil.which("sleep")
        self.program("te-train", FAKE_RUN)
        self.program("sleep", '#!/bin/sh\necho "$1" >>"$SLEEPS"\nexec "$SLEEP" "$1"\n')
        self.environment["SLEEPS"] = str(self.folder / "sleeps")
        run = self.folder / "programs" / "te-train"
        output = self.bash('"$@"', SCRIPTS / "kill_test.sh", "1", "--train", run, "--seed", "1")
        self.assertIn("1 kills, ", output)
        first = (self.folder / "sleeps").read_text().split()[0]
        self.assertRegex(first, r"^\d+\.\d{3}$")
        self.assertGreater(float(first), 0.3)  # the start of a second times 0.3 to 2.8


if __name__ == "__main__":
    unittest.main()
