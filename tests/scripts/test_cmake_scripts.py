"""CMake's own scripts: the commit of a build, the choice of the CUDA compiler, and compilers that are refused."""

import os
import shutil
import unittest

from test_shell_library import ROOT, InCheckout

CMAKE = shutil.which("cmake")


class InFolderWithCMake(InCheckout):
    def cmake(self, *arguments, **environment):
        return self.start([CMAKE, *arguments], **environment)


class WriteVersion(InFolderWithCMake):
    def setUp(self):
        super().setUp()
        self.outer, self.inner = self.folder / "outer", self.folder / "outer/te-train"
        self.write("outer/te-train/file", "text")
        self.repository(self.outer)

    def repository(self, folder):
        for arguments in (("init",), ("add", "."), ("commit", "-m", "first")):
            self.git(*arguments, folder=folder)

    def commit_of(self, folder):
        return self.git("rev-parse", "--short=12", "HEAD", folder=folder)

    def expect(self, source, commit, **environment):
        output = self.folder / "version.h"
        output.unlink(missing_ok=True)
        script = ROOT / "cmake/WriteVersion.cmake"
        done = self.cmake(f"-DSOURCE={source}", f"-DOUTPUT={output}", "-DVERSION=1.2.3", "-P", script, **environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(output.read_text(), f'#define TE_VERSION "1.2.3"\n#define TE_COMMIT "{commit}"\n')

    def test_of_the_sources(self):
        commit = self.commit_of(self.outer)
        self.expect(self.outer, commit)
        (self.outer / "te-train/file").write_text("another text")
        self.expect(self.outer, f"{commit}-dirty")
        self.expect(self.folder, "unknown")

    def test_not_of_a_repository_around_them(self):
        self.expect(self.inner, "unknown")
        self.repository(self.inner)
        self.expect(self.inner, self.commit_of(self.inner))

    def test_not_of_another_repository_in_the_environment(self):
        self.expect(self.folder, "unknown", GIT_DIR=str(self.outer / ".git"))
        self.expect(self.folder, "unknown", GIT_DIR=str(self.outer / ".git"), GIT_WORK_TREE=str(self.folder))
        self.expect(self.outer, self.commit_of(self.outer), GIT_DIR="/none", GIT_INDEX_FILE="/none")


class Compilers(InFolderWithCMake):
    def test_old_gcc_is_refused(self):
        for compiler, version, refused in (("GNU", "11.4.0", True), ("GNU", "12.1.0", False), ("Clang", "9.0", False)):
            done = self.cmake(f"-DCMAKE_CXX_COMPILER_ID={compiler}", f"-DCMAKE_CXX_COMPILER_VERSION={version}",
                              "-DCMAKE_CXX_COMPILER=/bin/g++", "-P", ROOT / "cmake/TeCompiler.cmake")
            self.assertEqual(done.returncode, int(refused), (compiler, version))
            if refused:
                message = "GCC 11.4.0 (/bin/g++) is too old: te-train needs GCC 12 or newer"
                self.assertIn(message, " ".join(done.stderr.split()))
        self.assertIn("include(TeCompiler)", (ROOT / "CMakeLists.txt").read_text())


class Nvcc(InFolderWithCMake):
    def setUp(self):
        super().setUp()
        self.write("probe.cmake", f"cmake_minimum_required(VERSION 3.25)\ninclude({ROOT}/cmake/TeNvcc.cmake)\n"
                                  'te_find_nvcc(found)\nfile(WRITE found "${found}")\n'
                                  'te_check_nvcc("${found}" problem)\nfile(WRITE problem "${problem}")\n'
                                  'te_uses_wheels("${found}" wheels)\nfile(WRITE wheels "${wheels}")\n')

    def nvcc(self, path, release="13.0"):
        return self.program(self.folder / path, f"echo 'Cuda compilation tools, release {release}, V{release}.88'")

    def probe(self, name, **environment):
        done = self.cmake(f"-DTE_DEPS_DIR={self.folder}/.deps", "-P", "probe.cmake", **environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return (self.folder / name).read_text()

    def expect(self, path, **environment):
        self.assertEqual(self.probe("found", **environment), str(path))
        self.assertEqual(self.printed("any_nvcc", **environment), str(path))

    def test_scripts_and_cmake_choose_the_same(self):
        wheels = self.nvcc(".deps/cuda/bin/nvcc")
        self.expect(wheels, TE_FORCE_CUDA_WHEELS="1")
        if not os.path.exists("/usr/local/cuda/bin/nvcc") and not shutil.which("nvcc", path="/usr/bin:/bin"):
            self.expect(wheels)
        in_path = self.nvcc("bin/nvcc")
        self.expect(in_path)
        self.expect(in_path, CUDA_HOME="/none")
        in_home = self.nvcc("home/bin/nvcc")
        self.expect(in_home, CUDA_HOME=str(self.folder / "home"))
        named = self.nvcc("bin/nvcc-12", "12.4")
        self.expect(named, CUDA_HOME=str(self.folder / "home"), CUDACXX="nvcc-12")
        self.expect(named, CUDA_HOME=str(self.folder / "home"), CUDACXX=str(named))
        self.expect(wheels, CUDACXX=str(named), TE_FORCE_CUDA_WHEELS="1")
        self.assertEqual(self.probe("found", CUDACXX="/none/nvcc"), "/none/nvcc")  # CMake's own error names it

    def test_wheels_of_another_toolkit_are_not_mixed_in(self):
        in_path = self.nvcc("bin/nvcc")
        self.assertEqual(self.probe("wheels"), "ON")  # cuDNN and NCCL alone
        wheels = self.nvcc(".deps/cuda/bin/nvcc")
        self.assertEqual(self.probe("wheels"), "OFF")
        self.assertEqual(self.probe("wheels", CUDACXX=str(wheels)), "ON")
        in_path.unlink()
        in_path.symlink_to(wheels)
        self.assertEqual(self.probe("wheels"), "ON")

    def test_old_cuda_is_refused(self):
        self.assertEqual(self.probe("problem", CUDACXX=str(self.nvcc("new", "12.0"))), "")
        old = self.nvcc("old", "11.8")
        message = f"CUDA 11.8 ({old}) is too old: te-train needs CUDA 12 or 13. "
        self.assertIn(message, self.probe("problem", CUDACXX=str(old)))


if __name__ == "__main__":
    unittest.main()
