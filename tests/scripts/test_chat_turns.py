"""Tests of scripts/chat_turns.py: templates that it converts, and all errors."""

import json
import subprocess
import sys
import unittest
import zlib
from pathlib import Path

from folder_testing import InFolder

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "chat_turns.py"
FIXTURES = ROOT / "tests" / "fixtures" / "chat"

try:
    import jinja2  # noqa: F401
except ImportError:
    sys.exit(77)

CHATML = (
    "{% for m in messages %}{{ '<|start|>' + m.role + '\\n' + m.content + '<|end|>\\n' }}{% endfor %}"
    "{{ '<|start|>assistant\\n' }}"
)


class ChatTurns(InFolder):
    def run_script(self, template, *options):
        config = json.loads((FIXTURES / "tokenizer_config.json").read_text(encoding="utf-8"))
        config.pop("chat_template", None)
        (self.folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        if template is not None:
            (self.folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        command = [sys.executable, str(SCRIPT), str(self.folder), *options]
        return subprocess.run(command, capture_output=True, text=True)

    def turns(self, template, *options):
        result = self.run_script(template, *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads((self.folder / "chat_turns.json").read_text(encoding="utf-8")), result.stdout

    def refused(self, part, template, *options):
        result = self.run_script(template, *options)
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertIn(part, result.stderr)
        self.assertFalse((self.folder / "chat_turns.json").exists())

    def test_units_and_the_end_of_a_reply(self):
        value, said = self.turns(CHATML)
        self.assertIn("a reply ends with <|end|>", said)
        self.assertEqual(value["template"], f"crc32:{zlib.crc32(CHATML.encode()):08x}")
        self.assertEqual(value["end"], "<|end|>")
        self.assertEqual(value["tokens"], ["<|end|>", "<|start|>"])
        user = {"message": "user", "trim": "none"}
        self.assertEqual(
            value["without_system"]["only"],
            [{"text": "<|start|>user\n"}, user, {"text": "<|end|>\n<|start|>assistant\n"}],
        )
        self.assertEqual(
            value["without_system"]["middle"],
            [
                {"text": "<|end|>\n<|start|>user\n"},
                user,
                {"text": "<|end|>\n<|start|>assistant\n"},
                {"message": "assistant", "trim": "none", "reasoning": "keep"},
            ],
        )

    def test_white_space_and_reasoning(self):
        ways = {
            "m.content": ("none", "keep"),
            "m.content | trim": ("both", "keep"),
            "m.content.rstrip()": ("right", "keep"),
            "m.content.split('</think>')[-1]": ("none", "drop"),
            "m.content.split('</think>')[-1].lstrip()": ("left", "drop"),
            "m.content.split('</think>')[-1].lstrip('\\n')": ("none", "drop_all_lines"),
            "(m.content.split('</think>')[-1].lstrip('\\n') if '</think>' in m.content else m.content)": (
                "none",
                "drop_lines",
            ),
        }
        for way, (trim, reasoning) in ways.items():
            with self.subTest(way=way):
                text = CHATML.replace("m.content +", f"({way} if m.role == 'assistant' else m.content) +")
                part = self.turns(text)[0]["without_system"]["middle"][-1]
                self.assertEqual((part["trim"], part["reasoning"]), (trim, reasoning))

    def test_no_system_message(self):
        text = "{% if messages[0].role == 'system' %}{{ raise_exception('none here') }}{% endif %}" + CHATML
        value, said = self.turns(text)
        self.assertNotIn("with_system", value)
        self.assertIn("no system message: the chat template: none here", said)
        value, said = self.turns(
            CHATML.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")
        )
        self.assertIn("no system message: it writes the system message 0 times", said)

    def test_variables_and_dates(self):
        text = CHATML + "{% if enable_thinking is false %}-{% endif %}"
        self.assertEqual(
            self.turns(text, "--set", "enable_thinking=false")[0]["without_system"]["only"][-1]["text"][-1], "-"
        )
        dated = "{{ strftime_now('%d %b %Y') }}" + CHATML
        self.assertEqual(
            self.turns(dated, "--date", "2024-05-06")[0]["without_system"]["only"][0]["text"][:11], "06 May 2024"
        )

    def test_tokens_of_the_tokenizer_class(self):
        template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
        self.write("chat_template.jinja", template)
        self.write("config.json", {"model_type": "gpt2"})
        command = [sys.executable, str(SCRIPT), str(self.folder)]
        result = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        value = json.loads((self.folder / "chat_turns.json").read_text(encoding="utf-8"))
        self.assertEqual((value["end"], value["tokens"]), ("<|endoftext|>", ["<|endoftext|>"]))
        (self.folder / "chat_turns.json").unlink()
        (self.folder / "config.json").unlink()
        result = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
        self.assertIn("it uses eos_token, which", result.stderr)
        self.assertIn("--set eos_token=", result.stderr)
        self.assertFalse((self.folder / "chat_turns.json").exists())

    def test_templates_other_than_the_default_need_a_file_of_their_own(self):
        other = CHATML.replace("user", "person")
        self.write("additional_chat_templates/rag.jinja", other)
        self.write("other.jinja", other)
        own = str(self.folder / "rag.json")
        for option in (("--template-name", "rag"), ("--template", str(self.folder / "other.jinja"))):
            self.refused("belongs to the folder's default chat template", CHATML + "{# 1 #}", *option)
            result = self.run_script(CHATML + "{# 1 #}", *option, "--out", own)
            self.assertEqual(result.returncode, 0, result.stderr)
        # The default's text, and another template in a folder without a default one.
        self.turns(other, "--template-name", "rag")
        (self.folder / "chat_template.jinja").unlink()
        self.turns(None, "--template-name", "rag")

    def test_line_ends_are_read_as_line_feeds(self):
        self.write("crlf.jinja", CHATML)
        (self.folder / "crlf.jinja").write_bytes(b"{# 1 #}\r\n" + CHATML.encode())
        value, _ = self.turns(None, "--template", str(self.folder / "crlf.jinja"))
        self.assertEqual(value["template"], f"crc32:{zlib.crc32(b'{# 1 #}' + bytes([10]) + CHATML.encode()):08x}")

    def test_refusals(self):
        self.refused("has no chat template", None)
        self.refused("it writes today's date; set the date", "{{ strftime_now('%Y') }}" + CHATML)
        self.refused("TemplateSyntaxError", "{% for %}")
        self.refused(
            "it changes messages of role assistant in other ways than stripping white space or removing reasoning",
            CHATML.replace("m.content +", "m.content.replace('x', 'y') +"),
        )
        self.refused("it has an unsupported form", CHATML + "{% if messages | length > 7 %}!{% endif %}")
        self.refused("the first or last turn differently", CHATML + "{{ messages | length > 3 }}")
        self.refused("it drops, changes or reorders messages", "{{ messages[0].role }}")


if __name__ == "__main__":
    unittest.main()
