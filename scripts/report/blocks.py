"""A small document model (headings, paragraphs, lists, tables, figures), written as Markdown or as one HTML file.

Texts may contain **bold** and `code`; everything else is literal."""

import base64
import dataclasses
import html
import re


@dataclasses.dataclass
class Heading:
    text: str
    level: int = 2


@dataclasses.dataclass
class Paragraph:
    text: str


@dataclasses.dataclass
class Bullets:
    items: list


@dataclasses.dataclass
class Table:
    head: list
    rows: list  # of lists of texts


@dataclasses.dataclass
class Verdict:
    """A highlighted line; `kind` is within, outside or inconclusive."""

    kind: str
    title: str
    lines: list


@dataclasses.dataclass
class Picture:
    name: str  # file name
    alt: str
    png: bytes = b""


# ---- Markdown ----------------------------------------------------------------------------------------------


def markdown(blocks):
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block):
    if isinstance(block, Heading):
        return "#" * block.level + " " + block.text
    if isinstance(block, Bullets):
        return "\n".join(f"- {item}" for item in block.items)
    if isinstance(block, Verdict):
        return "\n".join([f"> **{block.title}**", *(f"> - {line}" for line in block.lines)])
    if isinstance(block, Picture):
        return f"![{block.alt}]({block.name})"
    if isinstance(block, Table):
        rows = [block.head, ["---"] * len(block.head), *block.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    return block.text


# ---- HTML --------------------------------------------------------------------------------------------------

_CSS = """
:root { --ink: #1d2126; --soft: #5c6670; --line: #dfe3e8; --paper: #ffffff; --shade: #f5f7f9;
        --within: #1f7a3d; --outside: #b3261e; --inconclusive: #8a6100; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --soft: #9aa4ae; --line: #39424b; --paper: #15191d; --shade: #1f252b;
          --within: #5fc98a; --outside: #ff8a80; --inconclusive: #f0c060; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
       font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 2.2rem 1.4rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0 0 .4rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .7rem; padding-top: 1rem; border-top: 1px solid var(--line); }
p, li { max-width: 52rem; }
ul { padding-left: 1.2rem; }
li { margin: .25rem 0; }
code { font: .88em ui-monospace, "DejaVu Sans Mono", monospace; background: var(--shade); padding: .08em .3em;
       border-radius: 3px;
       overflow-wrap: anywhere; }
.table { overflow-x: auto; margin: .9rem 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 2px solid var(--line); }
td { border-bottom: 1px solid var(--line); }
th, td { padding: .38rem .95rem .38rem 0; vertical-align: top; white-space: nowrap; }
td.n, th.n { text-align: right; }
.verdict { border-left: 5px solid var(--c); background: var(--shade); padding: .7rem 1rem; margin: .7rem 0;
           border-radius: 0 6px 6px 0; }
.verdict b { color: var(--c); font-size: 1.08rem; }
.verdict ul { margin: .25rem 0 0; }
.within { --c: var(--within); } .outside { --c: var(--outside); } .inconclusive { --c: var(--inconclusive); }
figure { margin: 1rem 0; background: #fff; border: 1px solid var(--line); border-radius: 6px; padding: .5rem; }
figure img { width: 100%; height: auto; display: block; }
@media print { h2 { break-after: avoid; } figure, .verdict { break-inside: avoid; } }
"""
_NUMBER = re.compile(r"^([-+±<]|\s)*[\d.,]+(e[-+]\d+)?( ?(%|s|ms|min|h|GiB|MiB|nats|x))?$|^-?$")


def html_page(title, blocks):
    body = "\n".join(_html(block) for block in blocks)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _inline(text):
    text = html.escape(text, quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)


def _html(block):
    if isinstance(block, Heading):
        return f"<h{block.level}>{_inline(block.text)}</h{block.level}>"
    if isinstance(block, Bullets):
        return "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in block.items) + "</ul>"
    if isinstance(block, Verdict):
        lines = "".join(f"<li>{_inline(line)}</li>" for line in block.lines)
        return f'<div class="verdict {block.kind}"><b>{_inline(block.title)}</b><ul>{lines}</ul></div>'
    if isinstance(block, Picture):
        data = base64.b64encode(block.png).decode()
        return f'<figure><img src="data:image/png;base64,{data}" alt="{html.escape(block.alt)}"></figure>'
    if isinstance(block, Table):
        return _html_table(block)
    return f"<p>{_inline(block.text)}</p>"


def _html_table(table):
    # Columns of numbers are right-aligned.
    numeric = [all(_NUMBER.match(row[i]) for row in table.rows) for i in range(len(table.head))]
    classes = [' class="n"' if right else "" for right in numeric]
    head = "".join(f"<th{c}>{_inline(cell)}</th>" for c, cell in zip(classes, table.head))
    rows = "".join(
        "<tr>" + "".join(f"<td{c}>{_inline(cell)}</td>" for c, cell in zip(classes, row)) + "</tr>"
        for row in table.rows
    )
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
