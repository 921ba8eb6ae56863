"""How long documents may be."""

README_LINES = (110, 150)
DOCS_WORDS = 45_000
COMMENT_WORDS = 101  # words of words.WORDS in comments; may only fall
LOG = "docs/log"
GENERATED_PAGES = ["docs/reference/configuration.md", "docs/reference/cli.md", "docs/results/gpu_suite.md"]


def docs_words(root):
    """{page: words} of docs, without the engineering log and generated pages; a word is what wc -w counts."""
    pages = {path.relative_to(root).as_posix(): path for path in sorted((root / "docs").rglob("*.md"))}
    return {name: len(path.read_text().split()) for name, path in pages.items()
            if not name.startswith(LOG + "/") and name not in GENERATED_PAGES}


def check_budgets(root, problems):
    readme = root / "README.md"
    lines = readme.read_text().count("\n") if readme.exists() else README_LINES[0]
    if not README_LINES[0] <= lines <= README_LINES[1]:
        problems.append((readme, 1, f"has {lines} lines; it should have {README_LINES[0]} to {README_LINES[1]}"))
    counts = docs_words(root)
    total = sum(counts.values())
    if total > DOCS_WORDS:
        longest = ", ".join(f"{name} {words}" for name, words in sorted(counts.items(), key=lambda x: -x[1])[:5])
        problems.append((root / "docs", 1, f"has {total} words without {LOG} and generated pages, at most {DOCS_WORDS} are allowed; "
                                           f"the longest pages: {longest}"))
