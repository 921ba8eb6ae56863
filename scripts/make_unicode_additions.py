#!/usr/bin/env python3
"""Writes src/text/tokenizers/unicode_additions.inc: what Oniguruma's character properties hold beyond PCRE2's.

    pip install tokenizers
    scripts/make_unicode_additions.py [--check]

Hugging Face tokenizers match with Oniguruma 6.9.10 (Unicode 16), te-data with the system's PCRE2, which in Debian 12
and Ubuntu 24.04 has Unicode 14. Both are asked here for every code point; --check compares with the file and writes
nothing. A newer PCRE2 has some of these code points itself, which does no harm: run this with the oldest supported.
"""

import ctypes
import ctypes.util
import pathlib
import sys

from generated_file import write_or_check
from tokenizers import Regex, pre_tokenizers

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "src/text/tokenizers/unicode_additions.inc"
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn".split()
BINARY = "Alphabetic Lowercase Uppercase White_Space".split()
SCRIPTS = """Arabic Armenian Bengali Bopomofo Common Cyrillic Devanagari Egyptian_Hieroglyphs Ethiopic Georgian Greek Gujarati
Gurmukhi Han Hangul Hebrew Hiragana Inherited Kannada Katakana Khmer Lao Latin Malayalam Mongolian Myanmar Oriya Sinhala
Syriac Tamil Telugu Thai Tibetan Yi""".split()
TEXT = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
HEADER = """// Written by scripts/make_unicode_additions.py. Code points that have a property in Oniguruma 6.9.10 (Unicode 16),
// and not in PCRE2 {version} (Unicode {unicode}); kLost is the other way round, without Cn.
"""


def reference(name):
    """The code points that \\p{name} matches in the tokenizers package."""
    split = pre_tokenizers.Split(Regex(rf"\p{{{name}}}+"), "removed", invert=True)
    return {ord(c) for part, _ in split.pre_tokenize_str(TEXT) for c in part}


class Pcre2:
    """The system's PCRE2 through ctypes."""

    UTF, UCP, NO_UTF_CHECK = 0x00080000, 0x00020000, 0x40000000

    def __init__(self):
        self.pcre2 = ctypes.CDLL(ctypes.util.find_library("pcre2-8"))
        self.pcre2.pcre2_compile_8.restype = ctypes.c_void_p
        self.pcre2.pcre2_match_data_create_8.restype = ctypes.c_void_p
        self.pcre2.pcre2_get_ovector_pointer_8.restype = ctypes.POINTER(ctypes.c_size_t)

    def config(self, what):
        text = ctypes.create_string_buffer(64)
        self.pcre2.pcre2_config_8(what, text)
        return text.value.decode().split()[0]

    def members(self, name):
        """The code points that \\p{name} matches."""
        regex, error, at = rf"[\p{{{name}}}]+".encode(), ctypes.c_int(), ctypes.c_size_t()
        code = self.pcre2.pcre2_compile_8(
            regex, ctypes.c_size_t(len(regex)), self.UTF | self.UCP, ctypes.byref(error), ctypes.byref(at), None
        )
        if not code:
            sys.exit(f"PCRE2 does not know the property {name}")
        data = ctypes.c_void_p(self.pcre2.pcre2_match_data_create_8(1, None))
        text, found, begin = TEXT.encode(), set(), 0
        while self.pcre2.pcre2_match_8(
            ctypes.c_void_p(code), text, ctypes.c_size_t(len(text)), ctypes.c_size_t(begin), self.NO_UTF_CHECK, data, None
        ) > 0:
            offsets = self.pcre2.pcre2_get_ovector_pointer_8(data)
            found.update(map(ord, text[offsets[0] : offsets[1]].decode()))
            begin = offsets[1]
        return found


def class_text(code_points):
    """The inside of a bracketed class."""
    ranges = []
    for c in sorted(code_points):
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    return "".join(rf"\x{{{a:x}}}" + (rf"-\x{{{b:x}}}" if b > a else "") for a, b in ranges)


def lines(property_name, text):
    """An entry of the table, cut into string literals of about a line."""
    cuts, begin = [], 0
    while begin < len(text):
        end = text.find("\\", min(begin + 84, len(text)))
        while end > 0 and text[end - 1] == "-":
            end = text.find("\\", end + 1)
        end = len(text) if end < 0 else end
        cuts.append(text[begin:end])
        begin = end
    return f'    {{"{property_name}",\n' + "\n".join(f'     R"({cut})"' for cut in cuts) + "},\n"


def table():
    pcre2 = Pcre2()
    gained, lost = "", ""
    for name in CATEGORIES + BINARY + SCRIPTS:
        there, here = reference(name), pcre2.members("sc:" + name if name in SCRIPTS else name)
        if there - here:
            gained += lines(name, class_text(there - here))
        if here - there and name != "Cn":
            lost += lines(name, class_text(here - there))
    return (
        HEADER.format(version=pcre2.config(11), unicode=pcre2.config(10))
        + f"constexpr UnicodeAddition kGained[] = {{\n{gained}}};\n"
        + f"constexpr UnicodeAddition kLost[] = {{\n{lost}}};\n"
    )


if __name__ == "__main__":
    write_or_check(__doc__, OUTPUT, table)
