#!/usr/bin/env python3
"""Compares te-data with Hugging Face tokenizers, component by component, on all of Unicode, and prints a table.

    pip install tokenizers sentencepiece numpy   # the versions of scripts/versions.env
    scripts/tokenizer_components.py --te-data build/cpu/apps/te-data [--only NAME] [--random 20000] [--seed 1] [--quick]

The script builds tokenizers that cover every normalizer, pre-tokenizer, model and decoder of tokenizer.json (it trains
the models on the project's documentation). Texts: all code points in sequence and in contexts, random strings of
characters that components treat specially, and the documentation. Tokens and decoded text must be equal. The exit code
is 1 if anything differs. scripts/tokenizer_agreement.py compares the tokenizers of real models.
"""

import argparse
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

import numpy as np
import sentencepiece
from precompiled_charsmap import CLUSTER_RULES, CLUSTERS, charsmap, charsmap_of, pieces_of
from tokenizer_agreement import HuggingFace, Report, TeData, fail
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOREIGN = ["caf\u00e9 na\u00efve \u4e2d\u6587\u5b57 \u0440\u0443\u0441\u0441\u043a\u0438\u0439 \U0001f600\U0001f44b \u3053\u3093 \uc548\ub155 "] * 20
BYTES = [f"<0x{b:02X}>" for b in range(256)]
REGEXES = [r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+", r"[[:alpha:]]+", r"[[:^alpha:]]+", r"[[:digit:][:space:]]+", r"[[:upper:]]|[[:lower:]]+",
           r"[^[:punct:]]+", r"[[:alnum:]_]+", r"[[:word:]]+", r"[[:xdigit:]]+", r"[[:cntrl:]]+", r"[[:graph:]]+", r"[[:print:]]+", r"[[:blank:]]+",
           r"[[:ascii:]]+", r"(?m:a.b)", r"(?m).b", r"(?im:a.)", r"(?mi)a.", r"\pL", r"x\PLy|1", r"[\pLx]+", r"a(?m:.(?-m:.))", r"(?-m:.)"]  # fmt: skip


def documents():
    names = ("how-to/prepare-data.md", "how-to/chat-templates.md", "how-to/generate.md", "how-to/evaluate.md", "reference/tokenizers.md")
    return [(ROOT / "docs" / name).read_text() for name in names] + FOREIGN


# --- tokenizers --------------------------------------------------------------------------------------------------


def marked(normalizer=None, *pre):
    """A tokenizer with a vocabulary of single bytes and a space before every word, so that its tokens show the effect of the
    normalizer and the pre-tokenizers."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)} | {"<|endoftext|>": 256}, []))
    if normalizer:
        tokenizer.normalizer = normalizer
    level = pre_tokenizers.ByteLevel(bool(pre), use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*pre, level]) if pre else level
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def normalizer_tokenizers():
    n, p = normalizers, pre_tokenizers
    for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "Strip"):
        yield name, marked(getattr(n, name)())
    yield "Strip left", marked(n.Strip(right=False))
    yield "Strip right", marked(n.Strip(left=False))
    yield "Prepend", marked(n.Prepend("x\u2581"))
    yield "Replace", marked(n.Sequence([n.Replace("a", "bb"), n.Replace(Regex(r"\s+"), "_"), n.Replace(" ", "")]))
    for clean, chinese, accents, lower in ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, None, 1), (1, 1, None, 1), (1, 1, 0, 1), (1, 1, 1, 0)):
        options = {"clean_text": bool(clean), "handle_chinese_chars": bool(chinese), "lowercase": bool(lower),
                   "strip_accents": None if accents is None else bool(accents)}  # fmt: skip
        yield f"BertNormalizer {clean}{chinese}{accents}{lower}", marked(n.BertNormalizer(**options))
    yield "Sequence", marked(n.Sequence([n.NFKC(), n.Nmt(), n.Strip(), n.Lowercase(), n.NFD(), n.StripAccents()]))
    yield "NFD, NFC", marked(n.Sequence([n.NFD(), n.NFC()]))
    for rule in ("nmt_nfkc", "nfkc_cf"):
        yield f"Precompiled {rule}", marked(n.Precompiled(charsmap_of(sentencepiece_model(rule))))
    yield "Precompiled, clusters", marked(n.Precompiled(charsmap(CLUSTER_RULES)))
    spaces = n.Replace(Regex(" {2,}"), "\u2581")
    yield "Precompiled, spaces and Metaspace first", marked(n.Sequence([n.Precompiled(charsmap(CLUSTER_RULES)), spaces]), p.Metaspace("\u2581", "first"))
    yield "Replace, words and Metaspace first", marked(n.Replace(Regex("b| {2,}"), " "), p.WhitespaceSplit(), p.Metaspace("\u2581", "first"))
    yield "Precompiled and Metaspace first", marked(n.Precompiled(charsmap(CLUSTER_RULES)), p.Metaspace("_", "first"))


def pre_tokenizer_tokenizers():
    p = pre_tokenizers
    for name in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Punctuation", "Digits"):
        yield name, marked(None, getattr(p, name)())
    yield "Digits, one by one", marked(None, p.Digits(True))
    behaviors = ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")
    for behavior in behaviors:
        yield f"Punctuation {behavior}", marked(None, p.Punctuation(behavior))
        for invert in (False, True):
            yield f"Split {behavior} {invert}", marked(None, p.Split(Regex(r"\d|,+|b?"), behavior, invert))
            yield f"Split text {behavior} {invert}", marked(None, p.Split("ab", behavior, invert))
    yield "CharDelimiterSplit", marked(None, p.CharDelimiterSplit("b"))
    yield "FixedLength", marked(None, p.FixedLength(3))
    yield "UnicodeScripts", marked(None, p.UnicodeScripts())
    yield "UnicodeScripts and Metaspace first", marked(None, p.UnicodeScripts(), p.Metaspace("_", "first"))
    yield "Sequence", marked(None, p.WhitespaceSplit(), p.Punctuation(), p.Digits(True))
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            yield f"Metaspace {scheme} {split}", marked(None, p.Metaspace("\u2581", scheme, split))
        yield f"words and Metaspace {scheme}", marked(None, p.WhitespaceSplit(), p.Metaspace("_", scheme))
    for regex in REGEXES:
        yield f"Split {regex}", marked(None, p.Split(Regex(regex), "isolated"))


def sentencepiece_model(rule):
    with tempfile.TemporaryDirectory() as name:
        text = pathlib.Path(name) / "text"
        text.write_text("\n".join(documents()))
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=f"{name}/m", vocab_size=700, model_type="unigram", normalization_rule_name=rule,
            character_coverage=0.9995, num_threads=1, minloglevel=2)  # fmt: skip
        return pathlib.Path(name, "m.model").read_bytes()


def sentencepiece_unigram():
    """A SentencePiece model, converted as transformers converts it to a tokenizer.json (XLM-RoBERTa, T5, ALBERT)."""
    n, p, model = normalizers, pre_tokenizers, sentencepiece_model("nmt_nfkc")
    vocab = [(text, score) for text, score, _ in pieces_of(model)]
    tokenizer = Tokenizer(models.Unigram(vocab, 0, False))
    collapse = n.Replace(Regex(" {2,}"), "\u2581")
    tokenizer.normalizer = n.Sequence([n.Precompiled(charsmap_of(model)), n.Strip(left=False), collapse])
    tokenizer.pre_tokenizer = p.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def trained(model, trainer, normalizer=None, pre=None, decoder=None):
    tokenizer = Tokenizer(model)
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre:
        tokenizer.pre_tokenizer = pre
    if decoder:
        tokenizer.decoder = decoder
    tokenizer.train_from_iterator(documents(), trainer)
    return tokenizer


def edited(tokenizer, **model):
    """A copy with other values in the tokenizer's model."""
    value = json.loads(tokenizer.to_str())
    value["model"].update(model)
    return Tokenizer.from_str(json.dumps(value))


def model_tokenizers():
    p, n, d = pre_tokenizers, normalizers, decoders
    special = ["[UNK]", "[CLS]", "</s>"]
    for lower in (True, False):
        yield f"WordPiece, BERT, lowercase {lower}", trained(
            models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=900, special_tokens=special, show_progress=False),
            n.BertNormalizer(lowercase=lower), p.BertPreTokenizer(), d.WordPiece(cleanup=lower))  # fmt: skip
    words = trained(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=6),
                    trainers.WordPieceTrainer(vocab_size=700, special_tokens=special, show_progress=False), None, p.WhitespaceSplit())  # fmt: skip
    yield "WordPiece, short words", words
    yield "WordPiece, no prefix", edited(words, continuing_subword_prefix="", max_input_chars_per_word=40)
    yield "WordLevel", trained(models.WordLevel(unk_token="[UNK]"), trainers.WordLevelTrainer(vocab_size=800, special_tokens=special, show_progress=False),
                               n.NFKC(), p.Whitespace())  # fmt: skip
    yield from unigram_tokenizers()
    yield from bpe_tokenizers()


def unigram_tokenizers():
    p, n, d = pre_tokenizers, normalizers, decoders
    trainer = trainers.UnigramTrainer(vocab_size=700, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False)
    unigram = trained(models.Unigram(), trainer, n.Sequence([n.Nmt(), n.NFKC(), n.Replace(Regex(" {2,}"), " ")]),
                      p.Metaspace(), d.Metaspace())  # fmt: skip
    yield "Unigram", unigram
    yield "Unigram of SentencePiece", sentencepiece_unigram()
    vocab = json.loads(unigram.to_str())["model"]["vocab"]
    yield "Unigram, byte fallback", edited(unigram, vocab=vocab + [[b, -20.0] for b in BYTES], byte_fallback=True)
    whole = Tokenizer.from_str(unigram.to_str())
    whole.pre_tokenizer = p.Metaspace(split=False)
    whole.normalizer = n.Sequence([n.Prepend("\u2581"), n.Replace(" ", "\u2581")])
    whole.decoder = d.Sequence([d.Replace("\u2581", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)])
    yield "Unigram, no words", edited(whole, vocab=vocab + [[b, -20.0] for b in BYTES], byte_fallback=True)
    ties = [["<unk>", 0.0], ["a", -1.1], ["b", -1.3], ["ab", -2.4], ["ba", -2.4], ["aa", -2.2], ["aba", -3.5], ["<unk>x", -3.0], ["\u00e9\u00e8", -90.0], ["</s>", 0.0]]
    yield "Unigram, ties", edited(unigram, vocab=ties)
    yield "Unigram, incomplete byte fallback", edited(unigram, vocab=ties + [[b, -20.0] for b in BYTES[:0xE0]], byte_fallback=True)


def bpe_tokenizers():
    p, n, d = pre_tokenizers, normalizers, decoders

    def bpe(special, **options):
        trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, limit_alphabet=60, show_progress=False)
        return trained(models.BPE(**options), trainer, n.Sequence([n.NFC(), n.Lowercase()]), p.WhitespaceSplit(), d.BPEDecoder("e"))

    plain = bpe(["</s>"])
    yield "BPE, unknown dropped", plain
    yield "BPE, unknown dropped, fused", edited(plain, fuse_unk=True)
    unknown = bpe(["<unk>", "</s>"], unk_token="<unk>")
    yield "BPE, unknown", unknown
    yield "BPE, unknown fused", edited(unknown, fuse_unk=True)
    yield "BPE, ignore merges", edited(unknown, ignore_merges=True)
    fallback = bpe(["<unk>", "</s>", *BYTES], unk_token="<unk>", byte_fallback=True)
    fallback.decoder = d.Sequence([d.ByteFallback(), d.Strip("t", 1, 0), d.Fuse()])
    yield "BPE, byte fallback", fallback
    some = bpe(["<unk>", "</s>", *BYTES[:0xE0]], unk_token="<unk>", byte_fallback=True)
    yield "BPE, incomplete byte fallback", some
    yield "BPE, incomplete byte fallback, no unknown", edited(bpe(["</s>", *BYTES[:0xE0]], byte_fallback=True), unk_token=None)
    level = trained(models.BPE(), trainers.BpeTrainer(vocab_size=500, special_tokens=["<|endoftext|>"], show_progress=False,
                                                      initial_alphabet=sorted(p.ByteLevel.alphabet())), n.NFC(), p.ByteLevel(False), d.ByteLevel())  # fmt: skip
    yield "BPE, NFC and byte level", level
    lacking = json.loads(level.to_str())
    gone = [c for c in ("\u00c0", "\u00c1", "\u00f5", "\u0122", "q") if c in lacking["model"]["vocab"]]
    merges = [m for m in lacking["model"]["merges"] if not any(c in "".join(m) for c in gone)]
    vocab = [t for t in lacking["model"]["vocab"] if not any(c in t for c in gone)]
    bytes_lost = edited(level, vocab={t: i for i, t in enumerate(vocab)}, merges=merges)
    yield "BPE, byte level without some bytes", bytes_lost
    normalized = Tokenizer.from_str(level.to_str())
    normalized.normalizer = n.Sequence([n.NFKC(), n.ByteLevel()])
    normalized.pre_tokenizer = p.Split(Regex(r"\u0120?[^\u0120]+"), "isolated")
    yield "BPE, byte level as a normalizer", normalized
    added = Tokenizer.from_str(level.to_str())
    added.normalizer = n.Sequence([n.NFC(), n.Lowercase()])
    added.add_tokens([AddedToken("The", normalized=True), AddedToken("\u00c9a", normalized=True), AddedToken("Raw", normalized=False),
                      AddedToken("word", single_word=True), AddedToken("<sep>", lstrip=True, rstrip=True)])  # fmt: skip
    yield "added tokens and a normalizer", added


# --- texts -------------------------------------------------------------------------------------------------------


def texts(count, seed, quick):
    """Yields (name, texts)."""
    if not quick:
        yield from planes()
    yield from random_texts(count, seed)
    yield "documents", documents() + [line for d in documents() for line in d.splitlines()]


def planes():
    every = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    yield "all code points", ["".join(every[i : i + 499]) for i in range(0, len(every), 499)]
    context = "a{0}b\u0301\u0316{0}\u0323\u0345\t{0}1{0}\u4e2d{0} {0}\n"
    assigned = every[:0x2000] + [c for c in every[0x2000:0x33480] if not "\u3400" <= c <= "\ud7a3" or ord(c) % 97 == 0]
    yield "in contexts", ["".join(context.format(c) for c in assigned[i : i + 50]) for i in range(0, len(assigned), 50)]


def random_texts(count, seed):
    generator = random.Random(seed)
    parts = ["a", "b", "ab", "e", "E", "the", "The", " ", "  ", "\t", "\n", "1", "23", ",", ".", "do not", " n't", "'s", "\u00e9", "e\u0301", "\u0301", "\u0316",
             "\u4e2d", "\uf900", "\u1100", "\u1161", "\u11a8", "\uac00", "\u0f73", "\u0344", "\u1e9b\u0323", "\ufb01", "\u0130", "\u03a3", "\u2581", "\u200b", "\ufffd",
             "\0", "\x01", "\u00ad", "\u0660", "\u00b2", "\U00011938", "\U00011935\U00011930", "\U0001f600", "\u00a0", "\u3000", "##", "[UNK]", "<unk>", "</s>", "<sep>",
             "Raw", "word", "words", "\u00c9a", "x", "q", "_", "-"]  # fmt: skip
    yield "random pieces", ["".join(generator.choices(parts, k=generator.randint(1, 40))) for _ in range(count)]
    blocks = [(0, 0x80), (0x80, 0x370), (0x300, 0x370), (0x590, 0x1200), (0x1100, 0x1200), (0x1ab0, 0x1e00), (0x1e00, 0x2100), (0x2100, 0x3400), (0xa640, 0xac00),
              (0xac00, 0xad00), (0xf900, 0x10000), (0x10000, 0x12000), (0x1d100, 0x1d200), (0x1e000, 0x1f000), (0x2f800, 0x2fa20)]  # fmt: skip

    def anywhere():
        blocks_here = generator.choices(blocks, k=2)
        return "".join(chr(generator.randrange(*generator.choice(blocks_here))) for _ in range(generator.randint(1, 30)))

    yield "random code points", [anywhere() for _ in range(count)]
    yield "random clusters", ["".join(generator.choices(CLUSTERS, k=generator.randint(2, 12))) for _ in range(count)]


# --- comparison --------------------------------------------------------------------------------------------------


def write_dataset(prefix, lists):
    lengths = [len(tokens) for tokens in lists]
    np.concatenate(lists).astype(np.int32).tofile(f"{prefix}.bin")
    pointers = np.concatenate([[0], np.cumsum(lengths)[:-1]]) * 4
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, len(lists), len(lists) + 1))
        np.array(lengths, np.int32).tofile(file)
        pointers.astype(np.int64).tofile(file)
        np.arange(len(lists) + 1, dtype=np.int64).tofile(file)


def shown(text):
    """The text as te-data inspect prints it. The reference replaces invalid UTF-8 by a varying number of U+FFFD, so that runs of
    it are reduced to one."""
    text = text.replace("\n", "\\n").replace("\t", "\\t")
    text = "".join(f"\\x{ord(c):02x}" if ord(c) < 32 or ord(c) == 127 else c for c in text)
    return re.sub("\ufffd+", "\ufffd", text)


def whole(tokens, tokenizer):
    """`tokens` without byte tokens at the end: they may be part of a character, and the reference then decodes all of them to
    U+FFFD."""
    end = len(tokens)
    while end > 0 and tokenizer.id_to_token(int(tokens[end - 1])).startswith("<0x"):
        end -= 1
    return tokens[:end]


def compare_decoding(te, report, name, spec, tokenizer, lists):
    """Compares decoded text. `te-data inspect` shows at most 160 tokens of a document, so 150 are used."""
    lists = [whole(tokens[:150], tokenizer) for tokens in lists]
    lists = [tokens for tokens in lists if len(tokens) > 0]
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(f"{folder}/d", lists)
        command = [te.executable, "inspect", f"{folder}/d", "--tokenizer", str(spec), "--samples", str(len(lists))]
        run = subprocess.run(command, capture_output=True)
    if run.returncode != 0:
        fail(f"{' '.join(command)}: {run.stderr.decode().strip()}")
    lines = run.stdout.decode(errors="replace").split("\ndocument ")[1:]
    if len(lines) != len(lists):
        fail(f"{name}: te-data inspect shows {len(lines)} of {len(lists)} documents")
    lines[-1] = lines[-1].rstrip("\n")
    ours = [re.sub("\ufffd+", "\ufffd", line.split(": ", 1)[1]) for line in lines]
    theirs = [shown(tokenizer.decode([int(t) for t in tokens], skip_special_tokens=False)) for tokens in lists]
    differences = [(b, [a], [b]) for a, b in zip(ours, theirs) if a != b]
    report.line(name, "", "decoding", len(lists), 0, sum(map(len, lists)), differences)


def compare(te, report, name, tokenizer, all_texts):
    with tempfile.TemporaryDirectory() as folder:
        spec = pathlib.Path(folder) / "tokenizer.json"
        tokenizer.save(str(spec))
        if not any(t in tokenizer.get_vocab() for t in ("<|endoftext|>", "</s>")):
            fail(f"{name}: has no end-of-document token")
        reference = HuggingFace(Tokenizer.from_file(str(spec)))
        lists = []
        for corpus, documents_here in all_texts:
            documents_here = [d for d in documents_here if d]  # te-data drops empty documents
            theirs = reference.encode(documents_here)
            ours = te.encode(str(spec), documents_here)
            if len(ours) != len(theirs):
                fail(f"{name}, {corpus}: te-data wrote {len(ours)} documents instead of {len(theirs)}")
            differences = [(d, a, b) for d, a, b in zip(documents_here, ours, theirs) if not np.array_equal(a, b)]
            differences = [(d, *from_difference(a, b)) for d, a, b in differences]
            report.line(name, "", corpus, len(documents_here), sum(len(d.encode()) for d in documents_here), sum(map(len, theirs)), differences)
            lists += theirs[:: max(1, len(theirs) // 1500)]
        compare_decoding(te, report, name, spec, reference.tokenizer, lists)


def from_difference(ours, theirs):
    """The tokens from shortly before the first difference."""
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    return ours[max(at - 4, 0) :], theirs[max(at - 4, 0) :]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--te-data", default="build/cpu/apps/te-data")
    parser.add_argument("--only", help="compare only tokenizers whose names contain this")
    parser.add_argument("--random", type=int, default=20000, help="number of random strings of each kind (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="compare random strings and documents only, not all code points")
    arguments = parser.parse_args()
    te, report = TeData(arguments.te_data), Report()
    report.header()
    all_texts = list(texts(arguments.random, arguments.seed, arguments.quick))
    for make in (normalizer_tokenizers, pre_tokenizer_tokenizers, model_tokenizers):
        for name, tokenizer in make():
            if not arguments.only or arguments.only in name:
                compare(te, report, name, tokenizer, all_texts)
    print(f"{report.different} documents differ")
    sys.exit(1 if report.different else 0)


if __name__ == "__main__":
    main()
