"""The scripts that the executables' help names are installed, with the modules of scripts/ that they import."""

import ast
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"


def installed():
    """Paths below scripts/ in the install() commands: files and folders."""
    text = (ROOT / "cmake" / "TePackage.cmake").read_text(encoding="utf-8")
    commands = re.findall(r"install\([^)]*\)", text)
    return {path for command in commands for path in re.findall(r"\bscripts/([\w./]+)", command)}


def imported(path):
    """Names of the modules that a script imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0]


class InstalledScripts(unittest.TestCase):
    def test_scripts_named_by_help_are_installed(self):
        # The introduction of the page, before the first section, is for developers.
        _, help_texts = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8").split("\n## ", 1)
        named = set(re.findall(r"\bscripts/(\w+\.py)", help_texts))
        self.assertIn("plot_timeline.py", named)
        self.assertEqual(named - installed(), set())

    def test_imported_modules_are_installed(self):
        names = installed()
        self.assertIn("compare_loss.py", names)
        for name in names:
            place = SCRIPTS / name
            for path in place.glob("*.py") if place.is_dir() else [place]:
                for module in imported(path):
                    if (SCRIPTS / module).is_dir():
                        self.assertIn(module, names, f"{path.name} imports {module}")
                    elif (SCRIPTS / f"{module}.py").is_file() and not (place / f"{module}.py").is_file():
                        self.assertIn(f"{module}.py", names, f"{path.name} imports {module}")


if __name__ == "__main__":
    unittest.main()
