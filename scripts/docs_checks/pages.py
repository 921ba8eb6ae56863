"""A page's lines by kind, its anchors, and its links."""

import functools
import re

from .budgets import LOG


class Page:
    """A page's lines, each with the kind of text it is: "text", or "code" for a line of a code block."""

    def __init__(self, path):
        self.path = path
        self.lines = path.read_text().splitlines()
        self.kinds = []
        fence, indented = None, False
        before = ""
        for line in self.lines:
            stripped = line.strip()
            if fence:
                self.kinds.append("code")
                if stripped.startswith(fence):
                    fence = None
            elif stripped.startswith(("```", "~~~")):
                fence = stripped[:3]
                self.kinds.append("code")
            else:
                indented = line.startswith("    ") and (indented or not before) or (indented and not stripped)
                list_item = bool(re.match(r"\s*([-*]|\d+\.) ", line))
                indented = indented and not list_item
                self.kinds.append("code" if indented else "text")
            before = stripped

    def texts(self):
        return [(number, line) for number, (line, kind) in enumerate(zip(self.lines, self.kinds), 1) if kind == "text"]

    def spans(self):
        """What stands in backticks, with its line's number."""
        return [(number, span) for number, line in self.texts() for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", line)]

    def code_lines(self):
        """Lines of code blocks, with those that end in a backslash joined to the next."""
        joined, start = "", 0
        for number, (line, kind) in enumerate(zip(self.lines, self.kinds), 1):
            if kind != "code":
                joined = ""
                continue
            start = start if joined else number
            joined += line.rstrip("\\") if line.endswith("\\") else line
            if not line.endswith("\\"):
                yield start, joined
                joined = ""


def slug(heading):
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@functools.lru_cache(maxsize=None)
def anchors(path):
    found, seen = set(), {}
    for _, line in Page(path).texts():
        heading = re.match(r"#{1,6} +(.*?) *#*$", line)
        if heading:
            name = slug(heading[1])
            count = seen.get(name, 0)
            seen[name] = count + 1
            found.add(f"{name}-{count}" if count else name)
        found.update(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", line))
    return found


def may_link_to_log(page):
    return LOG in page or page.endswith("/docs/README.md")


def check_links(page, problems):
    for number, line in page.texts():
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            path = (page.path.parent / name).resolve() if name else page.path
            if not path.exists():
                problems.append((page.path, number, f"the link {target} leads nowhere"))
            elif anchor and path.suffix == ".md" and anchor not in anchors(path):
                problems.append((page.path, number, f"{name or 'this page'} has no heading #{anchor}"))
            if LOG in path.as_posix() and not may_link_to_log(page.path.as_posix()):
                problems.append((page.path, number, f"{target}: only docs/README.md links to the log; state the result"))
