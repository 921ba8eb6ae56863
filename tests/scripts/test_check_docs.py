"""Tests of scripts/check_docs.py, and the documents themselves."""

import sys
import unittest
from pathlib import Path

from folder_testing import InFolder

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import check_docs


class Documents(unittest.TestCase):
    def test_have_no_problems(self):
        problems = [f"{path.relative_to(ROOT)}:{number}: {text}" for path, number, text in check_docs.check(ROOT)]
        self.assertEqual(problems, [])


class Checker(InFolder):
    """A small repository with one page, which each test writes."""

    def setUp(self):
        super().setUp()
        self.addCleanup(setattr, check_docs, "PLAIN_PAGES", check_docs.PLAIN_PAGES)
        check_docs.PLAIN_PAGES = ["README.md"]
        check_docs.anchors.cache_clear()
        self.write("docs/configuration.md", "# Keys\n\n| Key |\n|---|\n| `model.num_layers` | integer |\n\n## Twice\n\n## Twice\n")
        self.write("apps/te-train.cpp", 'add_option("--config"); getenv("TE_GEMM_CACHE");')
        self.write("src/core/error.h", "")

    def problems(self, text):
        self.write("README.md", text)
        return [f"{number}: {found}" for _, number, found in check_docs.check(self.folder.resolve())]

    def test_a_good_page(self):
        self.assertEqual(self.problems("# A `b` title!\n\n[here](#a-b-title), [keys](docs/configuration.md#twice-1), `model.num_layers=2`,\n"
                                       "`te-train --config FILE`, `core/error.h`, `src/core`, `TE_GEMM_CACHE`, `model.yaml`, [web](https://x.y)\n\n"
                                       "    mpirun --mca a b te-train --config x\n"), [])

    def test_dead_links_and_anchors(self):
        self.assertEqual(self.problems("[a](gone.md)\n[b](docs/configuration.md#twice-2)\n[c](#nothing)\n![d](docs/p.png)\n"),
                         ["1: the link gone.md leads nowhere", "2: docs/configuration.md has no heading #twice-2",
                          "3: this page has no heading #nothing", "4: the link docs/p.png leads nowhere"])

    def test_names_that_do_not_exist(self):
        self.assertEqual(self.problems("`model.num_layer`s are fine, `model.layers` not\n`te-train --confg x`\n`--nothing`\n`TE_GONE`\n"
                                       "`src/core/gone.h`\n`gone_test.cpp`\n\n    te-train --config a \\\n      --gone\n"),
                         ["1: there is no config key model.layers", "2: no program has the option --confg",
                          "3: no program has the option --nothing", "4: nothing reads TE_GONE", "5: there is no file src/core/gone.h",
                          "6: there is no file gone_test.cpp", "8: no program has the option --gone"])

    def test_words_of_the_old_style(self):
        found = self.problems("FP8 beside BF16, `beside`\nthe residual stream and a stream\nthe gap is 0.25 %\n\n    behind, in code\n")
        self.assertEqual([line.split(": write")[0] for line in found], ['1: "beside"', '2: "stream"', '3: "5 %"'])

    def test_code_is_no_link_and_no_heading(self):
        self.assertEqual(self.problems("```\n# not a heading\n[a](gone.md)\n```\n`[a](gone.md)`\n"), [])
        self.assertEqual(self.problems("[a](#not-a-heading)\n\n```\n# not a heading\n```\n"), ["1: this page has no heading #not-a-heading"])

    def test_a_page_of_the_list_that_is_gone(self):
        check_docs.PLAIN_PAGES = ["README.md", "docs/gone.md"]
        self.assertEqual(self.problems("# A\n"), ["1: is in PLAIN_PAGES and does not exist"])

    def test_command_line(self):
        self.write("README.md", "[a](gone.md)\n")
        self.addCleanup(setattr, sys, "argv", sys.argv)
        sys.argv = ["check_docs.py", "--root", str(self.folder)]
        self.assertEqual(check_docs.main(), 1)
        self.write("README.md", "# A\n")
        self.assertEqual(check_docs.main(), 0)


if __name__ == "__main__":
    unittest.main()
