#!/usr/bin/env python3
"""bundle_tests.py on a small build tree with programs that succeed or fail."""

import shutil
import subprocess
import sys
import tarfile
import unittest
from pathlib import Path

from folder_testing import InFolder

ROOT = Path(__file__).resolve().parent.parent.parent


def compile_program(path, code):
    """A program that ends with this exit code. The system's true and false may be names of one program with other libraries."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "g++-12"))))
    subprocess.run([compiler, "-x", "c++", "-", "-o", path], input=f"int main() {{ return {code}; }}", text=True, check=True)


class Bundle(InFolder):
    def setUp(self):
        super().setUp()
        self.build = self.folder / "here/build/cuda"
        (self.build / "apps").mkdir(parents=True)
        (self.build / "tests/core").mkdir(parents=True)
        compile_program(self.build / "apps/te-train", 0)
        for name in ("tests/core/test_core", "tests/core/helper", "tests/core/test_other"):
            shutil.copy(self.build / "apps/te-train", self.build / name)
        compile_program(self.build / "tests/core/test_gpu", 1)
        (self.build / "apps/libte_apps.a").write_text("a library")
        text = ""
        for name, program, label in (
            ("A.Passes", "test_core", "gpu"),
            ("A.Fails", "test_gpu", "gpu"),
            ("A.OnACpu", "test_other", "cpu"),
            ("ranks.np2", "test_absent", "gpu"),
        ):
            text += f'add_test("{name}" "{self.build}/tests/core/{program}" "--x=\\"$\\"")\n'
            properties = f'LABELS {label} WORKING_DIRECTORY "{self.build}/tests/core" ENVIRONMENT "A=1;B=2"'
            text += f'set_tests_properties("{name}" PROPERTIES {properties})\n'
        # The variable of tests on the CPU, and one more for A.Passes.
        text += 'set_tests_properties(A.OnACpu PROPERTIES ENVIRONMENT_MODIFICATION "CUDA_VISIBLE_DEVICES=set:")\n'
        text += 'set_tests_properties(A.Passes PROPERTIES ENVIRONMENT_MODIFICATION "C=set:3;D=unset:")\n'
        text += "add_test(test_late_NOT_BUILT test_late_NOT_BUILT)\n"
        (self.build / "CTestTestfile.cmake").write_text(text)
        self.archive = self.folder / "tests.tar.xz"

    def bundle(self, *arguments):
        command = [sys.executable, "-B", ROOT / "scripts/bundle_tests.py", self.build, self.archive, *arguments]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True)

    def test_elsewhere(self):
        there = self.folder / "there"
        there.mkdir()
        done = self.bundle("--checkout", there)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2 tests, 4 executables", done.stdout)
        self.assertIn("not built and not in the archive: ranks.np2, test_late", done.stderr)
        with tarfile.open(self.archive) as archive:
            names = {entry.name for entry in archive if entry.isfile()}
            archive.extractall(there)
        programs = {"apps/te-train", "tests/core/test_core", "tests/core/test_gpu", "tests/core/helper"}
        self.assertEqual(names, {f"build/cuda/{name}" for name in {*programs, "CTestTestfile.cmake"}})
        shutil.rmtree(self.build)
        command = ["ctest", "--test-dir", str(there / "build/cuda"), "-L", "gpu"]
        ran = subprocess.run(command, capture_output=True, text=True).stdout
        self.assertRegex(ran, r"A\.Passes \.+ +Passed")
        self.assertRegex(ran, r"A\.Fails \.+\*+Failed")
        self.assertIn("1 tests failed out of 2", ran)

    def test_environment(self):
        self.assertEqual(self.bundle("--label", "").returncode, 0)
        with tarfile.open(self.archive) as archive:
            text = archive.extractfile("build/cuda/CTestTestfile.cmake").read().decode()
        expected = {"A.Passes": "C=set:3;D=unset:;", "A.OnACpu": "CUDA_VISIBLE_DEVICES=set:;", "A.Fails": ""}
        for test, changes in expected.items():
            value = f"{changes}LD_LIBRARY_PATH=path_list_append:{self.build}/lib"
            self.assertIn(f'("{test}" PROPERTIES ENVIRONMENT_MODIFICATION "{value}")', text)

    def test_some(self):
        self.assertIn("1 tests, 3 executables", self.bundle("--filter", "Passes").stdout)
        self.assertIn("3 tests", self.bundle("--label", "").stdout)

    def test_mistakes(self):
        for arguments, message in (
            (("--label", "tpu"), "no test has the label 'tpu'"),
            (("--filter", "Nothing"), "no test has the label 'gpu' and a name like 'Nothing'"),
        ):
            done = self.bundle(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(message, done.stderr)
            self.assertFalse(self.archive.exists())
        self.archive = self.folder / "nowhere/tests.tar.xz"
        done = self.bundle()
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 2))  # and the warning about programs that are not built
        self.assertIn("nowhere/tests.tar.xz: No such file", done.stderr)
        (self.build / "CTestTestfile.cmake").unlink()
        done = self.bundle()
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
        self.assertIn("not a build tree with tests", done.stderr)


if __name__ == "__main__":
    unittest.main()
