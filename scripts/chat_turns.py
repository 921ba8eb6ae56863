#!/usr/bin/env python3
"""Converts a model's chat template (Jinja) to chat_turns.json, which te-generate chat reads.

    scripts/chat_turns.py models/Qwen3-8B              # writes models/Qwen3-8B/chat_turns.json

The script selects the same template as transformers (chat_template.jinja, or chat_template in tokenizer_config.json)
and renders it with jinja2 in the same way. From conversations of one to three user turns, with and without a system
message, it derives the text around the messages, whether white space is stripped from messages, and whether reasoning
is removed from earlier replies. te-generate, which has no Jinja engine, builds its prompts from these parts. The
script then compares both renderings on 400 random conversations of up to eight turns. It rejects a template if they
differ: render the prompt elsewhere and pass it to te-generate.

The file contains the CRC-32 of the template. te-generate rejects the file if the template has changed since. It is
copied with the tokenizer's files (te-convert import, checkpoints). Needs jinja2.
"""

import argparse
import datetime
import json
import random
import zlib
from pathlib import Path

from chat_folder import find_template, special_tokens
from render_chat import Refused, Template, variable
from script_files import fail, run, write_text

FORMAT = "te-train chat turns 1"
TRIMS = {"none": lambda text: text, "both": str.strip, "left": str.lstrip, "right": str.rstrip}
THINK = "</think>"
REASONINGS = {
    "keep": lambda text: text,
    "drop": lambda text: text.split(THINK)[-1],
    "drop_lines": lambda text: text.split(THINK)[-1].lstrip("\n") if THINK in text else text,
    "drop_all_lines": lambda text: text.split(THINK)[-1].lstrip("\n"),
}
UNITS = ("only", "first", "middle", "last")


# --- building a prompt from its parts --------------------------------------------------------------------------------


def written(message, part):
    """A message as the prompt contains it: reasoning removed and white space stripped as `part` says."""
    return TRIMS[part["trim"]](REASONINGS[part.get("reasoning", "keep")](message))


def compose(turns, system, users, replies):
    """The prompt that te-generate builds from the file. A unit is a user message and the reply to it."""
    units = turns["without_system" if system is None else "with_system"]
    text = ""
    for index, user in enumerate(users):
        last = index + 1 == len(users)
        name = ("only" if last else "first") if index == 0 else "last" if last else "middle"
        for part in units[name]:
            if "text" in part:
                text += part["text"]
            elif part["message"] == "system":
                text += written(system, part)
            else:
                text += written(user if part["message"] == "user" else replies[index], part)
    return text


# --- deriving the parts from a template ------------------------------------------------------------------------------


class Asker:
    """Renders conversations that end with a user message, with the generation prompt."""

    def __init__(self, template, variables):
        self.template, self.variables = template, variables

    def __call__(self, system, users, replies):
        messages = [] if system is None else [{"role": "system", "content": system}]
        for index, user in enumerate(users):
            messages.append({"role": "user", "content": user})
            if index + 1 < len(users):
                messages.append({"role": "assistant", "content": replies[index]})
        return self.template.render(messages, self.variables, prompt=True)


def mark(name):
    return f"\0{name}\0"


def split(ask, with_system, count):
    """The prompt of `count` turns, split into texts and names of messages such as "u0", "a0" and "s"."""
    system = mark("s") if with_system else None
    text = ask(system, [mark(f"u{i}") for i in range(count)], [mark(f"a{i}") for i in range(count - 1)])
    parts = text.split("\0")
    names = parts[1::2]
    wanted = [name for i in range(count) for name in ([f"u{i}", f"a{i}"] if i + 1 < count else [f"u{i}"])]
    if [name for name in names if name != "s"] != wanted:
        raise Refused("it drops, changes or reorders messages")
    if with_system and names.count("s") != 1:
        raise Refused(f"it writes the system message {names.count('s')} times")
    return parts


def units_of(parts, count):
    """The parts of a prompt, grouped into units that each end after a reply."""
    units = [[] for _ in range(count)]
    at = 0
    for index, part in enumerate(parts):
        if index % 2 == 0:
            if part:
                units[at].append({"text": part})
            continue
        role = {"s": "system", "u": "user", "a": "assistant"}[part[0]]
        units[at].append({"message": role})
        at += role == "assistant"
    return units


def units_for(ask, with_system):
    """{kind of unit: parts}, derived from conversations of one, two and three turns."""
    one, two, three = (units_of(split(ask, with_system, count), count) for count in (1, 2, 3))
    units = dict(zip(UNITS, (one[0], two[0], three[1], two[1])))
    if three[0] != units["first"] or three[2] != units["last"]:
        raise Refused("it renders the first or last turn differently in conversations of two and three turns")
    return units


def choose(ask, turns, role, part_names):
    """Sets how messages of a role are rendered: tries all combinations on messages that distinguish them."""
    parts = [p for case in turns.values() for unit in case.values() for p in unit if p.get("message") == role]
    ways = [{"trim": trim} for trim in TRIMS]
    if role == "assistant":
        ways = [{"trim": trim, "reasoning": reasoning} for reasoning in REASONINGS for trim in TRIMS]
    probes = [" \n x \n ", "\n\n x\n\n", "x", *part_names]
    for way in ways:
        for part in parts:
            part.update(way)
        if all(agrees(ask, turns, role, probe) for probe in probes):
            return
    raise Refused(
        f"it changes messages of role {role} in other ways than stripping white space or removing reasoning"
    )


def agrees(ask, turns, role, probe):
    text = {"system": "y", "user": "y", "assistant": "y", role: probe}
    cases = [text["system"]] if "with_system" in turns else []
    cases += [None] if role != "system" else []
    return all(
        compose(turns, system, [text["user"]] * n, [text["assistant"]] * n)
        == ask(system, [text["user"]] * n, [text["assistant"]] * n)
        for system in cases
        for n in (1, 2, 3)
    )


def derive(ask):
    """(turns, no_system): the turns of a template, and why it supports no system message ("" if it does)."""
    turns, no_system = {}, ""
    for part in ("without_system", "with_system"):
        try:
            turns[part] = units_for(ask, part == "with_system")
        except Refused as error:
            if part == "without_system":
                raise
            no_system = str(error)
    # A template may strip text that joins several messages, so these trials go from the inside out.
    for case in turns.values():
        for unit in case.values():
            for message in unit:
                if "message" in message:
                    message["trim"] = "none"
    choose(ask, turns, "assistant", ["<think>\na\n</think>\n\n x", f"a{THINK} \n x", f"a{THINK}b{THINK}\n\n\nx\n"])
    choose(ask, turns, "user", [])
    if "with_system" in turns:
        choose(ask, turns, "system", [])
    return turns, no_system


# --- checks ----------------------------------------------------------------------------------------------------------


def random_conversations(count, seed):
    generator = random.Random(seed)
    parts = [
        "a",
        "Hello",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "é",
        "🙂",
        "{{ x }}",
        "{% if %}",
        "'",
        '"',
        "\\",
        "<b>",
        "[INST]",
        "system",
        "1.",
        "#",
        "None",
        "&amp;",
        "\u00a0",
        "\r\n",
    ]

    def text(more=()):
        return "".join(generator.choices([*parts, *more], k=generator.randint(1, 9))) + generator.choice(["", "x"])

    for _ in range(count):
        turns = generator.randint(1, 8)
        replies = [
            text(["<think>", THINK, f"<think>\nb\n{THINK}\n\n"] if generator.random() < 0.5 else [])
            for _ in range(turns)
        ]
        yield (text() if generator.random() < 0.5 else None), [text() for _ in range(turns)], replies


def check(ask, turns):
    for system, users, replies in random_conversations(400, 1):
        if system is not None and "with_system" not in turns:
            system = None
        if compose(turns, system, users, replies) != ask(system, users, replies):
            raise Refused(
                f"it has an unsupported form: a conversation of {len(users)} turns is rendered differently from its parts"
            )


def end_of_reply(turns, specials, eos):
    """The special token after a reply, which must be the same in all turns. Without one, the end-of-text token."""
    ends = set()
    for case in turns.values():
        for name in ("first", "middle"):
            following = {"first": "middle", "middle": "last"}[name]
            tail = "".join(p["text"] for p in case[following][:1] if "text" in p).lstrip()
            ends.add(max((token for token in specials if tail.startswith(token)), key=len, default=None))
    ends.discard(None)
    if len(ends) > 1:
        raise Refused(f"replies end with different tokens ({', '.join(sorted(ends))})")
    return ends.pop() if ends else eos


def used_tokens(turns, specials):
    texts = [p["text"] for case in turns.values() for unit in case.values() for p in unit if "text" in p]
    return sorted(token for token in specials if any(token in text for text in texts))


def dates_matter(text, tokens, variables):
    """Whether prompts depend on the date."""
    asks = [Asker(Template(text, tokens, datetime.datetime(2001 + day, 2 + day, 3 + day)), variables) for day in (0, 5)]
    return asks[0](None, ["x"], []) != asks[1](None, ["x"], [])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with the model's tokenizer and template")
    parser.add_argument("--template", type=Path, help="Jinja file to use instead of the template in the folder")
    parser.add_argument("--template-name", help="name of the template if the tokenizer has several")
    parser.add_argument(
        "--set",
        dest="variables",
        type=variable,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="sets a variable of the template, for example enable_thinking=false",
    )
    parser.add_argument(
        "--date", type=datetime.date.fromisoformat, help="date for templates that write today's date (YYYY-MM-DD)"
    )
    parser.add_argument("--out", type=Path, help="output file (default: FOLDER/chat_turns.json)")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    if not arguments.folder.is_dir():
        fail(f"{arguments.folder}: is not a folder; name the folder that contains the tokenizer")
    place, variables = arguments.template or arguments.folder, dict(arguments.variables)
    try:
        text = (
            arguments.template.read_text(encoding="utf-8")
            if arguments.template
            else find_template(arguments.folder, arguments.template_name)
        )
    except UnicodeDecodeError as error:
        fail(f"{place}: the chat template: {error}")
    out = arguments.out or arguments.folder / "chat_turns.json"
    if out.resolve().parent == arguments.folder.resolve() and out.name == "chat_turns.json":
        # te-generate compares this file with the template that it finds itself.
        default = find_template(arguments.folder, None, required=False)
        if default not in (None, text):
            fail(
                f"{out}: belongs to the folder's default chat template; write another template's turns to a file "
                "of your own with --out FILE.json, then run te-generate chat with --template FILE.json"
            )
    tokens, specials = special_tokens(arguments.folder)
    date = datetime.datetime.combine(arguments.date or datetime.date.today(), datetime.time())
    try:
        ask = Asker(Template(text, tokens, date), variables)
        ask.template.require_tokens(variables, arguments.folder)
        if not arguments.date and dates_matter(text, tokens, variables):
            raise Refused("it writes today's date; set the date with --date YYYY-MM-DD")
        turns, no_system = derive(ask)
        check(ask, turns)
        end = end_of_reply(turns, specials, tokens.get("eos_token"))
    except Refused as error:
        fail(
            f"{place}: the chat template: {error}".replace(
                "the chat template: the chat template:", "the chat template:"
            )
        )
    except Exception as error:  # jinja2 raises many types for an invalid template
        fail(f"{place}: the chat template: {type(error).__name__}: {error}")
    value = {
        "format": FORMAT,
        "template": f"crc32:{zlib.crc32(text.encode()):08x}",
        "end": end,
        "tokens": used_tokens(turns, specials),
        **turns,
    }
    write_text(out, json.dumps(value, ensure_ascii=False, indent=1) + "\n")
    note = f"; no system message: {no_system}" if no_system else ""
    print(f"{out}: matches the template on 400 random conversations; a reply ends with {end}{note}")


if __name__ == "__main__":
    run(main)
