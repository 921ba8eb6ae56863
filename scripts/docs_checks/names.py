"""Names in backticks and commands: config keys, options, environment variables, files, and names of the C++ code."""

import fnmatch
import re
import subprocess

PROGRAM = re.compile(r"(?:^|[\s`/(|])(te-(?:train|data|convert|generate|bench|experiment)|(?:\./)?scripts/[\w/.-]+)(?=$|[\s`;)|])")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
FOLDERS = ("apps/", "src/", "configs/", "scripts/", "tests/", "docs/", "cmake/", "fuzz/", ".ci/")
CPP = (".cpp", ".h", ".cu", ".cuh")
SOURCES = (*CPP, ".py", ".sh", ".sbatch")
FILE_ENDINGS = (*SOURCES, ".md", ".yaml", ".json", ".jsonl", ".csv", ".png", ".txt", ".safetensors", ".bin", ".idx", ".model", ".lock", ".env")
MISSPELLED = {"model.num_layer"}  # examples of mistakes
# Options of other programs that documents name by themselves.
FOREIGN_OPTIONS = {"--bind-to", "--map-by", "--mca", "--prtemca", "--oversubscribe", "--allow-run-as-root", "--hostfile", "--shm-size", "--gpus",
                   "--distribution", "--mpi", "--nodes", "--wait", "--kill-on-bad-exit", "--requeue", "--preset", "--build", "--target",
                   "--install", "--prefix", "--test-dir", "--output-on-failure", "--logdir", "--offline"}
# Names of other programs' code that look like C++ names of this one: of Transformer Engine, PyTorch, transformers, and
# of products.
FOREIGN_NAMES = {"DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "GradScaler", "AutoTokenizer", "AutoModelForCausalLM",
                 "TensorBoard", "SentencePiece", "PyTorch", "DeepSeek"}

# `Class::method`, also with namespaces and arguments; `CamelCase` of two parts or more; `function()`.
QUALIFIED = re.compile(r"~?[A-Za-z_]\w*(?:::~?[A-Za-z_]\w*)+")
CAMEL_CASE = re.compile(r"(?:[A-Z][a-z0-9]+){1,}(?:[A-Z][A-Za-z0-9]*)+")
FUNCTION = re.compile(r"([a-z_]\w*)\(\)")


def read_keys(root, te_train):
    if te_train:
        text = subprocess.run([te_train, "--describe-keys"], capture_output=True, text=True, check=True).stdout
        return set(re.findall(r"^\s*([a-z_]+\.[a-z0-9_]+)\s", text, re.M))
    pages = (root / "docs").rglob("configuration.md")
    return {key for page in pages for key in re.findall(r"^\| `([a-z_]+\.[a-z0-9_]+)` \|", page.read_text(), re.M)}


class Repository:
    def __init__(self, root, te_train=None):
        self.root = root
        self.keys = read_keys(root, te_train)
        self.sections = {key.split(".")[0] for key in self.keys}
        self.files = [path for folder in FOLDERS for path in (root / folder).rglob("*") if path.is_file()]
        self.names = {path.name for path in self.files}
        self.paths = {path.as_posix() for path in self.files}
        texts = {path: path.read_text(errors="replace") for path in self.files
                 if path.suffix in (*SOURCES, ".cmake", ".env") or path.name in ("CMakeLists.txt", "run")}
        code = "\n".join(texts.values())
        top = root / "CMakeLists.txt"
        code += top.read_text() if top.exists() else ""
        self.options = set(OPTION.findall(code)) | {"--help"} | FOREIGN_OPTIONS
        self.variables = set(re.findall(r"\bTE_[A-Z0-9_]+", code))
        self.read_code([text for path, text in texts.items() if path.relative_to(root).parts[0] in ("src", "apps", "tests")])

    def read_code(self, texts):
        """Identifiers outside comments; and of a class, an enum or a namespace those that may be its members: they follow `SCOPE::`,
        or in a file that declares it."""
        self.identifiers, self.members = set(), {}
        for text in texts:
            words = set(re.findall(r"[A-Za-z_]\w*", re.sub(r"(?m)^\s*//.*$|\s//.*$", "", text)))
            self.identifiers |= words
            for scope in re.findall(r"\b(?:class|struct|enum|union|using|concept)\s+(?:class\s+|struct\s+)?(?:TE_\w+\s+)?(\w+)", text):
                self.members.setdefault(scope, set()).update(words)
            for namespaces in re.findall(r"\bnamespace\s+([\w:]+)", text):
                for scope in namespaces.split("::"):
                    self.members.setdefault(scope, set()).update(words)
            for scope, member in re.findall(r"\b(\w+)::~?(\w+)", text):
                self.members.setdefault(scope, set()).add(member)

    def has_path(self, text, page):
        text = text.rstrip("/").removeprefix("./")
        if "{" in text:
            start, rest = text.split("{", 1)
            inner, end = rest.split("}", 1) if "}" in rest else (rest, "")
            return all(self.has_path(start + part + end, page) for part in inner.split(","))
        if (self.root / text).exists() or (page.parent / text).exists():
            return True
        return any(fnmatch.fnmatch(path, "*/" + text) for path in self.paths)

    def has_code(self, span):
        """True unless the span is a C++ name that does not exist."""
        if span in FOREIGN_NAMES or span.startswith(("std::", "torch::")):
            return True
        if function := FUNCTION.fullmatch(span):
            return function[1] in self.identifiers
        name = re.sub(r"\(.*\)$|<.*>$", "", span)
        if QUALIFIED.fullmatch(name):
            parts = name.replace("~", "").removeprefix("te::").split("::")
            return all(member in self.members.get(scope, ()) for scope, member in zip(parts, parts[1:]))
        return not CAMEL_CASE.fullmatch(name) or name in self.identifiers


def check_options(repository, page, number, text, problems):
    """Options after a program of the project; those of another program in the same line come before it."""
    found = PROGRAM.search(text)
    alone = OPTION.match(text)
    if not found and not alone:
        return
    for option in OPTION.findall(text[found.end():] if found else text):
        if option not in repository.options:
            problems.append((page.path, number, f"no program has the option {option}"))


def check_file(repository, page, number, span, problems):
    word = span.split(":")[0] if re.fullmatch(r"[\w./*{},-]+(:\d+)?", span) else ""
    placeholder = re.search(r"[A-Z]{2,}|N\b|\.\.\.", re.sub(r"CMakeLists|README|LICENSE|CHANGELOG|CONTRIBUTING|QUICKSTART", "", word))
    if not word or placeholder:
        return
    if word.startswith(FOLDERS) or ("/" in word and word.endswith(SOURCES)):
        if not repository.has_path(word, page.path):
            problems.append((page.path, number, f"there is no file {word}"))
    elif word.endswith(SOURCES) and "*" not in word and "{" not in word and word not in repository.names:
        problems.append((page.path, number, f"there is no file {word}"))


def check_span(repository, page, number, span, problems):
    for key in re.findall(r"(?<![\w./-])([a-z_]+\.[a-z0-9_]+)(?![\w./(*{-])", span):
        if key.split(".")[0] in repository.sections and not key.endswith(FILE_ENDINGS) and key not in repository.keys | MISSPELLED:
            problems.append((page.path, number, f"there is no config key {key}"))
    for variable in re.findall(r"(?<![\w$])TE_[A-Z0-9_]+\b(?!\()", span):
        if variable not in repository.variables:
            problems.append((page.path, number, f"nothing reads {variable}"))
    check_options(repository, page, number, span, problems)
    check_file(repository, page, number, span, problems)


def check_names(repository, page, problems):
    for number, span in page.spans():
        check_span(repository, page, number, span, problems)
    for number, line in page.code_lines():
        check_options(repository, page, number, line, problems)


def check_code(repository, page, problems):
    for number, span in page.spans():
        if not repository.has_code(span):
            problems.append((page.path, number, f"the code has no {span}"))
