"""Words of the style guide, in pages and in help texts."""

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

# Pages whose words are not checked.
EXEMPT_PAGES = []
# False: check_docs.py --help-texts prints what it finds, and the test passes as skipped.
ENFORCE_HELP_TEXTS = True

# What to write instead of a word: the pattern is looked for in prose, without code, in small letters.
WORDS = [
    (r"\bbeside\b", "next to, and, versus"),
    (r"\bbehind\b", "after"),
    (r"\bin front of\b", "before"),
    (r"\banew\b", "again"),
    (r"\bgo(es)? on\b", "resumes"),
    (r"\bmatrix products?\b|\bproducts?\b", "GEMM"),
    (r"\bcast(s|ing)?\b", "quantize, convert"),
    (r"\bmade again\b|\brecast\b|\bremade\b", "requantized, recomputed"),
    (r"\bout(grow|grows|grew|grown)\b", "overflow the scale"),
    (r"\bbecame zero\b", "underflow"),
    (r"\bmain values\b|(?<!megatron-lm's )\bmain parameters?\b", "FP32 master weights"),
    (r"\bflush(ed|es|ing)?\b(?! to zero)", "underflow, flushed to zero"),
    (r"\bwhat travels\b|\btravels?\b", "communication volume"),
    (r"(?<!residual )(?<!cuda )\bstreams?\b", "residual stream, CUDA stream"),
    (r"\brooms?\b|\bhouse\b", "library, module"),
    (r"\bdealt\b|\b(in|of|into) pieces\b|\bshared (by|among) (the )?ranks\b", "assigned, sharded across ranks"),
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
    (r"\bproposals?\b", "cuBLASLt heuristic candidates"),
    (r"\b(the|a|its|their) floors?\b", "speed-of-light time, lower bound"),
    (r"\b(tensor|context|data) ranks\b", "tensor-parallel ranks, and so on"),
    (r"\bmultiprocessors?\b(?! of a gpu)", "SMs"),
    (r"\bin turns\b|\bby copies\b", "double-buffered, with copy engines"),
    (r"\bnobody\b|\bsomebody\b|\bwhoever\b", "name the program or the person"),
    (r"\bmicro batch(es)?\b|\bmicro-batch(es)?\b", "microbatch"),
    (r"\bwarm-up\b|\bper cent\b", "warmup, percent"),
    (r"\bper second and\b|\bno multiples?\b", "per second per, not a multiple"),
    (r"\d %", "a percent sign without a blank"),
]


def wrong_words(lines):
    """[(index of the line, what stands there, what to write)] of lines that follow each other: a phrase may be broken between two. Code
    and links' targets do not count."""
    prose = [re.sub(r"`[^`]*`|<!--.*?-->|\]\([^)]*\)", " ", line).lower().strip() for line in lines]
    text, found = "\n".join(prose), set()
    for pattern, better in WORDS:
        for match in re.finditer(pattern.replace(" ", r"\s"), text):
            found.add((text.count("\n", 0, match.start()), " ".join(match[0].split()), better))
    return sorted(found)


def check_words(page, problems):
    block = []
    for number, line in [*page.texts(), (None, "")]:
        if block and (not line.strip() or number != block[-1][0] + 1):
            problems += [(page.path, block[index][0], f'"{word}": write {better}')
                         for index, word, better in wrong_words([text for _, text in block])]
            block = []
        if line.strip():
            block.append((number, line))


def help_text(command):
    return subprocess.run([*command, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout


def subcommands(text):
    """Names under the heading "Subcommands:"."""
    block = re.search(r"^Subcommands:\n((?:  .*\n?|\n(?=  \S))+)", text, re.M)
    return re.findall(r"^  (\S+)", block[1], re.M) if block else []


def all_help_texts(command):
    """[(command, its help)] of a command and its subcommands, and of theirs."""
    text = help_text(command)
    below = [found for name in subcommands(text) for found in all_help_texts([*command, name])]
    return [(command, text), *below]


def check_help_texts(folder):
    """[(command, line, what is wrong)] of all executables of a build's folder apps."""
    executables = sorted(path for path in folder.glob("te-*") if path.is_file() and os.access(path, os.X_OK))
    if not executables:
        raise SystemExit(f"{folder} has no executables te-*")
    problems = []
    with ThreadPoolExecutor() as pool:
        for found in pool.map(lambda path: all_help_texts([path]), executables):
            for command, text in found:
                name = " ".join([command[0].name, *command[1:]])
                lines = [re.sub(r"--[\w-]+", " ", line) for line in text.splitlines()]  # options keep their names
                problems += [(name, index + 1, f'"{word}": write {better}') for index, word, better in wrong_words(lines)]
    return problems
