"""scripts/install_deps.sh in a folder like a checkout, with fake package tools, compilers and nvcc."""

import unittest

from test_shell_library import ROOT, InCheckout


class InstallDeps(InCheckout):
    def setUp(self):
        super().setUp()
        script = (ROOT / "scripts/install_deps.sh").read_text(encoding="utf-8")
        self.write("scripts/install_deps.sh", script)
        self.program("dpkg", "echo amd64")
        self.packages("amd64 installed")
        self.program("apt-get", f'echo "apt-get $*" >>{self.folder}/calls')
        self.program("id", "echo 0")
        self.program("g++", "echo 12")
        self.program("cmake", "echo cmake version 3.25.1")
        self.program("ninja", "echo 1.11")
        self.environment["TE_NO_CUDA"] = "1"

    def packages(self, *lines):
        """What dpkg-query prints about each package, for its default format and the script's."""
        states = "".join(line.split()[1] for line in lines)
        text = "\\n".join(lines)
        self.program("dpkg-query", f"case \"$3\" in *Architecture*) printf '{text}\\n' ;; *) printf '{states}' ;; esac")

    def install(self, **environment):
        return self.start(["bash", "scripts/install_deps.sh"], **environment)

    def calls(self):
        path = self.folder / "calls"
        return path.read_text() if path.exists() else ""

    def test_packages_of_several_architectures_are_installed(self):
        native = "amd64 installed"
        for lines in ((native, "i386 installed"), (native, "i386 config-files"), ("all installed",)):
            self.packages(*lines)
            done = self.install()
            self.assertEqual((done.returncode, done.stderr, self.calls()), (0, "", ""), lines)
            self.assertIn("dependencies ready", done.stdout)
            self.assertNotIn("before you run cmake", done.stdout)

    def test_packages_of_another_architecture_are_missing(self):
        for lines in (("i386 installed",), ("amd64 config-files",)):
            self.packages(*lines)
            done = self.install()
            self.assertRegex(done.stdout, r"  missing packages: g\+\+ cmake .* python3-jinja2\n")
            self.assertIn("install --no-install-recommends g++ cmake", self.calls(), lines)

    def test_missing_packages_are_named_without_root(self):
        self.packages("amd64 config-files")
        self.program("id", "echo 1000")
        for tool in ("bash", "cat", "cut", "dirname", "env", "grep", "mkdir", "nproc", "readlink", "sed", "sort", "tr"):
            self.program(tool, f'exec /usr/bin/{tool} "$@"')
        done = self.install(PATH=f"{self.folder}/bin")  # without sudo
        self.assertEqual((done.returncode, self.calls()), (1, ""))
        message = r"\Aerror: root is needed; install sudo, or run as root: apt-get install g\+\+ .*jinja2\n\Z"
        self.assertRegex(done.stderr, message)

    def test_sudo_asks_before_the_first_step(self):
        self.packages("amd64 config-files")
        self.program("id", "echo 1000")
        self.program("sudo", f'echo "sudo $*" >>{self.folder}/calls; [ "$1" != -n ] || exit 1; [ "$1" = -v ] || "$@"')
        self.assertIn("dependencies ready", self.install().stdout)
        self.assertRegex(self.calls(), r"\Asudo -n true\nsudo -v\nsudo apt-get .* update\n")
        self.program("sudo", "exit 1")
        done = self.install()
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\Aerror: sudo did not work; run as root: apt-get install g\+\+ .*jinja2\n\Z")
        self.assertNotIn("refreshing", done.stdout)

    def test_newer_tools_are_named_last(self):
        self.program("g++", "echo 11")
        self.program("g++-12", "echo 12")
        line = "before you run cmake: export CC=gcc-12 CXX=g++-12 CUDAHOSTCXX=g++-12\n"
        self.assertEqual(self.install().stdout.splitlines(keepends=True)[-1], line)

    def test_old_cuda_is_refused(self):
        nvcc = self.program("cuda/bin/nvcc", "echo 'Cuda compilation tools, release 11.8, V11.8.89'")
        done = self.install(TE_NO_CUDA="0", CUDACXX=str(nvcc))
        self.assertEqual(done.returncode, 1)
        message = r"\Aerror: CUDA 11 \(.*/cuda/bin/nvcc\) is too old: te-train needs CUDA 12 or 13\. .*\n\Z"
        self.assertRegex(done.stderr, message)


if __name__ == "__main__":
    unittest.main()
