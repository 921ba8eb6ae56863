#!/usr/bin/env python3
"""Compares the tokens of `te-data tokenize` with those of the reference implementations and prints a table.

    pip install tokenizers transformers sentencepiece numpy
    scripts/tokenizer_agreement.py --te-data build/cpu/apps/te-data --tokenizers FOLDER --corpora FILE... [--limit-mb 30]

FOLDER has one folder per tokenizer, with tokenizer.json, vocab.json and merges.txt (or encoder.json and vocab.bpe), or
tokenizer.model. Every file that exists is compared with its reference implementation:
    tokenizer.json                  Hugging Face tokenizers
    vocab.json and merges.txt       transformers' GPT2Tokenizer
    tokenizer.model                 SentencePiece
A FILE is text, with documents separated by lines <|endoftext|> (or by blank lines if there is no such line), or .jsonl or
.json, where every string is a document. --limit-mb limits the comparison to the beginning of each file. The script
generates hostile input: every code point alone and in contexts, control characters, emoji, white space, words of a
million characters, invalid UTF-8. Hugging Face does not accept invalid UTF-8; for those bytes, decoding the tokens must
restore them. Each regular expression is compared on all code points. The exit code is 1 if any document differs.
"""

import argparse
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import numpy as np
import tokenizers
from json_strings import strings
from script_files import fail, run
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

LETTERS = "abcdefghijklmnopqrstuvwxyz"
# All assigned code points, and some of the private and unassigned ones above them.
RANGES = [(0, 0xD800), (0xE000, 0x33480), (0x3FFF0, 0x40010), (0xE0000, 0xE0200), (0xEFFF0, 0xF0010), (0x10FFF0, 0x110000)]
CODE_POINTS = [chr(c) for begin, end in RANGES for c in range(begin, end)]
# The elements of pre-tokenizer expressions, and the whole expressions of GPT-2, Llama 3, GPT-4o and DeepSeek.
PATTERNS = [rf"\p{{{name}}}+" for name in
            "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Co Cn Letter "
            "Lowercase_Letter Alpha Digit Space Upper Lower Word Han Hiragana Katakana Hangul Latin Greek Cyrillic Arabic "
            "Common Inherited ^L ^Word".split()] + [
    r"\P{L}+", r"\P{^L}", r"\s+", r"\S+", r"\w+", r"\W+", r"\d+", r"\D+", r"\h+", r"\bx\b|\B", r"[\s\S]x", r"[^\s\w]+", r"[\w]+", r"[\W]+", r"[\p{Word}-]+",
    r"[\P{L}a]+", r"[^\P{L}a]+", r"[\p{Cn}x]+", r"[^\p{C}x]+", r"[\s\-x]+", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}{1,3}",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?i:[a-z])", "(?i:k|sx)",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
]  # fmt: skip


# --- documents ---------------------------------------------------------------------------------------------------


def read_corpus(path, limit):
    """The documents of a file."""
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read(limit)
    if path.suffix == ".jsonl":
        return [s for line in text.splitlines()[: -1 if len(text) == limit else None] for s in strings(json.loads(line))]
    if path.suffix == ".json":
        return list(strings(json.loads(path.read_text(encoding="utf-8"))))
    if "<|endoftext|>" in text:
        return re.split(r"^<\|endoftext\|>\r?\n", text, flags=re.M)
    return re.split(r"\n{2,}", text)


def hostile_documents():
    """Yields (name, documents); all documents are valid UTF-8."""
    code_points = CODE_POINTS
    yield "every code point alone", code_points
    contexts = ["a{}b", " {} ", "{0}{0}", "1{}2", "'{}s", ".{}\n", "I'{}e x"]
    yield "every code point in contexts", ["\n".join(c.format(x) for c in contexts) for x in code_points]
    yield "all code points in a row", ["".join(code_points[i : i + 997]) for i in range(0, len(code_points), 997)]
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
    yield "emoji and joiners", [
        family, family * 50, "\U0001f3f4\U000e0067\U000e0062\U000e007f x", "\U0001f1e9\U0001f1ea\U0001f1eb", "\u2764\ufe0f!",
        "a\u200db\u200cc\u2060d", "\U0001f44b\U0001f3fd" * 9, "e\u0301\u0302" * 40, "\ufeffstart", "Z" + "\u0300" * 3000,
    ]  # fmt: skip
    yield "NUL and control characters", [
        "\0", "\0\0\0", "a\0b", "a \0 b\0", "\x01\x02\x03\x7f\x80\x9f", "\x1b[31mred\x1b[0m", "\r", "\r\n\r\n", "\n\r", "x\x85y",
    ]  # fmt: skip
    yield "white space", [w * n for w in (" ", "\n", "\t", "\u00a0", "\u3000", " \n", "\r\n", "\u2028") for n in
                          (1, 2, 3, 7, 64, 1000, 5000)] + ["a" + " " * 5000 + "b", " " * 3000 + "x" + " " * 3000]  # fmt: skip
    generator = random.Random(1)
    yield "words of 1e6 characters", [
        "a" * 1000000, "ab" * 500000, "".join(generator.choice(LETTERS) for _ in range(1000000)), "7" * 1000000, "\u4e2d" * 1000000,
        "=" * 1000000, "\U0001f600" * 300000, "".join(generator.choice(code_points) for _ in range(300000)),
    ]  # fmt: skip
    special = ["<|endoftext|>", "</s>", "<s>", "<unk>", "<|eot_id|>", "<|begin_of_text|>", "<0x0A>", "\u2581", "<|endoftext", "<pad>"]
    yield "special tokens in the text", special + [f"a{s}b {s} {s}{s}\n{s}" for s in special]
    parts = ["a", "B", "the", " ", "  ", "\n", "\t", "1", "23", "'s", "'LL", "'\u017f", "\u00e9", "e\u0301", "\u4e2d", "\u0e01\u0e33",
             "\U0001f600", ".", "...", "_", "-", "\u2581", "<|endoftext|>", "</s>", "\0", "\u00a0", "\u200d", "\ufeff", "\U00011f00",
             "\u0660", "\u00b2", "http://x.y/?z=1&", "==", "\r\n"]  # fmt: skip
    yield "random mixtures", ["".join(generator.choices(parts, k=generator.randint(1, 60))) for _ in range(30000)] + [""]


def broken_documents():
    """Invalid UTF-8 without NUL, because te-data rejects text files with NUL bytes."""
    generator = random.Random(2)
    bits = [b"\x80", b"\xff", b"\xc3", b"\xe4\xb8", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"abc", b" the",
            "\u4e2d".encode(), "\U0001f600".encode(), b"\n", b" ", b"12"]  # fmt: skip
    return [b"".join(generator.choices(bits, k=generator.randint(1, 30))) + b"x" for _ in range(2000)]


# --- te-data -----------------------------------------------------------------------------------------------------


class TeData:
    def __init__(self, executable):
        self.executable = executable

    def tokenize(self, spec, folder, *options):
        """The tokens of each document, without the end-of-document token."""
        command = [self.executable, "tokenize", "--tokenizer", spec, "--output", str(folder / "out"), *options]
        run = subprocess.run(command + ["--append-eod", "false"], capture_output=True, text=True)
        if run.returncode != 0:
            fail(f"{' '.join(command)}: {run.stderr.strip()}")
        return read_dataset(folder / "out")

    def encode(self, spec, documents):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            with open(folder / "in.jsonl", "w", encoding="utf-8") as file:
                file.writelines(json.dumps({"text": document}) + "\n" for document in documents)
            return self.tokenize(spec, folder, "--input", str(folder / "in.jsonl"))

    def encode_bytes(self, spec, documents):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "in.txt").write_bytes(b"".join(document + b"\n@@\n" for document in documents))
            return self.tokenize(spec, folder, "--input", str(folder / "in.txt"), "--document-separator", "@@")


def read_dataset(prefix):
    index = pathlib.Path(f"{prefix}.idx").read_bytes()
    dtype = {8: np.uint16, 4: np.int32}[index[17]]
    sequences = int.from_bytes(index[18:26], "little")
    lengths = np.frombuffer(index, np.int32, sequences, 34)
    tokens = np.fromfile(f"{prefix}.bin", dtype).astype(np.int32)
    return np.split(tokens, np.cumsum(lengths)[:-1])


# --- references --------------------------------------------------------------------------------------------------


class HuggingFace:
    """The reference for a tokenizers.Tokenizer."""

    def __init__(self, tokenizer, name="HF tokenizers " + tokenizers.__version__):
        self.tokenizer, self.name = tokenizer, name
        tokenizer.no_truncation()
        tokenizer.no_padding()
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.names = {i: token for token, i in vocabulary.items()}
        byte_level = "ByteLevel" in json.dumps(json.loads(tokenizer.to_str())["pre_tokenizer"])
        self.bytes_of = byte_level_bytes if byte_level else fallback_bytes

    def encode(self, documents):
        result, batch, size = [], [], 0
        for i, document in enumerate(documents):
            batch.append(document)
            size += len(document)
            if size > 4_000_000 or len(batch) > 50_000 or i + 1 == len(documents):
                encodings = self.tokenizer.encode_batch_fast(batch, add_special_tokens=False)
                result += [np.array(e.ids, np.int32) for e in encodings]
                batch, size = [], 0
        return result

    def bytes(self, tokens):
        return b"".join(self.bytes_of(self.names[int(t)]) for t in tokens)


class SentencePiece:
    def __init__(self, path):
        import sentencepiece

        self.name = "SentencePiece " + sentencepiece.__version__
        self.processor = sentencepiece.SentencePieceProcessor(model_file=str(path))

    def encode(self, documents):
        return [np.array(self.processor.encode(document), np.int32) for document in documents]


def gpt2_reference(vocab, merges):
    import transformers

    tokenizer = transformers.GPT2Tokenizer(vocab=str(vocab), merges=str(merges))
    return HuggingFace(tokenizer.backend_tokenizer, "transformers " + transformers.__version__)


def byte_level_bytes(token):
    printable = [b for b in range(256) if ord("!") <= b <= ord("~") or (b >= 0xA1 and b != 0xAD)]
    table = {chr(b): b for b in printable} | {
        chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in printable)
    }
    return bytes(table[c] for c in token)


def fallback_bytes(token):
    if re.fullmatch("<0x[0-9A-F]{2}>", token):
        return bytes([int(token[3:5], 16)])
    return token.replace("\u2581", " ").encode()


def references(folder):
    """Yields (path for te-data, reference) for the tokenizer files of a folder."""
    if (folder / "tokenizer.json").is_file():
        yield folder / "tokenizer.json", HuggingFace(Tokenizer.from_file(str(folder / "tokenizer.json")))
    for vocab, merges in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
        if (folder / vocab).is_file() and (folder / merges).is_file():
            yield folder / vocab, gpt2_reference(folder / vocab, folder / merges)
    model = folder / "tokenizer.model"
    if model.is_file() and b"\0" in model.read_bytes()[:4096] + b"\0" * (b"== 0\n" not in model.read_bytes()[:100]):
        yield model, SentencePiece(model)


# --- comparison --------------------------------------------------------------------------------------------------


class Report:
    def __init__(self):
        self.different = 0

    def header(self):
        print(f"{'tokenizer':34} {'reference':24} {'input':32} {'documents':>9} {'MB':>7} {'tokens':>11} {'differ':>7}")

    def line(self, spec, reference, corpus, documents, size, tokens, differences):
        name = "/".join(pathlib.Path(spec).parts[-2:])
        print(f"{name:34} {reference:24} {corpus:32} {documents:9} {size / 1e6:7.2f} {tokens:11} {len(differences):7}", flush=True)
        self.different += len(differences)
        for document, ours, theirs in differences[:3]:
            print(f"    {document[:80]!r}: te-data {list(ours[:12])}, reference {list(theirs[:12])}")


def compare(te, report, spec, reference, corpus, documents):
    documents = [d for d in documents if d]  # te-data drops empty documents
    ours, theirs = te.encode(str(spec), documents), reference.encode(documents)
    if len(ours) != len(theirs):
        fail(f"{spec}, {corpus}: te-data wrote {len(ours)} documents instead of {len(theirs)}")
    differences = [(d, a, b) for d, a, b in zip(documents, ours, theirs) if not np.array_equal(a, b)]
    size = sum(len(d.encode()) for d in documents)
    report.line(spec, reference.name, corpus, len(documents), size, sum(map(len, theirs)), differences)


def compare_broken(te, report, spec, reference):
    """Compares invalid UTF-8: tokens with SentencePiece, decoded bytes with Hugging Face."""
    documents = broken_documents()
    ours = te.encode_bytes(str(spec), documents)
    documents = [d + b"\n" for d in documents]
    differences = []
    if isinstance(reference, SentencePiece):
        theirs = reference.encode(documents)
        differences = [(d, a, b) for d, a, b in zip(documents, ours, theirs) if not np.array_equal(a, b)]
    else:
        for document, tokens in zip(documents, ours):
            back = reference.bytes(tokens)
            if back not in (document, b" " + document):
                differences.append((document, tokens, [back]))
    report.line(spec, reference.name, "invalid UTF-8", len(documents), sum(map(len, documents)), sum(map(len, ours)), differences)


def compare_patterns(te, report):
    """Compares regular expressions on all code points. The vocabulary has single bytes only, and ByteLevel adds a space before
    every word, so that the tokens show the word boundaries."""
    texts = ["".join(CODE_POINTS[i : i + 500]) for i in range(0, len(CODE_POINTS), 500)] + [
             "'S'\u017f'Tk\u212aK\u00df\u1e9ess 'LLx-x x_x x\u00b2x \u0d20x.x 12345 a1 \r\n\t x"]  # fmt: skip
    different = []
    for pattern in PATTERNS:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        with tempfile.TemporaryDirectory() as name:
            path = pathlib.Path(name) / "tokenizer.json"
            tokenizer = word_marking_tokenizer()
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(True, use_regex=False)])
            tokenizer.save(str(path))
            ours = te.encode(str(path), texts)
            reference = HuggingFace(Tokenizer.from_file(str(path))).encode(texts)
        if not all(np.array_equal(a, b) for a, b in zip(ours, reference)):
            different.append((pattern, *first_difference(ours, reference)))
    report.line("regular expressions", "HF tokenizers " + tokenizers.__version__, "all code points", len(PATTERNS),
                sum(len(t.encode()) for t in texts) * len(PATTERNS), 0, different)  # fmt: skip


def first_difference(ours, theirs):
    """The tokens around the first difference."""
    for a, b in zip(ours, theirs):
        for i, (x, y) in enumerate(zip(a, b)):
            if x != y:
                return a[i - 8 : i + 4], b[i - 8 : i + 4]
    return [], []


def word_marking_tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {c: i for i, c in enumerate(alphabet)} | {"<|endoftext|>": 256}
    return Tokenizer(models.BPE(vocabulary, []))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--te-data", default="build/cpu/apps/te-data")
    parser.add_argument("--tokenizers", type=pathlib.Path, required=True)
    parser.add_argument("--corpora", type=pathlib.Path, nargs="*", default=[])
    parser.add_argument("--limit-mb", type=float, default=30, help="million characters to read of each file (default: %(default)s)")
    parser.add_argument("--only", help="name of the only tokenizer folder to compare")
    parser.add_argument("--skip-hostile", action="store_true", help="compare the corpora only")
    arguments = parser.parse_args()
    te, report = TeData(arguments.te_data), Report()
    report.header()
    if not arguments.skip_hostile and not arguments.only:
        compare_patterns(te, report)
    for folder in sorted(p for p in arguments.tokenizers.iterdir() if p.is_dir()):
        if arguments.only and folder.name != arguments.only:
            continue
        for spec, reference in references(folder):
            for path in arguments.corpora:
                compare(te, report, spec, reference, path.name, read_corpus(path, int(arguments.limit_mb * 1e6)))
            if arguments.skip_hostile:
                continue
            for name, documents in hostile_documents():
                compare(te, report, spec, reference, name, documents)
            compare_broken(te, report, spec, reference)
    print(f"{report.different} documents differ")
    sys.exit(1 if report.different else 0)


if __name__ == "__main__":
    run(main)
