#!/usr/bin/env python3
"""Checks the documents: links and anchors, names in backticks, and words of the style guide.

    scripts/check_docs.py [--root DIR] [--te-train EXECUTABLE]

- Every relative link, picture and anchor of README.md, CONTRIBUTING.md and docs/ leads somewhere.
- Config keys, command-line options, environment variables and files that stand in backticks or commands exist. Keys are those of
  docs/configuration.md, whose tables a test holds to the program; with --te-train those of `EXECUTABLE --describe-keys`.
- Pages in PLAIN_PAGES have none of the words in WORDS. Add a page to the list when its text follows the style.

Prints FILE:LINE: what is wrong, and exits with 1 if anything is. The engineering log (docs/experiments.md) tells of the past: of it
only links are checked.
"""

import argparse
import fnmatch
import functools
import re
import subprocess
import sys
from pathlib import Path

# Pages whose prose is checked for WORDS.
PLAIN_PAGES = [
    "README.md",
    "docs/README.md",
    "docs/tutorials/quickstart.md",
    "docs/how-to/troubleshooting.md",
    "docs/reference/environment.md",
    "docs/reference/exit-codes.md",
    "docs/reference/glossary.md",
    "docs/reference/hardware.md",
    "docs/explanation/peers.md",
    "docs/results/benchmarks.md",
]
HISTORY = ["docs/experiments.md"]  # pages and folders
# What to write instead of a word: the pattern is looked for in prose, without code, in small letters.
WORDS = [
    (r"\bbeside\b", "next to, and, versus"),
    (r"\bbehind\b", "after"),
    (r"\bin front of\b", "before"),
    (r"\banew\b", "again"),
    (r"\bgo(es)? on\b", "resumes"),
    (r"\bmatrix products?\b|\bproducts?\b", "GEMM"),
    (r"\b(casts?|made) again\b|\brecast\b|\bremade\b", "requantized, recomputed"),
    (r"\bout(grow|grows|grew|grown)\b", "overflow the scale"),
    (r"\bbecame zero\b", "underflow"),
    (r"\bmain values\b", "FP32 master weights"),
    (r"(?<!residual )(?<!cuda )\bstreams?\b", "residual stream, CUDA stream"),
    (r"\brooms?\b|\bhouse\b", "library, module"),
    (r"\bdealt out\b|\bshared (by|among) (the )?ranks\b", "assigned, sharded across ranks"),
    (r"\boutput head\b", "output layer"),
    (r"\btwins?\b", "BF16 baseline of the same seed"),
    (r"\bthe bar\b|\bits bar\b", "tolerance"),
    (r"\bnot enough runs to say\b", "inconclusive"),
    (r"\bsmallest seen\b", "minimum detectable gap"),
    (r"\b(an)?other order\b|\bcalmer\b", "BF16 control, low-noise setting"),
    (r"\bthrows? about\b", "spikes"),
    (r"\bcomes? back\b|\bheld out\b", "repeated data, validation set"),
    (r"\bembeddings that start\b", "embedding init std"),
    (r"\bone call\b|\bat rest\b|\bsustained\b", "one benchmark session, cold, power-limited"),
    (r"\bmultiprocessors?\b(?! of a gpu)", "SMs"),
    (r"\bin turns\b|\bby copies\b", "double-buffered, with copy engines"),
    (r"\bnobody\b|\bsomebody\b|\bwhoever\b", "name the program or the person"),
    (r"\bmicro batch(es)?\b|\bmicro-batch(es)?\b", "microbatch"),
    (r"\bwarm-up\b|\bper cent\b", "warmup, percent"),
    (r"\d %", "a percent sign without a blank"),
]

PROGRAM = re.compile(r"(?:^|[\s`/(|])(te-(?:train|data|convert|generate|bench|experiment)|(?:\./)?scripts/[\w/.-]+)(?=$|[\s`;)|])")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
FOLDERS = ("apps/", "src/", "configs/", "scripts/", "tests/", "docs/", "cmake/", "fuzz/", ".ci/")
SOURCES = (".cpp", ".h", ".cu", ".cuh", ".py", ".sh", ".sbatch")
FILE_ENDINGS = (*SOURCES, ".md", ".yaml", ".json", ".jsonl", ".csv", ".png", ".txt", ".safetensors", ".bin", ".idx", ".model", ".lock", ".env")
MISSPELLED = {"model.num_layer"}  # examples of mistakes
# Options of other programs that documents name by themselves.
FOREIGN = {"--bind-to", "--map-by", "--mca", "--prtemca", "--oversubscribe", "--allow-run-as-root", "--hostfile", "--shm-size", "--gpus",
           "--distribution", "--mpi", "--nodes", "--wait", "--kill-on-bad-exit", "--requeue", "--preset", "--build", "--target", "--install",
           "--prefix", "--test-dir", "--output-on-failure", "--logdir", "--offline"}


class Page:
    """A page's lines, each with the kind of text it is: "text", or "code" for a line of a code block."""

    def __init__(self, path):
        self.path = path
        self.lines = path.read_text().splitlines()
        self.kinds = []
        fence, indented = None, False
        before = ""
        for line in self.lines:
            stripped = line.strip()
            if fence:
                self.kinds.append("code")
                if stripped.startswith(fence):
                    fence = None
            elif stripped.startswith(("```", "~~~")):
                fence = stripped[:3]
                self.kinds.append("code")
            else:
                indented = line.startswith("    ") and (indented or not before) or (indented and not stripped)
                list_item = bool(re.match(r"\s*([-*]|\d+\.) ", line))
                indented = indented and not list_item
                self.kinds.append("code" if indented else "text")
            before = stripped

    def texts(self):
        return [(number, line) for number, (line, kind) in enumerate(zip(self.lines, self.kinds), 1) if kind == "text"]

    def code_lines(self):
        """Lines of code blocks, with those that end in a backslash joined to the next."""
        joined, start = "", 0
        for number, (line, kind) in enumerate(zip(self.lines, self.kinds), 1):
            if kind != "code":
                joined = ""
                continue
            start = start if joined else number
            joined += line.rstrip("\\") if line.endswith("\\") else line
            if not line.endswith("\\"):
                yield start, joined
                joined = ""


def slug(heading):
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@functools.lru_cache(maxsize=None)
def anchors(path):
    found, seen = set(), {}
    for _, line in Page(path).texts():
        heading = re.match(r"#{1,6} +(.*?) *#*$", line)
        if heading:
            name = slug(heading[1])
            count = seen.get(name, 0)
            seen[name] = count + 1
            found.add(f"{name}-{count}" if count else name)
        found.update(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", line))
    return found


def read_keys(root, te_train):
    if te_train:
        text = subprocess.run([te_train, "--describe-keys"], capture_output=True, text=True, check=True).stdout
        return set(re.findall(r"^\s*([a-z_]+\.[a-z0-9_]+)\s", text, re.M))
    return set(re.findall(r"^\| `([a-z_]+\.[a-z0-9_]+)` \|", (root / "docs" / "configuration.md").read_text(), re.M))


class Repository:
    def __init__(self, root, te_train=None):
        self.root = root
        self.keys = read_keys(root, te_train)
        self.sections = {key.split(".")[0] for key in self.keys}
        self.files = [path for folder in FOLDERS for path in (root / folder).rglob("*") if path.is_file()]
        self.names = {path.name for path in self.files}
        self.paths = {path.as_posix() for path in self.files}
        code = "\n".join(path.read_text(errors="replace") for path in self.files if path.suffix in (*SOURCES, ".cmake", ".env") or
                         path.name in ("CMakeLists.txt", "run"))
        top = root / "CMakeLists.txt"
        code += top.read_text() if top.exists() else ""
        self.options = set(OPTION.findall(code)) | {"--help"} | FOREIGN
        self.variables = set(re.findall(r"\bTE_[A-Z0-9_]+", code))

    def has_path(self, text, page):
        text = text.rstrip("/").removeprefix("./")
        if "{" in text:
            start, rest = text.split("{", 1)
            inner, end = rest.split("}", 1) if "}" in rest else (rest, "")
            return all(self.has_path(start + part + end, page) for part in inner.split(","))
        if (self.root / text).exists() or (page.parent / text).exists():
            return True
        return any(fnmatch.fnmatch(path, "*/" + text) for path in self.paths)


def check_links(page, problems):
    for number, line in page.texts():
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            path = (page.path.parent / name).resolve() if name else page.path
            if not path.exists():
                problems.append((page.path, number, f"the link {target} leads nowhere"))
            elif anchor and path.suffix == ".md" and anchor not in anchors(path):
                problems.append((page.path, number, f"{name or 'this page'} has no heading #{anchor}"))


def check_options(repository, page, number, text, problems):
    """Options after a program of the project; those of another program in the same line come before it."""
    found = PROGRAM.search(text)
    alone = OPTION.match(text)
    if not found and not alone:
        return
    for option in OPTION.findall(text[found.end():] if found else text):
        if option not in repository.options:
            problems.append((page.path, number, f"no program has the option {option}"))


def check_span(repository, page, number, span, problems):
    for key in re.findall(r"(?<![\w./-])([a-z_]+\.[a-z0-9_]+)(?![\w./(*{-])", span):
        if key.split(".")[0] in repository.sections and not key.endswith(FILE_ENDINGS) and key not in repository.keys | MISSPELLED:
            problems.append((page.path, number, f"there is no config key {key}"))
    for variable in re.findall(r"(?<![\w$])TE_[A-Z0-9_]+\b(?!\()", span):
        if variable not in repository.variables:
            problems.append((page.path, number, f"nothing reads {variable}"))
    check_options(repository, page, number, span, problems)
    word = span.split(":")[0] if re.fullmatch(r"[\w./*{},-]+(:\d+)?", span) else ""
    placeholder = re.search(r"[A-Z]{2,}|N\b|\.\.\.", re.sub(r"CMakeLists|README|LICENSE|CHANGELOG|CONTRIBUTING|QUICKSTART", "", word))
    if not word or placeholder:
        return
    if word.startswith(FOLDERS) or ("/" in word and word.endswith(SOURCES)):
        if not repository.has_path(word, page.path):
            problems.append((page.path, number, f"there is no file {word}"))
    elif word.endswith(SOURCES) and "*" not in word and "{" not in word and word not in repository.names:
        problems.append((page.path, number, f"there is no file {word}"))


def check_names(repository, page, problems):
    for number, line in page.texts():
        for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", line):
            check_span(repository, page, number, span, problems)
    for number, line in page.code_lines():
        check_options(repository, page, number, line, problems)


def check_words(page, problems):
    for number, line in page.texts():
        prose = re.sub(r"`[^`]*`|<!--.*?-->|\]\([^)]*\)", " ", line).lower()
        for pattern, better in WORDS:
            found = re.search(pattern, prose)
            if found:
                problems.append((page.path, number, f'"{found[0]}": write {better}'))


def check(root, te_train=None):
    """[(path, line, what is wrong)]"""
    repository, problems = Repository(root, te_train), []
    pages = [root / name for name in ("README.md", "CONTRIBUTING.md") if (root / name).exists()] + sorted((root / "docs").rglob("*.md"))
    for path in pages:
        page, name = Page(path), path.relative_to(root).as_posix()
        check_links(page, problems)
        if not any(name == old or name.startswith(old + "/") for old in HISTORY):
            check_names(repository, page, problems)
        if name in PLAIN_PAGES:
            check_words(page, problems)
    problems += [(root / name, 1, "is in PLAIN_PAGES and does not exist") for name in PLAIN_PAGES if not (root / name).exists()]
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], metavar="DIR")
    parser.add_argument("--te-train", metavar="EXECUTABLE", help="ask this te-train for the config keys")
    arguments = parser.parse_args()
    problems = check(arguments.root.resolve(), arguments.te_train)
    for path, number, text in problems:
        print(f"{path.relative_to(arguments.root.resolve())}:{number}: {text}")
    print(f"{len(problems)} problems" if problems else "documents: no problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
