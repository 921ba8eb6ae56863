#!/usr/bin/env python3
"""Checks the documents: links, names, words of the style guide, and lengths.

    scripts/check_docs.py [--root DIR] [--te-train EXECUTABLE]    # README.md, CONTRIBUTING.md and docs/
    scripts/check_docs.py --help-texts BUILD/apps                 # words in the --help of all executables and their subcommands
    scripts/check_docs.py --comments                              # performance numbers in comments of src and apps

- Every relative link, picture and anchor leads somewhere.
- Config keys, command-line options, environment variables and files that stand in backticks or commands exist. Keys are
  read from docs/reference/configuration.md, whose tables a test compares with the program; with --te-train from
  `EXECUTABLE --describe-keys`.
- C++ names in backticks (`Class::method`, `CamelCase`, `function()`) exist in src, apps or tests.
- No page has a word of WORDS (docs_checks/words.py).
- README.md and docs/ are not too long (docs_checks/budgets.py).

Prints FILE:LINE: what is wrong, and exits with 1 if anything is. Pages of the past are checked less: docs/log for links alone,
docs/results/history not for C++ names.
"""

import argparse
import sys
from pathlib import Path

from docs_checks import words
from docs_checks.budgets import LOG, check_budgets
from docs_checks.comments import check_comments
from docs_checks.names import Repository, check_code, check_names
from docs_checks.pages import Page, check_links

HISTORY = "docs/results/history"
SKIPPED = 77  # exit code of a test that does not count


def is_in(name, folder):
    return name.startswith(folder + "/")


def check(root, te_train=None):
    """[(path, line, what is wrong)]"""
    repository, problems = Repository(root, te_train), []
    pages = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md") if (root / name).exists()]
    pages += sorted((root / "docs").rglob("*.md"))
    for path in pages:
        page, name = Page(path), path.relative_to(root).as_posix()
        check_links(page, problems)
        if is_in(name, LOG):
            continue
        check_names(repository, page, problems)
        if not is_in(name, HISTORY):
            check_code(repository, page, problems)
        if name not in words.EXEMPT_PAGES:
            words.check_words(page, problems)
    check_budgets(root, problems)
    return problems


def report(problems, what):
    for place, number, text in problems:
        print(f"{place}:{number}: {text}")
    print(f"{what}: {len(problems)} problems" if problems else f"{what}: no problems")
    return 1 if problems else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], metavar="DIR")
    parser.add_argument("--te-train", metavar="EXECUTABLE", help="ask this te-train for the config keys")
    parser.add_argument("--help-texts", type=Path, metavar="FOLDER", help="check the help of the executables in FOLDER instead")
    parser.add_argument("--comments", action="store_true", help="list performance numbers in comments instead")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    if arguments.help_texts:
        found = report(words.check_help_texts(arguments.help_texts), "help texts")
        return found if words.ENFORCE_HELP_TEXTS else SKIPPED
    problems = check_comments(root) if arguments.comments else check(root, arguments.te_train)
    return report([(path.relative_to(root), number, text) for path, number, text in problems], "comments" if arguments.comments else "documents")


if __name__ == "__main__":
    sys.exit(main())
