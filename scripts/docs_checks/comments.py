"""Comments: performance numbers, which fall out of date and belong in docs/results or docs/log, and words of the style
guide."""

import bisect
import re

from docs_checks import words

# Numbers that do not fall out of date: constants of the code, formulas, and figures of data sheets.
ALLOWED = {
    ("src/checkpoint/rank_files.cpp", "10 ms"),
    ("src/config/pipeline_split.h", "8%"),
    ("src/core/device_links_cuda.cpp", "450 gb/s"),
    ("src/kernels/adamw/moment_rounding.h", "0.1%"),
    ("src/planner/gpu.cpp", "3.35 tb/s"),
    ("src/train/summary.h", "63 gb/s"),
}
ENDINGS = (".cpp", ".h", ".cu", ".cuh")
NUMBER = r"(?<![\w.])\d[\d.,]*"
# A string, a character, or a comment (lines of // that follow each other are one), whichever begins first.
TOKEN = re.compile(r'R"\w*\((?:.|\n)*?\)\w*"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|//[^\n]*(?:\n[ \t]*//[^\n]*)*|/\*(?:.|\n)*?\*/')
SPEED = r"(?:fast|slow|speed|time|rate|bandwidth|peak|step|layer|gain|cheap|cost|gemm|kernel|pass)\w*"
PATTERNS = [
    re.compile(rf"{NUMBER}x(?![\w-])"),
    re.compile(rf"{NUMBER} times as (?:fast|slow)|\b(?:twice|half) as (?:fast|slow)"),
    re.compile(rf"{NUMBER} ?(?:%|percent)(?=[^.;]{{0,40}}\b{SPEED})"),
    re.compile(rf"\b{SPEED}[^.;]{{0,30}} ({NUMBER} ?(?:%|percent))"),
    re.compile(rf"{NUMBER} ?(?:[kmgtp]?i?b|[tgp]?flops?|tok|tokens)(?:/| per )s(?:ec|econd)?\b"),
    re.compile(rf"{NUMBER} ?(?:ms|us|µs|ns|microseconds?|milliseconds?|nanoseconds?)\b"),
]


def numbers_in(text):
    """[(line, number and unit)] of a source's comments. A number may stand at the end of a line and its unit in the
    next."""
    found = set()
    for token in TOKEN.finditer(text):
        if not token[0].startswith("/"):
            continue
        lines = [re.sub(r"^[ \t]*(?://[/!]*<?|/?\*+)[ \t]*", "", line).rstrip() for line in token[0].split("\n")]
        starts = [sum(len(line) + 1 for line in lines[:i]) for i in range(len(lines))]
        first = text.count("\n", 0, token.start()) + 1
        comment = " ".join(lines).lower()
        for pattern in PATTERNS:
            for match in pattern.finditer(comment):
                group = pattern.groups  # 0, or 1 where the number stands in the middle
                found.add((first + bisect.bisect_right(starts, match.start(group)) - 1, match[group]))
    return sorted(found)


def sources(root, *folders):
    return sorted(path for folder in folders for path in (root / folder).rglob("*") if path.suffix in ENDINGS)


def check_comments(root):
    """[(path, line, what stands there)] of src and apps, without what is allowed."""
    texts = [(path, path.read_text(errors="replace")) for path in sources(root, "src", "apps")]
    return [(path, number, found) for path, text in texts for number, found in numbers_in(text)
            if (str(path.relative_to(root)), found) not in ALLOWED]


def words_in_comments(root):
    """[(path, line, word)] of words.WORDS in comments of src, apps and tests. Many are right there (a stream of random
    numbers)."""
    found = []
    for path in sources(root, "src", "apps", "tests"):
        text = path.read_text(errors="replace")
        for token in TOKEN.finditer(text):
            if token[0].startswith("/"):
                first = text.count("\n", 0, token.start()) + 1
                lines = [line.strip().lstrip("/!<*") for line in token[0].split("\n")]
                found += [(path, first + index, word) for index, word, _ in words.wrong_words(lines)]
    return found
