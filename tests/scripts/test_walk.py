"""The walk of one activation in docs/explanation/architecture.md: its calls exist in the files that it names."""
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAX_FILES = 8


def hops(text):
    """Calls and files of the table after the heading."""
    section = text.split("## The path of one activation", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| `([\w:]+)` \| `(src/[^`]+)` \|", section, re.MULTILINE)


def defines(code, call):
    return re.search(rf"(^|\s){re.escape(call)}\([^;]*?\)( const)? {{$", code, re.MULTILINE) is not None


class Walk(unittest.TestCase):
    def setUp(self):
        self.hops = hops((ROOT / "docs/explanation/architecture.md").read_text())

    def test_each_file_defines_its_call(self):
        self.assertGreater(len(self.hops), 5)
        for call, file in self.hops:
            self.assertTrue(defines((ROOT / file).read_text(), call), f"{file} does not define {call}")

    def test_the_path_is_short(self):
        self.assertLessEqual(len({file for _, file in self.hops}), MAX_FILES)

    def test_a_wrong_call_is_found(self):
        code = (ROOT / "src/model/norm.cpp").read_text()
        self.assertTrue(defines(code, "Norm::forward"))
        self.assertFalse(defines(code, "Norm::produce"))


if __name__ == "__main__":
    unittest.main()
