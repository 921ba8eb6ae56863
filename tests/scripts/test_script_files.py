"""Tests of scripts/script_files.py: complete outputs, and errors of files as one line."""

import os
import signal
import stat
import subprocess
import sys
import unittest
from pathlib import Path

from folder_testing import InFolder

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import script_files


class CompleteFile(InFolder):
    def names(self):
        return sorted(path.name for path in self.folder.iterdir())

    def test_replaces_the_file_at_the_end_only(self):
        path = self.write("out.txt", "old")
        with script_files.complete_file(path) as file:
            file.write("new")
            file.flush()
            self.assertEqual(path.read_text(), "old")
        self.assertEqual((path.read_text(), self.names()), ("new", ["out.txt"]))

    def test_other_files_stay(self):
        path, other = self.write("out.txt", "old"), self.write("out.txt.tmp", "other")
        with script_files.complete_file(path) as file, script_files.complete_file(path) as later:
            file.write("first")
            later.write("second")
        self.assertEqual((path.read_text(), other.read_text()), ("first", "other"))
        self.assertEqual(self.names(), ["out.txt", "out.txt.tmp"])

    def test_exceptions_leave_the_old_file(self):
        path = self.write("out.txt", "old")
        for exception in (ValueError, KeyboardInterrupt, SystemExit):
            with self.assertRaises(exception), script_files.complete_file(path) as file:
                file.write("new")
                raise exception
            self.assertEqual((path.read_text(), self.names()), ("old", ["out.txt"]))

    def test_errors_name_the_file(self):
        with self.assertRaises(FileNotFoundError) as caught, script_files.complete_file(self.folder / "none" / "x"):
            pass
        self.assertEqual(caught.exception.filename, f"{self.folder}/none/x")

    def test_links_and_special_files_stay(self):
        target, link, pipe = self.write("target", "old"), self.folder / "link", self.folder / "pipe"
        link.symlink_to(target.name)
        script_files.write_text(link, "new")
        self.assertTrue(link.is_symlink())
        self.assertEqual(target.read_text(), "new")
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        script_files.write_text(pipe, "new")
        self.assertEqual(os.read(reader, 9), b"new")
        os.close(reader)
        self.assertTrue(stat.S_ISFIFO(pipe.stat().st_mode))


class OpenInput(InFolder):
    def test_zstd_is_decompressed_or_refused(self):
        frame = b"\x28\xb5\x2f\xfd\x20\x04\x21\0\0text"  # one block of 4 bytes, stored
        path = self.write("text.zst", frame)
        if not script_files.zstd:
            self.assertRaisesRegex(OSError, "decompress the file with zstd -d", script_files.open_input, path)
            return
        with script_files.open_input(path) as file:
            self.assertEqual(file.read(), b"text")
        for damaged in (frame[:-2], b"text" * 9):
            with self.assertRaises(script_files.READ_ERRORS), script_files.open_input(self.write("x.zst", damaged)) as file:
                file.read()


class Run(InFolder):
    def start(self, body, **options):
        text = f"import sys, time; sys.path.insert(0, {str(SCRIPTS)!r})\nfrom script_files import *\ndef main():\n {body}\nrun(main)\n"
        command = [sys.executable, self.write("script.py", text)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

    def test_error_of_a_file_is_one_line(self):
        for body, message in (
            ("open('/none')", "/none: No such file or directory"),
            ("open(sys.argv[0] + '/')", "script.py/: Not a directory"),
            ("raise EOFError", "EOFError"),
        ):
            process = self.start(body)
            self.assertRegex(process.communicate()[1], f"^script.py: error: .*{message}\n$")
            self.assertEqual(process.returncode, 2)

    def test_closed_pipe_is_silent(self):
        process = self.start("time.sleep(.2); print('x' * 100000)")
        process.stdout.close()
        self.assertEqual(process.stderr.read(), "")
        process.stderr.close()
        self.assertEqual(process.wait(), 1)

    def test_closed_error_output(self):
        """The error is not printed on standard output, which has the script's result."""
        process = self.start("print(1, flush=True); open('/none')", preexec_fn=lambda: os.close(2))
        self.assertEqual((*process.communicate(), process.returncode), ("1\n", "", 2))

    def test_closed_output(self):
        body = "open(sys.argv[0] + '.out', 'w').write(str(sys.stdout.fileno()))"
        process = self.start(body, preexec_fn=lambda: os.close(1))
        self.assertEqual((*process.communicate(), process.returncode), ("", "", 0))
        self.assertEqual((self.folder / "script.py.out").read_text(), "1")

    def test_data_needs_an_open_stream(self):
        for body, descriptor, message in (
            ("open_input('-')", 0, "standard input is closed"),
            ("\n with complete_lines(None, []): print(1)", 1, "standard output is closed; write a file with --out"),
        ):
            process = self.start(body, preexec_fn=lambda: os.close(descriptor))
            self.assertEqual(process.communicate(), ("", f"script.py: error: {message}\n"))
            self.assertEqual(process.returncode, 2)

    def test_interruption(self):
        out = self.folder / "out"
        process = self.start(f"\n with complete_file({str(out)!r}): print(flush=True); time.sleep(60)")
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.communicate()[1], "script.py: interrupted\n")
        self.assertEqual(process.returncode, 130)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["script.py"])


if __name__ == "__main__":
    unittest.main()
