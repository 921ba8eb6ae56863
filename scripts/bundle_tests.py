#!/usr/bin/env python3
"""Packs the tests of a build tree for a machine that has a GPU but no compiler, or too little time to build.

    scripts/bundle_tests.py build/cuda tests.tar.xz                  # here
    tar -xf tests.tar.xz && ctest --test-dir build/cuda -L gpu       # there, in a checkout of the same commit

Many tests read files of the checkout, whose path is compiled in, so the path must be the same on both machines (a
symbolic link is enough). The archive contains stripped executables, libraries that CUDA images do not have, and a list of
tests instead of CTest's own, which names files of this machine's CMake."""

import argparse
import io
import json
import lzma
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import script_files

# Libraries that scripts/install_deps.sh installs and images for CUDA and MPI do not have.
LIBRARIES = ("fmt", "pcre2-8", "sentencepiece", "spdlog", "utf8proc", "xxhash", "yaml-cpp")
# Executables share most of their code; a dictionary that spans several of them compresses it once.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 2, "dict_size": 512 << 20}]


class UserError(Exception):
    pass


def run(*command):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


def is_executable(path):
    if not path.is_file() or path.is_symlink() or not path.stat().st_mode & 0o100:
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def tests_of(build, label, pattern):
    """(tests that can run, one dictionary each as ctest lists them; names of programs that are not built)."""
    arguments = ["ctest", "--test-dir", build, "--show-only=json-v1"]
    arguments += ["-R", pattern] if pattern else []
    found, missing = [], set()
    for test in json.loads(run(*arguments))["tests"]:
        properties = {p["name"]: p["value"] for p in test["properties"]}
        absent = [word for word in test.get("command", []) if str(build) in word and not Path(word).exists()]
        if test["name"].endswith("_NOT_BUILT"):  # replaces all tests of a program, and has no label
            missing.add(test["name"].removesuffix("_NOT_BUILT"))
        elif not label or label in properties.get("LABELS", []):
            absent += [] if "command" in test else [test["name"]]  # ctest omits the command if the program does not exist
            missing.update(Path(word).name for word in absent)
            found += [] if absent else [test]
    if not found:
        raise UserError(f"{build}: no test has the label {label!r}" + (f" and a name like {pattern!r}" if pattern else ""))
    return found, sorted(missing)


def executables_of(build, tests):
    """Executables of the tests, programs that they start (apps/), and other programs in their folders that are not tests."""
    named = {Path(word) for test in tests for word in test["command"]}
    folders = {path.parent for path in named if build in path.parents} | {build / "apps"}
    siblings = {path for folder in folders if folder.is_dir() for path in folder.iterdir()}
    wanted = {path for path in named | siblings if build in path.parents and is_executable(path)}
    return sorted(path for path in wanted if path in named or not re.match("test_|.*_pch$", path.name))


def libraries_of(executables):
    found = {}
    for path in executables:
        for name, target in re.findall(r"^\s*(lib\S+) => (/\S+)", run("ldd", path), re.MULTILINE):
            if any(name.startswith(f"lib{wanted}.so") for wanted in LIBRARIES):
                found[name] = Path(target).resolve()
    return found


def list_of_tests(build, tests, there):
    """A CTestTestfile.cmake that needs only the archive, unpacked so that `there` is the build tree."""
    lines = ["# Written by scripts/bundle_tests.py."]

    def quoted(text):
        return '"' + re.sub(r'([\\"$])', r"\\\1", str(text).replace(str(build), str(there))) + '"'

    for test in tests:
        name = quoted(test["name"])
        lines.append(f"add_test({name} {' '.join(map(quoted, test['command']))})")
        properties = {p["name"]: p["value"] for p in test["properties"]}
        changes = properties.get("ENVIRONMENT_MODIFICATION", [])
        changes = changes if isinstance(changes, list) else [changes]
        properties["ENVIRONMENT_MODIFICATION"] = [*changes, f"LD_LIBRARY_PATH=path_list_append:{build}/lib"]
        for key, value in properties.items():
            value = ";".join(map(str, value)) if isinstance(value, list) else value
            lines.append(f"set_tests_properties({name} PROPERTIES {key} {quoted(value)})")
    return "\n".join(lines) + "\n"


def write(build, output, tests, checkout):
    root = build.parent.parent
    executables = executables_of(build, tests)
    folders = {Path(p["value"]) for t in tests for p in t["properties"] if p["name"] == "WORKING_DIRECTORY"}
    with tempfile.TemporaryDirectory() as scratch, lzma.open(output, "wb", filters=FILTERS) as compressed:
        stripped = Path(scratch) / "stripped"
        with tarfile.open(fileobj=compressed, mode="w") as archive:
            text = list_of_tests(build, tests, checkout / build.relative_to(root)).encode()
            entry = tarfile.TarInfo(str(build.relative_to(root) / "CTestTestfile.cmake"))
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
            for folder in sorted(folders):
                if build in folder.parents:
                    archive.add(folder, folder.relative_to(root), recursive=False)
            for path in executables:
                run("strip", "-o", stripped, path)
                archive.add(stripped, path.relative_to(root))
            for name, path in sorted(libraries_of(executables).items()):
                archive.add(path, build.relative_to(root) / "lib" / name)
    return len(executables)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="build tree, such as build/cuda")
    parser.add_argument("output", type=Path, help="the archive, .tar.xz")
    parser.add_argument("--label", default="gpu", help="tests with this label (default: gpu; empty for all)")
    parser.add_argument("--filter", default="", metavar="REGEX", help="pack only tests whose name matches")
    parser.add_argument("--checkout", type=Path, metavar="FOLDER", help="checkout on the other machine (default: same path as here)")
    options = parser.parse_args()
    build = options.build.resolve()
    checkout = options.checkout or build.parent.parent
    try:
        if not (build / "CTestTestfile.cmake").exists():
            raise UserError(f"{options.build}: not a build tree with tests; configure one with cmake --preset cuda")
        tests, missing = tests_of(build, options.label, options.filter)
        if missing:
            print(f"bundle_tests.py: warning: not built and not in the archive: {', '.join(missing)}", file=sys.stderr)
        with script_files.complete_file(options.output, "wb") as file:
            count = write(build, file, tests, checkout)
    except subprocess.CalledProcessError as error:
        sys.exit(f"bundle_tests.py: error: {error.cmd[0]} failed: {error.stderr.strip()}")
    size = options.output.stat().st_size / 1e6
    print(f"{options.output}: {len(tests)} tests, {count} executables, {size:.1f} MB, for a checkout at {checkout}")


if __name__ == "__main__":
    script_files.run(main, UserError)
