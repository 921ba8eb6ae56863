#!/usr/bin/env python3
"""Writes docs/reference/cli.md from the --help output of the executables.

    scripts/make_cli_reference.py [--apps DIR] [--check]

DIR has the executables (default: build/cpu/apps). --check compares and writes nothing: if the page and the programs disagree, the
script names the first line that differs and exits with 1.
"""

import argparse
import itertools
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "cli.md"
PROGRAMS = ("te-train", "te-data", "te-convert", "te-generate", "te-experiment", "te-bench")
COMMON = ("--help", "--version", "--completion")  # options of all programs, listed once
HEAD = """# Command line

Options of all executables, as their `--help` prints them. Options that take a value show its type, allowed values or
range, and default: `--rows INT:INT in [1 - 1000]=10`. See also [exit codes](exit-codes.md) and
[environment variables](environment.md).

The page is generated. After changing options, build the executables and run `scripts/make_cli_reference.py`. The test
`apps.cli_reference` fails if page and programs differ.
"""


OTHER_FORM = 77  # exit code: the test is skipped


@dataclass
class Help:
    """The parsed output of one --help."""
    description: list = field(default_factory=list)
    usage: str = ""
    groups: dict = field(default_factory=dict)  # "Options": [(name and value, meaning)], also "Positionals", "Subcommands"
    footer: list = field(default_factory=list)


def read_help(text):
    """Parses --help output. A meaning begins in the column of the meaning of --help, or on the next line. A blank line ends a group;
    the footer follows the last group."""
    page, group = Help(), None
    column = next((line.index("Print this help") for line in text.splitlines() if "-h,--help" in line), None)
    if column is None:
        print("this version of CLI11 prints --help in another form")
        sys.exit(OTHER_FORM)
    for line in text.splitlines():
        heading = re.fullmatch(r"(Options|Positionals|Subcommands):", line)
        if heading and not page.footer:
            group = page.groups.setdefault(heading[1], [])
        elif line.startswith("Usage: ") and not page.usage:
            page.usage = line.removeprefix("Usage: ")
        elif not page.usage:
            page.description.append(line)
        elif not line and not page.footer:
            group = None
        elif group is None:
            page.footer.append(line)
        elif re.match(r" {10,}\S", line):
            name, meaning = group[-1]
            group[-1] = (name, f"{meaning} {line.strip()}".strip())
        else:
            name, meaning = (line[:column], line[column:]) if ends_in_column(line, column) else (line, "")
            group.append((same_defaults(name.strip()), meaning.strip()))
    return page


def ends_in_column(line, column):
    """Whether the name ends before the column of the meanings; a longer one is alone on its line, and may have a space there."""
    head, rest = line[:column], line[column:]
    inside = head.count("[") != head.count("]") or head.rstrip().endswith(" in") or rest.startswith(("[", "...", "REQUIRED"))
    return head.endswith(" ") and not inside


def same_defaults(name):
    """An option's name and value with its default as CLI11 before 2.4 prints it: `TEXT=auto`, later versions `TEXT [auto]`."""
    if not name.startswith("-"):
        return name
    # Newer versions print two spaces before "...", too.
    return re.sub(r"(?<! in) \[(\[[^\]]*\]|[^\[\]]*)\](?= |$)(?!.* \[)", r"=\1", re.sub(r"  +", " ", name))


def ask(program, *command):
    shown = subprocess.run([program, *command, "--help"], capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "120"})
    return read_help(shown.stdout)


def cell(text):
    parts = text.replace("|", "\\|").split("`")
    parts[::2] = [re.sub(r"([\\*<])(?!\|)", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def code_cell(text):
    return "`" + text.replace("|", "\\|") + "`"


def table(heading, entries):
    rows = "".join(f"| {code_cell(name)} | {cell(meaning)} |\n" for name, meaning in entries)
    return f"| {heading} | Meaning |\n| --- | --- |\n{rows}" if rows else ""


def is_common(name):
    return any(option in re.split(r"[ ,]", name) for option in COMMON)


def without_blank_ends(lines):
    return "\n".join(lines).strip("\n")


def body(page):
    """The usage, tables and footer of a program or command as Markdown."""
    options = [entry for entry in page.groups.get("Options", []) if not is_common(entry[0])]
    parts = [f"    {page.usage}\n", table("Argument", page.groups.get("Positionals", [])), table("Option", options)]
    footer = without_blank_ends(page.footer)
    parts.append(f"```text\n{footer}\n```\n" if footer else "")
    return "\n".join(part for part in parts if part)


def described(page, name):
    text = without_blank_ends(page.description).removeprefix(f"{name}: ")
    return cell(text[:1].upper() + text[1:]).replace("\n", "\n\n")


def reference(apps):
    programs = [(name, ask(apps / name)) for name in PROGRAMS]
    commands = [(name, command) for name, page in programs for command, _ in page.groups.get("Subcommands", [])]
    with ThreadPoolExecutor() as pool:
        pages = dict(zip(commands, pool.map(lambda pair: ask(apps / pair[0], pair[1]), commands)))
    common = [entry for entry in programs[0][1].groups["Options"] if is_common(entry[0])]
    text = f"{HEAD}\nOptions of every program:\n\n{table('Option', common)}"
    for name, page in programs:
        text += f"\n## {name}\n\n{described(page, name)}\n\n{body(page)}"
        for command, _ in page.groups.get("Subcommands", []):
            own = pages[name, command]
            text += f"\n### {name} {command}\n\n{described(own, name)}\n\n{body(own)}"
    return text


def first_difference(page, fresh):
    for number, (old, new) in enumerate(itertools.zip_longest(page.splitlines(), fresh.splitlines()), 1):
        if old != new:
            return f"line {number}:\n  page:     {old}\n  programs: {new}"
    return "the end of the file"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apps", type=Path, default=ROOT / "build" / "cpu" / "apps", metavar="DIR", help="folder of the executables")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()
    missing = [name for name in PROGRAMS if not (arguments.apps / name).is_file()]
    if missing:
        sys.exit(f"{arguments.apps} has no {missing[0]}; build the executables or pass --apps")
    fresh = reference(arguments.apps)
    if not arguments.check:
        PAGE.write_text(fresh)
    elif not PAGE.exists() or PAGE.read_text() != fresh:
        difference = first_difference(PAGE.read_text() if PAGE.exists() else "", fresh)
        sys.exit(f"{PAGE.relative_to(ROOT)} differs from the programs; run scripts/make_cli_reference.py. {difference}")
    print(f"{PAGE.relative_to(ROOT)}: {len(fresh.splitlines())} lines")


if __name__ == "__main__":
    main()
