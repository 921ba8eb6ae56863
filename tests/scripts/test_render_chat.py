"""Tests of scripts/render_chat.py: agreement with transformers (scripts/make_chat_fixtures.py), and all errors."""

import json
import subprocess
import sys
import unittest
from pathlib import Path

from folder_testing import InFolder

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "render_chat.py"
FIXTURES = ROOT / "tests" / "fixtures" / "chat"

try:
    import jinja2  # noqa: F401
except ImportError:
    sys.exit(77)

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

    def test_refusals(self):
        self.refused("message 0 has a part of type `image`", "chatml", [{"role": "user", "content": [{"type": "image"}]}])
        self.refused("message 1 has weight 2; it must be 0 or 1", "chatml", [USER, {**ANSWER, "weight": 2}])
        self.refused("message 0 has no role", "chatml", [{"content": "x"}])
        self.refused("message 0 has no content", "chatml", [{"role": "user"}])
        self.refused("has reasoning_content, which the chat", "chatml", [USER, {**ANSWER, "reasoning_content": "x"}])
        self.refused("roles must alternate", "ask", [USER, USER])
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


if __name__ == "__main__":
    unittest.main()
