"""CMake's own scripts: the commit of a build."""

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


if __name__ == "__main__":
    unittest.main()
