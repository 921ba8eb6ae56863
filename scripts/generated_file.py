"""Command line of scripts that generate a source file: writes the file, or with --check compares it with new output."""

import argparse
import sys

from script_files import write_text


def write_or_check(description, output, make_text):
    """output: a pathlib.Path; make_text() returns the file's text."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the file, write nothing")
    arguments = parser.parse_args()
    text = make_text()
    if not arguments.check:
        write_text(output, text)
    elif output.read_text() != text:
        sys.exit(f"{output}: outdated; run this script without --check")
    print(f"{output}: {text.count(chr(10))} lines")
