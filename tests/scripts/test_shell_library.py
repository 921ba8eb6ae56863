"""scripts/lib.sh: interrupted steps, and the number of CPUs, compilers and commit that the scripts use."""

import os
import pty
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

from folder_testing import InFolder

ROOT = Path(__file__).resolve().parents[2]


class InCheckout(InFolder):
    """A folder with lib.sh as in a checkout, and fake programs in bin/."""

    def setUp(self):
        super().setUp()
        for name in ("lib.sh", "versions.env"):
            self.write(f"scripts/{name}", (ROOT / "scripts" / name).read_text(encoding="utf-8"))
        self.environment = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "HOME": str(self.folder), "LC_ALL": "C"}

    def program(self, name, script):
        path = self.write(name if "/" in str(name) else f"bin/{name}", f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def command(self, script):
        return ["bash", "-c", f"set -euo pipefail; source {self.folder}/scripts/lib.sh; {script}"]

    def start(self, command, folder=None, **environment):
        environment = {**self.environment, **environment}
        options = {"capture_output": True, "text": True, "timeout": 60, "check": False}
        return subprocess.run(list(map(str, command)), cwd=folder or self.folder, env=environment, **options)

    def shell(self, script, **environment):
        return self.start(self.command(script), **environment)

    def git(self, *arguments, folder=None):
        settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
        done = self.start(["git", *settings, *arguments], folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def printed(self, script, **environment):
        done = self.shell(script, **environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""), script)
        return done.stdout.strip()


class Interrupts(InCheckout):
    SLEEP = "sh -c 'echo $$ >pid; exec sleep 60'"
    PROGRAM = f"trap 'echo cleaned' EXIT; quietly 'a step' {SLEEP}; echo on"
    FUNCTION = f"step() {{ {SLEEP}; echo late; }}; trap 'echo cleaned' EXIT; quietly 'a step' step; echo on"

    def wait_for_step(self):
        deadline = time.monotonic() + 30
        while not (self.folder / "pid").exists() or not (text := (self.folder / "pid").read_text()):
            self.assertLess(time.monotonic(), deadline, "the step does not start")
            time.sleep(0.05)
        self.addCleanup(subprocess.run, ["kill", text.strip()], capture_output=True, check=False)
        return int(text)

    def runs(self, process):
        try:
            return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    def check(self, output, step):
        deadline = time.monotonic() + 10
        while self.runs(step):
            self.assertLess(time.monotonic(), deadline, "the step continues")
            time.sleep(0.05)
        self.assertIn("interrupted; log: ", output)
        self.assertIn("cleaned", output)
        self.assertNotIn("on\n", output.splitlines(keepends=True))

    def test_control_c_ends_the_step(self):
        for script in (self.PROGRAM, self.FUNCTION):
            with self.subTest(script):
                (self.folder / "pid").unlink(missing_ok=True)
                self.press_control_c(script)

    def press_control_c(self, script):
        # The shell of the terminal survives: at its end, Linux would end the step by SIGHUP.
        shell = ["bash", "-c", 'trap : INT; "$@"; echo "status $?"; read -r', "shell", *self.command(script)]
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(self.folder)
            os.execvpe("bash", shell, self.environment)
        step = self.wait_for_step()
        os.write(terminal, b"\x03")
        output = b""
        while b"status" not in output:
            output += os.read(terminal, 4096)
        self.check(output.decode().replace("\r\n", "\n"), step)
        os.write(terminal, b"\n")
        os.waitpid(child, 0)
        os.close(terminal)
        self.assertIn(b"status 130", output)

    def test_signals_to_the_script_end_the_step(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            (self.folder / "pid").unlink(missing_ok=True)
            script = subprocess.Popen(self.command(self.FUNCTION), cwd=self.folder, env=self.environment, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            step = self.wait_for_step()
            script.send_signal(number)
            output = script.communicate(timeout=30)[0]
            self.assertEqual(script.returncode, -number)
            self.check(output, step)

    def test_steps_fail_and_succeed(self):
        done = self.shell("step() { echo reason; false; echo late; }; quietly 'a step' step; echo on")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"\Areason\nerror: a step failed after \d+ s; full log: .*/a_step_\.log\n\Z")
        printed = self.printed("quietly 'a step' true; trap -p INT TERM; echo on")
        self.assertRegex(printed, r"\Aa step \.\.\. \d+ s\non\Z")
        done = self.shell("run_step 'a step' false; echo $step_status; quietly 'a step' true")
        self.assertRegex(done.stdout, r"\A1\n  a step \.\.\. \d+ s\n\Z")


class Build(InCheckout):
    def setUp(self):
        super().setUp()
        self.program("cmake", f'echo "$*" >>{self.folder}/calls')

    def calls(self):
        text = (self.folder / "calls").read_text()
        (self.folder / "calls").unlink()
        return text

    def test_jobs_are_all_cpus(self):
        count = self.printed("cpu_count")
        self.assertEqual(int(count), len(os.sched_getaffinity(0)))
        self.printed("build_preset cpu", OMP_NUM_THREADS="77", OMP_THREAD_LIMIT="1")
        self.assertIn(f" -j {count}", self.calls())
        for script in (ROOT / "scripts").glob("*.sh"):  # nproc alone obeys these variables
            calls = [line for line in script.read_text(encoding="utf-8").splitlines() if "$(nproc)" in line]
            self.assertEqual(calls, [], script)

    def test_another_compiler_configures_again(self):
        for name in ("g++-11", "g++-12", "clang++"):
            self.program(name, f"echo {name}")
        (self.folder / "bin/alias").symlink_to("g++-12")
        for cached, wanted, fresh in (
            ("g++-11", "g++-12", True),
            ("g++-12", "g++-12", False),
            ("alias", "g++-12", False),
            ("g++-11", "", False),
            ("g++-11", "ccache g++-12", False),
        ):
            self.write("build/cpu/CMakeCache.txt", f"A:B=C\nCMAKE_CXX_COMPILER:FILEPATH={self.folder}/bin/{cached}\n")
            printed = self.printed("configure_preset cpu", CXX=wanted)
            self.assertEqual("--fresh" in self.calls(), fresh, (cached, wanted))
            message = f"build/cpu was configured with {self.folder}/bin/{cached}: starting again with {wanted}"
            self.assertEqual(message in printed, fresh)
        (self.folder / "build/cpu").rename(self.folder / "build/fuzz")  # whose preset sets the compiler
        self.printed("configure_preset fuzz", CXX="clang++")
        self.assertNotIn("--fresh", self.calls())
        self.printed("configure_preset cuda", CXX="clang++")
        self.assertNotIn("--fresh", self.calls())

    def test_newer_tools(self):
        self.program("g++", "echo 12")
        self.program("g++-12", "echo 12")
        self.assertEqual(self.printed("export_of_newer_tools"), "")
        self.program("g++", "echo 11")
        self.assertEqual(self.printed("export_of_newer_tools"), "export CC=gcc-12 CXX=g++-12 CUDAHOSTCXX=g++-12")
        self.assertEqual(self.printed("export_of_newer_tools", CXX="clang++"), "")
        self.program(f"{self.folder}/.deps/cmake/cmake/data/bin/cmake", "echo the newer one")
        line = self.printed("export_of_newer_tools")
        printed = self.start(["bash", "-c", f"{line}; cmake; echo $CC $CXX"]).stdout
        self.assertEqual(printed, "the newer one\ngcc-12 g++-12\n")


class Commit(InCheckout):
    def test_of_this_checkout_only(self):
        self.assertNotEqual(self.shell("checkout_commit").returncode, 0)
        self.git("init")
        self.git("add", "scripts")
        self.git("commit", "-m", "first")
        commit = self.git("rev-parse", "--short", "HEAD")
        self.assertEqual(self.printed("checkout_commit"), commit)
        self.assertEqual(self.printed("checkout_commit", GIT_DIR="/none"), commit)
        shutil.copytree(self.folder / "scripts", self.folder / "copy/scripts")  # a copy without .git
        done = self.shell(f"source {self.folder}/copy/scripts/lib.sh; checkout_commit")
        self.assertEqual((done.returncode, done.stdout), (1, ""))


if __name__ == "__main__":
    unittest.main()
