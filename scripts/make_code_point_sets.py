#!/usr/bin/env python3
"""Writes src/text/tokenizers/code_point_sets.inc: the sets of characters that Hugging Face tokenizers ask for.

    pip install tokenizers unicodedata2          # the versions of scripts/versions.env
    scripts/make_code_point_sets.py [--check]

Each component of the package takes its sets from another crate, and those are of different Unicode versions (8 to 17),
so no library that te-train could link knows them. They are asked for here, code point by code point, through the
components themselves. What can be had from utf8proc is: the table of small letters has what utf8proc 2.8 (Unicode 15)
lacks, and kInert the characters that the package's normal forms (Unicode 9) do not know, though Unicode does today.
--check compares with the file and writes nothing.
"""

import ctypes
import pathlib

import unicodedata2
from generated_file import write_or_check
from precompiled_charsmap import charsmap
from tokenizers import normalizers, pre_tokenizers

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "src/text/tokenizers/code_point_sets.inc"
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HEADER = """// Written by scripts/make_code_point_sets.py, which asked Hugging Face tokenizers. Ranges of code points, both ends included.
"""


def bert(**options):
    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    return normalizers.BertNormalizer(**(off | options))


def sets():
    """Name, comment and members of each set."""
    digits, punctuation, words = pre_tokenizers.Digits(True), pre_tokenizers.Punctuation(), pre_tokenizers.Whitespace()

    def apart(pre_tokenizer):
        return {c for c in CODE_POINTS if len(pre_tokenizer.pre_tokenize_str("a" + chr(c))) == 2}

    def dropped(normalizer):
        return {c for c in CODE_POINTS if normalizer.normalize_str("a" + chr(c)) == "a"}

    yield "kNumeric", "Digits", apart(digits)
    yield "kPunctuation", "Punctuation, BertPreTokenizer", apart(punctuation)
    yield "kWord", "Whitespace; word characters of added tokens", {
        c for c in CODE_POINTS if words.pre_tokenize_str("a" + chr(c))[0][0] == "a" + chr(c)
    }
    yield "kControl", "BertNormalizer, clean_text", dropped(bert(clean_text=True))
    yield "kNonspacingMark", "BertNormalizer, strip_accents", dropped(bert(strip_accents=True))
    yield "kCombiningMark", "StripAccents", dropped(normalizers.StripAccents())
    yield "kInert", "NFC and the like: new since Unicode 9", inert()


def inert():
    """Characters that take part in a normal form of today and not in the package's."""
    forms = ((normalizers.NFD(), "NFD"), (normalizers.NFKD(), "NFKD"))
    new = {c for c in CODE_POINTS for ours, form in forms
           if ours.normalize_str(chr(c)) == chr(c) and unicodedata2.normalize(form, chr(c)) != chr(c)}  # fmt: skip
    # Their parts, where no older character has them; and marks, which the package leaves behind a mark of higher class.
    def parts(normalize, members):
        return {ord(p) for c in members for p in normalize(chr(c)) if len(normalize(chr(c))) > 1}

    news = parts(lambda c: unicodedata2.normalize("NFD", c), new)
    old = parts(normalizers.NFD().normalize_str, set(CODE_POINTS) - new)
    marks = {c for c in CODE_POINTS if unicodedata2.combining(chr(c)) and not moves(chr(c))}
    return new | (news - old) | marks


def moves(c):
    """Whether the package sorts the mark behind or before marks of other classes."""
    low, high = "\u0334", "\u0345"  # classes 1 and 240
    return any(normalizers.NFD().normalize_str(s) != s for s in ("a" + high + c, "a" + c + low)) or c in (low, high)


def small_letters():
    """(first, last, offset) of what utf8proc and the package make different."""
    utf8proc = ctypes.CDLL("libutf8proc.so.2")
    lowercase, ranges = normalizers.Lowercase(), []
    for c in CODE_POINTS:
        small = lowercase.normalize_str(chr(c))
        if len(small) > 1:
            assert c == 0x130, "only one letter is known that becomes two"
        elif ord(small) != utf8proc.utf8proc_tolower(c):
            offset = ord(small) - c
            if ranges and ranges[-1][1] == c - 1 and ranges[-1][2] == offset:
                ranges[-1][1] = c
            else:
                ranges.append([c, c, offset])
    return ranges


def grapheme_classes():
    """{code point: class} of what decides where a grapheme cluster of less than six bytes ends: Precompiled asks no more.
    Whether `right` is joined to `left` shows in a mark behind it, which Precompiled drops from small clusters alone."""
    def only(c):
        return normalizers.Precompiled(charsmap({c: "X"}))

    def joins(left, right, replaced):
        return replaced.normalize_str(left + right + "\u0301").endswith("X\u0301")

    a, copyright, ka = only("a"), only("\u00a9"), only("\u0915")
    everything = normalizers.Precompiled(charsmap({bytes([b]): "X" for b in (*range(1, 0x61), *range(0x62, 0x80), *range(0xC2, 0xF5))}))
    jamo = {name: (c, only(c)) for name, c in (("kL", "\u1100"), ("kV", "\u1161"), ("kT", "\u11a8"))}
    classes = {}
    for c in CODE_POINTS:
        text = chr(c)
        if everything.normalize_str(text + "a") == "X":
            classes[c] = "kPrepend"
        elif c < 0x10000 and everything.normalize_str(text + "\u0301\u0301") in ("XX", "\0X"):
            classes[c] = "kControl"
        elif a.normalize_str("a" + text) == "X":
            extends = joins("\u00a9" + text + "\u200d", "\u00a9", copyright)
            linker = joins("\u0915" + text, "\u0915", ka)
            assert not linker or extends, hex(c)
            classes[c] = "kLinker" if linker else "kExtend" if extends else "kSpacingMark"
        elif joins(text + "\u200d", "\u00a9", copyright):
            classes[c] = "kPictographic"
        elif joins(text + "\u094d", "\u0915", ka):
            classes[c] = "kConsonant"
        elif not 0xAC00 <= c <= 0xD7A3:
            name = next((name for name, (right, replaced) in jamo.items() if joins(text, right, replaced)), None)
            if name:
                classes[c] = name
    joiners = {0x200C: "kNonJoiner", 0x200D: "kJoiner"}
    assert {classes[c] for c in joiners} <= {"kExtend", "kSpacingMark"}
    return classes | joiners


def wrapped(items):
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) > 114:
            lines.append(line)
            line = "   "
        line += " " + item
    return "\n".join([*lines, line])


def ranges_of(members):
    ranges = []
    for c in sorted(members):
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    return ranges


def table():
    text = HEADER
    for name, comment, members in sets():
        items = [f"{{0x{a:x}, 0x{b:x}}}," for a, b in ranges_of(members)]
        text += f"// {comment}\nconstexpr CodePointRange {name}[] = {{\n{wrapped(items)}\n}};\n"
    items = [f"{{0x{a:x}, 0x{b:x}, {offset}}}," for a, b, offset in small_letters()]
    text += f"// Lowercase: what is added\nconstexpr SmallLetters kSmallLetters[] = {{\n{wrapped(items)}\n}};\n"
    classes = grapheme_classes()
    for name in sorted(set(classes.values())):
        items = [f"{{0x{a:x}, 0x{b:x}}}," for a, b in ranges_of({c for c, of in classes.items() if of == name})]
        text += f"// Precompiled: grapheme clusters\nconstexpr CodePointRange {name}Characters[] = {{\n{wrapped(items)}\n}};\n"
    return text


if __name__ == "__main__":
    write_or_check(__doc__, OUTPUT, table)
