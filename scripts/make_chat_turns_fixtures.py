#!/usr/bin/env python3
"""Writes tests/fixtures/chat/turns.json for tests/text/chat_turns_test.cpp: chat templates as scripts/chat_turns.py
converts them, and the prompts and tokens that jinja2 and Hugging Face tokenizers produce with these templates.

    pip install tokenizers jinja2
    scripts/make_chat_turns_fixtures.py

The templates are those of tests/fixtures/chat/recorded.json except "marked", and TEMPLATES, which resemble Gemma 3 (the
system message is part of the first user turn), Mistral (part of the last user turn), Qwen 3 (reasoning is removed from
earlier replies) and Llama 3.1 (a default system message).
"""

import datetime
import json
import random
from pathlib import Path

from chat_folder import special_tokens
from chat_turns import Asker, check, derive, end_of_reply, used_tokens
from render_chat import Template
from tokenizers import Tokenizer

FOLDER = Path(__file__).resolve().parents[1] / "tests/fixtures/chat"
TEMPLATES = {
    "folded": """{{ bos_token }}{% set opening = '' %}
{%- if messages[0].role == 'system' %}{% set opening = messages[0].content + '\\n\\n' %}
    {%- set messages = messages[1:] %}{% endif %}
{%- for message in messages %}
    {{- '<|start|>' + ('model' if message.role == 'assistant' else 'user') + '\\n' + (opening if loop.first else '') }}
    {{- message.content | trim + '<|end|>\\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|start|>model\\n' }}{% endif %}""",
    "at_the_end": """{{ bos_token }}{% set opening = '' %}
{%- if messages[0].role == 'system' %}{% set opening = messages[0].content %}
    {%- set messages = messages[1:] %}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
    {{- '[ASK]' + (opening + '\\n\\n' if loop.last and opening else '') + message.content + '[/ASK]' }}
    {%- else %}{{ message.content + eos_token }}{% endif %}
{%- endfor %}""",
    "thoughts": """{%- for message in messages %}{% set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
    {{- '<|start|>' + message.role + '\\n' + content + '<|end|>\\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}""",
    "default_system": """{{ bos_token }}{% set opening = 'Be kind.' %}
{%- if messages[0].role == 'system' %}{% set opening = messages[0].content | trim %}
    {%- set messages = messages[1:] %}{% endif %}
{{- '<|start|>system<|sep|>\\n\\nDate: ' + strftime_now('%Y') + '\\n' + opening + '<|end|>' }}
{%- for message in messages %}
    {{- '<|start|>' + message.role + '<|sep|>\\n\\n' + message.content | trim + '<|end|>' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|sep|>\\n\\n' }}{% endif %}""",
}


def conversations():
    generator = random.Random(7)
    parts = [
        "a",
        "Hello ",
        " ",
        "\n",
        "\n\n",
        "\u00e9\U0001f642",
        "{{ x }}",
        "\u00a0",
        "\x1f",
        "12",
        "</think>",
        "<think>\nb\n</think>\n\n",
        "\t",
    ]

    def text():
        return "".join(generator.choices(parts, k=generator.randint(1, 6))) + generator.choice(["", "x"])

    for count in [1, 1, 2, 2, 3, 3, 4, 5]:
        yield (text() if generator.random() < 0.6 else None), [text() for _ in range(count)], [
            text() for _ in range(count - 1)
        ]


def main():
    tokens, specials = special_tokens(FOLDER)
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    recorded = json.loads((FOLDER / "recorded.json").read_text(encoding="utf-8"))["templates"]
    result = {}
    for name, text in {**{n: t for n, t in recorded.items() if n != "marked"}, **TEMPLATES}.items():
        ask = Asker(Template(text, tokens, datetime.datetime(2024, 5, 6)), {})
        turns, _ = derive(ask)
        check(ask, turns)
        cases = []
        for system, users, replies in conversations():
            if "with_system" not in turns:
                system = None
            prompt = ask(system, users, replies)
            ids = tokenizer.encode(prompt, add_special_tokens=False).ids
            cases.append({"system": system, "users": users, "replies": replies, "text": prompt, "tokens": ids})
        value = {
            "format": "te-train chat turns 1",
            "template": "crc32:00000000",
            "end": end_of_reply(turns, specials, tokens["eos_token"]),
            "tokens": used_tokens(turns, specials),
            **turns,
        }
        result[name] = {"turns": value, "cases": cases}
    (FOLDER / "turns.json").write_text(
        json.dumps(result, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
