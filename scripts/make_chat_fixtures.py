#!/usr/bin/env python3
"""Records results of transformers' apply_chat_template in tests/fixtures/chat, for the tests of scripts/render_chat.py and
te-data instruct --rendered.

    pip install transformers==4.57.1 jinja2
    scripts/make_chat_fixtures.py

The templates are defined in this script and resemble those of models: headers (Llama 3), ChatML, reasoning and tool calls
that are dropped from earlier turns (Qwen 3), instructions without a separate generation prompt (Mistral), and
{% generation %}. Text, tokens, and the mask of the template with {% generation %} come from transformers. The segments come
from render_chat.py; joined, they must equal the text of transformers.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import transformers

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests/fixtures/chat"
SPECIALS = ["<|begin|>", "<|start|>", "<|sep|>", "<|end|>", "[ASK]", "[/ASK]"]

TEMPLATES = {
    "headers": """{% for message in messages %}
{%- set text = '<|start|>' + message['role'] + '<|sep|>\\n\\n' + message['content'] | trim + '<|end|>' %}
{%- if loop.first %}{% set text = bos_token + text %}{% endif %}{{ text }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant<|sep|>\\n\\n' }}{% endif %}""",
    "chatml": """{% for message in messages %}
    {{- '<|start|>' + message.role + '\\n' + message.content + '<|end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{- '<|start|>assistant\\n' }}
{%- endif %}""",
    "reasoning": """{%- if tools %}
    {{- '<|start|>system\\nTools:' }}
    {%- for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}
    {{- '<|end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {{- '<|start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' and loop.index0 > ns.last %}
        {{- '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<call>' + call.function.name + call.function.arguments | tojson + '</call>' }}
    {%- endfor %}
    {{- '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}""",
    "ask": """{{- bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
    {%- if message['role'] == 'user' %}{{ '[ASK] ' + message['content'] + ' [/ASK]' }}
    {%- else %}{{ ' ' + message['content'] + eos_token }}{% endif %}
{%- endfor %}""",
    "marked": """{%- for message in messages %}
  {%- if message.role == 'assistant' %}
    {{- '<|start|>assistant\\n' }}{% generation %}{{ message.content + '<|end|>' }}{% endgeneration %}{{ '\\n' }}
  {%- else %}{{ '<|start|>' + message.role + '\\n' + message.content + '<|end|>\\n' }}{% endif %}
{%- endfor %}""",
}

ASK = {"role": "user", "content": "What is in the box?"}
ANSWER = {"role": "assistant", "content": "Two of them.\n"}
TURNS = [{"role": "system", "content": " Be brief. "}, ASK, ANSWER, {"role": "user", "content": "Why?\n"},
         {"role": "assistant", "content": "Because é 🙂."}]
CALL = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {"in": "é"}}}]}
TOOLS = [{"type": "function", "function": {"name": "look", "description": "looks", "parameters": {"type": "object"}}}]
CASES = [
    ("headers", TURNS, {}, []),
    ("headers", [ASK, ANSWER], {}, []),
    ("chatml", TURNS, {}, []),
    ("chatml", [ASK, {"role": "assistant", "content": "\n\nA response that begins with line breaks"}], {}, []),
    ("reasoning", TURNS, {}, []),
    ("reasoning", TURNS, {}, ["--split-turns"]),
    ("reasoning", [ASK, {**ANSWER, "reasoning_content": "I look."}], {}, []),
    ("reasoning", [ASK, CALL, {"role": "tool", "content": "2"}, ANSWER], {"tools": TOOLS}, []),
    ("ask", [message for message in TURNS if message["role"] != "system"], {}, []),
    ("marked", TURNS, {}, []),
]


def make_tokenizer():
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(ROOT / "tests/fixtures/tokenizers/gpt2_style.json"), bos_token="<|begin|>", eos_token="<|end|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens(SPECIALS, special_tokens=True)
    tokenizer.add_tokens(["<think>", "</think>"])
    return tokenizer


def render(template, messages, extra, options):
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write(template)
        file.flush()
        command = [sys.executable, ROOT / "scripts/render_chat.py", "--tokenizer", FOLDER, "--template", file.name, *options, "-"]
        record = json.dumps({"messages": messages, **extra})
        result = subprocess.run([str(part) for part in command], input=record, capture_output=True, text=True, check=True)
    return [json.loads(line)["segments"] for line in result.stdout.splitlines()]


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(FOLDER)
    (FOLDER / "special_tokens_map.json").unlink(missing_ok=True)
    cases = []
    for name, messages, extra, options in CASES:
        tokenizer.chat_template = TEMPLATES[name]
        rendered = render(TEMPLATES[name], messages, extra, options)
        ends = [index + 1 for index, message in enumerate(messages) if message["role"] == "assistant"] if options else [len(messages)]
        assert len(rendered) == len(ends)
        expected = []
        for end, segments in zip(ends, rendered):
            text = tokenizer.apply_chat_template(messages[:end], tokenize=False, **extra)
            assert text == "".join(segment["text"] for segment in segments), (name, text, segments)
            made = tokenizer.apply_chat_template(
                messages[:end], tokenize=True, return_dict=True, return_assistant_tokens_mask=name == "marked", **extra
            )
            expected.append({"text": text, "segments": segments, "tokens": made["input_ids"], "mask": made.get("assistant_masks")})
        cases.append({"template": name, "record": {"messages": messages, **extra}, "options": options, "expected": expected})
    recorded = {"transformers": transformers.__version__, "templates": TEMPLATES, "cases": cases}
    (FOLDER / "recorded.json").write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
