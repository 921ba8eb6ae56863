"""Tests of scripts/train_tokenizer.py."""

import gzip
import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

from folder_testing import InFolder

# scripts/install_deps.sh --dev installs it here; PYTHONPATH makes it available to the script under test.
TOKENIZERS = str(Path(__file__).resolve().parents[2] / ".deps" / "tokenizers")
sys.path.append(TOKENIZERS)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), TOKENIZERS]))
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "train_tokenizer.py"

try:
    from tokenizers import Tokenizer
except ImportError:
    sys.exit(77)

SEPARATOR = "<|endoftext|>"
TEXT = f"the cat sat on the mat\nthe rat sat\n{SEPARATOR}\nthe hat ätätät\n"


class TrainTokenizer(InFolder):
    def run_script(self, *arguments):
        command = [sys.executable, SCRIPT, *arguments]
        return subprocess.run([str(part) for part in command], capture_output=True, text=True)

    def trained(self, name, *arguments):
        result = self.run_script(*arguments, "--output", self.folder / name)
        self.assertEqual(result.returncode, 0, result.stderr)
        return (self.folder / name).read_text()

    def test_tokenizer_of_a_text(self):
        text = self.write("text.txt", TEXT)
        tokenizer = Tokenizer.from_str(self.trained("a/tokenizer.json", "--vocab-size", 265, text))
        self.assertEqual(tokenizer.get_vocab_size(), 265)
        self.assertEqual(tokenizer.token_to_id(SEPARATOR), 0)
        encoded = tokenizer.encode(f"the cat{SEPARATOR}ä ☃")
        self.assertIn("the", tokenizer.get_vocab())
        self.assertEqual(encoded.ids.count(0), 1)
        self.assertEqual(tokenizer.decode(encoded.ids, skip_special_tokens=False), f"the cat{SEPARATOR}ä ☃")

    def test_same_files_give_the_same_tokenizer(self):
        (self.folder / "text.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
        plain = self.trained("plain.json", "--vocab-size", 280, self.write("text.txt", TEXT))
        self.assertEqual(plain, self.trained("packed.json", "--vocab-size", 280, self.folder / "text.txt.gz"))

    def test_bytes_limit_each_file(self):
        text = self.write("text.txt", TEXT)
        first = json.loads(self.trained("first.json", "--vocab-size", 300, "--bytes", 20, text))
        whole = json.loads(self.trained("whole.json", "--vocab-size", 300, text))
        self.assertLess(len(first["model"]["merges"]), len(whole["model"]["merges"]))

    def test_bytes_may_divide_a_character(self):
        texts = [self.write("divided.txt", "\ufeffthe the ä"), self.write("whole.txt", "the the ")]
        divided = self.trained("divided.json", "--vocab-size", 300, "--bytes", 12, texts[0])  # 3 of the mark
        self.assertEqual(divided, self.trained("whole.json", "--vocab-size", 300, texts[1]))

    def test_fewer_tokens_than_asked(self):
        text = self.write("text.txt", TEXT)
        for size, end in ((265, "265 tokens\n"), (8192, "tokens instead of 8192: the text has no more pairs to merge\n")):
            result = self.run_script("--vocab-size", size, text, "--output", self.folder / "out.json")
            self.assertTrue(result.stdout.endswith(end), result.stdout)

    def test_mistakes_are_one_line_and_exit_2(self):
        packed = gzip.compress(TEXT.encode())
        for arguments in (
            ("--vocab-size", 256, self.write("text.txt", TEXT)),
            ("--vocab-size", 300, self.folder / "missing"),
            ("--vocab-size", 300, self.write("truncated.gz", packed[:-8])),
            ("--vocab-size", 300, self.write("damaged.gz", packed[:12] + bytes(20) + packed[32:])),
            ("--vocab-size", 300, self.write("damaged.xz", "text")),
            ("--vocab-size", 300, self.write("text.zst", b"\x28\xb5\x2f\xfd")),
            ("--vocab-size", 300, self.write("utf16.txt", TEXT.encode("utf-16"))),
            ("--vocab-size", 300, self.write("nul.txt", "the\0cat")),
            ("--vocab-size", 300, self.write("latin1.txt", TEXT.encode("latin-1"))),
            ("--vocab-size", 300, self.write("end.txt", TEXT.encode() + b"\xc3")),
            ("--vocab-size", 300, self.write("empty.txt", "")),
            ("--vocab-size", 300, self.write("separators.txt", f"\n{SEPARATOR}\n")),
            ("--vocab-size", 300, "--bytes", 0, self.write("text.txt", TEXT)),
            ("--vocab-size", 300, "--bytes", -2, self.write("text.txt", TEXT)),
        ):
            result = self.run_script(*arguments, "--output", self.folder / "out.json")
            self.assertEqual(result.returncode, 2)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertFalse((self.folder / "out.json").exists())

    def test_output_that_is_an_input(self):
        path = self.write("text.txt", TEXT)
        result = self.run_script("--vocab-size", 300, path, "--output", path)
        self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
        self.assertIn("is an input", result.stderr)
        self.assertEqual((self.folder / "text.txt").read_text(), TEXT)


if __name__ == "__main__":
    unittest.main()
