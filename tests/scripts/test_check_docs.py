"""Tests of scripts/check_docs.py, and the documents themselves."""

import contextlib
import io
import sys
import unittest
from pathlib import Path

from folder_testing import InFolder

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import check_docs
from docs_checks import budgets, comments, pages, words


class Documents(unittest.TestCase):
    def test_have_no_problems(self):
        problems = [f"{path.relative_to(ROOT)}:{number}: {text}" for path, number, text in check_docs.check(ROOT)]
        self.assertEqual(problems, [])

    def test_comments_have_no_performance_numbers(self):
        self.assertEqual([f"{path.relative_to(ROOT)}:{number}: {text}" for path, number, text in comments.check_comments(ROOT)], [])

    def test_comments_have_as_few_words_of_the_style_guide_as_recorded(self):
        found = comments.words_in_comments(ROOT)
        self.assertEqual(len(found), budgets.COMMENT_WORDS, "more: write other words; fewer: lower COMMENT_WORDS")


class Checker(InFolder):
    """A small repository with one page, which each test writes."""

    def setUp(self):
        super().setUp()
        self.change(budgets, "README_LINES", (0, 150))
        pages.anchors.cache_clear()
        self.write("docs/reference/configuration.md", "# Keys\n\n| Key |\n|---|\n| `model.num_layers` | integer |\n\n## Twice\n\n## Twice\n")
        self.write("apps/te-train.cpp", 'add_option("--config"); getenv("TE_GEMM_CACHE");')
        self.write("src/core/error.h", "")

    def change(self, module, name, value):
        self.addCleanup(setattr, module, name, getattr(module, name))
        setattr(module, name, value)

    def problems(self, text, name="README.md"):
        self.write(name, text)
        return [f"{number}: {found}" for _, number, found in check_docs.check(self.folder.resolve())]

    def run_main(self, *arguments):
        """(exit code, output)."""
        self.change(sys, "argv", ["check_docs.py", "--root", str(self.folder), *map(str, arguments)])
        with contextlib.redirect_stdout(io.StringIO()) as output:
            return check_docs.main(), output.getvalue()

    def test_a_good_page(self):
        self.assertEqual(self.problems("# A `b` title!\n\n[here](#a-b-title), [keys](docs/reference/configuration.md#twice-1), "
                                       "`model.num_layers=2`,\n`te-train --config FILE`, `core/error.h`, `src/core`, `TE_GEMM_CACHE`, "
                                       "`model.yaml`, [web](https://x.y)\n\n    mpirun --mca a b te-train --config x\n"), [])

    def test_dead_links_and_anchors(self):
        self.assertEqual(self.problems("[a](gone.md)\n[b](docs/reference/configuration.md#twice-2)\n[c](#nothing)\n![d](docs/p.png)\n"),
                         ["1: the link gone.md leads nowhere", "2: docs/reference/configuration.md has no heading #twice-2",
                          "3: this page has no heading #nothing", "4: the link docs/p.png leads nowhere"])

    def test_links_to_the_log(self):
        self.write("docs/log/kernels.md", "[more](run.md)\n")
        self.write("docs/log/run.md", "# Run\n")
        self.assertEqual(self.problems("[log](log/run.md)\n", "docs/README.md"), [])
        self.assertEqual(self.problems("[7%](../log/run.md)\n", "docs/explanation/memory.md"),
                         ["1: ../log/run.md: only docs/README.md links to the log; state the result"])

    def test_names_that_do_not_exist(self):
        self.assertEqual(self.problems("`model.num_layer`s are fine, `model.layers` not\n`te-train --confg x`\n`--nothing`\n`TE_GONE`\n"
                                       "`src/core/gone.h`\n`gone_test.cpp`\n\n    te-train --config a \\\n      --gone\n"),
                         ["1: there is no config key model.layers", "2: no program has the option --confg",
                          "3: no program has the option --nothing", "4: nothing reads TE_GONE", "5: there is no file src/core/gone.h",
                          "6: there is no file gone_test.cpp", "8: no program has the option --gone"])

    def test_names_of_the_code(self):
        self.write("src/model/linear.h", "namespace te::model {\n// OldName\nclass Linear {\n void wgrad();\n};\nenum class PassKind { train };\n"
                                         "void free_function();\n}\n")
        good = "`Linear::wgrad`, `te::model::Linear`, `model::Linear`, `PassKind`, `PassKind::train`, `free_function()`, `Linear::wgrad(x)`"
        self.assertEqual(self.problems(f"{good}, `std::fma`, `PyTorch`, `Llama`, `BF16`, `plain_words`, `x_in`\n"), [])
        self.assertEqual(self.problems("`Linear::dgrad`\n`OldName`\n`gone_function()`\n`Gone::wgrad`\n`nowhere::Linear`\n\n    `OldName` in code\n"),
                         ["1: the code has no Linear::dgrad", "2: the code has no OldName", "3: the code has no gone_function()",
                          "4: the code has no Gone::wgrad", "5: the code has no nowhere::Linear"])

    def test_pages_of_the_past(self):
        old = "`Gone::wgrad`, beside it\n"
        self.assertEqual(self.problems(old, "docs/log/kernels.md"), [])
        self.assertEqual(self.problems(old, "docs/results/history/run.md"), ['1: "beside": write next to, and, versus'])
        self.assertEqual(self.problems("[a](gone.md)\n", "docs/log/kernels.md")[:1], ["1: the link gone.md leads nowhere"])

    def test_words_of_the_old_style(self):
        found = self.problems("FP8 beside BF16, `beside`\nthe residual stream and a stream\nthe gap is 0.25 %\n\n    behind, in code\n")
        self.assertEqual([line.split(": write")[0] for line in found], ['1: "beside"', '2: "stream"', '3: "5 %"'])

    def test_words_of_pages_that_are_exempt(self):
        self.change(words, "EXEMPT_PAGES", ["docs/exempt.md"])
        self.assertEqual(self.problems("beside\n", "docs/exempt.md"), [])
        self.assertEqual(len(self.problems("beside\n", "docs/other.md")), 1)

    def test_code_is_no_link_and_no_heading(self):
        self.assertEqual(self.problems("```\n# not a heading\n[a](gone.md)\n```\n`[a](gone.md)`\n"), [])
        self.assertEqual(self.problems("[a](#not-a-heading)\n\n```\n# not a heading\n```\n"), ["1: this page has no heading #not-a-heading"])

    def test_lengths(self):
        self.change(budgets, "README_LINES", (2, 3))
        self.assertEqual(self.problems("a\n" * 4), ["1: has 4 lines; it should have 2 to 3"])
        self.assertEqual(self.problems("a\n"), ["1: has 1 lines; it should have 2 to 3"])
        self.change(budgets, "DOCS_WORDS", 10)
        self.write("docs/log/kernels.md", "word " * 20)  # does not count, as the generated page
        self.assertEqual(self.problems("a\na\n"), [])
        self.write("docs/long.md", "word " * 11)
        self.assertEqual(self.problems("a\na\n"), ["1: has 11 words without docs/log and generated pages, at most 10 are allowed; "
                                                   "the longest pages: docs/long.md 11"])
        self.write("docs/long.md", "<!-- begin: x -->\n" + "word " * 5 + "\n<!-- end: x -->\n")  # tables that a script writes count
        self.assertIn("docs/long.md 13", self.problems("a\na\n")[0])

    def write_executable(self, name, help_texts):
        cases = "".join(f'  "{arguments}--help") cat <<"END"\n{text}\nEND\n  ;;\n' for arguments, text in help_texts.items())
        self.write(f"apps/{name}", f'#!/bin/sh\ncase "$*" in\n{cases}  *) exit 2 ;;\nesac\n').chmod(0o755)

    def test_help_texts(self):
        options = "Options:\n  --beside N                  An option\n"
        self.write_executable("te-one", {"": f"Does one thing\n\n{options}\nSubcommands:\n  first                       First\n"
                                             "                              of two\n  second                      Second\n\nFooter",
                                         "first ": "Stands behind `behind`\n\nSubcommands:\n  deep                        Deeper",
                                         "first deep ": "Works\nin turns", "second ": options})
        self.write_executable("te-two", {"": "Nobody"})
        self.assertEqual(words.check_help_texts(self.folder / "apps"),
                         [("te-one first", 1, '"behind": write after'),
                          ("te-one first deep", 2, '"in turns": write double-buffered, with copy engines'),
                          ("te-two", 1, '"nobody": write name the program or the person')])
        for enforced, code in ((False, 77), (True, 1)):
            self.change(words, "ENFORCE_HELP_TEXTS", enforced)
            status, output = self.run_main("--help-texts", self.folder / "apps")
            self.assertEqual((status, output.splitlines()[-1]), (code, "help texts: 3 problems"))
        self.write_executable("te-one", {"": "Plain"})
        self.write_executable("te-two", {"": "Plain"})
        self.assertEqual(self.run_main("--help-texts", self.folder / "apps"), (0, "help texts: no problems\n"))
        with self.assertRaises(SystemExit):
            words.check_help_texts(self.folder / "docs")

    def test_numbers_in_comments(self):
        source = ('const char* url = "http://x: 5 ms";  // is 1.2x as fast\n/// 12 %\n/// faster, at 700 TFLOP/s\nint x = 3;  ///< in some 50\n'
                  "                         ///< us\n/* 1.5 times as fast */\n// tiles of 128x64 and 64 x 128, 95 % intervals, 128 bytes, 4x4 blocks\n")
        self.write("src/kernels/a.cu", source)
        self.write("tests/a_test.cpp", "// 5 ms\n")
        found = [(path.name, number, text) for path, number, text in comments.check_comments(self.folder)]
        self.assertEqual(found, [("a.cu", 1, "1.2x"), ("a.cu", 2, "12 %"), ("a.cu", 3, "700 tflop/s"), ("a.cu", 4, "50 us"),
                                 ("a.cu", 6, "1.5 times as fast")])
        status, output = self.run_main("--comments")
        self.assertEqual((status, output.splitlines()[0]), (1, "src/kernels/a.cu:1: 1.2x"))

    def test_command_line(self):
        self.write("README.md", "[a](gone.md)\n")
        self.assertEqual(self.run_main(), (1, "README.md:1: the link gone.md leads nowhere\ndocuments: 1 problems\n"))
        self.write("README.md", "# A\n")
        self.assertEqual(self.run_main(), (0, "documents: no problems\n"))


if __name__ == "__main__":
    unittest.main()
