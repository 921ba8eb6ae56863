#!/usr/bin/env python3
"""Writes src/text/tokenizers/unicode_scripts.inc: where Hugging Face's UnicodeScripts sees another script than PCRE2.

    pip install tokenizers unicodedata2          # the versions of scripts/versions.env
    scripts/make_unicode_scripts.py [--check]

The package's table is of Unicode 9, PCRE2 10.42 (Debian 12, Ubuntu 24.04) of Unicode 14. Characters that are newer
than the package's table belong to any script for it. Hiragana and Katakana count as Han. The scripts of Unicode 9 are
listed here by the names that PCRE2 knows; what a character of another one is, is asked of the package, code point by
code point. --check compares with the file and writes nothing.
"""

import ctypes
import pathlib

import unicodedata2
from generated_file import write_or_check
from make_code_point_sets import CODE_POINTS, ranges_of, wrapped
from tokenizers import pre_tokenizers

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "src/text/tokenizers/unicode_scripts.inc"
SCRIPTS = """\
Han Hangul Common Latin Yi Tangut Egyptian_Hieroglyphs Ethiopic Cuneiform Canadian_Aboriginal Bamum Arabic Inherited
Cyrillic Greek Hebrew Devanagari Thai Hiragana Katakana Adlam Ahom Anatolian_Hieroglyphs Armenian Avestan Balinese
Bassa_Vah Batak Bengali Bhaiksuki Bopomofo Brahmi Braille Buginese Buhid Carian Caucasian_Albanian Chakma Cham
Cherokee Coptic Cypriot Deseret Duployan Elbasan Georgian Glagolitic Gothic Grantha Gujarati Gurmukhi Hanunoo Hatran
Imperial_Aramaic Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi Kannada Kayah_Li Kharoshthi Khmer Khojki
Khudawadi Lao Lepcha Limbu Linear_A Linear_B Lisu Lycian Lydian Mahajani Malayalam Mandaic Manichaean Marchen
Meetei_Mayek Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mongolian Mro Multani Myanmar Nabataean
New_Tai_Lue Newa Nko Ogham Ol_Chiki Old_Hungarian Old_Italic Old_North_Arabian Old_Permic Old_Persian
Old_South_Arabian Old_Turkic Oriya Osage Osmanya Pahawh_Hmong Palmyrene Pau_Cin_Hau Phags_Pa Phoenician
Psalter_Pahlavi Rejang Runic Samaritan Saurashtra Sharada Shavian Siddham SignWriting Sinhala Sora_Sompeng Sundanese
Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Takri Tamil Telugu Thaana Tibetan Tifinagh Tirhuta
Ugaritic Vai Warang_Citi""".split()
HEADER = """// Written by scripts/make_unicode_scripts.py, which asked Hugging Face tokenizers. Ranges have both ends.
"""
SAME = {"Hiragana": "Han", "Katakana": "Han"}


class Pcre2:
    """\\p{sc:NAME} of PCRE2 for all code points."""

    def __init__(self):
        self.pcre2 = ctypes.CDLL("libpcre2-8.so.0")
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self.pcre2.pcre2_compile_8.restype = pointer
        self.pcre2.pcre2_match_data_create_8.restype = pointer
        self.pcre2.pcre2_get_ovector_pointer_8.restype = ctypes.POINTER(size)
        self.pcre2.pcre2_get_ovector_pointer_8.argtypes = [pointer]
        self.pcre2.pcre2_match_8.argtypes = [pointer, ctypes.c_char_p, size, size, ctypes.c_uint32, pointer, pointer]
        self.pcre2.pcre2_jit_compile_8.argtypes = [pointer, ctypes.c_uint32]
        self.data = self.pcre2.pcre2_match_data_create_8(4, None)
        self.text = "".join(map(chr, CODE_POINTS)).encode()

    def members(self, script):
        utf, ucp, no_check, jit = 0x80000, 0x20000, 0x40000000, 1
        regex, error, at = f"\\p{{sc:{script}}}++".encode(), ctypes.c_int(), ctypes.c_size_t()
        code = self.pcre2.pcre2_compile_8(
            regex, ctypes.c_size_t(len(regex)), utf | ucp, ctypes.byref(error), ctypes.byref(at), None
        )
        assert code, f"PCRE2 does not know {script}"
        self.pcre2.pcre2_jit_compile_8(code, jit)
        end = 0
        while self.pcre2.pcre2_match_8(code, self.text, len(self.text), end, no_check, self.data, None) >= 0:
            begin, end = self.pcre2.pcre2_get_ovector_pointer_8(self.data)[:2]
            yield from map(ord, self.text[begin:end].decode())


def table():
    split, pcre2 = pre_tokenizers.UnicodeScripts(), Pcre2()
    script_of = {c: SAME.get(script, script) for script in SCRIPTS for c in pcre2.members(script)}

    def joined(left, right):
        return split.pre_tokenize_str(left + right) == [(left + right, (0, 2))]

    latin, common = ("a", "1")
    any_script = {c for c in CODE_POINTS if joined(latin, chr(c)) and joined(common, chr(c))}
    # The first of each script that the package knows stands for it.
    stands = {"Latin": latin, "Common": common}
    for c, script in sorted(script_of.items()):
        if c not in any_script and (script != "Han" or c >= 0x4E00):
            stands.setdefault(script, chr(c))
    assert set(stands) == set(SCRIPTS) - set(SAME), set(SCRIPTS) - set(SAME) - set(stands)
    changed = {}
    for c in CODE_POINTS:
        script = script_of.get(c)
        if c not in any_script and (script is None or not joined(stands[script], chr(c))):
            changed.setdefault(next((name for name, text in stands.items() if joined(text, chr(c))), None), set()).add(
                c
            )
    assert None not in changed
    assigned = {c for c in any_script if unicodedata2.category(chr(c)) != "Cn" or c in script_of}
    names = [f'"{script}",' for script in SCRIPTS]
    text = HEADER + f"// The largest first\nconstexpr std::string_view kScripts[] = {{\n{wrapped(names)}\n}};\n"
    items = [f"{{0x{a:x}, 0x{b:x}}}," for a, b in ranges_of(assigned)]
    text += "// Of any script: new since Unicode 9, and the space\n"
    text += f"constexpr CodePointRange kNewOrAny[] = {{\n{wrapped(items)}\n}};\n"
    items = [
        f'{{{{0x{a:x}, 0x{b:x}}}, "{name}"}},'
        for name, members in sorted(changed.items())
        for a, b in ranges_of(members)
    ]
    return text + f"// Of another script than in PCRE2\nconstexpr ScriptChange kChanged[] = {{\n{wrapped(items)}\n}};\n"


if __name__ == "__main__":
    write_or_check(__doc__, OUTPUT, table)
