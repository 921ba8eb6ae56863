"""Tests of scripts/render_chat.py: agreement with transformers (scripts/make_chat_fixtures.py), and all errors."""

import gzip
import io
import json
import lzma
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

from folder_testing import InFolder

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "render_chat.py"
FIXTURES = ROOT / "tests" / "fixtures" / "chat"
sys.path.insert(0, str(ROOT / "scripts"))

try:
    import jinja2  # noqa: F401
except ImportError:
    sys.exit(77)
import chat_folder
import render_chat

USER = {"role": "user", "content": "Who?"}
ANSWER = {"role": "assistant", "content": "I."}


class RenderChat(InFolder):
    @classmethod
    def setUpClass(cls):
        cls.recorded = json.loads((FIXTURES / "recorded.json").read_text(encoding="utf-8"))

    def run_script(self, template, lines, *options, tokenizer=FIXTURES):
        """Runs the script on `lines` (objects, or text that is written unchanged). template: the name of a recorded one, a
        template's text, or None for the one of the tokenizer."""
        if template is not None:
            (self.folder / "template.jinja").write_text(self.recorded["templates"].get(template, template), encoding="utf-8")
            options = ["--template", self.folder / "template.jinja", *options]
        text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        (self.folder / "in.jsonl").write_text(text, encoding="utf-8")
        command = [sys.executable, SCRIPT, "--tokenizer", tokenizer, *options, self.folder / "in.jsonl"]
        return subprocess.run([str(part) for part in command], capture_output=True, text=True)

    def segments(self, *arguments, **options):
        result = self.run_script(*arguments, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return [json.loads(line)["segments"] for line in result.stdout.splitlines()]

    def learned(self, *arguments):
        return [[s["text"] for s in segments if s["loss"]] for segments in self.segments(*arguments)]

    def refused(self, part, template, messages, *options, **fields):
        result = self.run_script(template, [{"messages": messages, **fields}], *options)
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertIn("in.jsonl:1: ", result.stderr)
        self.assertIn(part, result.stderr)

    def test_agrees_with_transformers(self):
        for case in self.recorded["cases"]:
            with self.subTest(template=case["template"], options=case["options"]):
                segments = self.segments(case["template"], [case["record"]], *case["options"])
                self.assertEqual(segments, [expected["segments"] for expected in case["expected"]])
                for made, expected in zip(segments, case["expected"]):
                    self.assertEqual("".join(s["text"] for s in made), expected["text"])

    def test_loss_begins_after_the_prompt(self):
        turns = [USER, ANSWER, USER, {"role": "assistant", "content": "You."}]
        line = [{"messages": turns}]
        self.assertEqual(self.learned("headers", line), [["I.<|end|>", "You.<|end|>"]])
        self.assertEqual(self.learned("chatml", line), [["I.<|end|>", "You.<|end|>"]])
        self.assertEqual(self.learned("ask", line), [[" I.<|end|>", " You.<|end|>"]])
        self.assertEqual(self.learned("marked", line), [["I.<|end|>", "You.<|end|>"]])
        self.assertEqual(self.learned("reasoning", line), [["I.<|end|>", "<think>\n\n</think>\n\nYou.<|end|>"]])
        self.assertEqual(
            self.learned("reasoning", line, "--split-turns"),
            [["<think>\n\n</think>\n\nI.<|end|>"], ["<think>\n\n</think>\n\nYou.<|end|>"]],
        )

    def test_weights_and_parts(self):
        turns = [
            {"role": "user", "content": [{"type": "text", "text": "Who"}, {"type": "text", "text": "?"}]},
            {**ANSWER, "weight": 0}, USER, {"role": "assistant", "content": "You.", "weight": 1},
        ]
        for template in ("chatml", "marked"):
            segments = self.segments(template, [{"messages": turns}])[0]
            self.assertIn("user\nWho?<|end|>", segments[0]["text"])
            self.assertIn("I.<|end|>", segments[0]["text"])
            self.assertEqual([s["text"] for s in segments if s["loss"]], ["You.<|end|>"])
        self.assertEqual(self.learned("chatml", [{"messages": turns}], "--split-turns"), [["You.<|end|>"]])

    def test_tool_calls_are_in_the_loss(self):
        call = {"type": "function", "function": {"name": "look", "arguments": "{\"in\": 1}"}}
        turns = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "2"}, ANSWER]
        self.assertEqual(
            self.learned("reasoning", [{"messages": turns}])[0][0],
            "<think>\n\n</think>\n\n<call>look{\"in\": 1}</call><|end|>",
        )
        self.refused("message 1 has tool_calls, which the chat template does not use", "chatml", turns)
        self.refused("the record has tools, which the chat template", "chatml", [USER, ANSWER], tools=[{"type": "function"}])

    def test_variables_and_dates(self):
        template = "{{ x }}{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}{% endfor %}"
        text = self.segments(template, [{"messages": [ANSWER]}], "--set", "x=[1, 2]", "--date", "2024-07-26")
        self.assertEqual("".join(s["text"] for s in text[0]), "[1, 2]26 Jul 2024I.")

    def test_template_of_the_tokenizer(self):
        def answer(**files):
            folder = self.folder / "model"
            folder.mkdir(exist_ok=True)
            for name, text in files.items():
                (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
            return self.run_script(None, [{"messages": [ANSWER]}], tokenizer=folder)

        self.assertIn("has no chat template; pass one with --template FILE", answer(tokenizer_config__json="{}").stderr)
        one = "{% for m in messages %}1{{ m.content }}{{ eos_token }}{% endfor %}"
        config = {"chat_template": one, "eos_token": {"content": "<e>"}}
        self.assertIn('"1I.<e>", "loss": 1', answer(tokenizer_config__json=json.dumps(config)).stdout)
        several = {"chat_template": [{"name": "tool_use", "template": "x"}]}
        self.assertIn("tool_use; choose one with --template-name", answer(tokenizer_config__json=json.dumps(several)).stderr)
        jinja = "2{% for m in messages %}{{ m.content }}{% endfor %}"
        self.assertIn('{"text": "2", "loss": 0}', answer(chat_template__jinja=jinja).stdout)

    def with_tokenizer(self, template, files, *options):
        """Runs the script with a tokenizer that consists of `files`: {name: JSON value}."""
        folder = self.folder / "model"
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in files.items():
            self.write(f"model/{name}.json", value)
        folder.mkdir(exist_ok=True)
        return self.run_script(template, [{"messages": [USER, ANSWER]}], *options, tokenizer=folder)

    def test_special_tokens_as_in_transformers(self):
        llama, table = {"tokenizer_class": "LlamaTokenizerFast"}, {"0": {"content": "<a>", "special": True}}
        one, two = {"eos_token": "<1>"}, {"eos_token": {"content": "<2>"}}
        cases = [
            # The defaults of the class, which config.json names if tokenizer_config.json does not.
            ("<|endoftext|>Who?|I.<|endoftext|>", {"tokenizer_config": {}, "config": {"model_type": "gpt2"}}),
            ("Who?|I.<|endoftext|>", {"tokenizer_config": {"tokenizer_class": "Qwen2TokenizerFast"}}),
            ("<s>Who?|I.</s>", {"tokenizer_config": llama, "config": {"model_type": "gpt2"}}),
            ("<s>Who?|I.<1>", {"tokenizer_config": {**llama, **one}}),
            ("<bos>Who?|I.<eos>", {"config": {"model_type": "gemma3_text"}}),
            ("Who?|I.</s>", {"tokenizer_config": {**llama, "bos_token": None}}),
            # special_tokens_map.json takes precedence, unless there is a table of added tokens.
            ("Who?|I.<2>", {"tokenizer_config": one, "special_tokens_map": two}),
            ("Who?|I.<1>", {"tokenizer_config": {**one, "added_tokens_decoder": {}}, "special_tokens_map": two}),
            ("Who?|I.<1>", {"tokenizer_config": {**one, "added_tokens_decoder": table}, "special_tokens_map": two}),
        ]
        template = (
            "{% if bos_token %}{{ bos_token }}{% endif %}{% for m in messages %}{{ m.content }}"
            "{% if m.role == 'user' %}|{% else %}{{ eos_token }}{% endif %}{% endfor %}"
        )
        for text, files in cases:
            with self.subTest(files=files):
                result = self.with_tokenizer(template, files)
                self.assertEqual(result.returncode, 0, result.stderr)
                segments = json.loads(result.stdout)["segments"]
                self.assertEqual("".join(s["text"] for s in segments), text)
                # The token after the reply is in the loss.
                self.assertEqual([s["text"] for s in segments if s["loss"]], [text[text.index("I.") :]])

    def test_values_of_other_types_are_one_line_errors(self):
        text, token = "{% for m in messages %}{{ m.content }}{% endfor %}", {"1": {"special": True}}
        for config in ([{"template": text}], [text], 5, {"default": 5}):
            result = self.with_tokenizer(None, {"tokenizer_config": {"chat_template": config}})
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
        values = {"added_tokens_decoder": token, "tokenizer_class": 5, "additional_special_tokens": [5]}
        for name, value in values.items():
            result = self.with_tokenizer(text, {"tokenizer_config": {name: value}})
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
            message = f"{self.folder}/model: the tokenizer's files are not as transformers writes them"
            self.assertIn(message, result.stderr)

    def test_class_tokens_are_those_of_te_data(self):
        text = (ROOT / "src/text/tokenizers/tokenizer_settings.cpp").read_text().replace("kEndText", '"<|endoftext|>"')
        classes = re.findall(r'{"(\w+Tokenizer)",\s*' + r',\s*'.join(['"([^"]*)"'] * 4) + "}", text)
        self.assertEqual({name: tuple(tokens) for name, *tokens in classes}, chat_folder.CLASS_TOKENS)
        table = text[text.index("kClassOfModel = {") :]
        models = re.findall(r'{"(\w+)",\s*"(\w+)"}', table[: table.index("};")])
        self.assertEqual(dict(models), chat_folder.CLASS_OF_MODEL)

    def test_extra_special_tokens(self):
        config = {"extra_special_tokens": {"foo_token": "<foo>", "bar": {"content": "<bar>"}}}
        template = "{{ foo_token }}{% for m in messages %}{{ m.content }}{{ bar }}{% endfor %}"
        result = self.with_tokenizer(template, {"tokenizer_config": config})
        self.assertEqual(
            json.loads(result.stdout)["segments"],
            [{"text": "<foo>Who?<bar>", "loss": 0}, {"text": "I.<bar>", "loss": 1}],
        )
        for listed in ({"a": "Who?"}, ["Who?"]):
            result = self.with_tokenizer("chatml", {"tokenizer_config": {"extra_special_tokens": listed}})
            self.assertIn("a text contains `Who?`, which would become that token", result.stderr)

    def test_undefined_tokens_are_refused(self):
        messages = "{% for m in messages %}{{ m.content }}{% endfor %}"
        files = {"tokenizer_config": {"eos_token": None}}
        uses = [
            "{{ eos_token }}",
            "{{ 'x' ~ eos_token }}",
            "{% set end = eos_token %}{{ end }}",
            "{% if eos_token %}a{% endif %}{{ eos_token }}",
            "{% if eos_token is not none %}{{ eos_token }}{% endif %}",
            "{% if eos_token is undefined %}{{ eos_token }}{% endif %}",
            "{% if eos_token or messages %}{{ eos_token }}{% endif %}",
            "{{ x | default(eos_token) }}",
            "{{ x or eos_token }}",
            "{% if messages | length > 9 %}{{ eos_token }}{% endif %}",
        ]
        for use in uses:
            with self.subTest(use=use):
                result = self.with_tokenizer(messages + use, files, "--skip-bad-lines")
                self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
                self.assertEqual(result.stdout, "")
                self.assertIn(
                    f"the chat template: it uses eos_token, which {self.folder}/model/tokenizer_config.json does not "
                    "define; add it there, or render it as nothing with --set eos_token=",
                    result.stderr,
                )
        result = self.with_tokenizer(messages + uses[0], files, "--set", "eos_token=")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_undefined_tokens_that_are_only_tested(self):
        messages = "{% for m in messages %}{{ m.content }}{% endfor %}"
        tests = [
            "{% if bos_token %}{{ bos_token }}{% endif %}",
            "{% if bos_token is defined %}{{ bos_token }}{% endif %}",
            "{% if bos_token is defined and bos_token is not none %}{{ bos_token }}{% endif %}",
            "{% if x and (bos_token is string or bos_token == 'a') %}{% endif %}",
            "{% if bos_token is not defined %}{% else %}{{ bos_token }}{% endif %}",
            "{% if not bos_token %}{% elif x %}{{ bos_token }}{% else %}{{ bos_token }}{% endif %}",
            "{% if x %}{% elif bos_token %}{{ bos_token }}{% endif %}",
            "{{ bos_token if bos_token else '' }}{{ bos_token if bos_token is defined }}",
            "{{ bos_token or '' }}{{ bos_token and bos_token + 'x' }}{{ not bos_token or bos_token }}",
            "{{ bos_token | default('') }}",
            "{% if bos_token is not defined %}{% set bos_token = '' %}{% endif %}{{ bos_token }}",
            "{% macro write(bos_token) %}{{ bos_token }}{% endmacro %}{{ write('') }}",
            "{% for bos_token in [''] %}{{ bos_token }}{% endfor %}",
        ]
        for test in tests:
            with self.subTest(test=test):
                result = self.with_tokenizer(test + messages, {})
                self.assertEqual(result.returncode, 0, result.stderr)

    def test_refusals(self):
        self.refused("message 0 has a part of type `image`", "chatml", [{"role": "user", "content": [{"type": "image"}]}])
        self.refused("message 1 has weight 2; it must be 0 or 1", "chatml", [USER, {**ANSWER, "weight": 2}])
        self.refused("message 0 has no role", "chatml", [{"content": "x"}])
        self.refused("message 0 has no content", "chatml", [{"role": "user"}])
        self.refused("has reasoning_content, which the chat", "chatml", [USER, {**ANSWER, "reasoning_content": "x"}])
        self.refused("roles must alternate", "ask", [USER, USER, ANSWER])
        self.refused("a text contains `<|end|>`, which would become that token", "chatml", [{"role": "user", "content": "a<|end|>"}])
        self.refused("a text contains a NUL", "chatml", [{"role": "user", "content": "\0{"}])
        self.refused("the record has no list of messages in `chat`", "chatml", [USER], "--messages-field", "chat")
        # The template writes "S" before the last turn only, so the conversation does not begin with an earlier prompt.
        last = "{% for m in messages %}{% if loop.last %}S{% endif %}{{ m.role ~ m.content }}{% endfor %}"
        self.refused("the conversation does not begin with the prompt", last, [USER, ANSWER, USER, ANSWER])
        result = self.run_script("{% if %}", [{"messages": [USER, ANSWER]}])
        self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)

    def test_skip_bad_lines_counts_them(self):
        lines = ["{broken", {"messages": [USER, {**ANSWER, "name": "x"}], "id": 3}, {"messages": 3}]
        result = self.run_script("chatml", lines, "--skip-bad-lines")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stdout.count("\n"), 1)
        self.assertIn("in.jsonl:1: ", result.stderr)
        self.assertIn("in.jsonl:3: the record has no list of messages", result.stderr)
        self.assertIn("1 conversations; 2 bad lines skipped; ignored fields: id, messages[].name", result.stderr)

    def test_ends_before_an_empty_response_as_te_data(self):
        """As ChatTemplate::encode (tests/text/chat_template_test.cpp)."""

        def empty(content=" \t\r\n\v\f", **fields):
            return {"role": "assistant", "content": content, **fields}

        whole = self.segments("chatml", [{"messages": [USER, ANSWER]}])[0]
        lines = [
            {"messages": [USER, ANSWER, USER, empty()]},
            {"messages": [USER, ANSWER, USER, {"role": "tool", "content": "x"}, empty("", weight=0), USER, ANSWER]},
            {"messages": [USER, empty([{"type": "text", "text": " "}]), USER, ANSWER]},
            {"messages": [USER, {**ANSWER, "weight": 0}]},
            {"messages": [USER]},
            {"messages": [USER, empty("\u3000\u00a0")]},
        ]
        for template in ("chatml", "marked"):
            for options in ([], ["--split-turns"]):
                result = self.run_script(template, lines, *options)
                self.assertEqual(result.returncode, 0, result.stderr)
                made = [json.loads(line)["segments"] for line in result.stdout.splitlines()]
                self.assertEqual(made[:2], [whole, whole])
                self.assertIn(
                    ": 2 conversations; 4 objects without a response skipped; 2 conversations cut at an empty response\n",
                    result.stderr,
                )
        # A response that only calls a tool, or only reasons, is not empty.
        call = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
        turns = [USER, empty("", tool_calls=[call]), {"role": "tool", "content": "2"}, ANSWER]
        self.assertEqual(len(self.learned("reasoning", [{"messages": turns}])[0]), 2)
        self.assertEqual(len(self.learned("reasoning", [{"messages": [USER, empty("", reasoning_content="x")]}])[0]), 1)

    def test_lines_that_are_not_utf8(self):
        good, out = json.dumps({"messages": [USER, ANSWER]}), self.folder / "out.jsonl"
        half = '{"messages": [{"role": "user", "content": "a\\ud83d"}, {"role": "assistant", "content": "x"}]}'
        for bad, message in ((half, "a text contains \\ud83d, half of a surrogate pair"), ('{"\xff', "can't decode byte 0xff")):
            text = (good + "\n" + bad + "\n" + good + "\n").encode("latin-1")
            result = self.render(text, "--out", out)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
            self.assertIn("in.jsonl:2: ", result.stderr)
            self.assertIn(message, result.stderr)
            self.assertFalse(out.exists())
            result = self.render(text, "--out", out, "--skip-bad-lines")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("2 conversations; 1 bad lines skipped", result.stderr)
            self.assertEqual(out.read_text(encoding="utf-8").count("\n"), 2)
            out.unlink()

    def render(self, data, *options, name="in.jsonl", standard_input=None):
        self.write("template.jinja", self.recorded["templates"]["chatml"])
        path = "-" if standard_input else self.write(name, data)
        command = [SCRIPT, "--tokenizer", FIXTURES, "--template", self.folder / "template.jinja", *options, path]
        result = subprocess.run([sys.executable, *map(str, command)], capture_output=True, input=standard_input)
        result.stdout, result.stderr = result.stdout.decode(), result.stderr.decode()
        return result

    def test_byte_order_mark(self):
        record = {"messages": [USER, ANSWER]}
        lines = b"\xef\xbb\xbf" + (json.dumps(record) + "\n").encode() * 2
        objects = b"\xef\xbb\xbf" + json.dumps([record, record]).encode()
        for made in (
            self.render(lines),
            self.render(gzip.compress(lines), name="in.jsonl.gz"),
            self.render(None, standard_input=lines),
            self.render(objects, name="in.json"),
        ):
            self.assertEqual((made.returncode, made.stdout.count("\n")), (0, 2), made.stderr)

    def test_compressed_lists(self):
        objects = [{"messages": [USER, ANSWER]}] * 2
        for suffix, compress in ((".gz", gzip.compress), (".xz", lzma.compress)):
            made = self.render(compress(json.dumps(objects, indent=1).encode()), name=f"in.json{suffix}")
            self.assertEqual((made.returncode, made.stdout.count("\n")), (0, 2), made.stderr)
        with mock.patch.object(render_chat, "open_input", lambda _: io.BytesIO(json.dumps(objects, indent=1).encode())):
            found = list(render_chat.records("in.json.zst"))
        self.assertEqual([json.loads(text) for _, text in found], objects)

    def test_output_that_is_an_input(self):
        line = (json.dumps({"messages": [USER, ANSWER]}) + "\n").encode()
        made = self.render(line, "--out", self.folder / "in.jsonl", name="in.jsonl")
        self.assertEqual((made.returncode, made.stderr.count("\n")), (2, 1), made.stderr)
        self.assertIn("is an input", made.stderr)
        self.assertEqual((self.folder / "in.jsonl").read_bytes(), line)

    def test_errors_of_files_are_one_line(self):
        line = (json.dumps({"messages": [USER, ANSWER]}) + "\n").encode()
        out = self.write("out.jsonl", "old\n")
        truncated = gzip.compress(line * 1000, mtime=0)[:-8]
        for result, part in (
            (self.render(truncated, "--out", out, name="in.jsonl.gz"), "in.jsonl.gz: Compressed file ended"),
            (self.render(truncated, "--skip-bad-lines", name="in.jsonl.gz"), "in.jsonl.gz: Compressed file ended"),
            (self.render(line, "--out", self.folder / "none" / "x"), f"{self.folder}/none/x: No such file or directory"),
            (self.render(line, "--out", self.folder), f"{self.folder}: Is a directory"),
            *(
                (self.render(line, "--out", self.folder / f"x.jsonl{suffix}"), f"x.jsonl{suffix}: is written without ")
                for suffix in (".gz", ".xz", ".zst")
            ),
            (self.render(b"{}", name="in.json"), "in.json: is not a list of objects"),
            (self.render(line, self.folder / "missing"), "missing: No such file"),
        ):
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
            self.assertIn(part, result.stderr)
        self.assertEqual(out.read_text(), "old\n")
        self.assertEqual(list(self.folder.glob("*.tmp")), [])

    def test_failure_ends_standard_output_with_a_line_that_is_not_json(self):
        line = (json.dumps({"messages": [USER, ANSWER]}) + "\n").encode()
        result = self.render(line + b"{broken\n")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stdout.splitlines()[1:], ["incomplete: render_chat.py has failed"])


if __name__ == "__main__":
    unittest.main()
