#!/usr/bin/env python3
"""Writes tests/fixtures/tokenizers for tests/text/tokenizer_agreement_test.cpp: small tokenizers of each kind, and the
tokens of hostile texts from the reference implementations.

    pip install tokenizers sentencepiece "transformers<5"
    scripts/make_tokenizer_fixtures.py [--components | --precompiled]      # only the tokenizers of components(), precompiled()
    scripts/make_tokenizer_fixtures.py --folders      # only recorded_folders.json: tokenizers that AutoTokenizer loads from folders

The tokenizers are trained on the project's documentation. Texts of more than 24 tokens are recorded as the number of
tokens and the CRC-32 of the tokens as little-endian int32.
"""

import json
import pathlib
import random
import sys
import tempfile
import zlib

import tokenizers
from precompiled_charsmap import CLUSTER_RULES, CLUSTERS, charsmap
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests/fixtures/tokenizers"
LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LETTERS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[\p{Cn}\p{Co}]+|\p{Han}+|\w+|[\P{L}x]\p{N}"
)
MORE_TEXT = ["caf\u00e9 na\u00efve \u4e2d\u6587\u5b57 \u0440\u0443\u0441\u0441\u043a\u0438\u0439 \U0001f600\U0001f44b "] * 20


def training_text():
    names = ("how-to/prepare-data.md", "how-to/chat-templates.md", "how-to/generate.md", "how-to/evaluate.md")
    return [(ROOT / "docs" / name).read_text() for name in names] + MORE_TEXT


def byte_level(pre_tokenizer):
    tokenizer = Tokenizer(models.BPE(ignore_merges=False))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<|endoftext|>"], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False)  # fmt: skip
    tokenizer.train_from_iterator(training_text(), trainer)
    return tokenizer


def split_then_bytes(regex):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(regex), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )


def llama2_style():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fallback = [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=520, special_tokens=["<unk>", "<s>", "</s>", *fallback], limit_alphabet=90, show_progress=False,
        max_token_length=12)  # fmt: skip
    words = [w for text in training_text() for w in text.split()]
    tokenizer.train_from_iterator(words, trainer)
    value = json.loads(tokenizer.to_str())
    value["added_tokens"] = value["added_tokens"][:3]  # without the byte tokens, which must not match in text
    return Tokenizer.from_str(json.dumps(value))


def added_tokens():
    """GPT-2 style, with added tokens that have every option."""
    tokenizer = byte_level(pre_tokenizers.ByteLevel(False))
    tokenizer.add_tokens([AddedToken("the", single_word=True), AddedToken("<sep>", lstrip=True, rstrip=True), "<sep>x"])
    tokenizer.add_special_tokens([AddedToken("<|end|>", rstrip=True, special=True)])
    return tokenizer


def trained(model, trainer, normalizer, pre_tokenizer, decoder):
    tokenizer = Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, pre_tokenizer, decoder
    tokenizer.train_from_iterator(training_text(), trainer)
    return tokenizer


def neox_style():
    """NFC before GPT-2's pre-tokenizer, and a vocabulary without the bytes that UTF-8 never uses."""
    tokenizer = byte_level(pre_tokenizers.ByteLevel(False))
    value = json.loads(tokenizer.to_str())
    unused = {bytes_character(b) for b in (0xC0, 0xC1, *range(0xF5, 0x100))}
    vocab = [token for token in value["model"]["vocab"] if not unused & set(token)]
    value["model"]["vocab"] = {token: i for i, token in enumerate(vocab)}
    value["normalizer"] = {"type": "NFC"}
    return Tokenizer.from_str(json.dumps(value))


def bytes_character(byte):
    printable = [b for b in range(256) if ord("!") <= b <= ord("~") or (b >= 0xA1 and b != 0xAD)]
    return chr(byte) if byte in printable else chr(256 + [b for b in range(256) if b not in printable].index(byte))


def unigram_style():
    n = normalizers
    tokenizer = trained(
        models.Unigram(), trainers.UnigramTrainer(vocab_size=400, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False),
        n.Sequence([n.Nmt(), n.NFKC(), n.Replace(Regex(" {2,}"), " "), n.Strip(left=False)]), pre_tokenizers.Metaspace(),
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]))  # fmt: skip
    value = json.loads(tokenizer.to_str())
    value["model"]["vocab"] += [[f"<0x{b:02X}>", -20.0] for b in range(256)]
    value["model"]["byte_fallback"] = True
    return Tokenizer.from_str(json.dumps(value))


def components():
    """Tokenizers with the components that the ones above do not use."""
    n, p = normalizers, pre_tokenizers
    classes = r"[[:alpha:]]+|[[:digit:][:punct:]]|[[:^graph:]]+|(?m:..)|[[:upper:]_]|\pL"
    return {
        "neox_style.json": neox_style(),
        "unigram_style.json": unigram_style(),
        "bert_style.json": trained(
            models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=500, special_tokens=["[UNK]", "</s>"], show_progress=False),
            n.BertNormalizer(), p.BertPreTokenizer(), decoders.WordPiece()),
        "words_style.json": trained(
            models.WordLevel(unk_token="[UNK]"), trainers.WordLevelTrainer(vocab_size=500, special_tokens=["[UNK]", "</s>"], show_progress=False),
            n.Sequence([n.NFKD(), n.StripAccents(), n.Lowercase(), n.Strip()]), p.Sequence([p.Whitespace(), p.Digits(True)]), None),
        "classes.json": byte_level(split_then_bytes(classes)),
    }  # fmt: skip


def precompiled():
    """Tokenizers with a small table like those of SentencePiece, with every kind of grapheme cluster, and with
    UnicodeScripts."""
    n, p = normalizers, pre_tokenizers
    rules = CLUSTER_RULES | {"\t": " ", "\n": " ", "\u3000": " ", "\u00a0": " ", "\ufb01": "fi", "\u2460": "1", "e\u0301": "\u00e9", "\x01": ""}
    table, trainer = charsmap(rules), {"special_tokens": ["<unk>", "</s>"], "unk_token": "<unk>", "show_progress": False}
    return {
        "precompiled.json": trained(
            models.Unigram(), trainers.UnigramTrainer(vocab_size=400, **trainer),
            n.Sequence([n.Precompiled(table), n.Replace(Regex(" {2,}"), " ")]), p.Metaspace(), decoders.Metaspace()),
        "scripts.json": trained(
            models.Unigram(), trainers.UnigramTrainer(vocab_size=400, **trainer), n.Precompiled(table),
            p.Sequence([p.UnicodeScripts(), p.Metaspace(prepend_scheme="first")]), decoders.Metaspace()),
    }  # fmt: skip


def cluster_texts():
    generator = random.Random(5)
    return texts() + ["".join(generator.choices(CLUSTERS, k=generator.randint(2, 12))) for _ in range(300)]


def sentencepiece_model():
    import sentencepiece

    with tempfile.TemporaryDirectory() as name:
        text = pathlib.Path(name) / "text"
        text.write_text("\n".join(training_text()))
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=f"{name}/m", vocab_size=500, model_type="bpe", byte_fallback=True,
            normalization_rule_name="identity", character_coverage=0.999, num_threads=1, minloglevel=2,
            remove_extra_whitespaces=False, user_defined_symbols=["<sep>"])  # fmt: skip
        return pathlib.Path(name, "m.model").read_bytes()


def texts():
    generator = random.Random(3)
    newer = [0x1C89, 0x1C8A, 0xA7CB, 0x10D4E, 0x105C0, 0x31350, 0x2EBF0, 0x897, 0x10D69, 0x1171E, 0x10D40, 0x1CCF0, 0x1D2C0,
             0x10D6E, 0x1B4E, 0x10D8E, 0x1CC00, 0x1FAE9, 0x13439, 0x88F, 0x16EA0, 0xB2, 0xBC, 0x2B, 0x180E, 0xE000, 0x10FFFF]  # fmt: skip
    result = [f"a{chr(c)}b {chr(c)}{chr(c)} 1{chr(c)}2.{chr(c)}\n" for c in newer]
    result += ["a", " ", "\n", "\0", "a\0b\0\0", "\r\n\r\n x", "I'll we've 'S 'LL it's o'\u017f", "\ufeffstart", "x\u200by",
               "\U0001f468\u200d\U0001f469\u200d\U0001f467!", "e\u0301\u0302" * 9, "\u0e01\u0e33 \u0660\u0661", "<|endoftext|>", "</s>a</s>",
               " the the, then <sep> a<sep>x<sep>  <|end|>  b", "<0x0A>", "\u2581a \u2581\u2581", "12345678 1 22", "==>> --\n\n\n  y"]  # fmt: skip
    result += [w * n for w in (" ", "\n", "\t", "\u00a0", "\u3000", " \n", "a", "ab", "=", "\u4e2d", "7") for n in (3, 50, 3000)]
    parts = ["a", "B", "the", " ", "  ", "\n", "\t", "1", "23", "'s", "'LL", "\u00e9", "e\u0301", "\u4e2d", "\U0001f600", ".", "...", "_", "-",
             "\u2581", "<sep>", "\0", "\u00a0", "\u200d", "\U00011f00", "\u00b2", "==", "\r\n"]  # fmt: skip
    result += ["".join(generator.choices(parts, k=generator.randint(5, 40))) for _ in range(60)]
    return result


def every_code_point():
    """Texts of all code points up to the last letter of Unicode 16, and of some beyond. The C++ test builds the same texts."""
    code_points = [chr(c) for c in (*range(0xD800), *range(0xE000, 0x33480), *range(0xE0000, 0xE0200))]
    return ["".join(code_points[i : i + 500]) for i in range(0, len(code_points), 500)]


def recorded(tokens):
    if len(tokens) <= 24:
        return tokens
    data = b"".join(t.to_bytes(4, "little") for t in tokens)
    return {"count": len(tokens), "crc32": zlib.crc32(data)}


def main():
    if sys.argv[1:] not in ([], ["--components"], ["--precompiled"], ["--folders"]):
        sys.exit(__doc__)
    FOLDER.mkdir(parents=True, exist_ok=True)
    if sys.argv[1:] in ([], ["--folders"]):
        record_folders()
    if sys.argv[1:] == ["--folders"]:
        return
    if not sys.argv[1:]:
        main_kinds()
    if sys.argv[1:] != ["--precompiled"]:
        record("recorded_components.json", components(), {}, texts())
    if sys.argv[1:] != ["--components"]:
        record("recorded_precompiled.json", precompiled(), {}, cluster_texts())
    print(*(f"{p.name}: {p.stat().st_size} bytes" for p in sorted(FOLDER.iterdir())), sep="\n")


def main_kinds():
    import sentencepiece

    (FOLDER / "sentencepiece.model").write_bytes(sentencepiece_model())
    processor = sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / "sentencepiece.model"))
    kinds = {
        "gpt2_style.json": byte_level(pre_tokenizers.ByteLevel(False)),
        "llama3_style.json": byte_level(split_then_bytes(LLAMA3_REGEX)),
        "properties.json": byte_level(split_then_bytes(LETTERS)),
        "llama2_style.json": llama2_style(),
        "added_token_options.json": added_tokens(),
    }
    record("recorded.json", kinds, {"sentencepiece.model": processor.encode}, texts(), f", sentencepiece {sentencepiece.__version__}")


CHATML = {"<|im_start|>": 420, "<|im_end|>": 421}


def token(content, **options):
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    return {"content": content} | flags | options


def added_token(content, **options):
    return token(content, **options) | {"__type": "AddedToken"}


def folders():
    """{name: (tokenizer file, or "vocab" for vocab.json and merges.txt; model_type; other files of the folder)}. The ids of
    the tokens in the other files follow those of the tokenizer file."""
    gpt2, qwen, llama = ({"tokenizer_class": f"{name}Tokenizer"} for name in ("GPT2", "Qwen2", "Llama"))
    im = list(CHATML)
    options = {
        "420": token("<|im_start|>", rstrip=True), "421": token("<|im_end|>", lstrip=True, rstrip=True),
        "422": token("toolbox", special=False, normalized=True, single_word=True), "0": token("<|endoftext|>", normalized=True)}  # fmt: skip
    legacy_map = {"additional_special_tokens": im, "bos_token": "<|endoftext|>", "pad_token": "<pad>",
                  "eos_token": token("<|im_end|>", rstrip=True, normalized=True)}  # fmt: skip
    variants = {
        "added": {"added_tokens.json": CHATML},
        "added_map": {"added_tokens.json": CHATML, "special_tokens_map.json": legacy_map, "tokenizer_config.json": gpt2},
        "decoder": {"tokenizer_config.json": gpt2 | {"added_tokens_decoder": options, "additional_special_tokens": im},
                    "added_tokens.json": {"<not_read>": 423}},
        "additional": {"tokenizer_config.json": gpt2 | {
            "additional_special_tokens": [added_token("<|im_start|>", rstrip=True), "<|im_end|>"], "pad_token": "<pad>",
            "mask_token": added_token("<mask>", lstrip=True)}},
        "ordinary": {"tokenizer_config.json": gpt2 | {"eos_token": "token", "bos_token": None, "additional_special_tokens": ["data"]}},
        "prefix": {"tokenizer_config.json": gpt2 | {"add_prefix_space": True}},
        "no_key": {"tokenizer_config.json": gpt2},
    }  # fmt: skip
    result = {f"{own}_{name}": (own, "gpt2", files) for own in ("vocab", "gpt2_style.json") for name, files in variants.items()}
    qwen_options = qwen | {"bos_token": None, "eos_token": "<|im_end|>", "additional_special_tokens": im,
                           "added_tokens_decoder": {i: options[i] | token(options[i]["content"], special=i != "422") for i in options}}
    result["qwen_decoder"] = ("vocab", "qwen2", {"tokenizer_config.json": qwen_options})
    result["qwen_no_key"] = ("vocab", "qwen2", {"tokenizer_config.json": qwen})
    result["fast_null"] = ("gpt2_style.json", "gpt2", {"tokenizer_config.json": {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "bos_token": None}})  # fmt: skip
    result["fast_no_key"] = ("gpt2_style.json", "gpt2", {"tokenizer_config.json": {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}})  # fmt: skip
    for own, size in (("llama2_style.json", 520), ("plain.model", 500)):
        decoder = {str(i): token(name) for i, name in enumerate(("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"))}
        decoder |= {str(size + i - 3): decoder.pop(str(i)) for i in (3, 4)}
        named = llama | {"bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": "<unk>", "additional_special_tokens": im}
        for legacy in (True, False):
            config = named | {"added_tokens_decoder": decoder, "legacy": legacy}
            result[f"{own}_{'legacy' if legacy else 'first'}"] = (own, "llama", {"tokenizer_config.json": config})
    return result


def plain_model():
    """The SentencePiece model with its user-defined piece changed to a control symbol, which makes it plain BPE."""
    model = bytearray((FOLDER / "sentencepiece.model").read_bytes())
    model[model.index(b"<sep>") + 5 + 6] = 3
    return bytes(model)


def write_folder(folder, own, model_type, files):
    if own == "vocab":
        model = json.loads((FOLDER / "gpt2_style.json").read_text())["model"]
        (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    elif own == "plain.model":
        (folder / "tokenizer.model").write_bytes(plain_model())
    else:
        (folder / "tokenizer.json").write_bytes((FOLDER / own).read_bytes())
    for name, value in ({"config.json": {"model_type": model_type}} | files).items():
        (folder / name).write_text(json.dumps(value))


def folder_texts():
    generator = random.Random(4)
    parts = ["<|im_start|>", "<|im_end|>", "</s>", "<s>", "token", "data", " the", " ", "  ", "\n", "a", " b", "1", "23", "toolbox", "toolboxes",
             "<|endoftext|>", "'s", "\u00e9", "e\u0301", "<pad>", "<mask>", "<not_read>"]  # fmt: skip
    chat = ["<|im_start|>user\nHello<|im_end|>", "a <|im_end|> \n b", "data in the token", " lead", "</s>a</s> b <s> c<unk>"]
    return chat + ["".join(generator.choices(parts, k=generator.randint(2, 12))) for _ in range(40)]


def record_folders():
    import transformers

    all_texts, record_of = folder_texts(), {}
    for name, (own, model_type, files) in folders().items():
        with tempfile.TemporaryDirectory() as folder:
            write_folder(pathlib.Path(folder), own, model_type, files)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        record_of[name] = {
            "own": own, "model_type": model_type, "files": files, "begin": tokenizer.bos_token_id, "end": tokenizer.eos_token_id,
            "vocab_size": len(tokenizer), "tokens": [tokenizer.encode(text, add_special_tokens=False) for text in all_texts]}  # fmt: skip
    value = {
        "made_by": f"scripts/make_tokenizer_fixtures.py --folders; transformers {transformers.__version__}",
        "texts": all_texts,
        "folders": record_of,
    }
    (FOLDER / "recorded_folders.json").write_text(json.dumps(value, separators=(",", ":")) + "\n")


def record(file, kinds, more, all_texts, versions=""):
    """Saves the tokenizers, and the tokens of all texts with them and with the encoders in `more`."""
    encode = {}
    for name, tokenizer in kinds.items():
        tokenizer.save(str(FOLDER / name), pretty=False)
        encode[name] = lambda text, t=tokenizer: t.encode(text, add_special_tokens=False).ids
    encode |= more
    value = {
        "made_by": f"scripts/make_tokenizer_fixtures.py; tokenizers {tokenizers.__version__}{versions}",
        "texts": all_texts,
        "tokens": {name: [recorded(f(text)) for text in all_texts] for name, f in encode.items()},
        "every_code_point": {
            name: recorded([t for text in every_code_point() for t in f(text)]) for name, f in encode.items()
        },
    }
    value["decoded"] = {
        name: [zlib.crc32(t.decode(t.encode(text, add_special_tokens=False).ids, skip_special_tokens=False).encode()) for text in all_texts]
        for name, t in kinds.items()
    }
    (FOLDER / file).write_text(json.dumps(value, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
