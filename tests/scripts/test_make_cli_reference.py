"""Tests of scripts/make_cli_reference.py with fake programs. apps.cli_reference tests the page itself."""

import contextlib
import io
import sys
import unittest
from pathlib import Path

from folder_testing import InFolder

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import make_cli_reference

HELP = """te-data: datasets
Usage: te-data [OPTIONS] SUBCOMMAND

Options:
  -h,--help                   Print this help message and exit
  --gpu TEXT:{h100,h200}=h200 The GPUs of a|b, <x> and *
  --format TEXT:{auto,text,jsonl,json}=auto
                              What the `<file>` is,
                              in two lines
  --version                   Print version and commit, and stop

Subcommands:
  merge                       Put several into one

  te-data merge a b

Exit codes: 0 done
Options:
"""
COMMAND = "Put several into one\nUsage: te-data merge prefixes...\n\nPositionals:\n  prefixes PREFIX ... REQUIRED\n" \
          "                              Datasets\n\nOptions:\n  -h,--help                   Print this help message and exit\n"


class Defaults(unittest.TestCase):
    def test_are_the_same_with_newer_cli11(self):
        for newer, older in (("--gpu TEXT:{a,b} [a]", "--gpu TEXT:{a,b}=a"), ("--n INT:INT in [1 - 9] [3]", "--n INT:INT in [1 - 9]=3"),
                             ("--recipe TEXT [[delayed]]  ...", "--recipe TEXT=[delayed] ..."), ("--x F [0.5] REQUIRED", "--x F=0.5 REQUIRED"),
                             ("--size UINT:SIZE [b, kb(=1000b), ...] [5GB]", "--size UINT:SIZE [b, kb(=1000b), ...]=5GB")):
            self.assertEqual(make_cli_reference.same_defaults(newer), older)
            self.assertEqual(make_cli_reference.same_defaults(older), older)


class Columns(unittest.TestCase):
    def test_of_long_names(self):
        """Names that are longer than their column may have a space before it."""
        for line, expected in (("  --json FILE                 A report", True), ("  --virtual-stages INT:INT in [1 - 4096]=1", False),
                               ("  --documents INT:NONNEGATIVE [[0,1024]]  ...", False), ("  --a INT:INT in [10 - 200000 000] x", False)):
            self.assertEqual(make_cli_reference.ends_in_column(line, 30), expected, line)


class Reference(InFolder):
    def setUp(self):
        super().setUp()
        for name in make_cli_reference.PROGRAMS:
            self.program(name, HELP)
        self.addCleanup(setattr, sys, "argv", sys.argv)
        for name, value in (("PAGE", self.folder / "cli.md"), ("ROOT", self.folder)):
            self.addCleanup(setattr, make_cli_reference, name, getattr(make_cli_reference, name))
            setattr(make_cli_reference, name, value)

    def program(self, name, text):
        self.write(name, f"#!/bin/sh\n[ $# = 1 ] && cat <<'END'\n{text}END\n[ $# = 1 ] || cat <<'END'\n{COMMAND}END\n")
        (self.folder / name).chmod(0o755)

    def run_main(self, *arguments):
        sys.argv = ["make_cli_reference.py", "--apps", str(self.folder), *arguments]
        with contextlib.redirect_stdout(io.StringIO()):
            make_cli_reference.main()

    def test_tables(self):
        text = make_cli_reference.reference(self.folder)
        section = text[text.index("## te-data"):text.index("## te-convert")]
        self.assertEqual(section, "## te-data\n\nDatasets\n\n    te-data [OPTIONS] SUBCOMMAND\n\n| Option | Meaning |\n| --- | --- |\n"
                         "| `--gpu TEXT:{h100,h200}=h200` | The GPUs of a\\|b, \\<x> and \\* |\n"
                         "| `--format TEXT:{auto,text,jsonl,json}=auto` | What the `<file>` is, in two lines |\n\n"
                         "```text\n  te-data merge a b\n\nExit codes: 0 done\nOptions:\n```\n\n"
                         "### te-data merge\n\nPut several into one\n\n    te-data merge prefixes...\n\n| Argument | Meaning |\n| --- | --- |\n"
                         "| `prefixes PREFIX ... REQUIRED` | Datasets |\n\n")

    def test_check_finds_a_change(self):
        self.run_main()
        self.run_main("--check")
        self.program("te-train", HELP.replace("The GPUs", "Which GPUs"))
        with self.assertRaises(SystemExit) as stopped:
            self.run_main("--check")
        self.assertIn("| `--gpu TEXT:{h100,h200}=h200` | Which GPUs of", str(stopped.exception))

    def test_an_executable_is_missing(self):
        (self.folder / "te-bench").unlink()
        with self.assertRaises(SystemExit) as stopped:
            self.run_main()
        self.assertIn("te-bench", str(stopped.exception))


if __name__ == "__main__":
    unittest.main()
